"""The model card of a trained model."""

from __future__ import annotations

from typing import Any

from calmrl.hub.card import Card
from calmrl.hub.sentences import LIMITS, NO_NEWS

CODE = """from calmrl.models import Trained

model = Trained.from_pretrained("{repo}")
vectors = model.embed(z, present)  # z: dict of the modalities below"""
OWN = ("format", "version", "kind", "arguments", "calibration", "matching", "files", "sha256")


def trained_card(trained: Any) -> Card:
    """What a trained model says about itself."""
    widths = dict(getattr(trained.model, "widths", {})) or dict.fromkeys(trained.names, 0)
    encoders: dict[str, Any] = (trained.encoders_ or {}).get("encoders", {})
    imputes = None if trained.align is None else type(trained.align.imputer).__name__
    info = {key: value for key, value in trained.info.items() if key not in OWN and not isinstance(value, (list, dict))}
    return Card(
        title=f"{trained.info.get('method', type(trained.model).__name__)}: {', '.join(trained.names)} in one space of "
        f"{trained.width} dimensions",
        code=CODE,
        widths={name: widths[name] for name in trained.names},
        encoders={name: str(encoders[name].get("name", "unknown")) for name in trained.names if name in encoders},
        choice={"kind": trained.model.kind, "imputes with": imputes or "nothing", **info},
        quality=[],
        quality_note="Not part of the saved model; measure it on data of your own with calmrl evaluate.",
        limits=[*LIMITS, *([] if imputes is None else [NO_NEWS])],
        tags=(f"calmrl-{trained.model.kind}", "feature-extraction"),
    )
