"""Where output goes: people read stderr, programs read stdout."""

import json
import sys
import textwrap
from typing import Any

from rich.console import Console


def people() -> Console:
    """A console on stderr: no colour without a terminal or with NO_COLOR set, 80 columns without a terminal."""
    return Console(stderr=True, highlight=False)


def note(text: str) -> None:
    """A line for people."""
    print(text, file=sys.stderr)


def below_table(sentence: str) -> None:
    """A sentence that belongs to the table above it; nothing if it is empty."""
    if sentence:
        note(textwrap.fill(sentence, 80))


def error(text: str) -> None:
    """What went wrong, for people."""
    print(f"calmrl: {text}", file=sys.stderr)


def data(text: str) -> None:
    """Text that a program may read."""
    print(text.rstrip("\n"))


def as_json(value: Any) -> None:
    """A value for a program."""
    print(json.dumps(value, indent=2, default=str))
