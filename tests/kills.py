"""Kill a command at a random moment, start it again, and compare what it writes with an undisturbed run.

python -m tests.kills --verb impute --times 200      # exit code 1 if a result differs or something is left behind

All runs are forks of one process that has imported everything, so that a run takes as long as its work. A kill is
SIGKILL, at a moment that is drawn evenly over the processor time of an undisturbed run, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calmrl.workflows.compare.run
import calmrl.workflows.extract
import calmrl.workflows.impute
import calmrl.workflows.train  # noqa: F401 (imported once, for all runs)
from calmrl.cli import main as command_line
from calmrl.encoders import ENCODERS
from tests.support.colour_world import COLOUR_ENCODERS, NAMES, make_folder, settings, write_item
from tests.support.train_data import TIMES, config_file, records, write_rows

ONCE = ["accelerate", "sklearn.linear_model", "torch._dynamo", "PIL.Image", "av", "pyarrow.dataset", "lance_namespace",
        "matplotlib.figure", "matplotlib.backends.backend_svg"]  # fmt: skip
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
    if wait(start(work, said)) != 0:
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
    "refit": Verb(["add", "out", "colours", "--refit"], _add_inputs, _index_state, [], _made),
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


def wait(child: int, moment: float = ENDLESS) -> int | None:
    """The code of a child, negative for a signal; None if it is still at work after so many seconds of processor time."""
    end = time.monotonic() + ENDLESS
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if used(child) >= moment:
            return None
        time.sleep(0.0005)
    return None


def used(child: int) -> float:
    """Seconds of processor time that a process has used, all its threads together."""
    return time.clock_gettime((~child << 3) | 2)  # the clock that clock_getcpuclockid gives


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def import_once() -> None:
    """What runs import late, so that forks do not; not lancedb itself: it starts a thread, which does not outlive a fork."""
    for name in ONCE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _words(words: list[str], folder: Path) -> Callable[[], int]:
    def work() -> int:
        os.chdir(folder)
        try:
            command_line(words)
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    return work


def command(words: list[str], folder: Path) -> float:
    """Run a command to its end; the seconds of processor time that it used, and an error if it fails."""
    before = _used_by_children()
    said = folder.parent / "said.txt"
    child = start(_words(words, folder), said)
    code = wait(child)
    if code is None:
        kill(child)
    if code != 0:
        raise AssertionError(f"{' '.join(words)}: exit code {code}\n{said.read_text()[-2000:]}")
    return _used_by_children() - before


def _used_by_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def state_of(verb: Verb, folder: Path) -> Any:
    """The state of an output, read in a process of its own: what a reader opens does not outlive it."""
    target = folder.parent / "state.json"

    def work() -> int:
        target.write_text(json.dumps(verb.state(folder)))
        return 0

    said = folder.parent / "said.txt"
    if wait(start(work, said)) != 0:
        raise AssertionError(f"the output cannot be read\n{said.read_text()[-2000:]}")
    return json.loads(target.read_text())


@dataclass
class Kills:
    """What came of killing one verb."""

    tried: int
    killed: int = 0  # still at work when their moment came; the others had ended
    begun: int = 0  # of those: had written something by then
    seconds: float = 0.0  # of processor time of an undisturbed run
    wrong: list[str] = field(default_factory=list)


def try_verb(name: str, times: int, seed: int) -> Kills:
    """Kill the verb so many times, start it again each time, and compare what it leaves."""
    verb, draws, result = VERBS[name], random.Random(seed), Kills(times)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "work"
        folder.mkdir()
        verb.prepare(folder)
        inputs = {path.name for path in folder.iterdir()}
        verb.before(folder)
        at_first = set(folder.rglob("*"))
        old = files(folder / "out") if verb.in_place else None
        result.seconds = command(verb.words, folder)
        want, names = state_of(verb, folder), {path.name for path in folder.iterdir()}
        new = files(folder / "out")
        for number in range(times):
            for path in [path for path in folder.iterdir() if path.name not in inputs]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            verb.before(folder)
            child, moment = start(_words(verb.words, folder), Path(place) / "said.txt"), result.seconds * draws.random()
            if wait(child, moment) is None:
                kill(child)
                result.killed += 1
                result.begun += set(folder.rglob("*")) != at_first
            label = f"{name}, kill {number} after {moment:.3f} of {result.seconds:.3f} s"
            if verb.in_place and files(folder / "out") not in (old, new):
                result.wrong.append(f"{label}: neither the old nor the new output is in place")
                continue
            problem = _after(verb, folder, want, names)
            if problem:
                result.wrong.append(f"{label}: {problem}")
    return result


def _after(verb: Verb, folder: Path, want: Any, names: set[str]) -> str | None:
    """What is wrong after a second start; None if nothing is."""
    try:
        command(verb.again or verb.words, folder)
        got = state_of(verb, folder)
    except AssertionError as error:
        return str(error)
    if got != want:
        return f"the result differs from that of an undisturbed run: {_first(got, want)}"
    left = sorted({path.name for path in folder.iterdir()} - names)
    hidden = [str(path) for path in folder.rglob(".*") if path.name.startswith((".out", ".draft", ".calmrl"))]
    return f"left behind {left or hidden}" if left or hidden else None


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
    import_once()
    wrong: list[str] = []
    for name in VERBS if options.verb == "all" else [options.verb]:
        result = try_verb(name, options.times, options.seed)
        print(f"{name}: {result.tried} runs of {result.seconds:.2f} s, {result.killed} killed at work, {result.begun} of them "
              f"with something written, {len(result.wrong)} wrong", flush=True)  # fmt: skip
        wrong += result.wrong
    for sentence in wrong:
        print(sentence)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
