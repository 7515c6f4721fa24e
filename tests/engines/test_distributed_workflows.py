"""extract, index, evaluate and the aligner with an engine: what one process gives, from blocks that travelled."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from calmrl import Aligner, Index
from calmrl._support.engine import ENGINES, LocalEngine, opened
from calmrl.config.schema.train import TrainConfig
from calmrl.data import write_features
from calmrl.data.features import distributed_rows
from calmrl.data.features.distributed_rows import DistributedArrays
from calmrl.errors import InputError, MissingExtraError
from calmrl.metrics import retrieval
from calmrl.metrics import retrieve as products
from calmrl.search import space as align
from calmrl.workflows.evaluate import evaluate
from calmrl.workflows.extract import extract
from calmrl.workflows.train import train
from tests.engines.pickling_engine import PicklingEngine
from tests.support.colour_world import FIXED, NAMES, make_folder, settings
from tests.support.latent_data import from_model

evaluation = importlib.import_module("calmrl.workflows.evaluate")  # the package exports a function of this name


def test_an_unknown_engine_is_named():
    with pytest.raises(InputError, match="ray"), opened("rya"):
        pass
    assert list(ENGINES) == ["local", "ray"]


def test_an_address_without_ray_is_refused(tmp_path, calmrl):
    write_features(tmp_path / "features", *from_model(n=30))
    code, _, err = calmrl("impute", tmp_path / "features", "--out", tmp_path / "out", "--address", "10.0.0.1:6379")
    assert code == 2
    assert "10.0.0.1:6379 is the address of a Ray cluster; add --engine ray" in err


def test_without_ray_the_error_names_the_extra(tmp_path, calmrl, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'pip install "calmrl\[ray\]"'), opened("ray"):
        pass
    write_features(tmp_path / "features", *from_model(n=30))
    code, _, err = calmrl("impute", tmp_path / "features", "--out", tmp_path / "out", "--engine", "ray")
    assert code == 2
    assert 'install it with: pip install "calmrl[ray]"' in err
    assert not (tmp_path / "out.part").exists()


@pytest.mark.usefixtures("colour_encoders")
def test_extract_gives_the_same_bytes(tmp_path):
    make_folder(tmp_path / "colours", 40)
    (tmp_path / "colours" / "broken.png").write_bytes(b"no picture")
    options = {"allow_missing": True, "batch_size": 7}
    extract(tmp_path / "colours", NAMES, tmp_path / "one", **options)
    engine = PicklingEngine()
    extract(tmp_path / "colours", NAMES, tmp_path / "distributed", engine=engine, **options)
    assert set(engine.done) == {"_encode_files", "_encode_texts"}
    assert len(engine.done) > 12
    assert content(tmp_path / "distributed") == content(tmp_path / "one")
    problems = [(tmp_path / f"{name}.problems.csv").read_text() for name in ("one", "distributed")]
    assert problems[0] == problems[1]
    assert "broken" in problems[0]


@pytest.mark.usefixtures("colour_encoders")
def test_an_index_holds_the_same_vectors(tmp_path, monkeypatch):
    pytest.importorskip("lancedb", reason='LanceDB is not installed; pip install "calmrl[search]"')
    make_folder(tmp_path / "colours", 60)
    monkeypatch.setattr(align, "PLACE_ROWS", 16)
    engine = PicklingEngine()
    one = Index.build(tmp_path / "colours", tmp_path / "one", NAMES, model=settings())
    distributed = Index.build(tmp_path / "colours", tmp_path / "distributed", NAMES, model=settings(), engine=engine)
    assert {"_encode_files", "_encode_texts", "_place_block", "_on_views"} <= set(engine.done)
    for query in ("a colour like 10 200 30", "a colour like 200 10 10"):
        hits = [[(hit.id, hit.similarity) for hit in index.search(text=query, k=20)] for index in (one, distributed)]
        assert [name for name, _ in hits[0]] == [name for name, _ in hits[1]]
        np.testing.assert_allclose([s for _, s in hits[0]], [s for _, s in hits[1]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_aligner_is_the_same_from_blocks(monkeypatch, dtype):
    z, present = from_model(n=900)
    z = {name: array.astype(dtype) for name, array in z.items()}
    monkeypatch.setattr(distributed_rows, "BLOCK_BYTES", 1 << 13)
    engine = PicklingEngine()
    one = Aligner(**FIXED).fit(z, present)
    distributed = Aligner(**FIXED).fit(DistributedArrays(z, present, engine))
    assert len(engine.done) > 20
    assert distributed.modalities_ == one.modalities_
    for mine, theirs in zip(
        distributed.space_.weight + distributed.space_.information,
        one.space_.weight + one.space_.information,
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-8)


def test_ranks_are_the_same_from_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    queries, gallery = rng.normal(size=(500, 8)).astype("float32"), rng.normal(size=(400, 8)).astype("float32")
    gallery[100:110] = gallery[50]  # ties
    ids, items = rng.integers(0, 400, 500), np.arange(400)
    one = retrieval(queries, gallery, ids, items, per_query=True)
    monkeypatch.setattr(products, "BLOCK_BYTES", 4 * 400 * 9)
    engine = PicklingEngine()
    distributed = retrieval(queries, gallery, ids, items, per_query=True, engine=engine)
    assert len(engine.done) == 7
    assert np.array_equal(distributed["ranks"], one["ranks"])
    assert {key: distributed[key] for key in ("R@1", "R@10", "MedR")} == {
        key: one[key] for key in ("R@1", "R@10", "MedR")
    }
    with pytest.raises(InputError, match="leave out scores and hubs, or the engine"):
        retrieval(queries, gallery, ids, items, hubs="csls", engine=engine)


def test_a_model_is_measured_the_same(tmp_path, monkeypatch):
    z, present = from_model(n=120)
    split = ["train"] * 60 + ["val"] * 20 + ["test"] * 40
    write_features(tmp_path / "mine", z, present, split=split)
    config = {"kind": "train", "sources": {"mine": {"features": str(tmp_path / "mine")}}, "stages": [{"steps": 2}]}
    config |= {"model": {"kind": "heads", "width": 4}, "batch_size": 16, "method": "contrastive"}
    train(TrainConfig.model_validate(config), tmp_path / "run")
    monkeypatch.setattr(evaluation, "ENCODE_ROWS", 50)
    engine = PicklingEngine()
    one = evaluate(tmp_path / "run")
    distributed = evaluate(tmp_path / "run", engine=engine)
    assert {"_encode_block", "_count_blocks"} <= set(engine.done)
    assert [{**row, "value": 0} for row in distributed.rows] == [{**row, "value": 0} for row in one.rows]
    np.testing.assert_allclose(
        [row["value"] for row in distributed.rows], [row["value"] for row in one.rows], rtol=1e-5
    )


def test_an_engine_that_is_open_is_left_open():
    closed = []

    class Own(LocalEngine):
        def close(self):
            closed.append(True)

    with opened(Own()) as engine:
        assert list(engine.map(abs, [-1, 2])) == [1, 2]
    assert not closed


def content(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
