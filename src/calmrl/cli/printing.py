"""Where output goes: people read stderr, programs read stdout."""

import json
import re
import sys
import textwrap
from typing import Any

from rich.console import Console

# Control characters but tabs and new lines, and the marks that turn the direction of text around.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The same text with escapes ("\\x1b") in place of characters that would act on a terminal; names come from data."""
    return _HIDDEN.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


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
