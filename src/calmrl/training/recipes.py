"""Methods as comparisons use them."""

from __future__ import annotations

from calmrl.training.methods import FEATURES, Changes, find_method


def about(name: str) -> str:
    """One line on a method."""
    return find_method(name).about


def is_ours(name: str) -> bool:
    return find_method(name).ours


def is_ideal(name: str) -> bool:
    return find_method(name).ideal


def recipe(name: str, steps: int, trials: int) -> list[Changes]:
    """The trials of a method, each as changes to a training config; `standardize` is that of the features."""
    method = find_method(name)
    fixed = {"method": "calmrl" if method.ideal else name, "stages": method.stages("steps", steps)}
    return [
        {"standardize": trial[FEATURES]} | {key: value for key, value in trial.items() if key != FEATURES} | fixed
        for trial in method.configs(trials)
    ]
