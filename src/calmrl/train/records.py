"""metrics.jsonl: one JSON object per line, `kind` "start", "train", "validation" or "end"."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from calmrl.output import new_file


class Records:
    """Appends to `metrics.jsonl`; a line is on its way to the disk when `write` returns.

    With `upto`, lines of later steps are removed first: a resumed run writes them again.
    """

    def __init__(self, path: Path, *, upto: int | None = None) -> None:
        self.path = path
        if upto is not None and path.exists():
            kept = [line for line in _whole_lines(path) if json.loads(line)["step"] <= upto]
            with new_file(path, force=True) as draft:
                draft.write_text("".join(kept), encoding="utf-8")
        self.file = path.open("a", encoding="utf-8")

    def write(self, kind: str, step: int, **values: Any) -> None:
        self.file.write(json.dumps({"kind": kind, "step": step, **{k: _number(v) for k, v in values.items()}}) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def read_records(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The records of a run, or those of one kind. A last line that was cut off by a kill is left out."""
    records = [json.loads(line) for line in _whole_lines(path)]
    return [record for record in records if kind is None or record["kind"] == kind]


def _whole_lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def _number(value: Any) -> Any:
    """Not-a-number and infinity are no JSON; they become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
