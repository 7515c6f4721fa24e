"""How certain an item is, and queries with weights, from the definitions."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from calmrl import Aligner
from calmrl.aligner import posterior
from calmrl.aligner.choose import CandidateSearch
from calmrl.aligner.posterior import embed_with_certainty, fuse
from calmrl.aligner.space import Candidate
from calmrl.aligner.storage import from_state, to_state
from calmrl.errors import InputError
from tests.aligner.aligner_data import FAST, linear_rows


@pytest.fixture(scope="module")
def fitted():
    z, present = linear_rows(n=90)
    back = {name: z[name] for name in ("m2", "m0", "m1")}
    return Aligner(**FAST).fit(back, present[:, [2, 0, 1]]), z, present


def parts(aligner):
    """(modality -> (head function, J))"""
    space = aligner.space_
    made = {}
    for m, name in enumerate(aligner.names_):
        J = space.information[m].numpy()

        def head(values, m=m, feature_map=aligner.feature_maps_[m]):
            features = feature_map(torch.from_numpy(values)) * feature_map.scale(FAST["whitening"])
            return (features @ space.weight[m] + space.bias[m]).numpy()

        made[name] = head, J
    return made


@pytest.mark.parametrize("block", [4096, 7])
def test_vectors_and_certainties(fitted, monkeypatch, block):
    monkeypatch.setattr(posterior, "ROWS", block)
    aligner, z, present = fitted
    present = present.copy()
    present[5] = False
    filled = {name: np.nan_to_num(values) for name, values in z.items()}
    vectors, certainty = embed_with_certainty(aligner, filled, present)
    assert vectors.dtype == certainty.dtype == np.float32
    assert not vectors[5].any()
    assert certainty[5] == 0
    made, eye = parts(aligner), np.eye(6)
    informed = eye - np.linalg.inv(eye + sum(J for _, J in made.values()))
    for i in (0, 1, 2, 3, 4, 20, 89):
        held = [name for j, name in enumerate(z) if present[i, j]]
        V = np.linalg.inv(eye + sum(made[name][1] for name in held))
        mean = V @ sum((eye + made[name][1]) @ made[name][0](z[name][[i]])[0] for name in held)
        assert_allclose(vectors[i], mean / np.linalg.norm(mean), atol=1e-6)
        assert_allclose(certainty[i], mean @ mean / (mean @ mean + np.trace(informed @ V)), rtol=1e-5)
    kept = present.any(1)
    assert_allclose(vectors[kept], aligner.embed({n: z[n][kept] for n in z}, present[kept]), atol=1e-6)


def test_terms_count_by_their_weight(fitted):
    aligner, z, _ = fitted
    made, eye = parts(aligner), np.eye(6)
    rows = {name: np.nan_to_num(values)[[3, 4]] for name, values in z.items()}
    terms = [("m0", rows["m0"][0], 2.0), ("m2", rows["m2"][0], 0.5), ("m0", rows["m0"][1], 1.0)]
    total, right = eye.copy(), np.zeros(6)
    for name, value, weight in terms:
        head, J = made[name]
        total += weight * J
        right += weight * (eye + J) @ head(value[None])[0]
    mean = np.linalg.solve(total, right)
    found = fuse(aligner, terms).sum(axis=0)
    assert_allclose(found, mean / np.linalg.norm(mean))
    assert found.dtype == np.float64


def test_queries_of_the_same_modalities_share_a_factor_that_is_not_saved(fitted, monkeypatch):
    aligner, made = from_state(to_state(fitted[0])), []
    factorise = torch.linalg.cholesky
    monkeypatch.setattr(torch.linalg, "cholesky", lambda matrix: made.append(1) or factorise(matrix))
    size = len(pickle.dumps(aligner.space_))
    values = np.random.default_rng(0).normal(size=(3, 12))
    ask = [
        [("m0", value, 1.0), ("m1", value[:10], weight)] for value, weight in zip(values, (1.0, 1.0, 0.5), strict=True)
    ]
    first = [fuse(aligner, terms) for terms in ask]
    assert len(made) == 2  # another weight is another factor
    assert all(np.array_equal(fuse(fitted[0], terms), found) for terms, found in zip(ask, first, strict=True))
    assert len(pickle.dumps(aligner.space_)) == size
    assert np.array_equal(fuse(aligner, ask[0]), first[0])


def test_terms_that_cannot_be(fitted):
    aligner, z, _ = fitted
    value = np.nan_to_num(z["m0"])[0]
    with pytest.raises(InputError, match='the aligner has no modality "sound"; it has m2, m0, m1'):
        fuse(aligner, [("sound", value, 1.0)])
    for weight in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match=f"weights of fused terms must be positive; got {weight} for m0"):
            fuse(aligner, [("m0", value, weight)])
    with pytest.raises(InputError, match="m0 has width 8 but the aligner was fitted on width 12"):
        fuse(aligner, [("m0", np.ones(8), 1.0)])


def test_a_query_that_says_nothing(fitted, monkeypatch):
    monkeypatch.setattr(Aligner, "head", lambda aligner, m, rows, centre: torch.zeros(1, 6, dtype=torch.float64))
    with pytest.raises(InputError, match="the query says nothing: it equals the average of all items"):
        fuse(fitted[0], [("m0", np.ones(12), 1.0)])


def test_two_spaces_side_by_side_are_both_of_them_for_any_subset(monkeypatch, tmp_path):
    z, present = linear_rows(n=150)
    first = Candidate("kernel", True, 0.75, 5, 30.0)
    pair = replace(first, second=Candidate("kernel", True, 0.5, 9, 10.0))

    def run(search, grid):
        search.attempt([first, pair.second, pair])
        return pair

    alone = [Aligner(**one.row(), refine="never", candidates=1).fit(z, present) for one in pair.parts]
    monkeypatch.setattr(CandidateSearch, "run", run)
    both = Aligner(refine="never").fit(z, present)
    assert {**both.choice_, "latent_dim": 5} == {**both.choice_, **pair.row()}
    assert both.width_ == both.choice_["latent_dim"] == 14
    assert both.expected_
    scale = [
        np.mean([np.sum(1 / (1 + 1 / np.linalg.eigvalsh(J))) for J in one.space_.information]) ** -0.5 for one in alone
    ]
    columns, mask = [torch.from_numpy(values) for values in z.values()], torch.from_numpy(present)
    means = [posterior.own_mean(one, columns, mask, list(z)).numpy() * by for one, by in zip(alone, scale, strict=True)]
    mean = np.concatenate(means, axis=1)
    vectors, certainty = embed_with_certainty(both, z, present)
    assert_allclose(vectors, mean / np.linalg.norm(mean, axis=1, keepdims=True), atol=1e-6)
    spread = sum(by**2 * one.space_.variance(mask, range(3)).numpy() for one, by in zip(alone, scale, strict=True))
    length = np.square(mean).sum(1)
    assert_allclose(certainty, length / (length + spread), rtol=1e-5)
    for compact in (False, True):
        both.save(tmp_path / str(compact), compact=compact)
        again = Aligner.load(tmp_path / str(compact))
        assert_allclose(again.embed(z, present), vectors, atol=2e-2 if compact else 1e-6)
        assert_allclose(embed_with_certainty(again, z, present)[1], certainty, atol=2e-2 if compact else 1e-6)
    state = to_state(both)
    state["tensors"]["space.scale"] = torch.ones(13)
    with pytest.raises(InputError, match=r"the scale of latents has shape \(13,\), not \(14,\)"):
        from_state(state)
