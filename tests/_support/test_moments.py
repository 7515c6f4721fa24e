"""Running mean and sum of squares."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from calmrl._support.moments import add_rows, add_summary


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
