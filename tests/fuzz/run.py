"""Damage samples, read them, and count what comes of it.

A case ends well if the reader gives what is in the file, or raises an InputError that names the file. Everything else
fails: another exception, an error without the name, more seconds or memory than the limits, fewer rows without a word.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from calmrl.errors import InputError
from tests.fuzz import features, learned, media, texts
from tests.fuzz.family import Make, Sample
from tests.fuzz.mutations import Mutation, flip_byte, mutate

FAMILIES: dict[str, Make] = {**features.FAMILIES, **texts.FAMILIES, **learned.FAMILIES, **media.FAMILIES}
SECONDS = 10.0  # of processor time per case
MEGABYTES = 500  # that a case may add to the most that was used before
OUTCOMES = ("read", "refused", "raw", "unnamed", "hang", "memory", "lie")
GOOD = OUTCOMES[:2]


class TimeUp(BaseException):
    """Not an Exception, so that no reader takes it for a damaged file."""


@dataclass
class Count:
    """Outcomes of one family, and what went wrong, with the number of the case."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def outcome(sample: Sample, file: Path, whole: object) -> tuple[str, str]:
    """(one of OUTCOMES, what to say about it)."""
    before, started = peak_megabytes(), time.process_time()
    try:
        with alarm(SECONDS):
            got = sample.read(file)
        result = (
            ("read", "") if sample.same(got, whole) else ("lie", f"read {got} where the whole sample gives {whole}")
        )
    except InputError as error:
        result = ("refused", "") if sample.named in str(error) else ("unnamed", str(error)[:300])
    except TimeUp:
        result = ("hang", f"more than {SECONDS:g} s")
    except BaseException as error:  # panics of Rust are no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        result = ("raw", "".join(traceback.format_exception(error)[-4:])[-900:])
    if time.process_time() - started > SECONDS:
        result = ("hang", f"{time.process_time() - started:.1f} s")
    grown = peak_megabytes() - before
    return ("memory", f"{grown:.0f} MB") if grown > MEGABYTES else result


def fuzz(name: str, cases: int, seed: int, first: int = 0, damage: Mutation = mutate) -> Count:
    """Cases `first` to `first + cases` of a family; case and seed alone decide what is damaged, and how."""
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        sample = FAMILIES[name](Path(folder))
        wholes = {file: sample.read(file) for file in sample.files}  # what is allocated once does not count, either
        started = time.perf_counter()
        for case in range(first, first + cases):
            rng = Random(f"{seed} {name} {case}")
            sizes = [file.stat().st_size if damage is flip_byte and case % 2 else 1 for file in sample.files]
            (file,) = rng.choices(sample.files, sizes)
            content = file.read_bytes()
            try:
                file.write_bytes(damage(content, rng))
                kind, detail = outcome(sample, file, wholes[file])
            finally:
                file.write_bytes(content)
            count.outcomes[kind] += 1
            if kind not in GOOD:
                count.failures.append(f"{name} case {case} ({file.name}): {kind}: {detail}")
        count.seconds = time.perf_counter() - started
    return count


def table(counts: dict[str, Count]) -> str:
    """A line per family, in Markdown."""
    lines = [f"| family | {' | '.join(OUTCOMES)} | seconds |", "|---|" + "---:|" * (len(OUTCOMES) + 1)]
    total: Counter[str] = Counter()
    for name, count in counts.items():
        total += count.outcomes
        lines.append(f"| {name} | {' | '.join(str(count.outcomes[o]) for o in OUTCOMES)} | {count.seconds:.0f} |")
    seconds = sum(count.seconds for count in counts.values())
    return "\n".join([*lines, f"| all | {' | '.join(str(total[o]) for o in OUTCOMES)} | {seconds:.0f} |"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="in all, the same number for each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(FAMILIES), help=f"some of {','.join(FAMILIES)}")
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to repeat one: --cases 1")
    parser.add_argument(
        "--flips", action="store_true", help="change one byte in each case: in turn of any file, and of all bytes"
    )
    parser.add_argument("--shown", type=int, default=5, help="failures of each family that are printed")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    warnings.simplefilter("ignore")
    with contextlib.suppress(ImportError):
        import av

        av.logging.set_level(av.logging.PANIC)
    damage = flip_byte if options.flips else mutate
    counts: dict[str, Count] = {}
    for name in names:
        counts[name] = fuzz(name, -(-options.cases // len(names)), options.seed, options.first, damage)
        for failure in counts[name].failures[: options.shown]:
            print(failure, flush=True)
        print(table({name: counts[name]}).splitlines()[2], file=sys.stderr, flush=True)
    print(table(counts))
    return 1 if any(count.failures for count in counts.values()) else 0
