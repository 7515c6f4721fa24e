"""Workflows that are asked for what does not go together, and small parts of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from calmrl.config.schema.train import HideSection, TrainConfig
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.media.public_collections import PublicCollection
from calmrl.errors import InputError
from calmrl.models.heads import Heads
from calmrl.models.saved import Trained
from calmrl.workflows.evaluate import Evaluation, _not_measured, _split, evaluate_on
from calmrl.workflows.examples import caption_of, nearest_examples
from calmrl.workflows.extract import extract
from calmrl.workflows.init import _cell, _scalar, init
from calmrl.workflows.media_sources import hidden

# ---- evaluate


def model(names=("image", "text")) -> Trained:
    torch.manual_seed(0)
    return Trained(Heads(dict.fromkeys(names, 4), 3))


def data(n=12, names=("image", "text"), **columns) -> FeatureSet:
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(n, 4)).astype(np.float32) for name in names}
    return FeatureSet(z, None, pa.table({"id": [str(i) for i in range(n)], **columns}))


def test_what_data_lack_to_be_evaluated():
    with pytest.raises(
        InputError, match="the model has image, text, the data have image; they must share two modalities"
    ):
        evaluate_on(model(), data(names=("image",)))
    with pytest.raises(InputError, match='no row has split "test"; there is nothing to evaluate on'):
        evaluate_on(model(), data(split=["train"] * 12))
    lacking: list[str] = []
    evaluate_on(model(), data(split=["test"] * 6 + ["train"] * 6), not_measured=lacking)
    assert "classification: the data have no labels" in lacking
    lacking.clear()
    rows, _ = evaluate_on(model(), data(split=["test"] * 6 + ["train"] * 6, labels=["a"] * 12), not_measured=lacking)
    assert "classification: no row has split val, from which a classifier learns" in lacking
    assert {one["n"] for one in rows if one["metric"] == "R@1" and "->" in one["task"]} == {6}
    lacking.clear()
    evaluate_on(model(), data(labels=["a"] * 12), not_measured=lacking)
    assert "classification: no row has split train or val, from which a classifier learns" in lacking


def test_measures_that_a_model_has_nothing_for():
    three, align = ("image", "text", "sound"), object()
    plain = SimpleNamespace(names=three, align=None)
    present = torch.ones(3, 3, dtype=torch.bool)
    assert _not_measured(plain, present) == ["imputation, coverage and anchor shift: this model imputes nothing"]
    present[1:, 2] = False
    assert _not_measured(SimpleNamespace(names=three, align=align), present) == [
        "retrieval between image and sound, text and sound: fewer than two test rows have both"
    ]
    present[1, 2] = True
    assert _not_measured(SimpleNamespace(names=three, align=align), present) == []
    assert _not_measured(SimpleNamespace(names=three[:2], align=align), present) == [
        "anchor shift: it needs three modalities"
    ]


def test_parts_of_rows():
    given = np.array(["x"] * 12)
    assert _split(data(), given) is given
    assert _split(data(), None).tolist() == ["test"] * 12
    assert _split(data(split=["val"] * 12), None).tolist() == ["val"] * 12


def test_remarks_name_the_data_set_where_there_are_several():
    config = TrainConfig.model_validate({"kind": "train", "method": "gram", "sources": {"a": {"features": "x"}}})
    evaluation = Evaluation(config, "calmrl evaluate x", notes=["a note"])
    info = SimpleNamespace(model_dump=dict, left_out={})
    evaluation.add("a", info, [], [{"id": "q"}], ["one"])
    assert evaluation.remarks == ["a note", "not measured: one"]
    evaluation.add("b", info, [], not_measured=["two"])
    assert evaluation.remarks == ["a note", "a: not measured: one", "b: not measured: two"]
    assert evaluation.neighbours == [{"method": "gram", "id": "q"}]
    meta = evaluation.as_dict()["meta"]
    assert meta["methods"]["gram"] == {"about": "trained in 1 stage", "ours": False}
    assert (meta["command"], meta["remarks"]) == ("calmrl evaluate x", evaluation.remarks)


def test_examples_need_texts_and_pairs():
    z = {name: torch.eye(3) for name in ("image", "text")}
    home, present = np.arange(3), torch.ones(3, 2, dtype=torch.bool)
    assert nearest_examples(data(3), home, z, present) == []
    texts = data(3, text=["a", None, "c"])
    assert nearest_examples(texts, home, {"text": z["text"]}, present) == []
    assert nearest_examples(texts, home, z, torch.tensor([[True, False], [False, True], [True, False]])) == []
    found = nearest_examples(texts, home, z, present)
    assert found[0]["relevant_by"] == "id"
    assert (caption_of(["x", "y"], "id"), caption_of([], "id"), caption_of(None, "id"), caption_of("", "id")) == (
        "x",
        "id",
        "id",
        "id",
    )


# ---- extract and init


MANIFEST_ONLY = "layout, media, captions and root go with a manifest; a collection has its own media"
NOT_ANNOTATED = "captions and root go with a manifest; an annotation file holds texts and paths itself"
IS_FOLDER = "is a folder: captions, root and layout go with a table; name the table instead"


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ("collection", {"layout": "msrvtt"}, MANIFEST_ONLY),
        ("collection", {"media": {"v": "x"}}, MANIFEST_ONLY),
        ("collection", {"captions": "c"}, MANIFEST_ONLY),
        ("collection", {"root": "r"}, MANIFEST_ONLY),
        ("a.csv", {"media": {"vision": "v"}}, "`media` goes with `layout`"),
        ("a.csv", {"layout": "msrvtt", "captions": "c"}, NOT_ANNOTATED),
        ("a.csv", {"layout": "msrvtt", "root": "r"}, NOT_ANNOTATED),
        (".", {"captions": "c"}, IS_FOLDER),
        (".", {"root": "r"}, IS_FOLDER),
        (".", {"layout": "msrvtt"}, IS_FOLDER),
        (
            "a.csv",
            {"layout": "msrvtt"},
            "an annotation file needs its encoders named, for instance `encoders={'vision': NAME}`",
        ),
        (
            "a.csv",
            {},
            "has no column that is called text or holds names of pictures, films or sounds; it has id, number",
        ),
        ("f.npz", {}, "holds features, not files to encode"),
    ],
)
def test_options_of_extract_that_do_not_fit_its_source(source, options, reason, tmp_path):
    (tmp_path / "a.csv").write_text("id,number\n1,2\n")
    np.savez(tmp_path / "f.npz", image=np.ones((2, 3)))
    given = PublicCollection("msrvtt", tmp_path) if source == "collection" else tmp_path / source
    with pytest.raises(InputError, match=reason):
        extract(given, None, tmp_path / "out", **options)


def test_init_needs_a_folder(tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(InputError, match="out is a file; give the name of a folder"):
        init(tmp_path, tmp_path / "out")


def test_cells_and_names_of_configs(tmp_path):
    assert _cell(None, tmp_path) == ""
    assert _cell(["one"], tmp_path) == "one"
    assert _cell(["[one"], tmp_path) == '["[one"]'
    assert _cell(["one", "é"], tmp_path) == '["one", "é"]'
    assert _cell(str(tmp_path / "a" / "b.png"), tmp_path.resolve()) == "a/b.png"
    assert (_scalar("image"), _scalar("no"), _scalar("a: b"), _scalar(Path("a/b"))) == (
        "image",
        '"no"',
        '"a: b"',
        "a/b",
    )


# ---- raw media


def test_what_is_hidden():
    present = np.ones((40, 2), dtype=bool)
    section = HideSection.model_validate({"kind": "one", "rate": 0.5})
    found = hidden(present, ("a", "b"), section, 3)
    assert found.sum() == 60
    assert (found == hidden(present, ("a", "b"), section, 3)).all()
    assert (found != hidden(present, ("a", "b"), section, 4)).any()
    own = HideSection.model_validate({"kind": "one", "rate": 0.5, "seed": 3})
    assert (found == hidden(present, ("a", "b"), own, 9)).all()
    with pytest.raises(InputError, match=r'hide\.kind "value" needs features; for raw media take mcar, one or source'):
        hidden(present, ("a", "b"), HideSection.model_validate({"kind": "value", "rate": 0.5}), 0)
