"""Where output goes: people read stderr, programs read stdout."""

import json
import sys
import textwrap
from typing import Any

from rich.console import Console

from calmrl._support.visible import visible


def people() -> Console:
    """A console on stderr: no colour without a terminal or with NO_COLOR set, 80 columns without a terminal.

    Brackets are brackets, not markup.
    """
    return Console(stderr=True, highlight=False, markup=False)


def note(text: str) -> None:
    """A line for people."""
    print(visible(text), file=sys.stderr)


def below_table(sentence: str) -> None:
    """A sentence that belongs to the table above it; nothing if it is empty."""
    if sentence:
        note(textwrap.fill(sentence, 80))


def error(text: str) -> None:
    """What went wrong, for people."""
    print(f"calmrl: {visible(text)}", file=sys.stderr)


def data(text: str) -> None:
    """Text that a program may read, as it is; on a terminal without what would act on it."""
    print((visible(text) if sys.stdout.isatty() else text).rstrip("\n"))


def as_json(value: Any) -> None:
    """A value for a program."""
    print(json.dumps(value, indent=2, default=str))
