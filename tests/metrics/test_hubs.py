"""CSLS against its slow twin, and where it is allowed."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from calmrl.errors import InputError
from calmrl.metrics import retrieval
from calmrl.metrics import retrieve as module
from calmrl.metrics.retrieve import csls
from tests.reference import aligner as reference
from tests.reference.retrieval import by_scores


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    gallery = rng.normal(size=(30, 4)) + np.array([2, 0, 0, 0])
    return gallery[:20] + 0.5 * rng.normal(size=(20, 4)), gallery


def cosines(queries, gallery):
    return (queries / np.linalg.norm(queries, axis=1)[:, None]) @ (gallery / np.linalg.norm(gallery, axis=1)[:, None]).T


@pytest.mark.parametrize("k", [1, 3, 100])
def test_scores_equal_the_slow_twin(vectors, k):
    scores = cosines(*vectors)
    want = reference.csls(scores, k)
    assert_allclose(csls(scores, k), want)
    assert isinstance(csls(torch.from_numpy(scores), k), torch.Tensor)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_retrieval_with_hubs_equals_the_slow_twin(vectors, similarity, monkeypatch):
    queries, gallery = vectors
    scores = cosines(queries, gallery) if similarity == "cosine" else queries @ gallery.T
    q_ids, g_ids = list(range(20)), list(range(30))
    want = by_scores(reference.csls(scores, 5).tolist(), q_ids, g_ids, (1, 5, 10)) | {"hubs": "csls"}
    monkeypatch.setattr(module, "BLOCK_BYTES", 8 * 30 * 7)  # several blocks
    options = {"hubs": "csls", "neighbours": 5}
    assert retrieval(queries, gallery, q_ids, g_ids, similarity=similarity, **options) == want
    assert retrieval(scores=scores, query_ids=q_ids, gallery_ids=g_ids, **options) == want
    assert want != retrieval(queries, gallery, q_ids, g_ids, similarity=similarity)


def test_a_hub_no_longer_crowds_out_the_others():
    queries = np.array([[1.0, 0.45, 0], [1.0, 0, 0.45], [1.0, -0.45, 0], [1.0, 0, -0.45]])
    gallery = np.array([[0.6, 0.8, 0], [0.6, 0, 0.8], [0.6, -0.8, 0], [0.6, 0, -0.8], [1.0, 0, 0]])
    ids = {"query_ids": [0, 1, 2, 3], "gallery_ids": [0, 1, 2, 3, 4]}
    assert retrieval(queries, gallery, **ids)["R@1"] == 0
    assert retrieval(queries, gallery, **ids, hubs="csls", neighbours=4)["R@1"] == 100


def test_copies_tie_with_hubs():
    queries, gallery = np.eye(3), np.concatenate([np.eye(3), np.eye(3)])
    found = retrieval(queries, gallery, [0, 1, 2], [0, 1, 2, 3, 4, 5], ks=(1,), hubs="csls", neighbours=1)
    assert found["R@1"] == 50


def test_ten_neighbours_unless_said_otherwise():
    rng = np.random.default_rng(1)
    queries, gallery = rng.normal(size=(100, 3)), rng.normal(size=(100, 3))
    ids = {"per_query": True, "hubs": "csls"}
    plain, said = (retrieval(queries, gallery, **ids, **more)["ranks"] for more in ({}, {"neighbours": np.int64(10)}))
    assert np.array_equal(plain, said)
    assert not np.array_equal(plain, retrieval(queries, gallery, **ids, neighbours=11)["ranks"])
    scores = cosines(queries, gallery)
    assert_allclose(csls(scores), reference.csls(scores, 10))


@pytest.mark.parametrize("k", [0, -1, True, 2.0, "5", None])
def test_numbers_of_neighbours_that_cannot_be(vectors, k):
    queries, _ = vectors
    with pytest.raises(InputError, match="hubs='csls' looks at is a whole number from 1 on; got"):
        retrieval(queries, queries, hubs="csls", neighbours=k)


def test_errors(vectors):
    queries, _ = vectors
    with pytest.raises(InputError, match="hubs must be None or 'csls'; got 'CSLS'"):
        retrieval(queries, queries, hubs="CSLS")
    with pytest.raises(InputError, match="hubs needs all scores at once; pass vectors or an array of scores"):
        retrieval(queries, queries, scores=lambda q, g: q @ g.T, hubs="csls")
