"""Before any encoding: every file of a collection is decoded once, and what cannot be used is taken out and listed."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calmrl._support.output import new_file
from calmrl.data.features.feature_set import part_of
from calmrl.data.media.collection_problems import MediaProblem, Problems
from calmrl.data.media.decode import Job, decoded
from calmrl.data.media.manifest import Item, Manifest, drop_empty
from calmrl.data.media.unreadable import Unreadable
from calmrl.encoders.base import Encoder
from calmrl.errors import InputError

Progress = Callable[[str, int, int], None]  # what is being done, done so far, of how many


@dataclass
class Run:
    """How to go through a collection."""

    encoders: dict[str, Encoder]
    frames: int
    batch_size: int
    pool: Executor | None
    progress: Progress

    def jobs(self, name: str, items: list[Item]) -> list[Job]:
        encoder = self.encoders[name]
        return [Job(item.cells[name], encoder.kind, encoder.prepare, self.frames, encoder.rate) for item in items]


@dataclass
class CheckedCollection:
    """The items of a collection that can be used, and the problems of the others."""

    manifest: Manifest
    problems: Problems

    def lines(self, allowed: bool) -> list[str]:
        """What is there and what is wrong, for people."""
        items = self.manifest.items
        lines = [f"{len(items)} items"]
        for name in self.manifest.kinds:
            here = sum(name in item.cells for item in items)
            bad = sum(problem.scope == "cell" and problem.column == name for problem in self.problems)
            lines.append(f"{name}: {here} present, {len(items) - here} missing" + (f", {bad} unusable" if bad else ""))
        return lines + self.problems.lines(allowed)


def check_collection(manifest: Manifest, problems: Problems, run: Run, out: Path) -> CheckedCollection:
    """Decode every file once; what cannot be used is taken out and listed."""
    memory = beside(out, "checked.json")
    key = {"collection": manifest.digest(), "times": manifest.times(), "frames": run.frames}
    bad = _remembered(memory, key, part_of(out))
    if bad is None:
        bad = list(_try_all(manifest, run))
        with new_file(memory, force=True) as draft:
            draft.write_text(json.dumps(key | {"problems": [asdict(problem) for problem in bad]}), encoding="utf-8")
    problems.entries += bad
    spoiled = {(problem.id, problem.column) for problem in bad}
    for item in manifest.items:
        item.cells = {name: cell for name, cell in item.cells.items() if (item.id, name) not in spoiled}
    drop_empty(manifest, problems)
    return CheckedCollection(manifest, problems)


def _remembered(memory: Path, key: dict[str, Any], part: Path) -> list[MediaProblem] | None:
    """The result of an earlier check of the same collection. Features begun after the check of another are refused."""
    if not memory.is_file():
        return None
    saved = json.loads(memory.read_text(encoding="utf-8"))
    differs = [name for name in key if saved.get(name) != key[name]]
    if differs and part.exists():
        what = "media files were written again" if differs == ["times"] else f"{' and '.join(differs)} changed"
        raise InputError(
            f"{what} after {part} was begun, so it may hold features of something else; delete it to start over, or "
            "choose another --out"
        )
    return None if differs else [MediaProblem(**problem) for problem in saved["problems"]]


def _try_all(manifest: Manifest, run: Run) -> Iterator[MediaProblem]:
    """Decode every file; yield a problem for each that cannot be."""
    for name, kind in manifest.kinds.items():
        if kind == "text":
            continue
        items = [item for item in manifest.items if name in item.cells]
        jobs = run.jobs(name, items)
        run.progress(f"check {name}", 0, len(items))
        for done, (item, result) in enumerate(zip(items, decoded(jobs, run.pool, keep=False), strict=True), start=1):
            run.progress(f"check {name}", done, len(items))
            if isinstance(result, Unreadable):
                yield MediaProblem(result.kind, "cell", item.line, item.id, name, result.detail)


def stop_at_problems(collection: CheckedCollection, report: Path, allow_missing: bool) -> None:
    """Write all problems to a file; raise InputError unless they are allowed and something is left."""
    report.unlink(missing_ok=True)
    if collection.problems:
        collection.problems.write(report)
        if not allow_missing:
            raise InputError(
                f"{len(collection.problems)} problems, all of them listed in {report}; repair them, or pass "
                "--allow-missing to go on without what cannot be used"
            )
    if not collection.manifest.items:
        raise InputError(f"no item is left; see {report}")


def beside(out: Path, name: str) -> Path:
    """A file next to the output: <out>.<name>."""
    return out.with_name(f"{out.name}.{name}")
