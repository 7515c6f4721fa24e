"""metrics.jsonl: one JSON object per line, `kind` "start" (of a stage), "train", "validation", "failed" or "end"."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from calmrl._support.output import check_writable, new_file
from calmrl._support.parsing import parsing
from calmrl.errors import InputError, need


class Records:
    """Appends to `metrics.jsonl`; a line is on its way to the disk when `write` returns.

    With `upto`, what came after the checkpoint of that step is removed first: a resumed run writes it again.
    """

    def __init__(self, path: Path, *, upto: int | None = None) -> None:
        self.path = path
        if upto is not None and path.exists():
            kept = [line for line, record in _whole_records(path) if _before(record, upto)]
            with new_file(path, force=True) as draft:
                draft.write_text("".join(kept), encoding="utf-8")
        check_writable(path)
        self.file = path.open("a", encoding="utf-8")

    def write(self, kind: str, step: int, **values: Any) -> None:
        line = json.dumps({"kind": kind, "step": step, **{k: _number(v) for k, v in values.items()}})
        try:
            self.file.write(line + "\n")
            self.file.flush()
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be written ({error}); free some space, then continue with `resume=True`"
            ) from error

    def close(self) -> None:
        with suppress(OSError):  # what was not written has been reported by `write`
            self.file.close()


def read_records(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The records of a run, or those of one kind. A last line that was cut off by a kill is left out."""
    return [record for _, record in _whole_records(path) if kind is None or record["kind"] == kind]


def _whole_records(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(line, record) of every whole line; a line that is not a record is an error that names it."""
    with parsing(path, "records of a run", "restore it, or start the run again"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    records = []
    for number, line in enumerate(lines, start=1):
        if line.endswith("\n"):
            with parsing(f"{path} line {number}", "a record of a run", "remove the line, or start the run again"):
                record = json.loads(line)
                if not isinstance(record["kind"], str) or not isinstance(record["step"], int):
                    raise ValueError("kind is a text and step a number")
            records.append((line, record))
    return records


def _before(record: dict[str, Any], step: int) -> bool:
    """Whether a record was there when the checkpoint of this step was written."""
    return record["step"] < step or (record["step"] == step and record["kind"] in ("train", "validation"))


def _number(value: Any) -> Any:
    """Not-a-number and infinity are no JSON; they become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def open_trackers(accelerator: Any, names: Sequence[str], config: Mapping[str, Any]) -> bool:
    """Start the trackers that `accelerator` was made with; whether there are any."""
    for name in names:
        need(name, "track", f"the tracker {name}")
    if names:
        accelerator.init_trackers("calmrl", config=flat(config))
    return bool(names)


def close_trackers(accelerator: Any) -> None:
    """Let the trackers write what they hold. `accelerator.end_training` would end the group of processes as well."""
    for tracker in accelerator.trackers:
        tracker.finish()


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; what is not a number becomes text."""
    flattened: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flattened |= flat(value, f"{prefix}{key}.")
        else:
            flattened[f"{prefix}{key}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flattened
