"""An index is fitted again when pairs were added, if that pays; at one moment, for all readers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl import Aligner, Index
from calmrl.cli import main
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.errors import InputError
from calmrl.search import Change, refit, store
from calmrl.search.refit import Gain, has_grown
from calmrl.workflows.check import check_source

LATENTS = 8
WIDTHS = {"image": 24, "text": 16}
FAST = {"features": "linear", "unit_rows": True, "whitening": 0.5, "latent_dim": 8, "prior": 10.0, "refine": "never"}
rng = np.random.default_rng(0)
MIXING = {name: rng.normal(size=(LATENTS, width)) for name, width in WIDTHS.items()}
ELSEWHERE = {name: mixing + 2.0 * rng.normal(size=mixing.shape) for name, mixing in MIXING.items()}


def items(n, seed, mixing=MIXING, noise=0.5):
    random = np.random.default_rng(seed)
    beta = random.normal(size=(n, LATENTS))
    return {name: (beta @ mixing[name] + noise * random.normal(size=(n, WIDTHS[name]))).astype("f4") for name in WIDTHS}


WORLD = items(300, 3)


def collection(captions, n=120, name="items"):
    """The first n items of the world: pictures, and captions of the first of them."""
    z = {name: values[:n].copy() for name, values in WORLD.items()}
    z["text"][captions:] = np.nan
    ids = [f"item {i}" for i in range(n)]
    meta = meta_table(n, ids=ids, labels=[f"l{i % 3}" for i in range(n)], columns={"number": list(range(n))})
    return FeatureSet(z, None, meta, name=name)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """What was learned in a world that is like this one, but not much."""
    path = tmp_path_factory.mktemp("base") / "aligner"
    Aligner(**FAST).fit(items(400, 1, ELSEWHERE)).save(path)
    return path


@pytest.fixture
def index(base, tmp_path):
    """Pictures, five of them with a caption."""
    return Index.build(collection(5), tmp_path / "ix", model=Aligner(**FAST), base=base)


def found(index, first=200, n=100):
    """Share of new texts, not in the index, that are nearest to their picture: as `search` places both."""
    z = {name: values[first : first + n] for name, values in WORLD.items()}
    scores = index.aligner.embed({"text": z["text"]}) @ index.aligner.embed({"image": z["image"]}).T
    return float((scores.argmax(1) == np.arange(n)).mean())


def right(index, rows=range(60, 120)):
    """Share of captions that find their picture, which has none in the index."""
    hits = [index.search(text=WORLD["text"][row], k=1)[0].id for row in rows]
    return float(np.mean([hit == f"item {row}" for row, hit in zip(rows, hits, strict=True)]))


def state(index):
    return sorted(index.rows(["id", "vector", "certainty", "nearness", "text", "f_0"]), key=lambda row: row["id"])


def test_captions_that_are_added_are_learned_from(index):
    path = index.path
    reader, before = Index.open(path), index.table
    assert found(index) < 0.2  # the base says little about this world
    assert right(reader) < 0.2
    version = before.version
    change = index.add(collection(60))
    assert (len(change.added), len(change.changed)) == (0, 55)
    assert change.lines()[-1] == change.refit
    assert change.refit.startswith("the space was fitted again with 60 pairs: image finds text at R@1 ")
    assert found(index) > 0.8
    assert right(reader) > 0.8  # who has it open sees it
    assert index.aligner.own_weight_ > 0
    assert Index.open(path).expected == index.expected
    assert index.layout["fitted_on"] == 120
    assert before.version > version  # the items as they were are still there for who reads them
    assert before.count_rows() == 120
    rows = {row["id"]: row for row in state(index)}
    z = collection(60).z
    for number, vector in enumerate(index.aligner.embed(dict(z))):
        np.testing.assert_allclose(rows[f"item {number}"]["vector"], vector, atol=1e-6)
        assert rows[f"item {number}"]["f_0"] == z["image"][number].tolist()
    vectors = np.array([row["vector"] for row in rows.values()])
    nearest = np.sort(vectors @ vectors.T, axis=1)[:, -11:-1].mean(axis=1)
    np.testing.assert_allclose([row["nearness"] for row in rows.values()], nearest, atol=1e-5)
    assert check_source(str(path)) == []


def test_the_table_before_is_dropped_by_the_next_change(index):
    index.add(collection(60))
    tables = sorted(file.name for file in Path(index.path).glob("*.lance"))
    assert tables == ["items-2.lance", "items.lance", "parts.lance"]
    assert index.add(collection(60)).refit is None  # as many pairs as before
    index.remove("item 3")
    assert sorted(file.name for file in Path(index.path).glob("*.lance")) == [
        "items-2.lance",
        "parts.lance",
        "removed.lance",
    ]
    assert check_source(str(index.path)) == []
    assert right(index) > 0.8


def test_few_more_pairs_are_not_worth_it():
    assert not has_grown(0, 19)
    assert has_grown(0, 20)
    assert has_grown(19, 20)
    assert not has_grown(20, 29)
    assert has_grown(20, 30)


def test_no_refit(index):
    assert index.add(collection(60), refit=False).refit is None
    assert found(index) < 0.2
    assert "fitted again" in index.add(collection(60)).refit  # it is made up for later
    assert found(index) > 0.8


def test_what_gains_nothing_is_tried_once(tmp_path):
    index = Index.build(collection(80), tmp_path / "ix", model=Aligner(**FAST), base=None)
    before = state(index)
    change = index.add(collection(120))
    assert change.refit.startswith(
        "the space stays as it was; fitting it again with 120 pairs was tried: image finds text"
    )
    assert change.refit.endswith("which is no gain beyond noise")
    assert index.layout["items"] == "items"
    assert index.layout["fitted_on"] == 120
    assert [row["vector"] for row in state(index)[:1]] == [row["vector"] for row in before[:1]]
    assert index.add(collection(120)).refit is None
    forced = index.add(collection(120), refit=True).refit
    assert forced.startswith("the space was fitted again with 120 pairs: ")
    assert index.layout["items"] == "items-2"
    assert check_source(str(index.path)) == []


def test_what_was_not_aligned_at_all(tmp_path):
    index = Index.build(collection(5), tmp_path / "ix", model=Aligner(**FAST), base=None)
    assert index.aligner is None
    assert not index.modalities()["text"]["aligned"]
    assert (
        index.add(collection(12), refit=True).refit
        == "nothing can be learned from 12 pairs; 20 of two modalities are needed"
    )
    line = index.add(collection(60)).refit
    assert "text finds image at R@1" in line
    assert "and could not before" in line
    assert index.modalities()["text"] | {"n": 0} == index.modalities()["image"] | {"n": 0}
    assert right(index) > 0.8


@pytest.mark.parametrize("made", ["older", "given model", "groups of no column"])
def test_indexes_that_do_not_say_how_they_were_fitted(made, base, tmp_path):
    arguments = {"model": Aligner(**FAST), "base": base}
    if made == "given model":
        arguments = {"model": base}
    if made == "groups of no column":
        arguments["groups"] = list(range(120))
    index = Index.build(collection(5), tmp_path / "ix", **arguments)
    if made == "older":
        layout = {key: value for key, value in index.layout.items() if key not in ("fit", "items")}
        store.write_parts(index.path, {**index.parts, store.LAYOUT: json.dumps(layout | {"version": 2}).encode()})
    assert index.add(collection(60)).refit is None
    assert right(index) < 0.2
    with pytest.raises(
        InputError, match=r"ix cannot be fitted again: it was made with a given model, .*; make it again"
    ):
        index.add(collection(60), refit=True)


def test_a_base_that_is_gone(base, tmp_path):
    Aligner.load(base).save(tmp_path / "base")
    index = Index.build(collection(5), tmp_path / "ix", model=Aligner(**FAST), base=tmp_path / "base")
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    change = index.add(collection(60))
    assert len(change.changed) == 55
    assert change.refit.startswith("the items are added, but the space could not be fitted again: there is no base")
    with pytest.raises(InputError, match="there is no base"):
        index.add(collection(60), refit=True)
    (tmp_path / "elsewhere").rename(tmp_path / "base")
    assert index.add(collection(60)).refit.startswith("the space was fitted again")


class StoppedError(BaseException):
    pass


def stop(*given, **named):
    raise StoppedError


@pytest.mark.parametrize(("module", "step"), [(refit, "place_all"), (refit, "write_tables"), (store, "write_parts")])
def test_stopped_before_the_last_step(module, step, index, monkeypatch):
    """The old index is whole, and the next run begins again; with `write_parts`, the new items lie beside the old ones."""
    index.add(collection(60), refit=False)
    before = state(index)
    with monkeypatch.context() as patch:
        patch.setattr(module, step, stop)
        with pytest.raises(StoppedError):
            index.add(collection(60))
    reader = Index.open(index.path)
    assert state(reader) == before
    assert right(reader) < 0.2
    assert (Path(index.path) / "items-2.lance").exists() == (step == "write_parts")
    assert index.add(collection(60)).refit.startswith("the space was fitted again with 60 pairs")
    assert right(reader) > 0.8
    index.add(collection(61), refit=False)
    assert check_source(str(index.path)) == []
    assert len(list(Path(index.path).glob("items*.lance"))) == 1
    assert not Path(f"{index.path}.part").exists()


def test_stopped_after_the_last_step(index, monkeypatch):
    written = store.write_parts

    def write(*given):
        written(*given)
        stop()

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_parts", write)
        with pytest.raises(StoppedError):
            index.add(collection(60))
    assert right(Index.open(index.path)) > 0.8
    assert index.add(collection(60)).refit is None
    assert check_source(str(index.path)) == []


def test_damaged_items_get_no_new_checksums(index):
    index.add(collection(60), refit=False)
    index.table.update(where="id = 'item 7'", values={"text": "forged"})
    line = index.add(collection(60)).refit
    assert "could not be fitted again" in line
    assert "'item 7' (description)" in line
    assert any("1 of 120 items are not what was written" in problem for problem in check_source(str(index.path)))


def test_large_indexes_are_searched_in_clusters_again(index, monkeypatch):
    monkeypatch.setattr("calmrl.search.neighbours.EXACT_ROWS", 100)
    index.add(collection(60))
    assert index.layout["search"]["recall@10"] > 0.9
    assert [one.index_type for one in index.table.list_indices()] == ["IvfSq"]
    assert right(index) > 0.8


def test_gain_in_words():
    gain = Gain({"text->image": 31.2, "image->text": 30.0}, {"text->image": 24.0}, 5.0, 250)
    assert gain.sentence() == (
        "text finds image at R@1 31 instead of 24, image finds text at R@1 30 and could not before (of 250)"
    )
    assert gain.pays
    assert not Gain({"a->b": 30.0}, {"a->b": 26.0}, 5.0, 20).pays
    assert not Gain({}, {}, 0.0, 2).pays
    many = {f"{a}->b": 30.0 for a in "xyz"}
    assert Gain(many, dict.fromkeys(many, 20.0), 1.0, 50).sentence() == (
        "on average over 3 directions R@1 is 30 instead of 20 (of 50)"
    )


def test_siblings_of_what_was_learned_from_are_no_evidence(tmp_path):
    """Every caption comes once more: who has learned the first one knows the second."""
    z = {name: np.repeat(values[:60], 2, axis=0) for name, values in WORLD.items()}
    meta = meta_table(120, ids=[f"item {i}" for i in range(120)], columns={"group": [i // 2 for i in range(120)]})
    first = z | {"text": np.where((np.arange(120) % 2 == 0)[:, None], z["text"], np.nan)}
    index = Index.build(FeatureSet(first, None, meta, name="items"), tmp_path / "ix", model=Aligner(**FAST), base=None)
    assert index.layout["fit"]["groups"] == "group"
    old = index.aligner
    line = index.add(FeatureSet(z, None, meta, name="items")).refit
    assert "with 120 pairs" in line
    n = int(line.rpartition("(of ")[2].partition(")")[0])
    for asked, wanted in (("text", "image"), ("image", "text")):
        expected = old.expected(n)[f"{asked}->{wanted}"]["R@1"]  # nothing is new to it: its own cross-validation stands
        assert f"instead of {expected:.0f}" in line.partition(f"{asked} finds {wanted} at R@1 ")[2][:20]


@pytest.mark.parametrize(("flags", "given"), [([], None), (["--refit"], True), (["--no-refit"], False)])
def test_the_command(flags, given, index, monkeypatch, capsys):
    asked = []

    def add(self, source, **named):
        asked.append(named["refit"])
        return Change(refit="it was tried")

    monkeypatch.setattr(Index, "add", add)
    with contextlib.suppress(SystemExit):
        main(["add", str(index.path), str(index.path), *flags])
    assert asked == [given]
    assert "it was tried" in capsys.readouterr().err
