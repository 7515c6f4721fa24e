"""Kill a command at a random moment, start it again, and compare what it writes with an undisturbed run.

python tests/kills.py --verb impute --times 200      # exit code 1 if a result differs or something is left behind

All runs are forks of one process that has imported everything, so that a run takes as long as its work. A kill is
SIGKILL, at a moment that is drawn evenly over the time of an undisturbed run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "support"))

import accelerate  # noqa: F401 (imported once, for all runs)
import sklearn.linear_model  # noqa: F401

import calmrl.workflows.compare.run
import calmrl.workflows.extract
import calmrl.workflows.impute
import calmrl.workflows.train  # noqa: F401
from calmrl.cli import main as command_line
from calmrl.encoders import ENCODERS
from colour_world import COLOUR_ENCODERS, NAMES, make_folder, settings, write_item
from train_data import TIMES, config_file, records, write_rows

ENDLESS = 600.0  # seconds after which a run that was not killed counts as hanging


@dataclass(frozen=True)
class Verb:
    """How a command is tried: its words, what it needs, and what of its output must be the same."""

    words: list[str]
    prepare: Callable[[Path], None]  # makes the inputs in the folder, once
    state: Callable[[Path], Any]  # what a finished run left, as JSON; anything that tells the time is not in it
    again: list[str]  # the words of the second run
    before: Callable[[Path], None] = lambda folder: None  # puts back what a run changes
    in_place: bool = False  # whether the output of an earlier run has to be there at any moment


def files(folder: Path, leave_out: tuple[str, ...] = ()) -> dict[str, str]:
    """All files of an output, hidden ones too, with their checksums."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in leave_out
    }


# ---- what is tried


def _features(folder: Path) -> None:
    write_rows(folder / "features", n=60)


def _earlier(folder: Path) -> None:
    """An output that the run replaces."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    shutil.copytree(folder / "earlier", folder / "out")


def _impute_inputs(folder: Path) -> None:
    _features(folder)
    command(["impute", "features", "--out", "earlier", "imputer.method=mean"], folder)


def _train_state(folder: Path) -> Any:
    out = folder / "out"
    best = (out / "checkpoints" / "best").read_text()
    names = sorted(path.name for path in (out / "checkpoints").iterdir())
    return {"records": records(out), "model": files(out / "model"), "best": best, "checkpoints": names,
            "files": sorted(path.name for path in out.iterdir())}  # fmt: skip


def _train_inputs(folder: Path) -> None:
    path = config_file(folder, stages=[{"steps": 12}], checkpoint={"every": 2}, validation={"every": 4})
    path.rename(folder / "train.yaml")


def _compare_state(folder: Path) -> Any:
    out = folder / "out"
    content = json.loads((out / "results.json").read_text())
    measured = [row for row in content["rows"] if row["metric"] not in TIMES]
    return {"rows": measured, "words": content["meta"]["words"], "files": sorted(files(out))}


def _collection(folder: Path) -> None:
    make_folder(folder / "colours", 24)


def _index_inputs(folder: Path) -> None:
    """A collection and an aligner for it, fitted in a process of its own: the store is not used by the parent of forks."""
    make_folder(folder / "colours", 60)

    def work() -> int:
        from calmrl import Index

        made = Index.build(folder / "colours", folder / "made", NAMES, model=settings())
        made.aligner.save(folder / "aligner")
        return 0

    said = folder.parent / "said.txt"
    if wait(start(work, said), ENDLESS) != 0:
        raise AssertionError(said.read_text()[-2000:])


def _index_state(folder: Path) -> Any:
    from calmrl import Index

    index = Index.open(folder / "out")
    columns = ["id", "text", "labels", "paths", "fingerprint", "certainty", "vector"]
    return json.loads(json.dumps(sorted(index.rows(columns), key=lambda row: row["id"]), default=_plain))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else str(value)


def _add_inputs(folder: Path) -> None:
    _index_inputs(folder)
    for number in range(100, 112):
        write_item(folder / "colours", number)


def _made(folder: Path) -> None:
    shutil.rmtree(folder / "out", ignore_errors=True)
    shutil.copytree(folder / "made", folder / "out")


def _named() -> list[str]:
    return ["--encoder", "image=see", "--encoder", "text=read", "--encoder", "sound=hear"]


COMPARE = ["compare", "features", "--out", "out", "--methods", "contrastive,pmrl", "--seeds", "1", "steps=3", "trials=1",
           "workers=1"]  # fmt: skip
VERBS = {
    "train": Verb(["train", "train.yaml", "--out", "out"], _train_inputs, _train_state,
                  ["train", "train.yaml", "--out", "out", "--resume"]),
    "impute": Verb(["impute", "features", "--out", "out", "--force", "imputer.method=gaussian", "imputer.latent_dim=4"],
                   _impute_inputs, lambda folder: files(folder / "out"), [], _earlier, in_place=True),
    "extract": Verb(["extract", "colours", "--out", "out", "--workers", "0", *_named()], _collection,
                    lambda folder: files(folder / "out"), []),
    "compare": Verb(COMPARE, _features, _compare_state, []),
    "index": Verb(["index", "colours", "--out", "out", "--model", "aligner", *_named()], _index_inputs, _index_state, []),
    "add": Verb(["add", "out", "colours"], _add_inputs, _index_state, [], _made),
}  # fmt: skip


# ---- running and killing


def start(work: Callable[[], int], said: Path) -> int:
    """Fork; the child does the work with its output in a file, and ends with its code."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        code = work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(child: int, seconds: float) -> int | None:
    """The code of a child, negative for a signal; None if it is still at work after so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    return None


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _words(words: list[str], folder: Path) -> Callable[[], int]:
    def work() -> int:
        os.chdir(folder)
        try:
            command_line(words)
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    return work


def command(words: list[str], folder: Path) -> None:
    """Run a command to its end; an error if it fails."""
    said = folder.parent / "said.txt"
    child = start(_words(words, folder), said)
    code = wait(child, ENDLESS)
    if code is None:
        kill(child)
    if code != 0:
        raise AssertionError(f"{' '.join(words)}: exit code {code}\n{said.read_text()[-2000:]}")


def state_of(verb: Verb, folder: Path) -> Any:
    """The state of an output, read in a process of its own: what a reader opens does not outlive it."""
    target = folder.parent / "state.json"

    def work() -> int:
        target.write_text(json.dumps(verb.state(folder)))
        return 0

    said = folder.parent / "said.txt"
    if wait(start(work, said), ENDLESS) != 0:
        raise AssertionError(f"the output cannot be read\n{said.read_text()[-2000:]}")
    return json.loads(target.read_text())


def try_verb(name: str, times: int, seed: int) -> list[str]:
    """Kill the verb so many times; sentences about what was wrong afterwards."""
    verb, draws, wrong = VERBS[name], random.Random(seed), []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "work"
        folder.mkdir()
        verb.prepare(folder)
        inputs = {path.name for path in folder.iterdir()}
        verb.before(folder)
        old = files(folder / "out") if verb.in_place else None
        began = time.monotonic()
        command(verb.words, folder)
        took = time.monotonic() - began
        want, names = state_of(verb, folder), {path.name for path in folder.iterdir()}
        new = files(folder / "out")
        stopped = 0
        for number in range(times):
            for path in [path for path in folder.iterdir() if path.name not in inputs]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            verb.before(folder)
            child, moment = start(_words(verb.words, folder), Path(place) / "said.txt"), took * draws.random()
            if wait(child, moment) is None:
                kill(child)
                stopped += 1
            label = f"{name}, kill {number} after {moment:.3f} of {took:.3f} s"
            if verb.in_place and files(folder / "out") not in (old, new):
                wrong.append(f"{label}: neither the old nor the new output is in place")
            try:
                command(verb.again or verb.words, folder)
                got = state_of(verb, folder)
            except AssertionError as error:
                wrong.append(f"{label}: {error}")
                continue
            if got != want:
                wrong.append(f"{label}: the result differs from that of an undisturbed run: {_first(got, want)}")
            left = {path.name for path in folder.iterdir()} - names
            hidden = [str(path) for path in folder.rglob(".*") if path.name.startswith((".out", ".draft", ".calmrl"))]
            if left or hidden:
                wrong.append(f"{label}: left behind {sorted(left) or hidden}")
    print(f"{name}: {times} runs, {stopped} killed in {took:.2f} s of work, {len(wrong)} wrong", flush=True)
    return wrong


def _first(got: Any, want: Any) -> str:
    if isinstance(got, dict) and isinstance(want, dict):
        for key in sorted({*got, *want}, key=str):
            if got.get(key) != want.get(key):
                return f"{key}: {_first(got.get(key), want.get(key))}"
    return f"{str(got)[:200]} instead of {str(want)[:200]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verb", choices=[*VERBS, "all"], default="all")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ENCODERS.update(COLOUR_ENCODERS)
    wrong: list[str] = []
    for name in VERBS if options.verb == "all" else [options.verb]:
        wrong += try_verb(name, options.times, options.seed)
    for sentence in wrong:
        print(sentence)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
