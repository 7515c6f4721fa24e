"""The model card of an aligner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calmrl.hub.card import Card
from calmrl.hub.sentences import LIMITS

if TYPE_CHECKING:
    from calmrl.aligner.estimator import Aligner

CODE = """from calmrl import Aligner

aligner = Aligner.from_pretrained("{repo}")
vectors = aligner.embed({{"MODALITY": features}})  # any of the modalities below, any subset per row"""


def aligner_card(aligner: Aligner) -> Card:
    """What a fitted aligner says about itself."""
    encoders: dict[str, Any] = (aligner.encoders_ or {}).get("encoders", {})
    known = {name: str(encoders[name].get("name", "unknown")) for name in aligner.modalities_ if name in encoders}
    width = {name: len(lift.centre) for name, lift in zip(aligner._order, aligner._lifts, strict=True)}
    choice = {key: value for key, value in aligner.choice_.items() if key != "candidates"}
    quality = [
        {"direction": direction, **{key: round(value, 1) for key, value in row.items()}}
        for direction, row in aligner.expected_.items()
    ]
    absent = sorted(_all_directions(aligner) - set(aligner.expected_))
    limits = [*LIMITS]
    if absent:
        limits.append(f"No training row shows {', '.join(absent)}; these directions rest on a third modality.")
    return Card(
        title=f"Aligner: {', '.join(aligner.modalities_)} in one space of {aligner._space.latent_dim} dimensions",
        code=CODE.replace("MODALITY", aligner.modalities_[0]),
        widths={name: width[name] for name in aligner.modalities_},
        encoders=known,
        choice=choice,
        quality=quality,
        quality_note="By cross-validation over the training rows: R@1 and R@10 in percent in a gallery of n, and the interval "
        "that holds the R@1 of n new queries in about nine of ten cases.",
        limits=limits,
        tags=("calmrl-aligner", "feature-extraction"),
    )


def _all_directions(aligner: Aligner) -> set[str]:
    names = aligner.modalities_
    return {f"{a}->{b}" for a in names for b in names if a != b}
