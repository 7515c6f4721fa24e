"""Classification by the names of classes: what counts, and what features must hold for it."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl.data.features.writer import write_features
from calmrl.errors import InputError
from calmrl.paper.reproduce.by_name import by_name_rows, check_names

UP, RIGHT = np.array([0.0, 1.0], np.float32), np.array([1.0, 0.0], np.float32)


def write(path, vision, text, labels, split=None):
    z = {"vision": np.array(vision, np.float32), "text": np.array(text, np.float32)}
    write_features(path, z, labels=labels, split=split)
    return path


def test_items_are_of_the_class_whose_name_is_nearest(tmp_path):
    vision = [3 * UP, UP + 0.1, RIGHT, UP, RIGHT]
    text = [UP, UP, RIGHT, RIGHT, RIGHT]
    labels = ["up", "up", "right", "right", ["right", "up"]]
    folder = write(tmp_path / "f", vision, text, labels, ["train", "test", "test", "test", "test"])
    (found,) = by_name_rows(folder)
    assert (found["task"], found["metric"], found["value"], found["n"]) == ("vision->class", "accuracy", 75.0, 4)
    whole = write(tmp_path / "g", vision, text, labels)
    assert by_name_rows(whole)[0]["n"] == 5  # without a split all rows are tested
    assert by_name_rows(whole)[0]["value"] == 80.0


def test_what_features_must_hold(tmp_path):
    beside = write(tmp_path / "a", [UP, UP, UP], [UP, UP, UP], [["up", "b"], ["up", "c"], "up"])
    with pytest.raises(InputError, match=r"a has the label 'b' \(and 1 others\) only beside other labels"):
        check_names(beside)
    write(tmp_path / "a-classes", [UP, UP, UP], [UP, RIGHT, -UP], ["up", "b", "c"])
    check_names(beside)
    assert by_name_rows(beside)[0]["value"] == 100.0
    untested = write(tmp_path / "t", [UP, UP], [UP, UP], ["up", "up"], ["train", "val"])
    with pytest.raises(InputError, match='has no row of split "test"; extract it again with --collection'):
        check_names(untested)
    write_features(tmp_path / "n", {"vision": np.ones((2, 2), np.float32)}, labels=["a", "b"])
    with pytest.raises(InputError, match="has no text, so the names of its classes have no vectors"):
        check_names(tmp_path / "n")
    with pytest.raises(InputError, match="has no labels; extract it again with --collection"):
        check_names(write(tmp_path / "l", [UP], [UP], None))
