"""A training run in its directory: `config.yaml`, `metrics.jsonl`, `checkpoints/`, `model/`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from calmrl._support.output import check_free, new_directory
from calmrl.alignment import CalibratedAlignment
from calmrl.config import TrainConfig, dump, load
from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.imputers.gaussian.gradient import GaussianLatent
from calmrl.models.saved import Trained, save
from calmrl.training.checkpoint import newest
from calmrl.training.loop import Progress
from calmrl.training.plan import Outcome
from calmrl.training.step import Step
from calmrl.training.track import flat
from calmrl.workflows.build import build_step, build_trainer, open_data


def train(
    config: TrainConfig,
    out: Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Train as `config` says and write everything under `out`; with `resume` go on from its newest checkpoint.

    Every process of a distributed run calls this; the first one writes. `tell` gets sentences for people.
    """
    from accelerate import PartialState

    state = PartialState()
    if not resume:
        check_free(out)
    elif (out / "config.yaml").is_file():
        _same_config(config, out / "config.yaml")
    data = open_data(config)
    step = build_step(config, data)
    trainer = build_trainer(config, data, step, out, progress=progress)
    state.wait_for_everyone()
    if state.is_main_process:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / "config.yaml").is_file():
            dump(config, out / "config.yaml")
        if resume and newest(out / "checkpoints") is None:
            tell(f"{out} holds no checkpoint yet; starting from the beginning")
        for note in data.notes:
            tell(note)
    outcome = trainer.run(resume=resume)
    trainer.take_best()
    if state.is_main_process:
        export(step, config, outcome, out / "model")
    state.wait_for_everyone()
    return outcome


def export(step: Step, config: TrainConfig, outcome: Outcome, folder: Path) -> None:
    """Write the model of a training step, with the latent model it was calibrated by."""
    info: dict[str, Any] = {"method": config.method, "steps": outcome.steps, "best": outcome.best}
    matching = None if step.matching is getattr(step.model, "matching", None) else step.matching  # part of the model
    with new_directory(folder, force=True) as draft:
        save(draft, Trained(step.model, fixed_calibration(step), matching, info))
        dump(config, draft / "config.yaml")


def fixed_calibration(step: Step) -> CalibratedAlignment | None:
    """What completes rows after training: the same latent model, and nothing that learns."""
    align = step.calibration
    if align is None:
        return None
    imputer = align.imputer
    if isinstance(imputer, GaussianLatent):
        imputer = GaussianImputer.from_parameters(imputer.as_parameters())
    return CalibratedAlignment(
        align.objective, imputer=imputer, update="frozen", renormalize=align.renormalize, certainty=align.certainty
    )


def _same_config(config: TrainConfig, path: Path) -> None:
    before = flat(load(path, kind="train").model_dump(mode="json"))
    now = flat(config.model_dump(mode="json"))
    differ = [key for key in {**before, **now} if now.get(key) != before.get(key)]
    if differ:
        listed = ", ".join(f"{key} ({before.get(key)} there, {now.get(key)} here)" for key in differ)
        raise InputError(
            f"{path} differs from this config in {listed}; a resumed run needs the config it began with: "
            f"calmrl train {path} --out {path.parent} --resume"
        )
