"""Values of a query as vectors: what is taken, at its limits, and what is refused."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
import torch

from calmrl.errors import InputError
from calmrl.search.query import LIKE, QueryVectors, Term, as_cell, check_values

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
    parts, column, _ = made.parts(terms)
    return np.sum([part for _, part in parts], axis=0), column


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
    with pytest.raises(InputError, match="the speech of the query is empty; give a audio"):
        placed(queries(Encoders(present=False)), [Term("speech", b"x")])


def test_cells_of_texts():
    assert as_cell("a", "text", "words", 2) == "a"
    for wrong in ("", " ", 3, None, b"a"):
        with pytest.raises(InputError, match="words is asked with a text that is not empty; got"):
            as_cell(wrong, "text", "words", 2)


def test_cells_of_files(tmp_path):
    for wrong in (None, 3, 2.5):
        with pytest.raises(InputError, match="photo is asked with a file, its bytes, or an array; got"):
            as_cell(wrong, "image", "photo", 2)
    assert as_cell(b"x", "image", "photo", 2) == b"x"
    with pytest.raises(InputError, match=r"there is no file .* to ask photo with"):
        as_cell(tmp_path, "image", "photo", 2)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((4, 5), np.uint8), ((4, 5, 4), np.uint8), ((4, 5, 3), np.float32), ((1, 4, 5, 3), np.uint8)]
)
def test_arrays_that_are_no_pictures(shape, dtype):
    with pytest.raises(InputError, match=r"a picture is uint8 \(height, width, 3\), a feature vector has length 7"):
        as_cell(np.zeros(shape, dtype), "image", "photo", 7)


def test_a_picture_of_pixels():
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    assert (np.asarray(as_cell(pixels, "image", "photo", 7)) == pixels).all()


def test_samples_are_a_wav_file_of_16_khz():
    content = as_cell(np.array([0.0, 0.5, -2.0, 1.0]), "audio", "hum", 7)
    with wave.open(io.BytesIO(content)) as file:
        assert file.getparams()[:4] == (1, 2, 16_000, 4)
        assert np.frombuffer(file.readframes(4), "<i2").tolist() == [0, 16383, -32767, 32767]


@pytest.mark.parametrize(
    "samples", [np.zeros((2, 3)), np.zeros(3, int), np.zeros(0), np.array([0.0, np.nan]), np.array([np.inf])]
)
def test_arrays_that_are_no_sounds(samples):
    with pytest.raises(InputError, match=r"a sound is finite floats .* at 16 kHz .*, a feature vector has length 7"):
        as_cell(samples, "audio", "hum", 7)


def test_values_within_float32():
    good = np.array([9.9e17, -9.9e17])
    assert check_values(good, "hum").dtype == np.float64
    assert check_values(np.zeros(0), "hum").shape == (0,)
    for wrong in ([1e18], [-1e18], [np.nan], [1e39, 0]):
        with pytest.raises(InputError, match="to ask hum with has NaN or too large values; got up to"):
            check_values(np.array(wrong), "hum")


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((3.0, -4.0), [0.6, -0.8]), ((1e-6,), [1.0, 0.0])],  # the shortest sum that still has a direction
)
def test_sums_of_unit_vectors(weights, expected):
    terms = [Term("hum", 7 * axis, weight) for axis, weight in zip(np.eye(2), weights, strict=False)]
    np.testing.assert_allclose(placed(queries(), terms)[0], expected)


@pytest.mark.parametrize(
    ("vector", "weight", "reason"),
    [([0.0, 0.0], 1.0, "to ask hum with is zero"), ([1.0, 0.0], 9e-7, "cancel each other")],
)
def test_sums_without_a_direction(vector, weight, reason):
    with pytest.raises(InputError, match=reason):
        placed(queries(), [Term("hum", np.array(vector), weight)])


def test_signs_and_ratios_of_weights(monkeypatch):
    """What is fused: weights by the heaviest, and each term to leave by itself."""
    fused = []

    def fuse(aligner, parts):
        fused.append([(name, weight) for name, _, weight in parts])
        return np.eye(2)[[len(fused) % 2] * len(parts)] / len(parts)

    monkeypatch.setattr("calmrl.search.query.fuse", fuse)
    layout = {"modalities": {name: entry | {"aligned": name != "hum"} for name, entry in ENTRIES.items()}}
    layout["source"] = {"type": "features", "path": "x"}
    made = QueryVectors(layout, object(), None, lambda id: {"hum": np.ones(2)})
    terms = [Term("photo", np.ones(3), 4.0), Term("speech", np.ones(2), 1.0), Term("photo", np.ones(3), -2.0)]
    vector, column = placed(made, terms)
    assert column == "vector"
    assert fused == [[("photo", 1.0), ("speech", 0.25)], [("photo", 1.0)]]
    np.testing.assert_allclose(vector, np.array([-2.0, 1.0]) / np.sqrt(5))
    fused.clear()
    placed(made, [Term("photo", np.ones(3), -3.0)])
    assert fused == [[("photo", 1.0)]]
    for term, name in ((Term(LIKE, "an id"), "an id"), (Term("hum", np.ones(2)), "hum")):
        with pytest.raises(
            InputError, match=rf"{name} cannot be mixed with the other terms \(nothing of it is aligned\)"
        ):
            placed(made, [terms[0], term])
