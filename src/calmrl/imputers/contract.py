"""`check_imputer`: what an imputer promises about partly observed rows, as checks for other people's imputers too."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

ROWS, WIDTHS, FACTORS = 60, {"a": 4, "b": 3, "c": 5}, 2
GARBAGE = 1e3  # stands where nothing was observed: whoever reads it imputes something else
Blocks = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A fitted imputer, rows that lack modalities (and entries, with `holes`), and what it makes of them."""

    fitted: Any
    z: Blocks  # NaN where nothing was observed
    present: np.ndarray  # (N, k)
    holes: bool

    @property
    def observed(self) -> Blocks:
        return {name: ~np.isnan(block) for name, block in self.z.items()}

    @cached_property
    def answer(self) -> tuple[Blocks, Blocks]:
        return self.impute(self.z, self.present)

    def impute(self, z: Blocks, present: np.ndarray | None, **more: Any) -> tuple[Blocks, Blocks]:
        """(values, deviations), of copies, so that no check changes the rows of another."""
        values, std = self.fitted.impute(copy.deepcopy(z), copy.deepcopy(present), return_std=True, **more)
        return values, std

    def with_garbage(self) -> Blocks:
        return {name: np.nan_to_num(block, nan=GARBAGE) for name, block in self.z.items()}


def check_imputer(imputer: Any, *, holes: bool = True, random_state: int = 0) -> None:
    """Raise an `AssertionError` that names every promise an imputer breaks; return None where it keeps all.

    The imputer is copied and fitted on small generated rows: three modalities that share two factors, of which a third of the
    blocks is missing and, with `holes`, a tenth of the other entries; one row has a single entry. It needs
    `fit(z, present)`, `transform(z, present)` and `impute(z, present, return_std=True)`, with `holes` also `observed=`.

    Parameters
    ----------
    imputer : object
        Not fitted.
    holes : bool
        Whether rows may be NaN in single entries; False for an imputer of whole modalities.
    random_state : int
        Seed of the rows.

    Examples
    --------
    >>> from calmrl.imputers import MeanImputer
    >>> check_imputer(MeanImputer(), holes=False)
    """
    z, present = _rows(holes, random_state)
    mine = copy.deepcopy(imputer)
    broken = []
    before = copy.deepcopy(z)
    if mine.fit(z, present) is not mine:
        broken.append("fit returns the imputer itself")
    if not _same(z, before):
        broken.append("fit leaves its input as it was")
    case = Case(mine, before, present, holes)
    for promise, check in PROMISES.items():
        try:
            broken += [f"{promise}: {wrong}" for wrong in check(case)]
        except Exception as error:  # whatever another library raises is what the report says
            broken.append(f"{promise}: {type(error).__name__}: {error}")
    if broken:
        raise AssertionError(f"{type(imputer).__name__} breaks {len(broken)} promises:\n- " + "\n- ".join(broken))


def _rows(holes: bool, seed: int) -> tuple[Blocks, np.ndarray]:
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(ROWS, FACTORS))
    present = rng.random((ROWS, len(WIDTHS))) < 2 / 3
    present[~present.any(axis=1), 0] = True
    z = {}
    for m, (name, width) in enumerate(WIDTHS.items()):
        block = shared @ rng.normal(size=(FACTORS, width)) + 0.3 * rng.normal(size=(ROWS, width)) + m
        gone = rng.random(block.shape) < 0.1 if holes else np.zeros(block.shape, bool)
        gone[np.arange(ROWS), rng.integers(0, width, ROWS)] = False  # a modality that is present has an entry
        z[name] = np.where(present[:, [m]] & ~gone, block, np.nan)
    if holes:
        present[0] = [True, False, False]
        z["a"][0, 1:], z["b"][0], z["c"][0] = np.nan, np.nan, np.nan
        z["a"][0, 0] = 0.5
    return z, present


def _same(left: Blocks, right: Blocks) -> bool:
    return list(left) == list(right) and all(np.array_equal(left[n], right[n], equal_nan=True) for n in left)


def _near(left: Blocks, right: Blocks) -> Iterator[str]:
    """Modalities in which two answers differ by more than rounding."""
    for name in right:
        if not np.allclose(left[name], right[name], rtol=1e-6, atol=1e-8, equal_nan=True):
            yield f"{name} differs by up to {np.nanmax(np.abs(left[name] - right[name])):.3g}"


def _shapes(case: Case) -> Iterator[str]:
    single = {name: block.astype(np.float32) for name, block in case.z.items()}
    for given, answer in ((case.z, case.answer), (single, case.impute(single, case.present))):
        for part, what in zip(answer, ("values", "deviations"), strict=True):
            if list(part) != list(given):
                yield f"{what} have modalities {list(part)}, the input {list(given)}"
                continue
            for name, block in given.items():
                if part[name].shape != block.shape or part[name].dtype != block.dtype:
                    yield (
                        f"{what} of {name} are {part[name].shape} {part[name].dtype}, "
                        f"the input {block.shape} {block.dtype}"
                    )


def _observed_stay(case: Case) -> Iterator[str]:
    for name, seen in case.observed.items():
        changed = int((case.answer[0][name][seen] != case.z[name][seen]).sum())
        if changed:
            yield f"{changed} of {int(seen.sum())} entries of {name} changed"


def _finite(case: Case) -> Iterator[str]:
    for name, block in case.answer[0].items():
        if not np.isfinite(block).all():
            yield f"{int((~np.isfinite(block)).sum())} entries of {name} are not finite"


def _deviations(case: Case) -> Iterator[str]:
    for name, seen in case.observed.items():
        std = case.answer[1][name]
        if not np.isfinite(std).all() or (std < 0).any():
            yield f"some of {name} are negative or not finite"
        elif (std[seen] != 0).any():
            yield f"{int((std[seen] != 0).sum())} observed entries of {name} have one"
        elif (std[~seen] == 0).any():
            yield f"{int((std[~seen] == 0).sum())} imputed entries of {name} have none"


def _input_stays(case: Case) -> Iterator[str]:
    given = copy.deepcopy(case.z)
    case.fitted.impute(given, case.present, return_std=True)
    if not _same(given, case.z):
        yield "impute wrote into it"


def _alone(case: Case) -> Iterator[str]:
    part = slice(0, ROWS // 2)
    some = case.impute({name: block[part] for name, block in case.z.items()}, case.present[part])[0]
    yield from _near(some, {name: block[part] for name, block in case.answer[0].items()})


def _absent_is_unread(case: Case) -> Iterator[str]:
    garbage = {name: np.where(case.present[:, [m]], block, GARBAGE) for m, (name, block) in enumerate(case.z.items())}
    yield from _near(case.impute(garbage, case.present)[0], case.answer[0])


def _observed_argument(case: Case) -> Iterator[str]:
    if case.holes:
        values, std = case.impute(case.with_garbage(), case.present, observed=case.observed)
        yield from _near(values, case.answer[0])
        yield from (f"deviations: {wrong}" for wrong in _near(std, case.answer[1]))


PROMISES: dict[str, Callable[[Case], Iterator[str]]] = {
    "modalities, shapes and dtypes come back": _shapes,
    "observed entries stay bit for bit": _observed_stay,
    "whatever was missing is finite": _finite,
    "deviations are finite, positive where imputed and 0 where observed": _deviations,
    "the input stays as it was": _input_stays,
    "transform gives what impute gives": lambda case: _near(
        case.fitted.transform(copy.deepcopy(case.z), case.present), case.answer[0]
    ),
    "the same rows give the same again": lambda case: _near(case.impute(case.z, case.present)[0], case.answer[0]),
    "a row does not depend on the rows beside it": _alone,
    "without present, a row that is NaN throughout is missing": lambda case: _near(
        case.impute(case.z, None)[0], case.answer[0]
    ),
    "what stands in a missing modality is not read": _absent_is_unread,
    "what is not observed is a hole, and not read": _observed_argument,
}
