"""The search table against a slow obvious twin: cosine similarity with every row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calmrl.errors import InputError

pytest.importorskip("lancedb", reason="the extra search is not installed")

import calmrl.search.summary as summary_module
from calmrl.search.table import search_table, write_table

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(60, 8))
PRESENT = RNG.random((60, 2)) < 0.6
IDS = [f"item {i}" for i in range(60)]
QUERIES = RNG.normal(size=(5, 8))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("search") / "items.lance"
    write_table(path, IDS, VECTORS, PRESENT, ["image", "text in French"])
    return path


def _twin(queries, rows):
    unit = VECTORS[rows] / np.linalg.norm(VECTORS[rows], axis=1, keepdims=True)
    similarity = queries / np.linalg.norm(queries, axis=1, keepdims=True) @ unit.T
    order = np.argsort(-similarity, axis=1)[:, :10]
    return [[IDS[rows[j]] for j in row] for row in order], np.take_along_axis(similarity, order, axis=1)


@pytest.mark.parametrize("as_kind", [np.asarray, torch.from_numpy])
def test_nearest_rows(table, as_kind):
    ids, similarity = _twin(QUERIES, np.arange(60))
    hits = search_table(table, as_kind(QUERIES))
    assert [[hit.id for hit in row] for row in hits] == ids
    np.testing.assert_allclose([[hit.similarity for hit in row] for row in hits], similarity, atol=1e-5)


def test_rows_that_really_have_a_modality(table):
    ids, _ = _twin(QUERIES, np.flatnonzero(PRESENT[:, 1]))
    hits = search_table(table, QUERIES, having=["text in French"])
    assert [[hit.id for hit in row] for row in hits] == ids
    both = search_table(table, QUERIES, k=100, having=["image", "text in French"])
    assert {len(row) for row in both} == {int(PRESENT.all(axis=1).sum())}


def test_hits_tell_what_was_present(table):
    for hit in search_table(table, QUERIES[:1], k=60)[0]:
        here = PRESENT[IDS.index(hit.id)]
        assert hit.modalities == tuple(np.array(["image", "text in French"])[here])


def test_errors(table, tmp_path):
    with pytest.raises(InputError, match="no search table at"):
        search_table(tmp_path / "nowhere", QUERIES)
    with pytest.raises(InputError, match="queries have width 3 but the table was written with 8"):
        search_table(table, QUERIES[:, :3])
    with pytest.raises(InputError, match='unknown modality "imag"; did you mean "image"'):
        search_table(table, QUERIES, having=["imag"])
    with pytest.raises(InputError, match="exists and is not empty"):
        write_table(table, IDS, VECTORS, PRESENT, ["image", "text"])
    with pytest.raises(InputError, match="ids must be distinct"):
        write_table(tmp_path / "t", ["a"] * 60, VECTORS, PRESENT, ["image", "text"])
    with pytest.raises(InputError, match=r"present must be bool of shape \(60, 2\)"):
        write_table(tmp_path / "t", IDS, VECTORS, PRESENT[:, :1], ["image", "text"])
    with pytest.raises(InputError, match="rows have no modality at all"):
        write_table(tmp_path / "t", IDS, np.where(PRESENT[:, :1], VECTORS, np.nan), PRESENT, ["image", "text"])
    assert list(tmp_path.iterdir()) == []


def test_queries_without_an_answer(table, tmp_path):
    for k in (0, -1, True, 1.5, "3"):
        with pytest.raises(InputError, match="a whole number from 1 on"):
            search_table(table, QUERIES, k=k)
    with pytest.raises(InputError, match="no search table at"):
        search_table(tmp_path, QUERIES)
    with pytest.raises(InputError, match="row 1 is zero"):
        search_table(table, np.stack([QUERIES[0], np.zeros(8)]))
    with pytest.raises(InputError, match="too large for float32"):
        search_table(table, np.full((1, 8), 1e300))
    (tmp_path / "t" / "items.lance").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot be read as a search table"):
        search_table(tmp_path / "t", QUERIES)


def test_any_name_of_a_modality(tmp_path):
    names = ["a `b` 'c' -- ;", "has_0"]
    write_table(tmp_path / "t", IDS, VECTORS, PRESENT, names)
    for j, name in enumerate(names):
        hits = search_table(tmp_path / "t", QUERIES[:1], k=60, having=[name])[0]
        assert {hit.id for hit in hits} == {IDS[i] for i in np.flatnonzero(PRESENT[:, j])}


def test_a_summary_names_eight_patterns_and_counts_the_rest(monkeypatch):
    class Held:
        expected, layout = {}, {"search": None}

        def __len__(self):
            return 55

        def modalities(self):
            return {}

    monkeypatch.setattr(summary_module, "patterns", lambda index: {f"p{j}": j for j in range(10, 0, -1)})
    first, *_ = summary_module.summary(Held())
    assert first == "55 items: " + ", ".join(f"{j} p{j}" for j in range(10, 2, -1)) + ", and 2 more patterns"
