"""Making an index: which encoders, which groups, what is written at once, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl import Index
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.errors import InputError
from calmrl.search import build, neighbours, space
from calmrl.search.build import index_part_folder
from tests.support.colour_world import settings


def pairs(n=60) -> FeatureSet:
    """Two modalities with much in common; every item has a sibling, the one `n // 2` rows further on."""
    rng = np.random.default_rng(0)
    shared = np.tile(rng.normal(size=(n // 2, 3)), (2, 1))
    z = {name: (shared @ rng.normal(size=(3, width))).astype(np.float32) for name, width in (("image", 9), ("text", 8))}
    return FeatureSet(z, None, meta_table(n, columns={"pair": [f"p{i % (n // 2)}" for i in range(n)]}), name="pairs")


def test_one_run_at_a_time_and_an_empty_folder_does_not_stay(tmp_path):
    def refuse(keep):
        with index_part_folder(tmp_path / "ix/") as part:
            assert part == tmp_path / "ix.part"
            if keep:
                (part / "cells").mkdir()
            raise InputError("stop")

    for keep in (False, True):
        with pytest.raises(InputError, match="stop"):
            refuse(keep)
        assert (tmp_path / "ix.part").exists() == keep
    with index_part_folder(tmp_path / "ix") as part:
        with pytest.raises(InputError, match=r"another run is writing .*ix; wait until it has ended"):
            index_part_folder(tmp_path / "ix").__enter__()
        assert part.exists()
    assert not part.exists()


def test_an_address_has_its_working_folder_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with index_part_folder("s3://bucket/deep/ix/") as part:
        assert part.resolve() == tmp_path / "ix.part"


def test_what_is_there_already(tmp_path):
    (tmp_path / "empty").mkdir()
    assert len(Index.build(pairs(), tmp_path / "empty", model=settings())) == 60
    (tmp_path / "file").touch()
    (tmp_path / "full" / "other").mkdir(parents=True)
    for taken, reason in (("file", "is a file"), ("full", "exists and is not a calmrl index; choose another name")):
        with pytest.raises(InputError, match=reason):
            Index.build(pairs(), tmp_path / taken, model=settings())


def test_groups_are_those_of_the_aligner(tmp_path):
    named = [f"p{i % 30}" for i in range(60)]
    together = settings().fit(pairs(), groups=named).expected_
    for number, groups in enumerate(("pair", named)):
        assert Index.build(pairs(), tmp_path / f"{number}", model=settings(), groups=groups).expected == together
    assert Index.build(pairs(), tmp_path / "apart", model=settings()).expected != together
    with pytest.raises(InputError, match="groups has 4 labels but there are 60 items; pass one per item"):
        Index.build(pairs(), tmp_path / "no", groups=[1, 2, 3, 4])
    with pytest.raises(InputError, match='no column "colour"; there are id, pair'):
        Index.build(pairs(), tmp_path / "no", groups="colour")


def test_encoders_of_features(tmp_path):
    index = Index.build(pairs(), tmp_path / "ix", {"text": "minilm"}, model=settings())
    entries = index.modalities()
    assert {name: entries[name]["kind"] for name in entries} == {"image": "vector", "text": "text"}
    assert {name: entries[name]["encoder"] for name in entries} == {"image": None, "text": "minilm"}
    with pytest.raises(InputError, match="`encoders` names sound, but the features have image, text"):
        Index.build(pairs(), tmp_path / "no", {"sound": "yamnet"})


def test_items_are_written_in_pieces_after_a_run_that_was_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "ROWS", 25)
    (tmp_path / "ix.part" / "database" / "old").mkdir(parents=True)
    said = []
    index = Index.build(pairs(), tmp_path / "ix", model=settings(), progress=lambda *given: said.append(given))
    assert [step for step in said if step[2] == "write items"] == [(n, 60, "write items") for n in (25, 50, 60)]
    assert [step for step in said if step[2].startswith("align")] == [(0, 0, "align image, text (60 items)")]
    assert [item.id for item in index.items(limit=60)] == sorted((str(i) for i in range(60)), key=int)
    assert [path.name for path in tmp_path.iterdir()] == ["ix"]


@pytest.mark.parametrize(("exact", "graph"), [(60, False), (59, True)])
def test_tables_above_a_size_get_a_graph(exact, graph, tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "EXACT_ROWS", exact)
    monkeypatch.setattr(neighbours, "build_ann", lambda table, rows, metric: {"rows": rows})
    Index.build(pairs(), tmp_path / "ix", model=settings())
    assert Index.open(tmp_path / "ix").layout["search"] == ({"rows": 60} if graph else None)


def test_few_items_are_aligned_on_one_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for items, threads in ((space.FEW, 1), (space.FEW + 1, 3)):
            with space.threads_for(items):
                assert torch.get_num_threads() == threads
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
