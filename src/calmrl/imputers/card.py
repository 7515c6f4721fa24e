"""The model card of an imputer."""

from __future__ import annotations

from typing import Any

from calmrl.hub.card import Card
from calmrl.hub.sentences import LIMITS, NO_NEWS

CODE = """from calmrl.imputers import CLASS

imputer = CLASS.from_pretrained("{repo}")
values, std = imputer.impute(z, present, return_std=True)  # z: dict of the modalities below"""
UNKNOWN = "Not measured. Hide some observed blocks and compare, for instance with calmrl diagnose."


def imputer_card(imputer: Any, widths: dict[str, int]) -> Card:
    """What a fitted imputer says about itself."""
    name = type(imputer).__name__
    settings = getattr(imputer, "settings_", None)
    choice = {key: value for key, value in imputer.get_params().items() if key not in ("verbose", "blocks")}
    if settings is not None:
        choice |= {f"{key} (used)": value for key, value in vars(settings).items()}
    quality, note = _quality(getattr(imputer, "choice_", None))
    return Card(
        title=f"{name}: {', '.join(widths)}",
        code=CODE.replace("CLASS", name),
        widths=widths,
        choice=choice,
        quality=quality,
        quality_note=note,
        limits=[*LIMITS, NO_NEWS],
        tags=("calmrl-imputer", "imputation"),
    )


def _quality(choice: Any) -> tuple[list[dict[str, Any]], str]:
    """(rows, how they were measured) from what an imputer that chooses has measured."""
    if isinstance(choice, dict) and "error_by_modality" in choice:
        covered = choice.get("coverage_by_modality", {})
        rows = [
            {"modality": name, "error": error, "inside 95 % intervals, %": covered.get(name)}
            for name, error in choice["error_by_modality"].items()
        ]
        return rows, f"On {choice['held_out']} held-out blocks; 1 is the error of the column means."
    if isinstance(choice, dict) and all(isinstance(row, dict) and "error" in row for row in choice.values()):
        rows = [{"modality": name, "error": row["error"]} for name, row in choice.items()]
        return rows, "Leave-one-out error on the training rows; 1 is the error of the column means."
    return [], UNKNOWN
