"""Retrieval: hand-computed cases, a brute-force twin, ties, blocks, errors."""

from __future__ import annotations

import re
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmrl._support.engine import LocalEngine
from calmrl.errors import InputError
from calmrl.metrics import retrieval, retrieve
from calmrl.metrics.retrieve import chance, chance_level, csls
from tests.reference import aligner as reference
from tests.reference import retrieval as slow

KS = (1, 2, 5)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, abs=1e-9)


# ---- against the twin


@st.composite
def problems(draw):
    """Few distinct small whole-number vectors: many exact ties, also between vectors of different length."""
    n, m, d = draw(st.integers(1, 7)), draw(st.integers(1, 7)), draw(st.integers(1, 4))
    vector = st.lists(st.integers(-3, 3), min_size=d, max_size=d).filter(any)
    gallery_ids = draw(st.lists(st.integers(0, 3), min_size=m, max_size=m))
    query_ids = draw(st.lists(st.sampled_from(gallery_ids), min_size=n, max_size=n))
    queries = draw(st.lists(vector, min_size=n, max_size=n))
    gallery = draw(st.lists(vector, min_size=m, max_size=m))
    return queries, gallery, query_ids, gallery_ids


@settings(deadline=None, max_examples=150)
@given(problems(), st.sampled_from([np.float32, np.float64, np.int64]), st.booleans(), st.sampled_from([1, 64]))
def test_equals_the_twin(problem, dtype, tensors, crowded):
    queries, gallery, q_ids, g_ids = problem
    kind = torch.tensor if tensors else np.array
    q, g = kind(np.array(queries, dtype=dtype)), kind(np.array(gallery, dtype=dtype))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieve, "CROWDED", crowded)  # 1: pair by pair; 64: whole rows
        cosine = retrieval(q, g, q_ids, g_ids, KS)
        dot = retrieval(q, g, q_ids, g_ids, KS, similarity="dot")
    exact = slow.inner_products(queries, gallery)
    assert_same(cosine, slow.by_scores(slow.signed_square_cosines(queries, gallery), q_ids, g_ids, KS))
    assert_same(dot, slow.by_scores(exact, q_ids, g_ids, KS))
    assert_same(retrieval(scores=kind(np.array(exact)), query_ids=q_ids, gallery_ids=g_ids, ks=KS), dot)


def random_problem(n=300, m=220, d=24, seed=0):
    rng = np.random.default_rng(seed)
    gallery_ids = rng.integers(0, m // 2, m)
    query_ids = rng.choice(gallery_ids, n)
    centres = rng.normal(size=(m // 2, d))
    queries, gallery = (centres[ids] + rng.normal(size=(len(ids), d)) for ids in (query_ids, gallery_ids))
    return queries.astype(np.float32), gallery.astype(np.float32), query_ids, gallery_ids


def sorted_metrics(queries, gallery, query_ids, gallery_ids, ks):
    """A full sort in float64, for data without ties."""
    q, g = (x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1)[:, None] for x in (queries, gallery))
    order = np.argsort(-(q @ g.T), axis=1)
    rank = 1 + (gallery_ids[order] == query_ids[:, None]).argmax(axis=1)
    return {**{f"R@{k}": 100 * (rank <= k).mean() for k in ks}, "MedR": np.median(rank), "n": len(rank)}


def test_equals_a_full_sort():
    problem = random_problem()
    assert_same(retrieval(*problem), sorted_metrics(*problem, (1, 5, 10)))


@pytest.mark.parametrize("size", [1, 1000, 30_000])
def test_blocks_do_not_change_the_result(monkeypatch, size):
    queries, gallery, q_ids, g_ids = random_problem()
    gallery = np.concatenate([gallery, 3 * gallery[:37]])  # ties with copies of another length, far apart
    g_ids = np.concatenate([g_ids, g_ids[:37] + 1000])
    whole = retrieval(queries, gallery, q_ids, g_ids)
    monkeypatch.setattr(retrieve, "BLOCK_BYTES", size)
    assert retrieval(queries, gallery, q_ids, g_ids) == whole
    once = retrieval(queries, gallery[:220], q_ids, g_ids[:220])
    assert whole["R@1"] < once["R@1"]  # the copies took their share


def test_reduced_matmul_precision_changes_nothing():
    problem = random_problem()
    expected = retrieval(*problem)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert retrieval(*problem) == expected
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert retrieval(*problem) == expected
    finally:
        torch.set_float32_matmul_precision(before)


def test_differences_below_float32_count():
    queries, gallery = np.array([[1.0, 0.0]]), np.array([[1.0, 1.0], [1.0, 1.0 - 1e-9]])
    assert retrieval(queries, gallery, [1], [0, 1], ks=(1,))["R@1"] == 100
    assert retrieval(queries, gallery, [0], [0, 1], ks=(1,))["R@1"] == 0


def test_ids_are_compared_as_they_are():
    scores = np.array([[1.0, 0.0]])
    assert retrieval(scores=scores, query_ids=[1], gallery_ids=["1", 1], ks=(1,))["R@1"] == 0
    assert retrieval(scores=scores, query_ids=np.array([1]), gallery_ids=torch.tensor([1, 2]), ks=(1,))["R@1"] == 100


def test_memory_mapped_and_half_precision(tmp_path):
    queries, gallery, q_ids, g_ids = random_problem()
    np.save(tmp_path / "g.npy", gallery.astype(np.float16))
    mapped = np.load(tmp_path / "g.npy", mmap_mode="r")
    expected = retrieval(queries, gallery.astype(np.float16).astype(np.float64), q_ids, g_ids)
    assert retrieval(queries, mapped, q_ids, g_ids) == expected
    assert (
        retrieval(torch.from_numpy(queries).requires_grad_(), torch.from_numpy(mapped.copy()), q_ids, g_ids) == expected
    )


# ---- scores


def test_score_function_equals_its_matrix():
    queries, gallery, q_ids, g_ids = random_problem(n=600)
    sizes = []

    def negative_distance(some, items):
        sizes.append(len(some))
        return -((some[:, None] - items[None]) ** 2).sum(2)

    matrix = negative_distance(queries, gallery)
    sizes.clear()
    found = retrieval(queries, gallery, q_ids, g_ids, scores=negative_distance)
    assert_same(found, retrieval(scores=matrix, query_ids=q_ids, gallery_ids=g_ids))
    assert sizes == [256, 256, 88]  # every query once
    in_dict = retrieval(queries, {"items": gallery}, q_ids, g_ids, scores=lambda q, g: negative_distance(q, g["items"]))
    assert in_dict == found


# ---- errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": [[1.0, 2.0]]}, "queries must be a NumPy array or a torch tensor; got list"),
        ({"queries": np.ones(3)}, r"queries must have two dimensions; got shape \(3,\)"),
        ({"gallery": np.ones((3, 5))}, "queries have width 4 but the gallery has 5"),
        ({"gallery": np.ones((0, 4))}, r"gallery is empty, shape \(0, 4\)"),
        ({"gallery": np.ones((2, 4))}, "3 queries and 2 gallery items, so row i cannot belong to row i"),
        ({"gallery": np.ones((3, 4), dtype=bool)}, "gallery has dtype bool"),
        ({"queries": np.array([[1.0] * 4, [np.nan] * 4, [1.0] * 4])}, "queries has NaN, .* 1 of 3 rows, .* row 1"),
        ({"gallery": np.array([[1.0] * 4, [1.0] * 4, [np.inf] * 4])}, "gallery has NaN, .* 1 of 3 rows, .* row 2"),
        ({"gallery": np.array([[1.0] * 4, [0.0] * 4, [1.0] * 4])}, "gallery has 1 zero vectors, the first in row 1"),
        ({"query_ids": [0, 1, 2]}, "query_ids is given but gallery_ids is not"),
        ({"gallery_ids": [0, 1, 2]}, "gallery_ids is given but query_ids is not"),
        ({"query_ids": [0, 1], "gallery_ids": [0, 1, 2]}, "query_ids must have one id per row, 3; got 2"),
        ({"query_ids": "abc", "gallery_ids": [0, 1, 2]}, "query_ids must be a list or an array .* got str"),
        ({"query_ids": [[0], [1], [2]], "gallery_ids": [0, 1, 2]}, r"query_ids\[0\] is a list"),
        (
            {"query_ids": [0, 5, 6], "gallery_ids": [0, 1, 2]},
            r"2 of 3 queries have an id .*: 5 \(query 1\), 6 \(query 2\)",
        ),
        ({"ks": (0, 1)}, r"ks must be a list of whole numbers from 1 on.* got \(0, 1\)"),
        ({"ks": 5}, "ks must be a list of whole numbers"),
        ({"ks": []}, "ks must be a list of whole numbers"),
        ({"ks": (True,)}, "ks must be a list of whole numbers"),
        ({"ks": (1.0,)}, "ks must be a list of whole numbers"),
        ({"query_ids": 5, "gallery_ids": [0, 1, 2]}, "query_ids must be a list or an array .* got int"),
        ({"query_ids": b"abc", "gallery_ids": [0, 1, 2]}, "query_ids must be a list or an array .* got bytes"),
        ({"query_ids": np.array(5), "gallery_ids": [0, 1, 2]}, "one id per row, 3; got a single value"),
        ({"gallery": torch.ones(3, 4, dtype=torch.bool)}, "gallery has dtype torch.bool; it must hold real numbers"),
        ({"gallery": torch.ones(3, 4, dtype=torch.complex64)}, "gallery has dtype torch.complex64"),
        ({"gallery": np.ones((3, 4), dtype=complex)}, "gallery has dtype complex128"),
        ({"gallery": np.ones((3, 0)), "queries": np.ones((3, 0))}, r"queries is empty, shape \(3, 0\)"),
        ({"gallery": torch.ones(3, 4, device="meta")}, "queries are on cpu but the gallery is on meta; move them"),
        ({"gallery": None, "scores": np.ones((3, 3))}, "leaves queries and gallery nothing to say"),
        ({"queries": None, "scores": np.ones((3, 3))}, "leaves queries and gallery nothing to say"),
        ({"queries": {}, "scores": lambda q, g: q}, "queries must have a length and be sliceable; got dict"),
        ({"queries": {1, 2}, "scores": lambda q, g: q}, "queries must have a length and be sliceable; got set"),
        ({"queries": [], "scores": lambda q, g: q}, "queries is empty; there is nothing to rank"),
        ({"engine": "local", "scores": lambda q, g: q}, "an engine ranks vectors by their similarity; leave out"),
        ({"engine": "local", "hubs": "csls"}, "an engine ranks vectors by their similarity; leave out"),
        ({"similarity": "euclid"}, "similarity must be 'cosine' or 'dot'; got 'euclid'"),
        ({"scores": np.ones((3, 3))}, "scores is an array, which leaves queries and gallery nothing to say"),
        ({"scores": lambda q, g: np.ones((1, 3))}, r"returned shape \(1, 3\); expected \(3, 3\)"),
        ({"scores": lambda q, g: q[:, :3] * np.nan}, "scores has NaN in the row of query 0"),
        ({"queries": None}, "queries must be a NumPy array or a torch tensor; got NoneType"),
        ({"queries": None, "gallery": None, "scores": [[1.0, 0.0]]}, "scores must be a NumPy array .*; got list"),
        (
            {"queries": None, "gallery": None, "scores": np.ones(2)},
            r"scores must have two dimensions; got shape \(2,\)",
        ),
        ({"queries": None, "gallery": None, "scores": np.diag([1.0, np.nan])}, "NaN in the row of query 1"),
        ({"scores": lambda q, g: [[1.0]]}, r"what scores\(queries\[0:...\], gallery\) returned must be a NumPy array"),
        ({"hubs": "CSLS"}, "hubs must be None or 'csls'; got 'CSLS'"),
        ({"hubs": "csls", "scores": lambda q, g: q @ g.T}, "hubs needs all scores at once; pass vectors or an array"),
        *(
            ({"hubs": "csls", "neighbours": k}, "hubs='csls' looks at is a whole number from 1 on; got")
            for k in (0, -1, True, 2.0, "5", None)
        ),
    ],
)
def test_errors(change, message):
    with pytest.raises(InputError, match=message):
        retrieval(**{"queries": np.ones((3, 4)), "gallery": np.ones((3, 4)), **change})


@pytest.mark.parametrize(("unknown", "shown"), [(3, "5 (query 1), 6 (query 2), 7 (query 3);"), (4, "(query 3), ...;")])
def test_the_list_of_unknown_ids_says_whether_it_goes_on(unknown, shown):
    ids = [0, 5, 6, 7, 8][: unknown + 1]
    with pytest.raises(InputError, match=re.escape(shown)):
        retrieval(np.ones((len(ids), 2)), np.ones((1, 2)), ids, [0])


def test_what_is_taken():
    vectors, scores = np.eye(3), [np.eye(3, dtype=kind) for kind in (np.float16, np.int8, np.uint8, np.float32)]
    for table in (*scores, torch.eye(3, dtype=torch.bfloat16)):
        assert retrieval(scores=table, ks=[np.int64(1)])["R@1"] == 100
    assert retrieval(vectors.astype(np.uint8), vectors.astype(np.int16), [0, 1, 2], [0, 1, 2])["R@1"] == 100
    assert list(retrieval(vectors, vectors)) == ["R@1", "R@5", "R@10", "MedR", "n"]
    listed = retrieval(list("abc"), {"k": 1}, scores=lambda q, g: np.eye(3)[[ord(c) - 97 for c in q]])
    assert listed["R@1"] == 100
    assert "hubs" not in listed
    late = np.eye(300)
    late[280, 3] = np.nan
    with pytest.raises(InputError, match="scores has NaN in the row of query 280"):
        retrieval(np.arange(300)[:, None], None, scores=lambda q, g: late[q[:, 0]])
    with pytest.raises(InputError, match=r"scores\(queries\[256:300\], gallery\) returned shape \(2, 300\); expected"):
        retrieval(np.arange(300), None, scores=lambda q, g: np.eye(300)[q][: 256 if q[0] == 0 else 2])


def test_bound_on_the_rounding_of_products():
    assert retrieve.rounding(16) == 24 * 2.0**-24
    torch.set_float32_matmul_precision("high")
    try:
        assert retrieve.rounding(16) == 24 * 2.0**-24 + 2.0**-6
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("above", [0, 1, 3])
@pytest.mark.parametrize(("tied", "own"), [(0, 1), (1, 1), (3, 2), (0, 2)])
def test_hits_are_shares_of_all_orders(above, tied, own):
    counts = retrieve.Ranks(*(torch.tensor([count]) for count in (above, tied, own)))
    orders = set(permutations("x" * tied + "o" * own))
    first = [above + order.index("o") + 1 for order in orders]
    for k in range(1, 9):
        assert float(counts.hits(k)) == pytest.approx(np.mean([place <= k for place in first]))
    assert float(counts.expected()) == pytest.approx(np.mean(first))


@pytest.mark.parametrize("size", [1, 3000])
def test_an_engine_shares_the_queries_out(monkeypatch, size):
    problem = random_problem()
    whole = retrieval(*problem, per_query=True)
    monkeypatch.setattr(retrieve, "BLOCK_BYTES", size)
    shared = retrieval(*problem, per_query=True, engine=LocalEngine())
    np.testing.assert_array_equal(shared["ranks"], whole["ranks"])


# ---- hubs


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
    np.testing.assert_allclose(csls(scores, k), want)
    assert isinstance(csls(torch.from_numpy(scores), k), torch.Tensor)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_retrieval_with_hubs_equals_the_slow_twin(vectors, similarity, monkeypatch):
    queries, gallery = vectors
    scores = cosines(queries, gallery) if similarity == "cosine" else queries @ gallery.T
    q_ids, g_ids = list(range(20)), list(range(30))
    want = slow.by_scores(reference.csls(scores, 5).tolist(), q_ids, g_ids, (1, 5, 10)) | {"hubs": "csls"}
    monkeypatch.setattr(retrieve, "BLOCK_BYTES", 8 * 30 * 7)  # several blocks
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


# ---- chance


@pytest.mark.parametrize("relevant", [None, "aabcc", "aaaaa", "abcde"])
@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_equals_the_share_of_orders(relevant, k):
    own = list(range(5)) if relevant is None else list(relevant)
    orders = list(permutations(own))
    hits = [query in order[:k] for query in own for order in orders]
    assert chance(5, relevant, ks=(k,))[f"R@{k}"] == pytest.approx(100 * np.mean(hits))


@pytest.mark.parametrize(
    ("k", "n", "own", "percent"),
    [
        (1, 4, 1.0, 25.0),
        (10, 7, 1.0, 100.0),
        (2, 4, 2.0, 100 * (1 - 2 / 4 * 1 / 3)),
        (3, 4, 2.0, 100.0),
        (1, 1, 1.0, 100.0),
    ],
)
def test_one_query_with_some_relevant_items(k, n, own, percent):
    assert chance_level(k, n, own) == pytest.approx(percent, abs=1e-9)
    assert chance_level(k, n) == pytest.approx(100 * min(1.0, k / n), abs=1e-9)
