"""Everything that may go wrong, tried and counted in one table: kills, damaged files, degenerate numbers, hostile names.

    python -m tests.reliability                          # a few of each, minutes
    python -m tests.reliability --full --out table.md    # 200 kills per verb, 20,000 files, 100,000 cases, 6,000 names

Each group is a process of its own with one thread. The exit code is 1 if anything ends in another way than with a clear
error or the correct result. `--groups` repeats some of them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tests.support import warm

FEW = {"kills": 3, "damaged files": 600, "degenerate numbers": 1000, "hostile names": 200}
FULL = {"kills": 200, "damaged files": 20_000, "degenerate numbers": 100_000, "hostile names": 6000}


@dataclass(frozen=True)
class Line:
    """One line of the table. For kills an error is not expected: after a second start only the correct result is."""

    group: str
    part: str
    tried: int
    refused: int
    right: int
    other: int
    note: str = ""


def kills(times: int, seed: int) -> list[Line]:
    import torch

    from calmrl.encoders import ENCODERS
    from tests import kills as script

    torch.set_num_threads(1)
    ENCODERS.update(script.COLOUR_ENCODERS)
    script.import_once()
    lines = []
    for verb in script.VERBS:
        result = script.try_verb(verb, times, seed)
        _say(result.wrong)
        note = f"{result.killed} killed at work, {result.begun} of them with something written"
        other = len(result.wrong)
        lines.append(Line("kills", verb, times, 0, times - other, other, note))
    return lines


def damaged_files(cases: int, seed: int) -> list[Line]:
    import warnings

    from tests.fuzz.run import FAMILIES, fuzz

    warnings.simplefilter("ignore")
    lines = []
    for name in FAMILIES:
        count = fuzz(name, -(-cases // len(FAMILIES)), seed)
        _say(count.failures)
        tried, right, refused = count.outcomes.total(), count.outcomes["read"], count.outcomes["refused"]
        lines.append(Line("damaged files", name, tried, refused, right, tried - right - refused))
    return lines


def counted(group: str, cases: int, seed: int) -> list[Line]:
    """What a script of this name in the tests counts."""
    import torch

    torch.set_num_threads(1)
    counts = importlib.import_module(f"tests.{SCRIPTS[group]}").run(cases, seed)
    return [Line(group, part, c.total(), c["refused"], c["right"], c["wrong"]) for part, c in counts.items()]


SCRIPTS = {"degenerate numbers": "degenerate", "hostile names": "hostile_names"}
GROUPS = {"kills": kills, "damaged files": damaged_files} | {group: partial(counted, group) for group in SCRIPTS}


def _say(problems: list[str]) -> None:
    for problem in problems[:50]:
        print(problem, file=sys.stderr, flush=True)


def table(lines: list[Line]) -> str:
    """A Markdown table with a sum after each group."""
    rows = [
        "| group | part | tried | clear error | correct result | anything else | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for group in dict.fromkeys(line.group for line in lines):
        some = [line for line in lines if line.group == group]
        rows += [
            f"| {group} | {line.part} | {line.tried:,} | {line.refused:,} | {line.right:,} | {line.other:,} | {line.note} |"
            for line in some
        ]
        sums = [sum(getattr(line, key) for line in some) for key in ("tried", "refused", "right", "other")]
        rows.append(f"| **{group}** | **all** | " + " | ".join(f"**{value:,}**" for value in sums) + " | |")
    return "\n".join(rows) + "\n"


def run(group: str, cases: int, seed: int) -> list[Line]:
    """One group in a process of its own; what it prints on the way goes to stderr."""
    words = [sys.executable, "-m", "tests.reliability", "--groups", group, "--cases", str(cases), "--seed", str(seed)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(warm.PATH)}
    done = subprocess.run([*words, "--json"], stdout=subprocess.PIPE, text=True, env=environment, check=True)
    *said, lines = done.stdout.splitlines()
    _say(said)
    return [Line(**line) for line in json.loads(lines)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="as many as the table in the docs")
    parser.add_argument("--groups", default=",".join(GROUPS), help=f"some of {', '.join(GROUPS)}")
    parser.add_argument("--cases", type=int, help="how many of each group instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file for the table")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)  # one group, as JSON, in this process
    options = parser.parse_args()
    names = options.groups.split(",")
    sizes = {name: options.cases or (FULL if options.full else FEW)[name] for name in names}
    if options.json:
        lines = GROUPS[names[0]](sizes[names[0]], options.seed)
        print(json.dumps([asdict(line) for line in lines]))
        return 0
    lines = [line for name in names for line in run(name, sizes[name], options.seed)]
    text = table(lines)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return int(any(line.other for line in lines))


if __name__ == "__main__":
    sys.exit(main())
