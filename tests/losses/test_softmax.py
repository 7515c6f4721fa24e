"""The score matrix in parts: how many rows at once, and the same sums whatever the parts."""

from __future__ import annotations

import pytest
import torch

from calmrl.losses import base as softmax
from calmrl.losses.base import chunks, masked_mean, row_terms, symmetric_terms


@pytest.mark.parametrize(
    ("n", "size", "expected"),
    [
        (0, None, [(0, 0)]),
        (1, None, [(0, 1)]),
        (4, None, [(0, 2), (2, 4)]),
        (5, None, [(0, 2), (2, 4), (4, 5)]),
        (11, None, [(row, row + 1) for row in range(11)]),  # one row at least
        (5, 3, [(0, 3), (3, 5)]),
        (0, 3, [(0, 0)]),
    ],
)
def test_rows_at_once(monkeypatch, n, size, expected):
    monkeypatch.setattr(softmax, "SCORES_AT_ONCE", 10)
    assert chunks(n, size) == expected


def test_a_mean_over_one_value():
    assert masked_mean(torch.tensor([3.0, 5.0]), torch.tensor([False, True])) == 5
    assert masked_mean(torch.tensor([3.0, 5.0]), torch.tensor([True, True])) == 4
    assert masked_mean(torch.tensor([3.0, 5.0]), torch.tensor([False, False])) == 0


@pytest.mark.parametrize("size", [None, 1, 3])
def test_rows_against_the_candidates(size):
    scores = torch.randn(7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for candidates in (torch.ones(7, dtype=torch.bool), torch.arange(7) % 3 > 0):
        found = row_terms(lambda start, stop: scores[start:stop], candidates, size)
        expected = scores.diagonal() - scores[:, candidates].logsumexp(1)
        torch.testing.assert_close(found[candidates], expected[candidates])


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("with_kinds", [False, True])
@pytest.mark.parametrize("size", [None, 3])
def test_both_directions_row_by_row(smoothing, with_kinds, size):
    scores = torch.randn(7, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    queries, candidates = torch.arange(7) != 2, torch.arange(7) != 5
    kinds = torch.tensor([0, 1, 1, 0, 0, 1, 1]) if with_kinds else torch.zeros(7, dtype=torch.long)
    expected = []
    for i in range(7):
        if queries[i] and candidates[i]:
            row = torch.nonzero(candidates & (kinds == kinds[i]))[:, 0].tolist()
            column = torch.nonzero(queries)[:, 0].tolist()
            for values, place in ((scores[i, row], row.index(i)), (scores[column, i], column.index(i))):
                logp = values.log_softmax(0)
                expected.append(-(1 - smoothing) * logp[place] - smoothing * logp.mean())
    given = {"kinds": kinds, "n_kinds": 2} if with_kinds else {}
    total, number = symmetric_terms(
        lambda start, stop: scores[start:stop], queries, candidates, smoothing=smoothing, chunk_size=size, **given
    )
    assert int(number) == 5
    want = torch.stack(expected).sum() / 2
    torch.testing.assert_close(total, want)
    torch.testing.assert_close(*(torch.autograd.grad(value, scores)[0] for value in (total, want)))
