"""Scores while training, beside the public metrics, and at their limits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from calmrl import CalibratedAlignment, GaussianImputer
from calmrl.anchors import anchor, anchor_shift
from calmrl.errors import InputError
from calmrl.metrics import retrieval
from calmrl.training import validate
from calmrl.training.validate import calibration_scores, check_pairs, encode_all, retrieval_scores
from tests.support.train_data import WIDTHS, source

NAMES = tuple(WIDTHS)


class Doubling(torch.nn.Module):
    """A model of rows of one width: twice what it gets, NaN while it trains."""

    names = NAMES

    def forward(self, inputs, present):
        factor = float("nan") if self.training else 2.0
        return {name: factor * values[:, :6] for name, values in inputs.items()}


def test_all_rows_are_encoded_in_evaluation_mode_and_in_order():
    rows, others = source(11), source(7, seed=3)
    rows.chunk = 4
    model = Doubling().train()
    z, present = encode_all(model, [rows, others])
    assert model.training
    assert list(z) == list(NAMES)
    assert present.tolist() == [*rows.present.tolist(), *others.present.tolist()]
    expected = torch.cat([one.fetch(np.arange(len(one)), one.present, 0)["text"][:, :6] for one in (rows, others)])
    torch.testing.assert_close(z["text"], 2 * expected)
    encode_all(model.eval(), [rows])
    assert not model.training


@pytest.mark.parametrize(("most", "pace"), [(None, 1), (18, 1), (17, 2), (9, 2), (8, 3), (100, 1)])
def test_with_more_rows_than_wanted_every_second_or_third_is_encoded(most, pace):
    rows, others = source(11), source(7, seed=3)
    _, present = encode_all(Doubling(), [rows, others], most=most)
    assert present.tolist() == [*rows.present[::pace].tolist(), *others.present[::pace].tolist()]


def masks(*patterns: list[list[int]]) -> list[SimpleNamespace]:
    class Rows(SimpleNamespace):
        def __len__(self) -> int:
            return len(self.present)

    return [Rows(present=np.array(pattern, dtype=bool)) for pattern in patterns]


def test_two_rows_with_a_pair_are_enough_to_retrieve_in_any_sources():
    check_pairs([])
    check_pairs(masks([[1, 1, 0], [0, 1, 0]], [[1, 1, 0]]))
    with pytest.raises(InputError) as wrong:
        check_pairs(masks([[1, 1, 0], [0, 1, 1]], [[1, 0, 1], [1, 0, 0]]))
    assert str(wrong.value).startswith(
        "no two modalities meet in two of the 4 validation rows, so there is nothing to "
    )


def unit_rows(n: int, noise: float = 1.0, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(n, 5, generator=generator)
    return {name: normalize(shared + noise * torch.randn(n, 5, generator=generator), dim=1) for name in NAMES}


def test_scores_are_means_over_the_directions_that_rows_have_in_common(monkeypatch):
    z = unit_rows(40)
    present = torch.ones(40, 3, dtype=torch.bool)
    present[:15, 0] = False
    present[1:, 2] = False  # audio meets image in no row and text in one: nothing to retrieve
    both = present[:, 0] & present[:, 1]
    ways = [retrieval(z[a][both], z[b][both]) for a, b in (("image", "text"), ("text", "image"))]
    monkeypatch.setattr(validate, "BLOCK_BYTES", 8 * 25 * 7)  # blocks of seven queries
    found = retrieval_scores(z, present)
    for name in ("R@1", "R@5", "R@10"):
        assert found[name] == pytest.approx(np.mean([way[name] for way in ways]))
    assert len({found[name] for name in ("R@1", "R@5", "R@10")}) == 3  # the premise: they differ
    assert found["recall"] == pytest.approx(np.mean([found[name] for name in ("R@1", "R@5", "R@10")]))
    assert found["pairs"] == 50
    cosine = z["image"][both].double() @ z["text"][both].double().T
    ranks = [1 + (table > table.diagonal()[:, None]).sum(1) for table in (cosine, cosine.T)]
    assert found["MRR"] == pytest.approx(100 * np.mean([float((1 / rank).mean()) for rank in ranks]))


def test_rows_of_the_same_value_count_as_found():
    z, present = unit_rows(12), torch.ones(12, 3, dtype=torch.bool)
    present[:4, 0] = False
    values = list("abcdefabcdef")
    both = present[:, 0] & present[:, 1]
    found = retrieval_scores({name: z[name] for name in ("image", "text")}, present[:, :2], values)
    of_rows = [value for value, has in zip(values, both.tolist(), strict=True) if has]
    ways = [retrieval(z[a][both], z[b][both], of_rows, of_rows) for a, b in (("image", "text"), ("text", "image"))]
    assert found["R@1"] == pytest.approx(np.mean([way["R@1"] for way in ways]))
    assert found["R@1"] > retrieval_scores(z, present)["R@1"]


def aligned(z, present) -> CalibratedAlignment:
    return CalibratedAlignment(
        "pmrl", imputer=GaussianImputer(2, max_iter=5, random_state=0).fit(z, present), update="frozen"
    )


def test_each_modality_is_hidden_in_turn_and_compared_with_the_mean():
    z, present = unit_rows(30, noise=0.5), torch.ones(30, 3, dtype=torch.bool)
    present[20:, 2] = False
    present[28:, 1] = False  # two rows with a picture alone
    align = aligned(z, present).train()
    found = calibration_scores(align, z, present)
    assert align.training
    error = spread = 0.0
    before, after = [], []
    for j, name in enumerate(NAMES):
        rows = present[:, j] & (present.sum(1) > 1)
        left = present[rows].clone()
        left[:, j] = False
        part = {key: value[rows] for key, value in z.items()}
        filled = align.complete(part, left)
        error += float(((filled[name] - part[name]) ** 2).sum())
        spread += float(((part[name] - part[name].mean(0)) ** 2).sum())
        whole = present[rows].all(1)
        complete = {key: value[whole] for key, value in part.items()}
        before.append(anchor_shift(complete, left[whole]))
        guessed = {key: value[whole] for key, value in filled.items()}
        after.append((anchor(complete) - anchor(guessed)).norm(dim=1))
    assert found["imputation_nmse"] == pytest.approx(error / spread, rel=1e-5)
    assert 0 < found["imputation_nmse"] < 1
    assert found["shift_observed"] == pytest.approx(float(torch.cat(before).mean()), rel=1e-4)
    assert found["shift_calibrated"] == pytest.approx(float(torch.cat(after).mean()), rel=1e-4)
    assert found["latent_log_likelihood"] == pytest.approx(float(align.imputer.score(z, present)))


def test_two_modalities_have_no_shift_and_equal_rows_no_spread():
    z, present = unit_rows(20), torch.ones(20, 3, dtype=torch.bool)
    pair = {name: z[name] for name in NAMES[:2]}
    assert set(calibration_scores(aligned(pair, present[:, :2]), pair, present[:, :2])) == {
        "latent_log_likelihood",
        "imputation_nmse",
    }
    align = aligned(z, present)
    never_whole = present.clone()
    never_whole[:, 2] = False
    assert "shift_observed" not in calibration_scores(align, z, never_whole)
    equal = {name: values[:1].expand(20, -1).clone() for name, values in z.items()}
    zeros = {name: torch.zeros_like(values) for name, values in equal.items()}
    assert "imputation_nmse" not in calibration_scores(align, zeros, present)
    small = {name: 0.01 * values for name, values in z.items()}  # a spread below one is a spread
    assert "imputation_nmse" in calibration_scores(align, small, present)
