"""A folder for a long run beside its output: kept when the run is stopped, so that the next one goes on in it."""

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calmrl._support.parsing import read_json_object
from calmrl._support.writable import writing
from calmrl.errors import InputError

RECORD = "run.json"


@contextmanager
def unfinished(target: Path, arguments: Mapping[str, Any], worth: Sequence[str]) -> Iterator[Path]:
    """`<target>.part`, for one run at a time and for runs with the same arguments; removed after a run that ends well.

    A run that is refused for its input leaves nothing behind, unless there is a file that matches one of `worth`.
    """
    part = target.with_name(target.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    with (part / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"another run is writing {target}; wait until it has ended") from error
        _record(part, json.loads(json.dumps(arguments, default=str)))
        try:
            with writing(target):
                yield part
        except InputError:
            if not any(file for pattern in worth for file in part.glob(pattern)):
                shutil.rmtree(part)
            raise
        shutil.rmtree(part)


def _record(part: Path, arguments: dict[str, Any]) -> None:
    """Write down the arguments of a run that begins; compare those of one that goes on."""
    over = f"delete {part} to start over, or choose another name"
    others = {file.name for file in part.iterdir()} - {"lock"}
    if not others:
        (part / RECORD).write_text(json.dumps(arguments), encoding="utf-8")
        return
    if RECORD not in others:
        raise InputError(f"{part} was begun by another command; {over}")
    begun = read_json_object(part / RECORD, over)
    differs = [key for key in {**begun, **arguments} if begun.get(key) != arguments.get(key)]
    if differs:
        raise InputError(f"{part} was begun with other arguments ({', '.join(sorted(differs))} differ); {over}")
