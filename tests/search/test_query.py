"""Values of a query as vectors: what is taken, at its limits, and what is refused."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from calmrl.errors import InputError
from calmrl.search.query import LIKE, QueryVectors, Term, as_cell

ENTRIES = {
    "photo": {"kind": "image", "width": 3, "aligned": False, "why": "few pairs", "encoder": None},
    "speech": {"kind": "audio", "width": 2, "aligned": False, "why": "few pairs", "encoder": "hear"},
    "hum": {"kind": "audio", "width": 2, "aligned": False, "why": None, "encoder": None},
    "text": {"kind": "vector", "width": 2, "aligned": False, "why": None, "encoder": None},
}


class Encoders:
    """Two numbers of whatever it gets; nothing of an empty file."""

    def __init__(self, present=True) -> None:
        self.present, self.cells = present, []

    def encode(self, cells):
        self.cells += cells
        return {"speech": np.array([[1.0, 2.0]])}, np.array([[self.present]])


def placed(made, terms):
    """(the vector of a query, the column that it is compared with)"""
    asked = made.prepared(terms, False, 5)
    return asked.vector, asked.column


def queries(encoders=None, source=None):
    layout = {"modalities": ENTRIES, "source": source or {"type": "folder", "path": "emoji"}}
    return QueryVectors(layout, None, lambda: encoders, lambda id: {"hum": np.array([0.0, 5.0])})


def test_an_argument_means_a_modality_or_the_only_one_of_its_kind():
    of = queries().name_of
    assert [of(name) for name in ("image", "photo", "hum", "text")] == ["photo", "photo", "hum", "text"]
    with pytest.raises(InputError, match=r"several modalities of that kind \(speech, hum\); name the one you mean"):
        of("sound")
    with pytest.raises(InputError, match='unknown modality "smell"'):
        of("smell")
    one = QueryVectors({"modalities": {"photo": ENTRIES["photo"]}}, None, None, None)
    with pytest.raises(InputError, match=r'no modality "text", nor any of that kind; it has photo$'):
        one.name_of("text")


def test_vectors_of_the_width_are_taken_as_they_are():
    for value in (np.array([3, 4]), np.array([[3.0, 4.0]]), torch.tensor([3.0, 4.0])):
        vector, column = placed(queries(), [Term("hum", value)])
        np.testing.assert_allclose(vector, [0.6, 0.8])
        assert column == "f_2"
    vector, column = placed(queries(), [Term(LIKE, "x"), Term("hum", np.array([3.0, 4.0]), -0.5)])
    np.testing.assert_allclose(vector, np.array([-0.3, 0.6]) / np.hypot(0.3, 0.6))
    with pytest.raises(InputError, match=r"hum and photo are not in one space \(hum: None; photo: few pairs\)"):
        placed(queries(), [Term("hum", np.ones(2)), Term("photo", np.ones(3))])
    with pytest.raises(
        InputError, match=r"no encoder is known for hum: .* vector of width 2 .* `encoders=\{'hum': NAME\}`"
    ):
        placed(queries(), [Term("hum", np.ones(3))])


def test_files_are_encoded(tmp_path):
    (tmp_path / "a.wav").touch()
    encoders = Encoders()
    vector, column = placed(queries(encoders), [Term("speech", tmp_path / "a.wav")])
    np.testing.assert_allclose(vector, np.array([1, 2]) / np.sqrt(5))
    assert column == "f_1"
    assert encoders.cells == [{"speech": str(tmp_path / "a.wav")}]
    with pytest.raises(InputError, match="the speech of the query is empty; give a sound"):
        placed(queries(Encoders(present=False)), [Term("speech", b"x")])


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        *(("text", value, "x is asked with a text that is not empty; got") for value in ("", " ", 3, None, b"a")),
        *(("image", value, "x is asked with a file, its bytes, or an array; got") for value in (None, 3, 2.5)),
        ("image", Path("nowhere"), "there is no file nowhere to ask x with"),
        *(
            ("image", np.zeros(shape, dtype), r"a picture is uint8 \(height, width, 3\), a feature vector has length 7")
            for shape, dtype in (((4, 5), "u1"), ((4, 5, 4), "u1"), ((4, 5, 3), "f4"), ((1, 4, 5, 3), "u1"))
        ),
        *(
            ("audio", np.array(value), r"a sound is finite floats .* at 16 kHz .*, a feature vector has length 7")
            for value in ([[0.0] * 3] * 2, [0] * 3, [], [0.0, np.nan], [np.inf])
        ),
    ],
)
def test_values_that_are_refused(kind, value, reason):
    with pytest.raises(InputError, match=reason):
        as_cell(value, kind, "x", 7)


def test_values_that_are_taken():
    assert as_cell("a", "text", "words", 2) == "a"
    assert as_cell(b"x", "image", "photo", 2) == b"x"
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    assert (np.asarray(as_cell(pixels, "image", "photo", 7)) == pixels).all()
    with wave.open(io.BytesIO(as_cell(np.array([0.0, 0.5, -2.0, 1.0]), "audio", "hum", 7))) as file:
        assert file.getparams()[:4] == (1, 2, 16_000, 4)
        assert np.frombuffer(file.readframes(4), "<i2").tolist() == [0, 16383, -32767, 32767]


@pytest.mark.parametrize(
    ("vectors", "weights", "expected"),
    [
        (np.eye(2) * 7, (3.0, -4.0), [0.6, -0.8]),
        ([[1.0, 0.0]], (1e-6,), [1.0, 0.0]),  # the shortest sum that still has a direction
        ([[9.9e17, 0.0]], (1.0,), [1.0, 0.0]),
        ([[1.0, 0.0]], (9e-7,), "cancel each other"),
        ([[0.0, 0.0]], (1.0,), "to ask hum with is zero"),
        *(
            ([one], (1.0,), "to ask hum with has NaN or too large values")
            for one in ([1e18, 0], [np.nan, 0], [-1e39, 0])
        ),
    ],
)
def test_sums_of_unit_vectors(vectors, weights, expected):
    terms = [Term("hum", np.array(vector), weight) for vector, weight in zip(vectors, weights, strict=True)]
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            placed(queries(), terms)
    else:
        np.testing.assert_allclose(placed(queries(), terms)[0], expected)
