"""`calmrl train`: heads or encoders, trained on rows with missing modalities."""

import time
from pathlib import Path
from typing import Annotated

import typer

from calmrl.cli.printing import Progress, data, error, note
from calmrl.cli.shared_options import config_names

EXAMPLE = """Example:
  calmrl train stamps --out runs/stamps
  calmrl train my.yaml method=pmrl batch_size=128 --out runs/pmrl
  calmrl train stamps --out runs/stamps --resume
  torchrun --nproc_per_node 2 -m calmrl train stamps --out runs/two"""


def run(
    config: Annotated[
        str, typer.Argument(help="A config file or a shipped config of kind train.", autocompletion=config_names)
    ],
    out: Annotated[Path, typer.Option("--out", help="The directory of the run.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, to change single keys.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in --out.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for another process before it counts as lost.", min=1)
    ] = 600,
) -> None:
    """Train from features or media with missing modalities.

    A run that was stopped resumes; in one process or several.
    """
    from calmrl._support.distributed import join, leave
    from calmrl.config import TrainConfig, load
    from calmrl.training.plan import Interrupted
    from calmrl.workflows.train import train

    resolved = load(config, overrides or [], kind="train")
    assert isinstance(resolved, TrainConfig)
    main, began = join(timeout)[1] == 0, time.monotonic()
    with Progress(shown=main) as bar:
        try:
            outcome = train(
                resolved,
                out,
                resume=resume,
                progress=bar,
                report=note,
                timeout=timeout,
            )
        except Interrupted as stopped:
            error(str(stopped))
            raise typer.Exit(1) from None
    leave()
    if not main:
        return
    if outcome.steps:
        note(f"{outcome.steps} steps in {outcome.seconds:.1f} s")
    else:
        note(f"{resolved.method} is in closed form: no steps; fitted in {time.monotonic() - began:.0f} s")
    if outcome.best is not None:
        note(f"best {resolved.validation.metric}: {outcome.best:.1f} at step {outcome.best_step}")
    if outcome.latent_seconds:
        share = 100 * outcome.latent_seconds / max(outcome.seconds, 1e-9)
        note(f"the latent model took {share:.0f} % of the step time (updates and imputing, without the backward pass)")
    note(f'calmrl.load("{out}") opens the model, which is in')
    data(str(out / "model"))
