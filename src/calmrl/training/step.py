"""One training step as one module, so that distributed training sees every parameter that learns; a loss must be finite."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from calmrl._support.distributed import all_sum, gather_objects
from calmrl.alignment import CalibratedAlignment
from calmrl.data.loaders.batches import Batches
from calmrl.errors import InputError
from calmrl.losses.contrastive import ContrastiveLoss, FuseMixLoss
from calmrl.losses.published import StructureLoss

OF_FEATURES = (FuseMixLoss, StructureLoss)  # they use what goes into the heads
START_TEMPERATURE = 0.07  # of the contrast, for a model without one of its own


class Step(nn.Module):
    """loss = objective(model(inputs)) + matching_weight * matching(observed representations) + fused_weight * contrast.

    `objective` is a loss or a `CalibratedAlignment`; `matching` may be None. A `FuseMixLoss` mixes what goes into the heads,
    in training; a `StructureLoss` gets it too. `contrast` of the texts with the vectors of a model's fused heads, as in VAST,
    is there with `fused_weight` > 0 only. After each call `last` holds detached scalars: every term, and what the objective
    reports about itself.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: nn.Module,
        matching: nn.Module | None = None,
        matching_weight: float = 0.1,
        fused_weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.fused_weight, self.contrast = fused_weight, None
        self._contrasted: Tensor | None = None
        if fused_weight:
            start = float(getattr(matching, "temperature", START_TEMPERATURE))
            self.contrast = ContrastiveLoss(anchor="text", temperature=start)
        inner = getattr(objective, "objective", None)
        if isinstance(inner, OF_FEATURES):
            raise InputError(
                f"{type(inner).__name__} uses what goes into the heads, which imputed rows do not have; train it without "
                "calibration, with a method that imputes nothing"
            )
        if isinstance(objective, OF_FEATURES) and not hasattr(model, "head_inputs"):
            raise InputError(
                f"{type(objective).__name__} uses what goes into the heads, and {type(model).__name__} has no head_inputs; "
                "train Heads on features"
            )
        self.model: Any = model
        self.objective: Any = objective
        self.matching, self.matching_weight = matching, matching_weight
        self._matched: Tensor | None = None
        align = self.calibration
        self.start: Any = None  # the model as it was when the stage began, where vectors are imputed from that
        if align is not None and align.impute_from == "start":
            self.start = copy.deepcopy(model).requires_grad_(False)

    def remember_start(self) -> None:
        """A stage begins: from now on vectors are imputed from what the model gives at this moment."""
        if self.start is not None:
            self.start.load_state_dict(self.model.state_dict())

    @property
    def calibration(self) -> CalibratedAlignment | None:
        return self.objective if isinstance(self.objective, CalibratedAlignment) else None

    def forward(self, inputs: Mapping[str, Any], present: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The loss of a batch; `generator` draws the negatives of the matching term, and rows to mix.

        It is NaN, in every process, if any representation is not finite; the latent model does not see those.
        """
        z, tokens, features = self._encoded(inputs, present, generator)
        finite = torch.stack([torch.isfinite(rows.detach()).all() for rows in z.values()]).all()
        (broken,) = all_sum([(~finite).to(torch.float32)])
        if broken:
            return torch.nan * torch.stack([rows.sum() for rows in z.values()]).sum()
        if isinstance(self.objective, StructureLoss):
            value = self.objective(z, present, features=features)
        elif self.start is None:
            value = self.objective(z, present)
        else:
            with torch.no_grad():
                at_start, _ = self.start.eval().encode(inputs, present)
            value = self.objective(z, present, start=at_start)
        self._matched = None
        if self.matching is not None and self.matching_weight:
            more = {} if tokens is None else {"tokens": tokens}
            matched = self.matching(z, present, generator=generator, **more)
            self._matched = matched.detach()
            value = value + self.matching_weight * matched
        if self.contrast is not None:
            contrasted = self.contrast(*self._texts_and_fused(z, present, tokens["fused"]))
            self._contrasted = contrasted.detach()
            value = value + self.fused_weight * contrasted
        return value

    def _encoded(
        self, inputs: Mapping[str, Any], present: Tensor, generator: torch.Generator | None
    ) -> tuple[dict[str, Tensor], Any, dict[str, Tensor] | None]:
        """(representations, tokens for the matching head, features before the heads where the objective uses them)."""
        if not isinstance(self.objective, OF_FEATURES):
            return *self.model.encode(inputs, present), None
        features = self.model.head_inputs(inputs, present)
        if self.training and isinstance(self.objective, FuseMixLoss):
            features = self.objective.mix(features, present, generator=generator)
        return self.model.project(features, present), None, features

    def _texts_and_fused(self, z: Mapping[str, Tensor], present: Tensor, fused: Tensor) -> tuple[Any, Tensor]:
        """Texts and the vectors of all else, with which rows have them."""
        column = self.model.names.index("text")
        others = torch.cat([present[:, :column], present[:, column + 1 :]], dim=1).any(1)
        return {"text": z["text"], "fused": fused}, torch.stack([present[:, column], others], dim=1)

    @property
    def last(self) -> dict[str, float]:
        """The terms of the last call and what the objective says of itself (temperature, saturation, ...)."""
        inner = self.calibration
        loss: Any = self.objective if inner is None else inner.objective
        scalars = dict(loss.last)
        if inner is not None:
            scalars |= {name: inner.last[name] for name in inner.last if name != "objective"}
        if self._matched is not None:
            scalars["matching"] = self._matched
        if self._contrasted is not None:
            scalars["fused"] = self._contrasted
        return {name: float(value) for name, value in scalars.items()}

    @property
    def latent_seconds(self) -> float:
        """Time spent updating the latent model and imputing so far."""
        return 0.0 if self.calibration is None else self.calibration.seconds

    def latent_parameters(self) -> list[nn.Parameter]:
        """Those of a latent model that the optimiser fits; the objective's gradient does not reach them."""
        align = self.calibration
        return list(align.imputer.parameters()) if align is not None and isinstance(align.imputer, nn.Module) else []

    def tensors(self) -> dict[str, Tensor]:
        """All parameters and buffers; the latent model of a `CalibratedAlignment`, which is neither, is not in it."""
        return {name: value for name, value in self.state_dict().items() if isinstance(value, Tensor)}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `tensors`: every name must be there, and no other."""
        extra = {name: value for name, value in self.state_dict().items() if not isinstance(value, Tensor)}
        for name in extra:
            extra[name] = None
        self.load_state_dict({**tensors, **extra})


SHOWN = 8


class NotFinite(InputError):
    """A loss or gradient that is NaN or infinite; `rows` names the rows of the batch, of all processes."""

    def __init__(self, what: str, step: int, rows: list[str]) -> None:
        self.what, self.rows = what, rows
        more = "" if len(rows) <= SHOWN else f", ... ({len(rows)} rows; all of them are in metrics.jsonl)"
        super().__init__(
            f"the {what} of step {step} is not finite. The rows of its batch: {', '.join(rows[:SHOWN])}{more}. "
            "Look at their values, or lower the learning rate; the last checkpoint is whole"
        )


def must_be_finite(value: torch.Tensor, what: str, step: int, batches: Batches, batch: Mapping[str, Any]) -> None:
    """Raise `NotFinite` in every process if `value` is not finite in one of them."""
    (wrong,) = all_sum([(~torch.isfinite(value.detach())).to(torch.float32)])
    if not wrong:
        return
    rows = gather_objects(batches.describe(batch["index"]))
    raise NotFinite(what, step, [name for part in rows for name in part])
