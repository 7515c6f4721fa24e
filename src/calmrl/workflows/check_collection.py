"""What cannot be used of a collection: taken out, counted and listed."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from calmrl.data.media.collection_problems import MediaProblem, Problems
from calmrl.data.media.manifest import Item, Manifest, drop_empty
from calmrl.data.media.streams import check_stream
from calmrl.data.media.suffixes import modality_of
from calmrl.data.media.unreadable import Unreadable, check_file
from calmrl.errors import InputError

Progress = Callable[[str, int, int], None]  # what is being done, done so far, of how many


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


def absent_files(manifest: Manifest) -> list[MediaProblem]:
    """Files that are not there, are empty or are folders: seen without opening them."""
    problems = []
    for item, name, cell in file_cells(manifest):
        try:
            check_file(cell)
        except Unreadable as error:
            problems.append(cell_problem(item, name, error))
    return problems


def unplayable_files(manifest: Manifest, workers: int = 1) -> list[MediaProblem]:
    """Films and sounds that do not open, or lack the stream that is asked for: seen from their headers."""
    cells = [(item, name, cell) for item, name, cell in file_cells(manifest) if modality_of(cell) in ("video", "sound")]

    def problem(entry: tuple[Item, str, str]) -> MediaProblem | None:
        item, name, cell = entry
        try:
            check_stream(cell, "audio" if manifest.kinds[name] == "audio" else "video")
        except Unreadable as error:
            return cell_problem(item, name, error)
        return None

    with ThreadPoolExecutor(workers) as pool:
        return [bad for bad in pool.map(problem, cells) if bad is not None]


def file_cells(manifest: Manifest) -> list[tuple[Item, str, str]]:
    """(item, modality, path) of every file, modality by modality."""
    return [
        (item, name, item.cells[name])
        for name, kind in manifest.kinds.items()
        if kind != "text"
        for item in manifest.items
        if name in item.cells
    ]


def cell_problem(item: Item, name: str, error: Unreadable) -> MediaProblem:
    """A file that cannot be used, as a problem of its item."""
    return MediaProblem(error.kind, "cell", item.line, item.id, name, error.detail)


def take_out(manifest: Manifest, problems: Problems, bad: list[MediaProblem]) -> CheckedCollection:
    """Take the bad cells out of a collection, and the items that have nothing left."""
    problems.entries += bad
    spoiled = {(problem.id, problem.column) for problem in bad}
    for item in manifest.items:
        item.cells = {name: cell for name, cell in item.cells.items() if (item.id, name) not in spoiled}
    drop_empty(manifest, problems)
    return CheckedCollection(manifest, problems)


def stop_at_problems(collection: CheckedCollection, report: Path, allow_missing: bool) -> None:
    """Write all problems to a file; raise InputError unless they are allowed and something is left."""
    report.unlink(missing_ok=True)
    serious = len(collection.problems.blocking())
    if serious:
        collection.problems.write(report)
        if not allow_missing:
            raise InputError(
                f"{serious} problems, all of them listed in {report}; repair them, or pass --allow-missing to go on "
                "without what cannot be used (what was encoded so far is kept)"
            )
    if not collection.manifest.items:
        raise InputError(f"no item is left; see {report}")


def beside(out: Path, name: str) -> Path:
    """A file next to the output: <out>.<name>."""
    return out.with_name(f"{out.name}.{name}")
