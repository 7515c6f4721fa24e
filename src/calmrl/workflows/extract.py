"""Raw media -> a feature directory: check everything, report, then encode what is left, in batches, resumable.

The check decodes every file once, in worker processes, before any encoding starts; its result is kept beside the
output, so that a run that was stopped does not repeat it. The features of an item depend on nothing but the item:
batch size, number of workers and interruptions do not change a bit of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.output import new_file
from calmrl.data.features.feature_set import FeatureSet, open_features, part_of
from calmrl.data.features.writer import FeatureWriter
from calmrl.data.media.collection_problems import MediaProblem, Problems
from calmrl.data.media.decode import Job, decoded, worker_pool
from calmrl.data.media.manifest import Item, Manifest, build, drop_empty, read_manifest
from calmrl.data.media.table_files import Row
from calmrl.data.media.unreadable import Unreadable
from calmrl.encoders import Encoder, load_encoder
from calmrl.errors import InputError

Progress = Callable[[str, int, int], None]  # what is being done, done so far, of how many


@dataclass
class Found:
    """What a check found: the items that can be used, and the problems."""

    manifest: Manifest
    problems: Problems

    def lines(self, allowed: bool) -> list[str]:
        """What is there and what is wrong, for people."""
        items = self.manifest.items
        said = [f"{len(items)} items"]
        for name in self.manifest.kinds:
            here = sum(name in item.cells for item in items)
            bad = sum(problem.scope == "cell" and problem.column == name for problem in self.problems)
            said.append(f"{name}: {here} present, {len(items) - here} missing" + (f", {bad} unusable" if bad else ""))
        return said + self.problems.lines(allowed)


def extract(
    manifest: str | Path | list[Row],
    encoders: Mapping[str, str],
    out: str | Path,
    *,
    root: str | Path | None = None,
    captions: str | Path | None = None,
    ignore: Collection[str] = (),
    allow_missing: bool = False,
    frames: int = 8,
    batch_size: int = 16,
    workers: int = 0,
    dtype: str = "float16",
    device: str = "cpu",
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> FeatureSet:
    """Encode a collection into the feature directory `out`.

    `manifest` is a file (see `calmrl.data.media.manifest`) or rows of `calmrl.data.media.annotations`; `encoders` is
    modality -> name. Problems raise InputError before any work, and all of them are listed in `<out>.problems.csv`; with
    `allow_missing` what cannot be used counts as missing instead. Items with several texts get the mean of their
    vectors, and every single vector goes to the feature directory `<out>.captions`.
    """
    out = Path(out)
    tell = say or (lambda line: None)
    loaded = {name: load_encoder(encoder, device) for name, encoder in encoders.items()}
    if not loaded:
        raise InputError("name at least one encoder, for instance image=efficientnet_lite0")
    with worker_pool(workers) as pool:
        run = _Run(loaded, frames, batch_size, pool, progress or (lambda what, done, total: None))
        found = _check(manifest, run, out, root=root, captions=captions, ignore=ignore)
        for line in found.lines(allow_missing):
            tell(line)
        _stop_at_problems(found, beside(out, "problems.csv"), allow_missing)
        info = {
            "made_by": "calmrl extract",
            "encoders": dict(encoders),
            "frames": frames,
            "collection": found.manifest.digest(),
            "problems": len(found.problems),
        }
        if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
            features = _reuse(out, info, tell)
        else:
            features = _encode(found.manifest, run, out, info, dtype)
    beside(out, "checked.json").unlink(missing_ok=True)
    return features


def _stop_at_problems(found: Found, report: Path, allow_missing: bool) -> None:
    """Write all problems to a file; raise InputError unless they are allowed and something is left."""
    report.unlink(missing_ok=True)
    if found.problems:
        found.problems.write(report)
        if not allow_missing:
            raise InputError(
                f"problems found: {len(found.problems)}, all of them in {report}; repair them, or pass --allow-missing "
                "to go on without what cannot be used"
            )
    if not found.manifest.items:
        raise InputError(f"no item is left; see {report}")


def beside(out: Path, name: str) -> Path:
    """A file next to the output: <out>.<name>."""
    return out.with_name(f"{out.name}.{name}")


@dataclass
class _Run:
    """How to go through a collection."""

    encoders: dict[str, Encoder]
    frames: int
    batch_size: int
    pool: Executor | None
    progress: Progress

    def jobs(self, name: str, items: list[Item]) -> list[Job]:
        encoder = self.encoders[name]
        return [Job(item.cells[name], encoder.kind, encoder.prepare, self.frames, encoder.rate) for item in items]


def _check(
    manifest: str | Path | list[Row],
    run: _Run,
    out: Path,
    *,
    root: str | Path | None = None,
    captions: str | Path | None = None,
    ignore: Collection[str] = (),
) -> Found:
    """Read the manifest and decode every file once; what cannot be used is taken out and listed."""
    problems = Problems()
    kinds = {name: encoder.kind for name, encoder in run.encoders.items()}
    if isinstance(manifest, list):
        if captions is not None or root is not None:
            raise InputError("captions and root go with a manifest; an annotation file holds texts and paths itself")
        read = build(manifest, kinds, problems, root=Path(), ignore=ignore)
    else:
        read = read_manifest(manifest, kinds, problems, root=root, captions=captions, ignore=ignore)
    memory = beside(out, "checked.json")
    key = {"collection": read.digest(), "times": read.times(), "frames": run.frames}
    bad = _remembered(memory, key, part_of(out))
    if bad is None:
        bad = list(_try_all(read, run))
        with new_file(memory, force=True) as draft:
            draft.write_text(json.dumps(key | {"problems": [asdict(problem) for problem in bad]}), encoding="utf-8")
    problems.entries += bad
    spoiled = {(problem.id, problem.column) for problem in bad}
    for item in read.items:
        item.cells = {name: cell for name, cell in item.cells.items() if (item.id, name) not in spoiled}
    drop_empty(read, problems)
    return Found(read, problems)


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


def _try_all(manifest: Manifest, run: _Run) -> Iterator[MediaProblem]:
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


def _reuse(out: Path, info: dict[str, Any], tell: Callable[[str], None]) -> FeatureSet:
    """Features that are there already, if they are the same."""
    features = open_features(out)
    differs = [key for key in info if features.info.get(key) != info[key]]
    if differs:
        raise InputError(
            f"{out} holds features made otherwise ({', '.join(differs)} differ); choose another --out, or remove it"
        )
    tell(f"{out} is complete already; nothing to do")
    return features


def _encode(manifest: Manifest, run: _Run, out: Path, info: dict[str, Any], dtype: str) -> FeatureSet:
    items = manifest.items
    widths = {name: encoder.width for name, encoder in run.encoders.items()}
    several = [name for name, kind in manifest.kinds.items() if kind == "text" and _several(items, name)]
    writer = FeatureWriter(
        out,
        widths,
        [item.id for item in items],
        dtype=dtype,
        split=manifest.column("split"),
        labels=manifest.column("labels"),
        text=manifest.column("text"),
        columns=manifest.extra(),
        info=info,
    )
    with writer:
        for name in widths:
            rows = np.array([row for row in writer.todo(name) if name not in items[row].cells], dtype=np.int64)
            if len(rows):
                nothing = np.zeros((len(rows), widths[name]), np.float32)
                writer.fill(rows, {name: nothing}, np.zeros((len(rows), 1), dtype=bool))
            if name in several:
                _encode_captions(items, name, run, beside(out, _captions(name, several)), writer, info, dtype)
            else:
                _encode_modality(items, name, run, writer)
        return writer.finish()


def _encode_modality(items: list[Item], name: str, run: _Run, writer: FeatureWriter) -> None:
    todo = writer.todo(name)
    total = sum(name in item.cells for item in items)
    start = total - len(todo)
    kind = run.encoders[name].kind
    results = decoded(run.jobs(name, [items[row] for row in todo]), None if kind == "text" else run.pool)
    run.progress(f"encode {name}", start, total)
    for first in range(0, len(todo), run.batch_size):
        rows = todo[first : first + run.batch_size]
        batch = []
        for _ in rows:
            result = next(results)
            if isinstance(result, Unreadable):
                raise InputError(f"{result}: it could be read during the check; run the same command again")
            batch.append(result[0] if kind == "text" else result)
        writer.fill(rows, {name: run.encoders[name].encode(batch)}, np.ones((len(rows), 1), dtype=bool))
        run.progress(f"encode {name}", start + first + len(rows), total)


def _several(items: list[Item], name: str) -> bool:
    return any(len(item.cells.get(name, ())) > 1 for item in items)


def _captions(name: str, several: list[str]) -> str:
    return "captions" if several == ["text"] else f"captions.{name}"


def _encode_captions(
    items: list[Item],
    name: str,
    run: _Run,
    out: Path,
    main: FeatureWriter,
    info: dict[str, Any],
    dtype: str,
) -> None:
    """Each text of each item into a directory of its own, and the mean of an item's vectors into the main one."""
    texts = [(row, text) for row, item in enumerate(items) for text in item.cells.get(name, ())]
    begins = np.cumsum([0] + [len(item.cells.get(name, ())) for item in items])
    encoder = run.encoders[name]
    if out.exists() and not len(main.todo(name)):
        return  # stopped between the two renamings at the end: everything is written
    writer = FeatureWriter(
        out,
        {name: encoder.width},
        [f"{items[row].id}#{number - begins[row]}" for number, (row, _) in enumerate(texts)],
        dtype=dtype,
        split=[items[row].columns.get("split") for row, _ in texts],
        text=[text for _, text in texts],
        columns={"item": [items[row].id for row, _ in texts]},
        info=info,
    )
    with writer:
        todo = main.todo(name)
        run.progress(f"encode {name}", 0, len(todo))
        for done, row in enumerate(todo, start=1):
            vectors = encoder.encode(items[row].cells[name])
            writer.fill(slice(begins[row], begins[row + 1]), {name: vectors}, np.ones((len(vectors), 1), dtype=bool))
            main.fill(np.array([row]), {name: vectors.mean(axis=0, keepdims=True)}, np.ones((1, 1), dtype=bool))
            run.progress(f"encode {name}", done, len(todo))
        writer.finish()
