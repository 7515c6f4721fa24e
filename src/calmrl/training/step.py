"""One training step as one module, so that distributed training sees every parameter that learns; and its optimiser."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from calmrl._support.distributed import all_sum, gather_objects
from calmrl.alignment import CalibratedAlignment
from calmrl.data.loaders.batches import Batches
from calmrl.errors import InputError
from calmrl.losses.contrastive import ContrastiveLoss, FuseMixLoss
from calmrl.losses.published import StructureLoss
from calmrl.training.plan import TrainerOptions

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


# ---- the optimiser


def make_optimiser(step: Step, options: TrainerOptions) -> torch.optim.AdamW:
    """AdamW. Encoders may have a rate of their own, all together (`encoder_learning_rate`) or, in `rates`, tower by tower.

    With `decay` "matrices", vectors and scalars are not decayed; with "names", parameters with "bias" in their name, or
    called LayerNorm.weight, are not, as in the public code of VAST. The latent model never is. A group keeps its rate
    under "base"; the schedule multiplies that.
    """
    own_rates = _own_rates(step.model, options.encoder_learning_rate, options.rates)
    latent = {id(p) for p in step.latent_parameters()}
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for name, parameter in step.named_parameters():
        if parameter.requires_grad:
            rate = own_rates.get(id(parameter), options.learning_rate)
            decayed = id(parameter) not in latent and _is_decayed(name, parameter, options.decay)
            groups.setdefault((rate, options.weight_decay if decayed else 0.0), []).append(parameter)
    if not groups:
        raise InputError("every parameter is frozen, so there is nothing to train; freeze fewer")
    listed = [
        {"params": parameters, "lr": rate, "base": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]
    first, second = options.betas
    fused = all(parameter.device.type == "cpu" for parameters in groups.values() for parameter in parameters)
    return torch.optim.AdamW(listed, betas=(first, second), eps=options.epsilon, fused=fused or None)


def _own_rates(model: Any, every: float | None, rates: Mapping[str, float]) -> dict[int, float]:
    """Parameter (its id) -> learning rate, for the parameters of encoders that have one."""
    towers = model.towers() if hasattr(model, "towers") else {}
    encoders = model.encoder_parameters() if hasattr(model, "encoder_parameters") else []
    by_parameter = {} if every is None else {id(parameter): every for parameter in encoders}
    if every is not None and not by_parameter:
        raise InputError("encoder_learning_rate is set, but the model has no encoders, only heads; remove it")
    for name, rate in rates.items():
        if name not in towers:
            there = ", ".join(towers) or "none"
            raise InputError(f'optimiser.rates names "{name}", but the towers of the model are: {there}')
        by_parameter |= {id(parameter): rate for parameter in towers[name].parameters()}
    return by_parameter


def _is_decayed(name: str, parameter: torch.nn.Parameter, rule: str) -> bool:
    return parameter.ndim > 1 if rule == "matrices" else "bias" not in name and "LayerNorm.weight" not in name


def freeze(model: torch.nn.Module, patterns: Sequence[str]) -> None:
    """Keep the parameters whose names match one of the patterns ("heads.text.*") as they are."""
    named = dict(model.named_parameters())
    for pattern in patterns:
        matched = [name for name in named if fnmatchcase(name, pattern)]
        if not matched:
            shown = ", ".join(list(named)[:6]) + (", ..." if len(named) > 6 else "")
            raise InputError(f'freeze: no parameter is named "{pattern}"; there are {shown}')
        for name in matched:
            named[name].requires_grad_(False)


def schedule(step: int, total: int, warmup_ratio: float) -> float:
    """Linear from 0 to 1 over the first `warmup_ratio` of the steps, then linear to 0. `step` counts from 0."""
    warm = warmup_ratio * total
    return min(1.0, (step + 1) / warm if warm > 0 else 1.0, max(0.0, (total - step) / max(1.0, total - warm)))


class MovingAverage:
    """Exponential moving average of all floating-point tensors of a training step."""

    def __init__(self, step: Step, decay: float) -> None:
        self.decay = decay
        self.live = step.tensors()  # the step's own tensors, not copies
        self.tensors = {name: tensor.clone() for name, tensor in self.live.items()}

    @torch.no_grad()
    def update(self) -> None:
        for name, tensor in self.live.items():
            if tensor.is_floating_point():
                self.tensors[name].lerp_(tensor, 1 - self.decay)
            else:
                self.tensors[name].copy_(tensor)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        _copy(self.tensors, tensors)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The step has the averaged weights for the time of the block."""
        own = {name: tensor.clone() for name, tensor in self.live.items()}
        _copy(self.live, self.tensors)
        try:
            yield
        finally:
            _copy(self.live, own)


@torch.no_grad()
def _copy(into: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in into.items():
        tensor.copy_(tensors[name])
