"""What encoders of official code have in common: unit vectors, draws, unreadable files; and ImageBind's temperatures."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from calmrl.data.media.problems import Unreadable
from calmrl.errors import InputError
from calmrl.paper import imagebind_features
from calmrl.paper.encoders import (
    encode_arrays,
    encode_texts,
    for_files,
    must_be,
    old_integer_name,
    read_officially,
    same_draws,
    unit,
)


def test_unit_vectors_one_by_one_on_a_cpu():
    groups = []

    def forward(batch):
        groups.append(tuple(batch.shape))
        return batch.double()

    items = [np.array([3.0, 4.0], np.float32), np.array([0.0, 2.0], np.float32)]
    found = encode_arrays(forward, "cpu", items)
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 1.0]], rtol=1e-6)
    assert (groups, found.dtype) == ([(1, 2), (1, 2)], np.float32)
    groups.clear()
    encode_arrays(forward, "cpu:0", items)
    assert groups == [(2, 2)]
    groups.clear()
    np.testing.assert_allclose(
        encode_arrays(lambda batch: forward(batch)[:, :1], "cpu:0", [items[0], np.ones(3, np.float32)]), [[1.0], [1.0]]
    )
    assert groups == [(1, 2), (1, 3)]
    texts = []
    assert encode_texts(lambda one: texts.append(one) or torch.ones(1, 1), ["a", "b"]).tolist() == [[1.0], [1.0]]
    assert texts == [["a"], ["b"]]
    assert unit(torch.tensor([[[3.0, 4.0]]])).tolist() == [[[pytest.approx(0.6), pytest.approx(0.8)]]]


def test_an_encoder_of_files_knows_its_shape():
    encoder = for_files("audio", (2, 5), len, lambda batch: batch.flatten(1)[:, :7], "cpu")
    assert (encoder.kind, encoder.width, encoder.reads_files, encoder.item_shape) == ("audio", 7, True, (2, 5))


def test_the_draws_of_others_are_not_touched():
    def draw():
        return random.random(), float(np.random.rand()), float(torch.rand(1))  # noqa: NPY002

    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    plain = [draw(), draw()]
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    first = draw()
    with same_draws():
        inside = draw()
    assert [first, draw()] == plain
    with same_draws():
        assert draw() == inside
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    assert draw() == inside


def test_faults_of_a_package_are_not_faults_of_a_file():
    def broken(path):
        raise AttributeError("a function is gone")

    with pytest.raises(AttributeError, match="a function is gone"):
        read_officially("p", broken, "a.wav")

    def undecodable(path):
        raise RuntimeError("no header")

    with pytest.raises(Unreadable, match=r"a\.wav: no header \(not readable by p\)"):
        read_officially("p", undecodable, "a.wav")
    found = read_officially("p", lambda path: torch.ones(2, dtype=torch.float64), "a.wav")
    assert (found.tolist(), found.dtype) == ([1.0, 1.0], np.float32)


@pytest.mark.parametrize(
    ("medium", "path", "fits"),
    [
        ("image", "a.PNG", True),
        ("image", "a.mp4", False),
        ("video", "a.MP4", True),
        ("video", "a.wav", False),
        ("audio", "a.wav", True),
        ("audio", "a.mp4", True),  # its audio track
        ("audio", "a.png", False),
        ("video", "a.unknown", True),
    ],
)
def test_the_suffix_says_which_medium_a_file_is(medium, path, fits):
    if fits:
        must_be(medium, path, "entry", "take another")
    else:
        with pytest.raises(
            Unreadable, match=rf"{path}: entry reads {medium} files; take another \(\w+, not {medium}\)"
        ):
            must_be(medium, path, "entry", "take another")


def test_the_old_name_of_integers_is_there_for_a_call():
    assert "int" not in vars(np)

    def fail():
        with old_integer_name():
            assert vars(np)["int"] is int
            with old_integer_name():  # it is there already
                pass
            assert vars(np)["int"] is int
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "int" not in vars(np)


def test_imagebind_loses_its_temperatures() -> None:
    rng = np.random.default_rng(0)
    exact = {name: rng.normal(size=(6, 5)).astype(np.float32) for name in ("vision", "audio", "text")}
    exact = {name: rows / np.linalg.norm(rows, axis=1, keepdims=True) for name, rows in exact.items()}
    scaled = {"vision": exact["vision"], "audio": 20 * exact["audio"], "text": 87.5 * exact["text"]}
    scaled["audio"][2] = np.nan
    found = imagebind_features(scaled)
    assert np.isnan(found["audio"][2]).all()
    for name in exact:
        there = np.isfinite(found[name]).all(axis=1)
        np.testing.assert_allclose(found[name][there], exact[name][there], atol=1e-6)
    tensors = imagebind_features({name: torch.from_numpy(rows) for name, rows in scaled.items()})
    assert isinstance(tensors["text"], torch.Tensor)
    scaled["vision"][4] = 0
    with pytest.raises(InputError, match="vision of row 4 is all 0"):
        imagebind_features(scaled)
