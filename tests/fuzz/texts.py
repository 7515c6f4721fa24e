"""Configs, manifests, results and records: text, in which a damaged value can be a valid one."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from calmrl.config import load, shipped_text
from calmrl.data.media.manifest import read_manifest
from calmrl.data.media.problems import Problems
from calmrl.report.results import read_results
from calmrl.training.checkpoints import Records, read_records
from tests.fuzz.family import Make, Sample

KINDS = {"image": "image", "text": "text"}


def anything(got: Any, whole: Any) -> bool:
    """A text without checksums: what was read cannot be compared with what was written."""
    return True


def yaml(folder: Path) -> Sample:
    path = folder / "config.yaml"
    path.write_text(shipped_text("demo"))
    return Sample([path], load, path.name, anything)


def rows() -> list[dict[str, str]]:
    return [{"id": f"i{row}", "split": "train", "image": f"{row}.png", "text": f'a "{row}", b'} for row in range(12)]


def manifest_rows(path: Path) -> int:
    """Items and bad rows together."""
    problems = Problems()
    manifest = read_manifest(path, KINDS, problems)
    return len(manifest.items) + sum(problem.scope == "row" for problem in problems)


def manifest_csv(folder: Path) -> Sample:
    path = folder / "items.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows()[0]))
        writer.writeheader()
        writer.writerows(rows())

    def same(got: int, whole: int) -> bool:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        return got == sum(bool(line) for line in list(csv.reader(io.StringIO(text, newline="")))[1:])

    return Sample([path], manifest_rows, path.name, same)


def manifest_jsonl(folder: Path) -> Sample:
    path = folder / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))

    def same(got: int, whole: int) -> bool:
        lines = path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
        return got == sum(bool(line.strip()) for line in lines)

    return Sample([path], manifest_rows, path.name, same)


def manifest_parquet(folder: Path) -> Sample:
    path = folder / "items.parquet"
    pq.write_table(pa.Table.from_pylist(rows()), path)
    return Sample([path], manifest_rows, path.name)


def results(folder: Path) -> Sample:
    path = folder / "results.json"
    entry = {"dataset": "d", "method": "mean", "seed": 0, "task": "t", "metric": "R@1", "value": 0.5, "n": 10}
    curve = {"method": "mean", "seed": 0, "step": 1, "loss": 0.5}
    content = {"rows": [entry | {"seed": seed} for seed in range(4)], "meta": {"command": "x", "curves": [curve]}}
    path.write_text(json.dumps(content))
    return Sample([path], lambda damaged: len(read_results([damaged]).rows), path.name, anything)


def records(folder: Path) -> Sample:
    path = folder / "metrics.jsonl"
    writer = Records(path)
    for step in range(9):
        writer.write("train", step, loss=0.5)
    writer.close()

    def same(got: int, whole: int) -> bool:
        text = path.read_text(encoding="utf-8", errors="replace")
        return got == sum(line.endswith("\n") for line in text.splitlines(keepends=True))

    return Sample([path], lambda damaged: len(read_records(damaged)), path.name, same)


FAMILIES: dict[str, Make] = {
    "yaml": yaml,
    "csv": manifest_csv,
    "jsonl": manifest_jsonl,
    "manifest-parquet": manifest_parquet,
    "results": results,
    "records": records,
}
