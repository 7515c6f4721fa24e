"""Errors of parsers become errors that name the file; JSON files."""

from __future__ import annotations

import contextlib
import os

import pytest

from calmrl._support.output import read_sealed
from calmrl._support.parsing import naming, parsing, quiet_on_error, read_json, read_json_object, reason_of
from calmrl.errors import InputError, MissingExtraError

PANIC = type("PanicException", (BaseException,), {})  # as the bindings of Rust have it


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("a\n b"), r"^f cannot be read as X \('a\\n b'\); again$"),
        (ValueError(), r"^f cannot be read as X \(ValueError\); again$"),
        (FileNotFoundError("x"), "^f is missing; again$"),
        (PANIC("index out of bounds"), r"^f cannot be read as X \(index out of bounds\); again$"),
        (InputError("own"), "^own$"),
    ],
    ids=repr,
)
def test_whatever_a_parser_raises_names_the_file(error, message):
    with pytest.raises(InputError, match=message), parsing("f", "X", "again"):
        raise error


@pytest.mark.parametrize("error", [MissingExtraError("own"), KeyboardInterrupt("own")], ids=repr)
def test_what_is_no_mistake_of_a_file_stays_as_it_is(error):
    with pytest.raises(type(error), match=r"^own$"), parsing("f", "X"):
        raise error


def test_reasons_are_one_short_line():
    assert reason_of(ValueError("x\n  y" + "z" * 200)) == "x y" + "z" * 157
    assert reason_of(ValueError(" ")) == "ValueError"


@pytest.mark.parametrize(("known", "raised", "shown"), [(False, False, "noise"), (True, False, ""), (False, True, "")])
def test_stderr_of_a_library_whose_error_is_reported(known, raised, shown, capfd):
    with pytest.raises(InputError) if raised else contextlib.nullcontext(), quiet_on_error(known):
        os.write(2, b"noise")  # as a library of another language does
        if raised:
            raise InputError("reported")
    assert capfd.readouterr().err == shown
    os.write(2, b"later")
    assert capfd.readouterr().err == "later"


def test_errors_get_the_name_of_a_file_once():
    with pytest.raises(InputError, match=r"^f: wrong$"), naming("f"):
        raise InputError("wrong")
    with pytest.raises(InputError, match=r"^wrong in f$"), naming("f"):
        raise InputError("wrong in f")


def test_json_files(tmp_path):
    (tmp_path / "a").write_text("[1]")
    assert read_json(tmp_path / "a") == [1]
    with pytest.raises(InputError, match=r"a holds a list where an object \{...\} is needed; again"):
        read_json_object(tmp_path / "a", "again")
    (tmp_path / "a").write_text('{"b": "ä"}', encoding="utf-8")
    assert read_json_object(tmp_path / "a") == {"b": "ä"}
    with pytest.raises(InputError, match=r"nowhere is missing: .* is incomplete, or of a version without checksums"):
        read_sealed(tmp_path / "nowhere")
