"""One door for parsers: whatever they raise on a damaged file becomes an `InputError` that names the file.

Damaged bytes make parsers of other packages raise nearly anything (KeyError, RecursionError, struct.error, ...), so that
no list of exceptions is complete. Only calls of such parsers belong inside `parsing`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calmrl.errors import InputError, MissingExtraError

AGAIN = "copy or write it again"
PANIC = "PanicException"  # what a panic of Rust raises; it is no Exception, and its module cannot be imported
STDERR = 2
SHOWN = 160  # characters of a parser's own message


@contextmanager
def parsing(file: object, what: str, advice: str = AGAIN) -> Iterator[None]:
    """What is raised inside says that `file` cannot be read as `what`.

    >>> with parsing("a.json", "JSON"):
    ...     json.loads("{")
    Traceback (most recent call last):
    calmrl.errors.InputError: a.json cannot be read as JSON (Expecting property name ...); copy or write it again
    """
    try:
        yield
    except (InputError, MissingExtraError):
        raise
    except FileNotFoundError as error:
        raise InputError(f"{file} is missing; {advice}") from error
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise InputError(f"{file} cannot be read as {what} ({reason_of(error)}); {advice}") from error


@contextmanager
def stderr_held(shown: Callable[[bytes], bytes]) -> Iterator[None]:
    """What is written to stderr inside appears after it, as far as `shown` lets it through.

    The file descriptor is that of the whole process, so that this belongs around short calls.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(STDERR)
        os.dup2(file.fileno(), STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, STDERR)
            os.close(kept)
            file.seek(0)
            if written := shown(file.read()):
                os.write(STDERR, written)


@contextmanager
def quiet_on_error(known: bool = False) -> Iterator[None]:
    """What is written to stderr inside appears only if nothing is raised: Rust prints a panic there by itself.

    If it is `known` that something is damaged, warnings of a library about that do not appear either.
    """
    with stderr_held(lambda written: b"" if known else written):
        try:
            yield
        except BaseException:
            known = True
            raise


@contextmanager
def naming(file: object) -> Iterator[None]:
    """An `InputError` raised inside that does not name `file` gets its name in front."""
    try:
        yield
    except InputError as error:
        if str(file) in str(error):
            raise
        raise InputError(f"{file}: {error}") from error


def reason_of(error: BaseException) -> str:
    """The message of an error on one line; its type where it has none."""
    return " ".join(str(error).split())[:SHOWN] or type(error).__name__


def read_json(path: Path, advice: str = AGAIN) -> Any:
    """What a JSON file holds."""
    with parsing(path, "JSON", advice):
        return json.loads(path.read_text(encoding="utf-8"))


def read_json_object(path: Path, advice: str = AGAIN) -> dict[str, Any]:
    """The object that a JSON file holds; anything else is an error."""
    content = read_json(path, advice)
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__} where an object {{...}} is needed; {advice}")
    return content


# Control characters but tabs and new lines, and the marks that turn the direction of text around.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The same text with escapes ("\\x1b") in place of characters that act on a terminal, or that no XML may hold."""
    return _HIDDEN.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)
