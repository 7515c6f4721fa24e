"""Making an index: which encoders, which groups, what is written at once, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl import Aligner
from calmrl.data import FeatureSet
from calmrl.errors import InputError
from calmrl.search import build as build_module
from calmrl.search.build import BuildOptions, _align, _check_free, _collect, _write, working_folder
from calmrl.search.collection import Collection, ItemRecord
from calmrl.sources import Source


def items(n=5) -> Collection:
    known = [ItemRecord(str(i), columns={"g": i % 2}) for i in range(n)]
    return Collection(known, {"a": np.eye(n, 3)}, np.ones((n, 1), bool), {"a": "vector"}, "root")


def test_one_run_at_a_time_and_an_empty_folder_does_not_stay(tmp_path):
    def refuse(keep):
        with working_folder(tmp_path / "ix/") as part:
            assert part == tmp_path / "ix.part"
            if keep:
                (part / "cells").mkdir()
            raise InputError("stop")

    for keep in (False, True):
        with pytest.raises(InputError, match="stop"):
            refuse(keep)
        assert (tmp_path / "ix.part").exists() == keep
    with working_folder(tmp_path / "ix") as part:
        with pytest.raises(InputError, match=r"another run is writing .*ix; wait until it has ended"):
            working_folder(tmp_path / "ix").__enter__()
        assert part.exists()
    assert not part.exists()


def test_an_address_has_its_working_folder_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with working_folder("s3://bucket/deep/ix/") as part:
        assert part.resolve() == tmp_path / "ix.part"


def test_what_is_there_already(tmp_path):
    _check_free(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    _check_free(tmp_path / "empty")
    (tmp_path / "file").touch()
    for taken in (tmp_path / "file", tmp_path):
        with pytest.raises(InputError, match="exists and is not a calmrl index; choose another name"):
            _check_free(taken)


def test_groups_and_models(tmp_path, monkeypatch):
    fitted = []
    monkeypatch.setattr(build_module, "fit", lambda *given: fitted.append(given))
    said = []
    aligner, layout = _align(items(), tmp_path, BuildOptions(progress=lambda *told: said.append(told)))
    assert aligner is None
    assert said == []  # nothing is aligned, so nothing is said
    assert (layout["width"], layout["fitted_on"], layout["format"], layout["version"]) == (0, 5, "calmrl.index", 2)
    assert layout["modalities"]["a"] == {
        "kind": "vector", "width": 3, "encoder": None, "aligned": False,
        "why": "it is the only modality, so nothing else can find it",
    }  # fmt: skip
    assert fitted[0][4].get_params()["random_state"] == 0
    _align(items(), tmp_path, BuildOptions(groups=[1, 2, 3, 4, 5]))
    assert fitted[1][2] == [1, 2, 3, 4, 5]
    with pytest.raises(InputError, match="groups has 4 labels but there are 5 items; pass one per item"):
        _align(items(), tmp_path, BuildOptions(groups=[1, 2, 3, 4]))
    settings = Aligner(random_state=7)
    _align(items(), tmp_path, BuildOptions(model=settings))
    assert fitted[2][4] is settings
    given = SimpleNamespace(_space=SimpleNamespace(latent_dim=6))
    monkeypatch.setattr(build_module, "load_aligner", lambda path: given)
    monkeypatch.setattr(build_module, "check_aligner", lambda aligner, items: (["a"], {}))
    aligner, layout = _align(items(), tmp_path, BuildOptions(model="saved"))
    assert (aligner, layout["width"], layout["fitted_on"]) == (given, 6, None)
    assert layout["modalities"]["a"]["aligned"]
    linked = lambda names, present: (["a"], {})  # noqa: E731
    monkeypatch.setattr(build_module, "linked", linked)
    _align(items(), tmp_path, BuildOptions(progress=lambda *told: said.append(told)))
    assert said == [(0, 0, "align a (5 items)")]


def test_encoders_of_features(tmp_path):
    features = FeatureSet({"image": np.ones((2, 3)), "text": np.ones((2, 4))})
    opened = Source("features", "here", features=features)
    collection, description = _collect(opened, {"text": "minilm"}, tmp_path, BuildOptions())
    assert (collection.encoders, collection.kinds) == ({"text": "minilm"}, {"image": "vector", "text": "text"})
    assert description is None
    with pytest.raises(InputError, match="`encoders` names sound, but the features have image, text"):
        _collect(opened, {"sound": "yamnet"}, tmp_path, BuildOptions())
    stamps = Source("dataset", "stamps", features=features)
    collection, _ = _collect(stamps, {}, tmp_path, BuildOptions())
    assert collection.encoders == {"image": "efficientnet_lite0", "text": "minilm"}
    assert _collect(opened, {}, tmp_path, BuildOptions())[0].encoders == {}


@pytest.mark.parametrize(("exact", "graph"), [(4, False), (3, True)])
def test_tables_are_written_in_pieces_and_large_ones_get_a_graph(exact, graph, tmp_path, monkeypatch):
    batches, made, hubness = [], {}, []
    vectors = np.eye(5, 2, dtype=np.float32)
    vectors[2:4] = [1.0, 0.0]  # the last one has no place
    monkeypatch.setattr(build_module, "ROWS", 2)
    monkeypatch.setattr(build_module, "place", lambda *given: (vectors, np.arange(5.0)))
    monkeypatch.setattr(build_module.neighbours, "EXACT_ROWS", exact)
    monkeypatch.setattr(build_module.neighbours, "SAMPLE", 4)
    monkeypatch.setattr(build_module.neighbours, "build_ann", lambda table, rows: {"rows": rows})
    real = build_module.neighbours.hubness
    monkeypatch.setattr(
        build_module.neighbours, "hubness", lambda v, g, own: hubness.append((len(v), len(g), own)) or real(v, g, own)
    )
    monkeypatch.setattr(
        build_module.store, "batch", lambda items, v, c, near, layout: (len(items), v.shape, near.tolist())
    )

    def create(target, given, layout):
        batches.extend(given)
        target.mkdir()

    monkeypatch.setattr(build_module.store, "create_items", create)
    monkeypatch.setattr(build_module.store, "write_parts", lambda target, parts: made.update(parts))
    part, said, layout = tmp_path / "ix.part", [], {}
    (part / "database" / "old").mkdir(parents=True)  # of a run that was stopped
    (tmp_path / "ix").mkdir()
    _write(items(), None, layout, tmp_path / "ix", part, BuildOptions(progress=lambda *told: said.append(told)))
    assert [(count, shape) for count, shape, _ in batches] == [(2, (2, 2)), (2, (2, 2)), (1, (1, 2))]
    assert batches[2][2] == [0.0]
    assert said == [(done, 5, "write items") for done in (2, 4, 5)]
    assert hubness == [(4, 4, True)]
    assert layout["search"] == ({"rows": 5} if graph else None)
    assert list(made) == ["index.json"]
    assert (tmp_path / "ix").is_dir()
    assert not (part / "database").exists()
