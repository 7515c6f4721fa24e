"""Small helpers: parsing, moments, negatives."""

from __future__ import annotations

import contextlib
import os
from itertools import pairwise

import pytest
import torch

from calmrl._support.moments import add_rows, add_summary
from calmrl._support.output import read_sealed
from calmrl._support.parsing import naming, parsing, quiet_on_error, read_json, read_json_object, reason_of
from calmrl.errors import InputError, MissingExtraError
from calmrl.losses.matching import draw, floored, promote

# ---- parsing


def test_whatever_a_parser_raises_names_the_file(tmp_path):
    for error, said in (
        (KeyError("a\n b"), r"f cannot be read as X \('a\\n b'\); again$"),
        (ValueError(), r"f cannot be read as X \(ValueError\); again$"),
        (FileNotFoundError("x"), "f is missing; again$"),
    ):
        with pytest.raises(InputError, match=said), parsing("f", "X", "again"):
            raise error
    for error in (InputError("own"), MissingExtraError("own")):
        with pytest.raises(type(error), match=r"^own$"), parsing("f", "X"):
            raise error
    with pytest.raises(InputError, match=r"; copy or write it again$"), parsing("f", "X"):
        raise KeyError
    with pytest.raises(KeyboardInterrupt), parsing("f", "X"):
        raise KeyboardInterrupt
    panic = type("PanicException", (BaseException,), {})("index out of bounds")  # as the bindings of Rust have it
    said = r"^f cannot be read as X \(index out of bounds\); again$"
    with pytest.raises(InputError, match=said), parsing("f", "X", "again"):
        raise panic
    assert reason_of(ValueError("x\n  y" + "z" * 200)) == "x y" + "z" * 157
    assert reason_of(ValueError(" ")) == "ValueError"


@pytest.mark.parametrize(("known", "raised", "shown"), [(False, False, "said"), (True, False, ""), (False, True, "")])
def test_what_is_said_of_an_error_that_is_told_otherwise(known, raised, shown, capfd):
    with pytest.raises(InputError) if raised else contextlib.nullcontext(), quiet_on_error(known):
        os.write(2, b"said")  # as a library of another language does
        if raised:
            raise InputError("told")
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


# ---- moments


@pytest.mark.parametrize("cuts", [(0, 9), (0, 4, 4, 9), (0, 1, 8, 9)])
def test_running_moments_are_those_of_all_rows(cuts):
    rows = torch.arange(18, dtype=torch.float64).reshape(9, 2).square()
    count, mean, square = torch.zeros((), dtype=torch.float64), torch.zeros(2).double(), torch.zeros(2).double()
    for start, stop in pairwise(cuts):
        add_rows(rows[start:stop], count, mean, square)
    assert count == 9
    torch.testing.assert_close(mean, rows.mean(0))
    torch.testing.assert_close(square, (rows - rows.mean(0)).square().sum(0))
    add_summary(torch.tensor(0.0), torch.tensor([9.0, 9.0]), torch.ones(2), count, mean, square)
    assert count == 9
    torch.testing.assert_close(mean, rows.mean(0))
    add_summary(torch.tensor(1.0).double(), rows[0], torch.zeros(2).double(), count, mean, square)  # one row is enough
    assert count == 10


# ---- negatives


def test_a_negative_is_allowed_and_not_the_own_one():
    scores = torch.zeros(3, 5)
    scores[:, 4] = 50.0
    allowed = torch.tensor([True, True, True, False, True])
    drawn = draw(scores, allowed, slice(1, 4), torch.Generator().manual_seed(0))
    assert drawn.tolist() == [[4, 1]] * 3  # by far the most likely
    alone = torch.tensor([False, True, False, False, False])
    drawn = draw(scores, alone, slice(1, 4), torch.Generator().manual_seed(0))
    assert drawn[:, 1].tolist() == [0, 1, 1]  # the first has none but its own
    assert drawn[1:, 0].tolist() == [1, 1]
    assert draw(scores[:0], allowed, slice(0, 0), None).shape == (0, 2)
    assert draw(scores[:0], allowed, slice(0, 0), None).dtype == torch.long


def test_a_floor_makes_the_others_nearly_equal():
    scores = torch.tensor([[100.0, 1.0, 0.0]])
    out = torch.tensor([[False, False, True]])
    torch.testing.assert_close(floored(scores, out, 0.25), torch.tensor([[1.25, 0.25, 0.25]]))
    torch.testing.assert_close(floored(scores, torch.ones(1, 3, dtype=torch.bool), 0.25), torch.full((1, 3), 0.25))
    many = torch.tensor([[100.0, 5.0, 0.0]]).expand(400, 3)
    own = torch.zeros(400, 400 + 2)
    own[:, 400:] = many[:, 1:]
    own.fill_diagonal_(100.0)
    allowed = torch.zeros(402, dtype=torch.bool)
    allowed[[0, 400, 401]] = True
    generator = torch.Generator().manual_seed(0)
    plain_rows = draw(own[:1].expand(400, -1)[:1], allowed, slice(0, 400), generator)
    assert plain_rows[0, 1] == 1
    one = own[:1]
    free = [int(draw(one, allowed, slice(0, 400), generator)[0, 0]) for _ in range(60)]
    floor = [int(draw(one, allowed, slice(0, 400), generator, floor=1.0)[0, 0]) for _ in range(60)]
    assert free.count(400) > 55  # softmax of 5 and 0
    assert 15 < floor.count(400) < 45
    assert set(floor) == {400, 401}


def test_the_best_items_are_put_in_a_new_order():
    scores = torch.tensor([5.0, 1.0, 4.0, 3.0])
    promote(scores, torch.tensor([0, 2, 3]), torch.tensor([0.1, 0.9, 0.9]))
    assert scores.tolist() == [6.0, 1.0, 8.0, 7.0]
