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
from tests.reference import retrieval as slow

KS = (1, 2, 5)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, abs=1e-9)


# ---- by hand


def test_every_query_finds_its_row():
    assert retrieval(np.eye(12), np.eye(12)) == {"R@1": 100.0, "R@5": 100.0, "R@10": 100.0, "MedR": 1.0, "n": 12}


def test_ranks_one_two_three_by_hand():
    scores = np.array([[0.9, 0.1, 0.2], [0.8, 0.5, 0.3], [0.3, 0.2, 0.1]])  # own items on ranks 1, 2, 3
    assert_same(retrieval(scores=scores, ks=(1, 2, 3)), {"R@1": 100 / 3, "R@2": 200 / 3, "R@3": 100, "MedR": 2, "n": 3})


def test_cosine_ignores_length_and_dot_does_not():
    queries, gallery = np.array([[1.0, 0.0]]), np.array([[0.5, 0.0], [3.0, 3.0]])
    ids = {"query_ids": ["a"], "gallery_ids": ["a", "b"], "ks": (1,)}
    assert retrieval(queries, gallery, **ids)["R@1"] == 100
    assert retrieval(queries, gallery, **ids, similarity="dot")["R@1"] == 0


def test_several_captions_per_item_both_ways():
    images, texts = np.eye(2), np.array([[1.0, 0.1], [0.1, 1.0], [0.2, 1.0], [0.3, 0.4]])
    owner, pictures = [7, 7, 8, 8], [7, 8]
    assert_same(retrieval(texts, images, owner, pictures, ks=(1, 2)), {"R@1": 75, "R@2": 100, "MedR": 1, "n": 4})
    # 7 finds its first caption at once; for 8 the other image's caption (0.1, 1) is the nearest, then its own
    assert_same(retrieval(images, texts, pictures, owner, ks=(1, 2)), {"R@1": 50, "R@2": 100, "MedR": 1.5, "n": 2})


def test_ties_by_hand():
    # one own and three others level: a quarter each; rank (1 + 2 + 3 + 4) / 4
    found = retrieval(scores=np.zeros((1, 4)), query_ids=[0], gallery_ids=[0, 1, 2, 3], ks=(1, 2, 4))
    assert_same(found, {"R@1": 25, "R@2": 50, "R@4": 100, "MedR": 2.5, "n": 1})
    # two own and two others level, one above: the first own one is 2nd, 3rd or 4th with 1/2, 1/3, 1/6
    found = retrieval(scores=np.array([[5.0, 1, 1, 1, 1]]), query_ids=[0], gallery_ids=[9, 0, 0, 1, 2], ks=(1, 2, 3, 4))
    assert_same(found, {"R@1": 0, "R@2": 50, "R@3": 500 / 6, "R@4": 100, "MedR": 1 + 5 / 3, "n": 1})


def test_collapsed_vectors_are_chance():
    found = retrieval(np.ones((50, 3), dtype=np.float32), np.ones((50, 3), dtype=np.float32), ks=(1, 10))
    assert_same(found, {"R@1": 2, "R@10": 20, "MedR": 25.5, "n": 50})


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


def test_score_matrix_errors():
    with pytest.raises(InputError, match="scores must be a NumPy array or a torch tensor; got list"):
        retrieval(scores=[[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(InputError, match=r"scores must have two dimensions; got shape \(2,\)"):
        retrieval(scores=np.ones(2))
    with pytest.raises(InputError, match=r"what scores\(queries\[0:...\], gallery\) returned must be a NumPy array"):
        retrieval([1, 2], None, scores=lambda q, g: [[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(InputError, match="NaN in the row of query 1"):
        retrieval(scores=np.array([[1.0, 0.0], [np.nan, 0.0]]))
    with pytest.raises(InputError, match="queries must have a length"):
        retrieval(scores=lambda q, g: q)


def test_zero_vectors_have_inner_products():
    found = retrieval(np.zeros((2, 3)), np.ones((2, 3)), ks=(1,), similarity="dot")
    assert_same(found, {"R@1": 50, "MedR": 1.5, "n": 2})
