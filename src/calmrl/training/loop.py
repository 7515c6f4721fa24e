"""The training loop (Algorithm 1): encode what is observed, update the latent model, impute, align, step.

The same in one process and in many.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning

from calmrl._support.distributed import gather_objects, mean_over_processes, own_rows, sum_over_processes, world
from calmrl._support.parsing import parsing
from calmrl.data.loaders.batches import Batches
from calmrl.data.loaders.feature_rows import pattern_counts
from calmrl.errors import need
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.protocols import Progress, no_progress
from calmrl.training import checkpoints
from calmrl.training.checkpoints import Checkpoint, Records
from calmrl.training.plan import Interrupted, Outcome, Position, Stage, StopFlag, TrainerOptions, due, listening
from calmrl.training.step import MovingAverage, NotFinite, Step, make_optimiser, must_be_finite, schedule
from calmrl.training.validate import calibration_scores, check_pairs, encode_all, retrieval_scores

REFIT_ROWS = 20_000  # at most, for imputers that are fitted anew instead of updated
OF_ROWS = ("missing",)  # records that are means over the rows of a process


class Trainer:
    """Trains a `Step` through its stages; `run()` does it, `out` gets `metrics.jsonl` and `checkpoints/`.

    - `options` say how; see `TrainerOptions`.
    - `out=None` keeps everything in memory: no records, and the best weights are held instead of written.
    - the rows in `validation` pick the best checkpoint. `relevant` has one value per validation row: rows with the value of
      the query count as found.
    - `tracked` is what trackers record about the run, usually its config.
    - `progress(done, total, text)` hears of every step, `listen(record)` of every record.

    Examples
    --------
    >>> options = TrainerOptions(batch_size=128, learning_rate=3e-4)
    >>> Trainer(step, [Stage("joint", rows, epochs=10)], options, validation=held_out).run()  # doctest: +SKIP
    """

    def __init__(
        self,
        step: Step,
        stages: Sequence[Stage],
        options: TrainerOptions | None = None,
        *,
        out: Path | None = None,
        validation: Sequence[Any] = (),
        relevant: Sequence[Any] | None = None,
        tracked: Mapping[str, Any] | None = None,
        progress: Progress = no_progress,
        listen: Callable[[dict[str, Any]], None] = lambda record: None,
    ) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DistributedDataParallelKwargs

        self.options = options = options or TrainerOptions()
        self.step, self.stages, self.out = step, list(stages), out
        self.validation, self.relevant = list(validation), relevant
        self.progress, self.listen = progress, listen
        check_pairs(self.validation)
        self.accelerator = Accelerator(
            mixed_precision="no" if options.precision == "fp32" else options.precision,
            cpu=options.cpu,
            log_with=list(options.trackers) or None,
            project_dir=out,
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        )
        self.tracking = open_trackers(self.accelerator, options.trackers, tracked or {})
        self.optimiser: Any = None
        self.module: Any = step
        if self.stages:  # a method in closed form makes no step
            self.module, self.optimiser = self.accelerator.prepare(step, make_optimiser(step, options))
        self.average = None if options.ema is None else MovingAverage(step, options.ema)
        latent = {id(parameter) for parameter in step.latent_parameters()}
        self.clipped = [[p for p in step.parameters() if (id(p) in latent) == own] for own in (False, True)]
        self.position = Position()
        self.rows = 0  # of this process in the last batch
        self.held: Checkpoint | None = None  # the best so far, when nothing is written
        self.records: Records | None = None
        self.batches: Batches | None = None  # of the stage that is under way

    # ---- the loop

    def run(self, resume: bool = False, until: int | None = None) -> Outcome:
        """Train to the end, or pause after step `until`; the next call continues from there.

        With `resume` continue from the newest checkpoint in `out`.
        """
        path = checkpoints.newest(self.out / "checkpoints") if resume and self.out is not None else None
        if path:
            self.batches = self._restore(path)
        if self.out is not None and self.accelerator.is_main_process:
            self.records = Records(self.out / "metrics.jsonl", upto=self.position.step if resume else None)
        at, early = self.position, False
        try:
            with listening() as flag:
                while at.stage < len(self.stages) and (until is None or at.step < until):
                    self.batches = self.batches or self._batches()
                    early = self._stage(flag, self.batches, until)
                    if early and not self._out_of_patience():
                        break  # paused
                    self.batches = None
                    at.stage, at.stage_step = at.stage + 1, 0
            if at.stage == len(self.stages):
                self._record("end", best=at.best, best_step=at.best_step, stopped_early=early,
                             seconds=at.seconds, latent_seconds=at.latent_seconds)  # fmt: skip
        except NotFinite as wrong:
            self._record("failed", what=wrong.what, rows=wrong.rows)
            raise
        finally:
            if self.records is not None:
                self.records.close()
            close_trackers(self.accelerator)
        return Outcome(at.step, at.best, at.best_step, at.seconds, at.latent_seconds, early)

    def _stage(self, flag: StopFlag, batches: Batches, until: int | None) -> bool:
        """One stage from where it stands to its end, or to step `until`; whether some of its steps were not made."""
        stage, at = self.stages[self.position.stage], self.position
        epoch = -(-len(batches) // self.options.accumulate)
        total = stage.steps if stage.steps is not None else max(1, round((stage.epochs or 1) * epoch))
        if at.stage_step == 0:
            self._record("start", stage=stage.name, processes=world()[0], updates=total, per_epoch=epoch,
                         left_out=batches.left_out, patterns=pattern_counts(stage.sources))  # fmt: skip
            self.optimiser.state.clear()
            at.since_best = 0
            if stage.fresh_best:
                at.best = None
            self.step.remember_start()
        stream = _endless(batches)
        self.step.train()
        while at.stage_step < total and not self._out_of_patience() and (until is None or at.step < until):
            if at.stage_step % (epoch * self.options.refit) == 0:
                self._fit_imputer(stage)
            values = self._update(stream, batches, total, stage)
            at.step, at.stage_step, at.batches = at.step + 1, at.stage_step + 1, batches.state_dict()
            last = at.stage_step == total
            if last or at.step % self.options.log_every == 0:
                values = mean_over_processes(values | self.step.last, self.rows, OF_ROWS, self.accelerator.device)
                self._record("train", stage=stage.name, epoch=batches.epoch, **values, waited_s=batches.waited)
            best = "" if at.best is None else f"  best {self.options.metric} {at.best:.1f}"
            self.progress(at.stage_step, total, f"{stage.name}  loss {values['loss']:.3f}{best}")
            better = due(at.stage_step, self.options.validate_every, epoch, last) and self._validate(stage)
            stop = bool(sum_over_processes(flag.raised, self.accelerator.device))
            if (
                better
                or stop
                or self._out_of_patience()
                or due(at.stage_step, self.options.checkpoint_every, epoch, last)
            ):
                self._save(better)
            if stop:
                raise Interrupted(f"stopped after step {at.step}; continue with `resume=True`")
        return at.stage_step < total

    def _out_of_patience(self) -> bool:
        return self.options.patience is not None and self.position.since_best >= self.options.patience

    def _update(self, stream: Iterator[dict[str, Any]], batches: Batches, total: int, stage: Stage) -> dict[str, float]:
        """One update of the weights from `accumulate` batches; its loss, gradient norm, rate and speed."""
        from accelerate.utils import send_to_device

        started, latent, rows, losses = time.perf_counter(), self.step.latent_seconds, 0, []
        factor = stage.rate * schedule(self.position.stage_step, total, self.options.warmup_ratio)
        for group in self.optimiser.param_groups:
            group["lr"] = group["base"] * factor
        # without accelerate's checks
        optimiser = self.optimiser if self.accelerator.scaler else self.optimiser.optimizer
        optimiser.zero_grad()
        for micro in range(self.options.accumulate):
            batch = next(stream)
            whole = micro == self.options.accumulate - 1
            with nullcontext() if whole else self.accelerator.no_sync(self.module):
                inputs, present = send_to_device((batch["z"], batch["present"]), self.accelerator.device)
                loss = self.module(inputs, present, self._generator(micro))
                must_be_finite(loss, "loss", self.position.step + 1, batches, batch)
                self._backward(loss / self.options.accumulate)
            losses.append(loss.detach())
            self.rows = len(batch["index"])
            rows += self.rows
        norm = self._clip()
        if self.accelerator.scaler is None:
            must_be_finite(norm, "gradient", self.position.step + 1, batches, batch)
        optimiser.step()
        if self.average is not None:
            self.average.update()
        took, inside = time.perf_counter() - started, self.step.latent_seconds - latent
        self.position.seconds += took
        self.position.latent_seconds += inside
        return {
            "loss": float(torch.stack(losses).mean()),
            "gradient_norm": float(norm),
            "learning_rate": self.optimiser.param_groups[0]["lr"],
            "rows_per_s": rows * world()[0] / took,
            "latent_share": inside / took,
        }

    def _backward(self, loss: torch.Tensor) -> None:
        """Gradients of all processes; only the scaler of half precision needs accelerate for it, which looks for
        packages on disk at every call."""
        if self.accelerator.scaler is None:
            loss.backward()
        else:
            self.accelerator.backward(loss)

    def _clip(self) -> torch.Tensor:
        """Clip the gradient, that of a latent model apart: neither sees the other's loss. The norm without the latter."""
        most = self.options.clip or float("inf")
        norms = [self.accelerator.clip_grad_norm_(part, most) for part in self.clipped if len(part)]
        return norms[0] if norms[0] is not None else torch.zeros(())

    # ---- parts of a step

    def _batches(self) -> Batches:
        stage, (size, rank) = self.stages[self.position.stage], world()
        return Batches(
            stage.sources,
            self.options.batch_size,
            seed=self.options.seed + 1000 * self.position.stage,
            composition=stage.composition,
            hide_one=stage.hide_one,
            complete_only=stage.complete_only,
            incomplete_only=stage.incomplete_only,
            rank=rank,
            world=size,
        )

    def _generator(self, micro: int) -> torch.Generator:
        """Draws that depend on nothing but the seed, the step and the process."""
        seed = hash((self.options.seed, self.position.step, micro, world()[1])) % 2**63
        return torch.Generator(device=self.accelerator.device).manual_seed(seed)

    def _fit_imputer(self, stage: Stage, finished: bool = False) -> None:
        """Imputers that cannot follow batch by batch are fitted to the representations as they are now.

        Where vectors are imputed from the start of the stage, to those of the start, until the training has finished.
        """
        align = self.step.calibration
        if align is None or align.update != "frozen":
            return
        model = self.step.model if finished or self.step.start is None else self.step.start
        z, present = encode_all(model, stage.sources, self.accelerator.device, most=REFIT_ROWS)
        if isinstance(align.imputer, GaussianImputer):  # it adds up over the processes; all others see every row
            z, present = own_rows(z, present)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is fitted again as the representations change
            align.imputer.fit(z, present)

    # ---- validation, records, checkpoints

    def _validate(self, stage: Stage) -> bool:
        """Measure on validation rows, if there are any; whether it is the best so far."""
        at = self.position
        if not self.validation:
            return False
        with nullcontext() if self.average is None else self.average.applied():
            z, present = encode_all(self.step.model, self.validation, self.accelerator.device)
            scores = retrieval_scores(z, present, self.relevant)
            if self.options.latent_scores and self.step.calibration is not None:
                scores |= calibration_scores(self.step.calibration, z, present)
        self._record("validation", stage=stage.name, rows=len(present), **scores)
        better = at.best is None or scores[self.options.metric] > at.best
        if better:
            at.best, at.best_step, at.since_best = scores[self.options.metric], at.step, 0
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

    def _save(self, better: bool) -> None:
        """Write a checkpoint, or hold the best weights if nothing is written."""
        if self.out is None and not better:
            return
        random = gather_objects(torch.get_rng_state())  # dropout draws from it, in every process
        if not self.accelerator.is_main_process:
            return
        align, scaler, average = self.step.calibration, self.accelerator.scaler, self.average
        content = Checkpoint(  # copies, so that training may go on while they are held
            weights={name: tensor.detach().clone() for name, tensor in self.step.tensors().items()},
            training={
                "position": dict(vars(self.position)),
                "optimiser": self.optimiser.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
                "random": random,
            },
            latent=None if align is None else align.latent_state(),
            ema={} if average is None else {name: tensor.clone() for name, tensor in average.tensors.items()},
        )
        if self.out is None:
            self.held = content
        else:
            folder = self.out / "checkpoints"
            checkpoints.write(folder, self.position.step, content, best=better, keep=self.options.keep)

    def _restore(self, path: Path) -> Batches:
        """Everything as it was when the checkpoint was written; the batches of the stage that was under way."""
        content, scaler, (size, rank) = checkpoints.read(path), self.accelerator.scaler, world()
        with parsing(path, "a checkpoint of this run", "remove it to continue from the one before"):
            self._put_weights(content.weights, content)
            if self.average is not None:
                self.average.load(content.ema)
            saved = content.training
            self.optimiser.load_state_dict(saved["optimiser"])
            if scaler is not None and saved["scaler"] is not None:
                scaler.load_state_dict(saved["scaler"])
            if len(saved["random"]) == size:
                torch.set_rng_state(saved["random"][rank])
            self.position = Position(**saved["position"])
        if self.accelerator.is_main_process:  # a kill may have come before these
            if self.position.best_step == self.position.step:
                checkpoints.mark_best(path.parent, self.position.step)
            checkpoints.tidy(path.parent, self.options.keep)
        batches = self._batches()
        batches.load_state_dict(self.position.batches)
        return batches

    def _put_weights(self, weights: Mapping[str, torch.Tensor], content: Checkpoint) -> None:
        """These weights, and the latent model of the checkpoint."""
        self.step.load_tensors(weights)
        if self.step.calibration is not None:
            self.step.calibration.set_latent_state(content.latent)

    def take_best(self) -> None:
        """Put the best weights by validation, else the last ones, into the step; averaged ones where there are some.

        An imputer that is fitted, not updated, is fitted to what these weights give.
        """
        self.accelerator.wait_for_everyone()  # the first process may still be writing
        content = self.held
        if self.out is not None:
            folder = self.out / "checkpoints"
            path = checkpoints.best(folder) or checkpoints.newest(folder)
            content = None if path is None else checkpoints.read(path)
        if content is not None:
            self._put_weights(content.ema or content.weights, content)
        if self.stages:
            self._fit_imputer(self.stages[-1], finished=True)


def _endless(batches: Batches) -> Iterator[dict[str, Any]]:
    while True:
        yield from batches


def open_trackers(accelerator: Any, names: Sequence[str], config: Mapping[str, Any]) -> bool:
    """Start the trackers that `accelerator` was made with; whether there are any."""
    for name in names:
        need(name, "track", f"the tracker {name}")
    if names:
        accelerator.init_trackers("calmrl", config=flat(config))
    return bool(names)


def close_trackers(accelerator: Any) -> None:
    """Let the trackers write what they hold. `accelerator.end_training` would end the group of processes as well."""
    for tracker in accelerator.trackers:
        tracker.finish()


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; what is not a number becomes text."""
    flattened: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flattened |= flat(value, f"{prefix}{key}.")
        else:
            flattened[f"{prefix}{key}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flattened
