"""Let four writers and a reader work on the same paths at once, and count what each call came to.

python -m tests.writers --seconds 60        # exit code 1 if a call ended in anything but a result or a sentence

The writers add items to one index and remove them, save an aligner over another, and write features that one of them takes
away again. A call may be refused while another writer is at work; the reader always finds a whole index and a whole aligner.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calmrl import Aligner, Index
from calmrl.data.features.feature_set import open_features
from calmrl.data.features.writer import write_features
from calmrl.errors import InputError
from tests.support import warm
from tests.support.colour_world import settings

WRITERS = 4
LEAST = 3  # rounds of every writer, and twice as many of the reader, however slow the machine is
BUSY = ("another run is writing", "another run is changing")
ABSENT = (
    "no features at",
    "exists; remove it",
    "/features/",
)  # features are taken away, also while they are being opened
Calls = dict[str, Callable[[], Any]]


def rows(seed: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, 3))
    return {name: (hidden @ rng.normal(size=(3, 5))).astype(np.float32) for name in ("image", "text")}


def prepare(folder: Path) -> None:
    """An index, its aligner, and features that each writer adds."""
    z = rows(0, 60)
    write_features(folder / "all", z, ids=[f"item {i}" for i in range(60)])
    fitted = settings().fit(z)
    fitted.save(folder / "aligner")
    Index.build(folder / "all", folder / "index", model=fitted)
    for number in range(WRITERS):
        write_features(folder / f"more-{number}", rows(number + 1, 4), ids=[f"{number}-{i}" for i in range(4)])


def writer_calls(folder: Path, number: int) -> Calls:
    index, aligner = Index.open(folder / "index"), Aligner.load(folder / "aligner")

    def take_away() -> None:
        away = folder / f"away-{number}"
        try:
            os.rename(folder / "features", away)
        except FileNotFoundError:
            raise InputError("no features at all") from None
        shutil.rmtree(away)

    return {
        "add": lambda: index.add(folder / f"more-{number}"),
        "remove": lambda: index.remove([row["id"] for row in index.rows(["id"]) if row["id"].startswith(f"{number}-")]),
        "save": lambda: aligner.save(folder / "aligner", overwrite=True),
        "features": lambda: write_features(folder / "features", rows(number, 200)),
        "take away": take_away,
    }


def reader_calls(folder: Path, number: int) -> Calls:
    def whole() -> None:
        found = {row["id"] for row in Index.open(folder / "index").rows(["id"])}
        assert {f"item {i}" for i in range(60)} <= found, "an item is lost"
        halves = [n for n in range(WRITERS) if len([id for id in found if id.startswith(f"{n}-")]) not in (0, 4)]
        assert not halves, f"half of an addition is there: {halves}"

    return {
        "read index": whole,
        "search": lambda: Index.open(folder / "index").search(like="item 7", k=3),
        "load": lambda: Aligner.load(folder / "aligner"),
        "open": lambda: open_features(folder / "features").ids,
    }


def work(folder: Path, number: int, seconds: float) -> dict[str, Counter[str]]:
    """Make calls in random order; name -> what they came to -> how often."""
    reads = number == WRITERS
    calls = (reader_calls if reads else writer_calls)(folder, number)
    counts: dict[str, Counter[str]] = {name: Counter() for name in calls}
    draws, rounds = random.Random(number), 0
    (folder / f"ready-{number}").touch()
    while len(list(folder.glob("ready-*"))) <= WRITERS:
        time.sleep(0.01)
    end = time.monotonic() + seconds
    while time.monotonic() < end or rounds < LEAST * (1 + reads):
        rounds += 1
        for name in draws.sample(list(calls), len(calls)):
            counts[name][outcome(calls[name])] += 1
    return counts


def outcome(call: Callable[[], Any]) -> str:
    try:
        call()
    except InputError as error:
        said = str(error)
        expected = {"busy": BUSY, "refused": ABSENT}
        return next(
            (kind for kind, words in expected.items() if any(word in said for word in words)), f"wrong: {said}"[:300]
        )
    except Exception as error:
        return f"raw: {type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return "ok"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--work", nargs=2, metavar=("FOLDER", "NUMBER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        folder, number = options.work
        print(json.dumps(work(Path(folder), int(number), options.seconds)))
        return 0
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place))
        words = ["-m", "tests.writers", "--seconds", options.seconds, "--work", place]
        running = [warm.start([*words, number]) for number in range(WRITERS + 1)]
        said = [process.communicate(options.seconds + 600) for process in running]
        left = [path.name for path in Path(place).iterdir() if "calmrl-" in path.name or path.name.endswith(".part")]
    total: dict[str, Counter[str]] = {}
    for process, (out, err) in zip(running, said, strict=True):
        if process.returncode:
            raise SystemExit(out + err)
        for name, counts in json.loads(out.splitlines()[-1]).items():
            total.setdefault(name, Counter()).update(counts)
    wrong = Counter({f"{name}: {kind}": n for name, c in total.items() for kind, n in c.items() if ":" in kind})
    for name, counts in total.items():
        print(f"{name}: {counts['ok']} ok, {counts['busy']} busy, {counts['refused']} refused, "
              f"{sum(n for kind, n in counts.items() if ':' in kind)} wrong")  # fmt: skip
    for sentence, n in wrong.most_common(20):
        print(f"{n} x {sentence}")
    print(f"left behind: {', '.join(sorted(left)) or 'nothing'}")
    return int(bool(wrong or left))


if __name__ == "__main__":
    sys.exit(main())
