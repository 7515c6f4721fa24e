"""How complete rows are: against counting one by one, and what the missing rate alone does not say."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from calmrl.data import completeness, hide
from calmrl.data.patterns import Completeness


def counted(present: np.ndarray) -> Completeness:
    """Block by block, row by row and pair by pair."""
    n, k = present.shape
    pairs = list(combinations(range(k), 2))
    seen = {pair: sum(all(line[list(pair)]) for line in present) for pair in pairs}
    return Completeness(
        n,
        sum(not block for line in present for block in line) / (n * k),
        sum(all(line) for line in present) / n,
        sum(seen.values()) / (n * len(pairs)),
        min(seen.values()),
    )


@pytest.mark.parametrize(("n", "k", "rate"), [(50, 2, 0.3), (40, 5, 0.5), (1, 3, 0.0), (30, 4, 1.0)])
def test_as_counted(n, k, rate):
    present = np.random.default_rng(n).random((n, k)) >= rate
    found, wanted = completeness(present), counted(present)
    assert (found.rows, found.rarest) == (wanted.rows, wanted.rarest)
    assert (found.missing, found.complete, found.pairs) == pytest.approx(
        (wanted.missing, wanted.complete, wanted.pairs)
    )
    assert completeness(torch.from_numpy(present)) == found


def test_a_line_may_stand_for_many_rows():
    kinds = np.array([[True, True, True], [True, True, False], [False, False, True]])
    found, whole = completeness(kinds, [2, 5, 3]), completeness(np.repeat(kinds, [2, 5, 3], axis=0))
    assert (found.rows, found.rarest) == (10, 2) == (whole.rows, whole.rarest)
    assert (found.missing, found.complete, found.pairs) == pytest.approx((whole.missing, whole.complete, whole.pairs))


def test_no_rows_and_no_pairs():
    assert completeness(np.ones((0, 3), dtype=bool)) == Completeness(0, 0.0, 0.0, 0.0, 0)
    alone = completeness(np.ones((4, 1), dtype=bool))
    assert (alone.missing, alone.complete, alone.pairs) == (0.0, 1.0, 0.0)


def test_settings_that_lack_as_much_differ_in_complete_rows():
    """Half of the blocks hidden: at random almost no row stays complete, in rows that keep one modality four in ten."""
    whole = np.ones((4000, 6), dtype=bool)
    spread = completeness(hide(whole, 0.5, np.random.default_rng(0), "mcar"))
    gathered = completeness(hide(whole, 0.6, np.random.default_rng(0), "alone"))
    assert spread.missing == gathered.missing == 0.5
    assert gathered.complete == 0.4
    assert 0 < spread.complete < gathered.complete / 10
    assert gathered.pairs == 0.4
    assert spread.pairs < 0.3
