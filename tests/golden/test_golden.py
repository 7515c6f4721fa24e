"""What calmrl does is what it did: every command and public method on small inputs, against the record in `expected`.

python -m tests.golden.record    # renews the record, after a change on purpose
"""

from __future__ import annotations

import json

import pytest

from tests.golden import golden_record as golden
from tests.golden.golden_cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_as_before(name, tmp_path):
    case = CASES[name]
    if case.lacks():
        pytest.skip(f"{', '.join(case.lacks())} is not installed")
    found = golden.differences(golden.expected_of(name), golden.result_of(name, tmp_path), case.tolerance)
    assert not found, f"{name}: {len(found)} differences\n" + "\n".join(found[:10])


def test_the_record_holds_the_cases_and_nothing_else():
    recorded = [name for file in golden.EXPECTED.glob("*.json") for name in json.loads(file.read_text("utf-8"))]
    assert sorted(recorded) == sorted(CASES)


def test_the_record_is_small():
    assert sum(file.stat().st_size for file in golden.EXPECTED.glob("*.json")) < 450_000


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"a": [1, 2.0]}, {"a": [1, 2.1]}, "/a[1]: expected 2.0, got 2.1"),
        ({"a": 1}, {"b": 1}, "/a: is gone"),
        ({"a": 1}, {"a": 1, "b": 1}, "/b: is new"),
        ([1], [1, 2], ": expected 1 entries, got 2"),
        (1, True, "/: expected 1, got True"),
        (1.0, "nan", "/: expected 1.0, got 'nan'"),
        ("a\nb 1.5 c", "a\nb 1.7 c", " line 2: expected 'b 1.5 c', got 'b 1.7 c'"),
        ("a\nb", "a", ": expected 2 lines, got 1; one has 'b'"),
        ("1.25", "1.3", "line 1: expected '1.25', got '1.3'"),
    ],
)
def test_differences_are_named(one, other, said):
    found = golden.differences(one, other, 1e-6)
    assert len(found) >= 1
    assert found[0].endswith(said) or found[0] == said


@pytest.mark.parametrize(
    ("one", "other"),
    [(1.0, 1.0 + 1e-9), ("at 61.65 %", "at 61.66 %"), ({"a": [None, "x", True, 2]}, {"a": [None, "x", True, 2]})],
)
def test_what_does_not_count_as_different(one, other):
    assert golden.differences(one, other, 1e-6) == []


def test_entries_of_an_array_are_compared_at_its_scale():
    import numpy as np

    array = np.linspace(-1, 1, 101)
    for shift, equal in ((1e-12, True), (1e-3, False)):
        other = array.copy()
        other[50] += shift
        assert (golden.differences(golden.told(array), golden.told(other), 1e-9) == []) is equal
    assert golden.differences(golden.told(array), golden.told(array[::-1]), 1e-9)
