"""`calmrl extract`: raw media -> features."""

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from calmrl.cli.printing import note
from calmrl.errors import InputError

EXAMPLE = """Example:
  calmrl extract items.csv --out features \\
    --encoder image=efficientnet_lite0 --encoder text=minilm
  calmrl extract test.json --layout msrvtt --media vision=videos \\
    --encoder vision=hf:MODEL#image --out features"""


def run(
    manifest: Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet; with --layout an annotation file.")],
    encoder: Annotated[list[str], typer.Option(help="MODALITY=NAME, for each column to encode (calmrl ls encoders).")],
    out: Annotated[Path, typer.Option(help="The feature directory to write.")],
    root: Annotated[
        Path | None, typer.Option(help="What paths are relative to; by default the manifest's folder.")
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="A second table, id and text: several captions per item.")
    ] = None,
    layout: Annotated[str | None, typer.Option(help="The form of an annotation file, for instance msrvtt.")] = None,
    media: Annotated[
        list[str] | None, typer.Option(help="With --layout: MODALITY=FOLDER that holds the files.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column not to use.")] = None,
    allow_missing: Annotated[bool, typer.Option(help="Go on without what cannot be used; it is counted.")] = False,
    frames: Annotated[int, typer.Option(min=1, help="Frames per video, one from the middle of each segment.")] = 8,
    batch_size: Annotated[int, typer.Option(min=1, help="Items per batch; does not change the result.")] = 16,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode; 0 decodes in this one.")] = 2,
    dtype: Annotated[str, typer.Option(help="float16 or float32.")] = "float16",
    device: Annotated[str, typer.Option(help='Where "hf:" encoders run, for instance cuda.')] = "cpu",
) -> None:
    """Check a collection of files, report what is unusable, and encode the rest into a feature directory.

    Run the same line again to continue where it stopped.
    """
    from calmrl.workflows.extract import extract

    features = extract(
        manifest,
        _pairs(encoder, "--encoder", "image=efficientnet_lite0"),
        out,
        root=root,
        captions=captions,
        layout=layout,
        media=_pairs(media or [], "--media", "vision=videos"),
        ignore=ignore or (),
        allow_missing=allow_missing,
        frames=frames,
        batch_size=batch_size,
        workers=workers,
        dtype=dtype,
        device=device,
        progress=Progress(),
        tell=note,
    )
    note(f"{out}: {len(features)} items")


def _pairs(given: list[str], option: str, example: str) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"{option} {text} is not MODALITY=VALUE; for instance {option} {example}")
        if name in pairs:
            raise InputError(f"{option} names {name} twice; give it once")
        pairs[name] = value
    return pairs


class Progress:
    """How far, how fast, how long still: one line that is redrawn on a terminal, a line every 10 s elsewhere."""

    def __init__(self) -> None:
        self.what = ""
        self.shown = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self.what:
            self.what, self.began, self.first, self.shown = what, now, done, now
        live = sys.stderr.isatty()
        if total == self.first or (done < total and now - self.shown < (0.2 if live else 10)):
            return
        self.shown = now
        rate = (done - self.first) / (now - self.began) if now > self.began else 0.0
        left = f", {timedelta(seconds=round((total - done) / rate))} left" if rate and done < total else ""
        end = "\r" if live and done < total else "\n"
        line = f"{what}: {done} of {total}, {rate:.1f} / s{left}"
        print(f"{line}\x1b[K" if live else line, end=end, file=sys.stderr, flush=True)
