"""A training run in its directory: `config.yaml`, `metrics.jsonl`, `checkpoints/`, `model/`; `align` needs no such run."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from calmrl._support.distributed import WAIT_SECONDS, explain_lost_process, join, wait_for_all
from calmrl._support.filesystem import locked
from calmrl._support.output import check_directory, check_free, new_directory
from calmrl._support.text import plural
from calmrl.aligner.estimator import Aligner
from calmrl.alignment import CalibratedAlignment
from calmrl.config import TrainConfig, dump, load
from calmrl.encoders.encoder_set import recorded_encoders
from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.imputers.gradient import GaussianLatent
from calmrl.metrics.measures import remarks
from calmrl.metrics.model_rows import measure_rows
from calmrl.models.saved import Trained, save
from calmrl.protocols import Progress, no_progress
from calmrl.sources import DATASET, FEATURES, FOLDER, MANIFEST, form_of, open_source
from calmrl.training.checkpoints import newest
from calmrl.training.loop import flat
from calmrl.training.plan import Outcome
from calmrl.training.step import Step
from calmrl.training.validate import encode_all
from calmrl.workflows.from_config import build_step, build_trainer, open_data

CHECKED_ROWS = 2048  # validation rows, at most, on which imputed vectors are checked


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    cpu: bool = False,
    progress: Progress | None = None,
    report: Callable[[str], None] = lambda text: None,
    timeout: float = WAIT_SECONDS,
) -> Outcome:
    """Train a model and write the run to a directory. Every process of a distributed run calls this; the first writes.

    Parameters
    ----------
    config : TrainConfig
        For instance `calmrl.config.load("stamps")`.
    out : str or Path
        The directory of the run: `config.yaml`, `metrics.jsonl`, `checkpoints/`, `model/`.
    resume : bool
        Continue from the newest checkpoint in `out`.
    cpu : bool
        Train on the CPU even where there is another device.
    progress : callable, optional
        Called with (steps done, steps in all, what is being done).
    report : callable
        Gets sentences for people.
    timeout : float
        Seconds that a process waits for another one before that counts as lost.

    Returns
    -------
    Outcome
        Steps, seconds, and the best validation score. `calmrl.load(out)` gives the model.

    Examples
    --------
    >>> from calmrl.config import load
    >>> train(load("stamps", kind="train"), "runs/first")  # doctest: +SKIP
    """
    out = Path(out)
    _, rank = join(timeout)
    _check_folder(config, out, resume)
    alone = locked(out) if rank == 0 else nullcontext()  # the first process writes for all
    advice = f"start all again with `resume=True`, to continue from the newest checkpoint in {out}"
    with alone, explain_lost_process(advice):
        if rank == 0:
            _check_folder(config, out, resume)  # another run may have written it before this one had the lock
        return _train(config, out, rank, resume, cpu, progress or no_progress, report)


def _check_folder(config: TrainConfig, out: Path, resume: bool) -> None:
    """An error unless the run may write there: a new folder, or that of the same run."""
    if not resume:
        check_free(out, advice=", or pass `resume=True` to continue the run in it")
        return
    check_directory(out)
    if (out / "config.yaml").is_file():
        same_config(config, out / "config.yaml")


def _train(
    config: TrainConfig,
    out: Path,
    rank: int,
    resume: bool,
    cpu: bool,
    progress: Progress,
    report: Callable[[str], None],
) -> Outcome:
    progress(0, 0, "reading the data")
    data = open_data(config)
    progress(0, 0, f"fitting {config.method}" if not config.stages else f"starting {config.method}")
    step = build_step(config, data)
    trainer = build_trainer(config, data, step, out, cpu=cpu, progress=progress)
    wait_for_all()
    if rank == 0:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / "config.yaml").is_file():
            dump(config, out / "config.yaml")
        if resume and newest(out / "checkpoints") is None:
            report(f"{out} holds no checkpoint yet; starting from the beginning")
        for note in data.notes:
            report(note)
    outcome = trainer.run(resume=resume)
    trainer.take_best()
    warnings = _warnings(step, data.validation, trainer.accelerator.device)
    if rank == 0:
        infos = [features.info for features in data.opened.values()]
        export(step, config, outcome, out / "model", recorded_encoders(infos, tuple(step.model.names)))
        for warning in warnings:
            report(f"warning: on validation rows, {warning}")
    wait_for_all()
    return outcome


def _warnings(step: Step, validation: Sequence[Any], device: Any) -> list[str]:
    """What is wrong with the vectors that the trained model imputes, on validation rows; every process calls this."""
    align = fixed_calibration(step)
    if align is None or not validation:
        return []
    z, present = encode_all(step.model, validation, device, most=CHECKED_ROWS)
    return remarks(measure_rows(["imputation"], z=z, present=present, align=align))


def export(
    step: Step, config: TrainConfig, outcome: Outcome, folder: Path, encoders: dict[str, Any] | None = None
) -> None:
    """Write the model of a training step, with the latent model it was calibrated by and what made its features."""
    info: dict[str, Any] = {"method": config.method, "steps": outcome.steps, "best": outcome.best}
    matching = None if step.matching is getattr(step.model, "matching", None) else step.matching  # part of the model
    with new_directory(folder, force=True) as draft:
        save(draft, Trained(step.model, fixed_calibration(step), matching, info, encoders))
        dump(config, draft / "config.yaml")


def fixed_calibration(step: Step) -> CalibratedAlignment | None:
    """What imputes after training: the same latent model, and nothing that learns."""
    align = step.calibration
    if align is None:
        return None
    imputer = align.imputer
    if isinstance(imputer, GaussianLatent):
        imputer = GaussianImputer.from_parameters(imputer.as_parameters())
    return CalibratedAlignment(
        align.objective, imputer=imputer, update="frozen", renormalize=align.renormalize, certainty=align.certainty
    )


def same_config(config: TrainConfig, path: Path) -> None:
    """An error that names every key in which a config differs from the one in a file."""
    before = flat(load(path, kind="train").model_dump(mode="json"))
    now = flat(config.model_dump(mode="json"))
    changed = [key for key in {**before, **now} if now.get(key) != before.get(key)]
    if changed:
        listed = ", ".join(f"{key} ({before.get(key)} there, {now.get(key)} here)" for key in changed)
        raise InputError(
            f"{path} differs from this config in {listed}; a resumed run needs the config it began with: "
            f"calmrl train {shlex.quote(str(path))} --out {shlex.quote(str(path.parent))} --resume"
        )


def align(
    features: Any,
    out: str | Path,
    *,
    base: Any = None,
    groups: str | None = None,
    relevant: str | None = None,
    compact: bool = False,
    report: Callable[[str], None] | None = None,
) -> Aligner:
    """Fit an aligner on features and save it.

    Parameters
    ----------
    features : FeatureSet, dict, str or Path
        Features, where they are, or the name of a bundled data set. Those of `calmrl extract` say which encoders made them, so
        that the aligner reads files, and is recognised as a base.
    out : str or Path
        The folder to write; nothing is overwritten.
    base : str, path, Aligner or list of these, optional
        What was learned elsewhere, to stand beside the own space; see `Aligner`.
    groups, relevant : str, optional
        Names of columns; see `Aligner.fit`.
    compact : bool
        Write about a tenth of the bytes; see `Aligner.save`.
    report : callable, optional
        Gets sentences for people: rows, what was chosen, recall to expect.

    Examples
    --------
    >>> align("features", "mine", compact=True)  # doctest: +SKIP
    """
    check_directory(out)
    if Path(out).exists():
        raise InputError(f"{out} exists; choose another name")
    if not isinstance(features, dict) and form_of(features) in (FOLDER, MANIFEST):
        raise InputError(
            f"{features} holds files, not features; encode them first: calmrl extract {features} --out FEATURES"
        )
    opened = open_source(features, accept=(FEATURES, DATASET), holes=True)
    given = opened.features
    assert given is not None
    labels = None if groups is None else list(given.column(groups))
    known = {name: encoder for name, encoder in opened.indexing.encoders.items() if name in given.z}
    aligner = Aligner(base=base, random_state=0).fit(given, groups=labels, relevant=relevant, encoders=known)
    if report is not None:
        for line in [f"{plural(len(given), 'row')} of {opened.root}", *aligner.summary()]:
            report(line)
    aligner.save(out, compact=compact)
    return aligner
