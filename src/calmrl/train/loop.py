"""Algorithm 1 as one loop: encode what is observed, update the latent model, impute, align, step.

It runs in one process or under `accelerate launch` in many; what differs between them is accelerate's business.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.exceptions import ConvergenceWarning

from calmrl.distributed import all_sum, world
from calmrl.errors import InputError
from calmrl.latent import GaussianImputer
from calmrl.train import checkpoint
from calmrl.train.checkpoint import Checkpoint
from calmrl.train.mixture import Mixture
from calmrl.train.optimise import MovingAverage, averaged, make_optimiser, schedule
from calmrl.train.plan import Outcome, Position, Stage, due
from calmrl.train.records import Records
from calmrl.train.sources import pattern_counts
from calmrl.train.step import Step
from calmrl.train.stop import Interrupted, StopFlag, listening
from calmrl.train.validate import calibration_scores, encode_all, retrieval_scores

REFIT_ROWS = 20_000  # at most, for imputers that are fitted anew instead of updated
Progress = Callable[[int, int, str], None]


class Trainer:
    """Trains a `Step` through its stages; `run()` does it, `out` gets `metrics.jsonl` and `checkpoints/`.

    - `batch_size` counts the rows of all processes in one forward pass; `accumulate` of those make one update.
    - `metric` ("MRR", "R@1", "R@5", "R@10" or "recall", their mean) on the rows in `validation` picks the best checkpoint;
      `patience` validations without a better one end the stage.
    - `validate_every` and `checkpoint_every` count updates; None is once per epoch; 0 is only at the end of a stage.
    - `refit` is for a frozen imputer: it is fitted to the representations before every so many epochs.
    - `out=None` keeps everything in memory: no records, and the best weights are held instead of written.
    - `progress(done, total, text)` hears of every step, `listen(record)` of every record.
    """

    def __init__(
        self,
        step: Step,
        stages: Sequence[Stage],
        *,
        out: Path | None = None,
        validation: Sequence[Any] = (),
        seed: int = 0,
        batch_size: int = 64,
        accumulate: int = 1,
        learning_rate: float = 1e-3,
        encoder_learning_rate: float | None = None,
        betas: tuple[float, float] = (0.9, 0.98),
        weight_decay: float = 0.01,
        warmup_ratio: float = 0.1,
        clip: float | None = 1.0,
        ema: float | None = None,
        precision: str = "no",
        metric: str = "MRR",
        validate_every: int | None = None,
        patience: int | None = None,
        checkpoint_every: int | None = None,
        keep: int = 2,
        log_every: int = 10,
        refit: int = 1,
        trackers: Sequence[str] = (),
        tracked: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        listen: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DistributedDataParallelKwargs

        self.step, self.stages, self.out, self.validation = step, list(stages), out, list(validation)
        self.seed, self.batch_size, self.accumulate = seed, batch_size, accumulate
        self.warmup_ratio, self.clip, self.metric = warmup_ratio, clip, metric
        self.validate_every, self.patience = validate_every, patience
        self.checkpoint_every, self.keep, self.log_every, self.refit = checkpoint_every, keep, log_every, refit
        self.progress = progress or (lambda done, total, text: None)
        self.listen = listen or (lambda record: None)
        self.accelerator = Accelerator(
            mixed_precision=precision,
            log_with=list(trackers) or None,
            project_dir=out,
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        )
        if trackers:
            self.accelerator.init_trackers("calmrl", config=dict(tracked or {}))
        self.tracking = bool(trackers)
        optimiser = make_optimiser(
            step,
            learning_rate=learning_rate,
            encoder_learning_rate=encoder_learning_rate,
            betas=betas,
            weight_decay=weight_decay,
        )
        self.module, self.optimiser = self.accelerator.prepare(step, optimiser)
        self.average = None if ema is None else MovingAverage(step, ema)
        self.position = Position()
        self.held: Checkpoint | None = None  # the best so far, when nothing is written
        self.records: Records | None = None
        self.latent_before = 0.0

    # ---- the loop

    def run(self, resume: bool = False) -> Outcome:
        """Train to the end. With `resume` go on from the newest checkpoint in `out`."""
        path = checkpoint.newest(self.out / "checkpoints") if resume and self.out is not None else None
        batches = self._restore(path) if path else None
        if self.out is not None and self.accelerator.is_main_process:
            self.records = Records(self.out / "metrics.jsonl", upto=self.position.step if resume else None)
        early = False
        try:
            with listening() as flag:
                while self.position.stage < len(self.stages):
                    early = self._stage(flag, batches or self._batches())
                    batches = None
                    self.position.stage, self.position.stage_step = self.position.stage + 1, 0
        finally:
            if self.records is not None:
                self.records.close()
            if self.tracking:
                self.accelerator.end_training()
        at = self.position
        return Outcome(at.step, at.best, at.best_step, at.seconds, self._latent_seconds(), early)

    def _stage(self, flag: StopFlag, batches: Mixture) -> bool:
        """One stage from where it stands; whether it was ended early."""
        stage, at = self.stages[self.position.stage], self.position
        epoch = -(-len(batches) // self.accumulate)
        total = stage.steps if stage.steps is not None else max(1, round((stage.epochs or 1) * epoch))
        if at.stage_step == 0:
            self._record("start", stage=stage.name, updates=total, per_epoch=epoch, left_out=batches.left_out,
                         patterns=pattern_counts(stage.sources))  # fmt: skip
            self.optimiser.state.clear()
            at.since_best = 0
        stream = _endless(batches)
        self.step.train()
        while at.stage_step < total and not self._tired():
            if at.stage_step % (epoch * self.refit) == 0:
                self._fit_imputer(stage)
            values = self._update(stream, batches, total, stage)
            at.step, at.stage_step, at.batches = at.step + 1, at.stage_step + 1, batches.state_dict()
            last = at.stage_step == total
            if last or at.step % self.log_every == 0:
                values |= self.step.last
                self._record("train", stage=stage.name, epoch=batches.epoch, **values, waited_s=batches.waited)
            self.progress(at.stage_step, total, f"{stage.name}  loss {values['loss']:.3f}{self._said()}")
            better = due(at.stage_step, self.validate_every, epoch, last) and self._validate(stage)
            stop = self._asked(flag)
            if better or stop or self._tired() or due(at.stage_step, self.checkpoint_every, epoch, last):
                self._save(better)
            if stop:
                raise Interrupted(f"stopped after step {at.step}; go on with --resume")
        return at.stage_step < total

    def _tired(self) -> bool:
        return self.patience is not None and self.position.since_best >= self.patience

    def _update(self, stream: Iterator[dict[str, Any]], batches: Mixture, total: int, stage: Stage) -> dict[str, float]:
        """One update of the weights from `accumulate` batches; its loss, gradient norm, rate and speed."""
        started, latent, rows, losses = time.perf_counter(), self._latent_seconds(), 0, []
        factor = stage.rate * schedule(self.position.stage_step, total, self.warmup_ratio)
        for group in self.optimiser.param_groups:
            group["lr"] = group["base"] * factor
        self.optimiser.zero_grad()
        for micro in range(self.accumulate):
            batch = next(stream)
            whole = micro == self.accumulate - 1
            with nullcontext() if whole else self.accelerator.no_sync(self.module):
                loss = self.module(*self._moved(batch), self._generator(micro))
                self._must_be_finite(loss, "loss", batches, batch)
                self.accelerator.backward(loss / self.accumulate)
            losses.append(loss.detach())
            rows += len(batch["index"])
        norm = self.accelerator.clip_grad_norm_(self.step.parameters(), self.clip or float("inf"))
        if self.accelerator.scaler is None:
            self._must_be_finite(norm, "gradient", batches, batch)
        self.optimiser.step()
        if self.average is not None:
            self.average.update(self.step)
        took = time.perf_counter() - started
        self.position.seconds += took
        return {
            "loss": float(torch.stack(losses).mean()),
            "gradient_norm": float(norm),
            "learning_rate": self.optimiser.param_groups[0]["lr"],
            "rows_per_s": rows * world()[0] / took,
            "latent_share": (self._latent_seconds() - latent) / took,
        }

    # ---- parts of a step

    def _batches(self) -> Mixture:
        stage, (size, rank) = self.stages[self.position.stage], world()
        return Mixture(
            stage.sources,
            self.batch_size,
            seed=self.seed + 1000 * self.position.stage,
            composition=stage.composition,
            hide_one=stage.hide_one,
            complete_only=stage.complete_only,
            rank=rank,
            world=size,
        )

    def _moved(self, batch: Mapping[str, Any]) -> tuple[Any, torch.Tensor]:
        from accelerate.utils import send_to_device

        return send_to_device(batch["z"], self.accelerator.device), batch["present"].to(self.accelerator.device)

    def _generator(self, micro: int) -> torch.Generator:
        """Draws that depend on nothing but the seed, the step and the process."""
        seed = hash((self.seed, self.position.step, micro, world()[1])) % 2**63
        return torch.Generator(device=self.accelerator.device).manual_seed(seed)

    def _must_be_finite(self, value: torch.Tensor, what: str, batches: Mixture, batch: Mapping[str, Any]) -> None:
        (wrong,) = all_sum([(~torch.isfinite(value.detach())).to(torch.float32)])
        if not wrong:
            return
        ids: list[list[str]] = [batches.describe(batch["index"])]
        if world()[0] > 1:
            ids = [[] for _ in range(world()[0])]
            dist.all_gather_object(ids, batches.describe(batch["index"]))
        listed = [name for part in ids for name in part]
        self._record("failed", what=what, rows=listed)
        more = "" if len(listed) <= 8 else f", ... ({len(listed)} rows; all of them are in metrics.jsonl)"
        raise InputError(
            f"the {what} of step {self.position.step + 1} is not finite. The rows of its batch: "
            f"{', '.join(listed[:8])}{more}. Look at their values, or lower the learning rate; the last checkpoint is "
            "whole"
        )

    def _fit_imputer(self, stage: Stage) -> None:
        """Imputers that cannot follow batch by batch are fitted to the representations as they are now."""
        align = self.step.calibration
        if align is None or align.update != "frozen":
            return
        z, present = encode_all(self.step.model, stage.sources, self.accelerator.device, most=REFIT_ROWS)
        if isinstance(align.imputer, GaussianImputer):  # it adds up over the processes; all others see every row
            size, rank = world()
            z, present = {name: rows[rank::size] for name, rows in z.items()}, present[rank::size]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is fitted again as the representations change
            align.imputer.fit(z, present)

    def _asked(self, flag: StopFlag) -> bool:
        (asked,) = all_sum([torch.tensor(float(flag.raised))])
        return bool(asked)

    def _latent_seconds(self) -> float:
        align = self.step.calibration
        return self.latent_before + (align.seconds if align is not None else 0.0)

    # ---- validation, records, checkpoints

    def _validate(self, stage: Stage) -> bool:
        """Measure on validation rows, if there are any; whether it is the best so far."""
        at = self.position
        if not self.validation:
            return False
        with averaged(self.step, self.average):
            z, present = encode_all(self.step.model, self.validation, self.accelerator.device)
            scores = retrieval_scores(z, present)
            if self.step.calibration is not None:
                scores |= calibration_scores(self.step.calibration, z, present)
        self._record("validation", stage=stage.name, rows=len(present), **scores)
        if self.metric not in scores:
            raise InputError(
                "no two modalities meet in a validation row, so there is nothing to retrieve; set validation"
            )
        better = at.best is None or scores[self.metric] > at.best
        if better:
            at.best, at.best_step, at.since_best = scores[self.metric], at.step, 0
        else:
            at.since_best += 1
        return better

    def _record(self, kind: str, **values: Any) -> None:
        if self.records is not None:
            self.records.write(kind, self.position.step, **values)
        self.listen({"kind": kind, "step": self.position.step, **values})
        if self.tracking and kind in ("train", "validation"):
            numbers = {f"{kind}/{name}": v for name, v in values.items() if isinstance(v, (int, float))}
            self.accelerator.log(numbers, step=self.position.step)

    def _said(self) -> str:
        return "" if self.position.best is None else f"  best {self.metric} {self.position.best:.1f}"

    def _save(self, better: bool) -> None:
        """Write a checkpoint, or hold the best weights if nothing is written."""
        if self.out is None and not better:
            return
        states = self._random_states()
        if not self.accelerator.is_main_process:
            return
        align, at = self.step.calibration, self.position
        content = Checkpoint(
            {name: tensor.detach().clone() for name, tensor in self.step.tensors().items()},
            {
                "position": vars(at) | {},
                "optimiser": self.optimiser.state_dict(),
                "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler is not None else None,
                "random": states,
                "latent_seconds": self._latent_seconds(),
            },
            align.get_extra_state() if align is not None else None,
            {name: tensor.clone() for name, tensor in self.average.tensors.items()} if self.average else {},
        )
        if self.out is None:
            self.held = content
        else:
            checkpoint.write(self.out / "checkpoints", at.step, content, best=better, keep=self.keep)

    def _random_states(self) -> list[torch.Tensor]:
        """The state of torch's own generator in every process (dropout draws from it)."""
        states = [torch.get_rng_state()]
        if world()[0] > 1:
            states = [torch.empty(0, dtype=torch.uint8)] * world()[0]
            dist.all_gather_object(states, torch.get_rng_state())
        return states

    def _restore(self, path: Path) -> Mixture | None:
        content = checkpoint.read(path)
        self.restore_weights(content)
        if self.average is not None:
            self.average.load(content.ema)
        known = content.training
        self.position = Position(**known["position"])
        self.optimiser.load_state_dict(known["optimiser"])
        if self.accelerator.scaler is not None and known["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(known["scaler"])
        if len(known["random"]) == world()[0]:
            torch.set_rng_state(known["random"][world()[1]])
        self.latent_before = known["latent_seconds"]
        batches = self._batches()
        batches.load_state_dict(self.position.batches)
        return batches

    def restore_weights(self, content: Checkpoint) -> None:
        """Put the weights and the latent model of a checkpoint into the step."""
        self.step.load_tensors(content.weights)
        if self.step.calibration is not None:
            self.step.calibration.set_extra_state(content.latent)

    def take_best(self) -> None:
        """Put the best weights by validation, else the last ones, into the step; averaged ones where there are some."""
        content = self.held
        if self.out is not None:
            folder = self.out / "checkpoints"
            path = checkpoint.best(folder) or checkpoint.newest(folder)
            content = None if path is None else checkpoint.read(path)
        if content is not None:
            self.restore_weights(replace(content, weights=content.ema or content.weights))
        if self.stages:
            self._fit_imputer(self.stages[-1])  # a frozen imputer, to the representations as they came out


def _endless(batches: Mixture) -> Iterator[dict[str, Any]]:
    while True:
        yield from batches
