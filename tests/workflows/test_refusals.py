"""Workflows that are asked for what does not go together, and small parts of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from calmrl.config.schema.train import HideSection, SourceSection, TrainConfig
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.media.collections.public_collection import PublicCollection
from calmrl.errors import InputError
from calmrl.models.heads import Heads
from calmrl.models.saved import Trained
from calmrl.workflows import reproduce
from calmrl.workflows.build_media import _at, _check_shapes, _source_options, _splits, hidden, media_names
from calmrl.workflows.evaluate import Evaluation, _not_measured, _split, evaluate_on
from calmrl.workflows.examples import caption_of, nearest_examples
from calmrl.workflows.extract import _check_options, _kinds_of
from calmrl.workflows.init import _cell, _scalar, init
from calmrl.workflows.reproduce.needs import Need, _collection, _features, _packages, _tokenizer, check
from calmrl.workflows.reproduce.run import _device, _measure
from calmrl.workflows.reproduce.smoke import _write_media, smoke_changes
from calmrl.workflows.reproduce.tables import CLASSIFICATION, EXHIBITS, RUNS, config_of, media_source, swept_name

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
    assert meta["methods"]["gram"] == {"about": f"trained for {len(config.stages)} stage(s)", "ours": False}
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


def test_options_that_do_not_go_together(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text("id,number\n1,2\n")
    public = PublicCollection("msrvtt", tmp_path)
    _check_options(public, None, None, None, None)
    _check_options(table, None, None, "c", "r")
    _check_options(table, "msrvtt", {"vision": "v"}, None, None)
    _check_options(tmp_path, None, None, None, None)
    for options in (
        ("msrvtt", None, None, None),
        (None, {"v": "x"}, None, None),
        (None, None, "c", None),
        (None, None, None, "r"),
    ):
        with pytest.raises(InputError, match="layout, media, captions and root go with a manifest"):
            _check_options(public, *options)
    with pytest.raises(InputError, match="--media goes with --layout"):
        _check_options(table, None, {"vision": "v"}, None, None)
    for captions, root in (("c", None), (None, "r")):
        with pytest.raises(InputError, match="captions and root go with a manifest; an annotation file holds texts"):
            _check_options(table, "msrvtt", None, captions, root)
        with pytest.raises(InputError, match="is a folder: captions, root and layout go with a table; name the table"):
            _check_options(tmp_path, None, None, captions, root)
    with pytest.raises(InputError, match="is a folder"):
        _check_options(tmp_path, "msrvtt", None, None, None)
    with pytest.raises(
        InputError, match="an annotation file needs its encoders named, for instance --encoder vision=NAME"
    ):
        _kinds_of(table, "msrvtt")
    with pytest.raises(
        InputError, match=r"has no column that is called text or holds names of pictures.*name the encoders"
    ):
        _kinds_of(table, None)
    (tmp_path / "b.csv").write_text("id,text\n1,hello\n")
    assert _kinds_of(tmp_path / "b.csv", None) == {"text": "text"}


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


def test_modalities_of_the_model_of_raw_media():
    assert media_names(SimpleNamespace(modalities=["text", "vision"])) == ("vision", "text")
    assert media_names(SimpleNamespace(modalities=None)) == ("vision", "audio", "text", "subtitle")
    with pytest.raises(InputError, match='has no modality "smell"; it has vision, audio, text, subtitle'):
        media_names(SimpleNamespace(modalities=["smell"]))


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


def test_sources_of_one_stage_have_one_shape():
    def rows(name, frames):
        return SimpleNamespace(name=name, frames=frames, slices=1, tokens={"text": 5})

    train = {"a": rows("a", 8), "b": rows("b", 8), "c": rows("c", 4)}
    _check_shapes(SimpleNamespace(stages=[SimpleNamespace(name="s", sources=["a", "b", "gone"])]), train)
    for sources in (["a", "c"], None):
        with pytest.raises(
            InputError, match=r"stage s mixes sources of different shapes \(a: frames 8, slices 1, tokens"
        ):
            _check_shapes(SimpleNamespace(stages=[SimpleNamespace(name="s", sources=sources)]), train)


def test_options_of_a_source_go_before_those_of_its_collection_and_of_the_model():
    decoding = SimpleNamespace(resize="shortest", model_copy=lambda update: update)
    vast = SimpleNamespace(decoding=decoding, tokens={"text": 30, "subtitle": 70}, frames=8, slices=1)
    plain = SourceSection.model_validate({"manifest": "m.csv"})
    assert _source_options(plain, vast) == {
        "frames": 8,
        "slices": 1,
        "tokens": {"text": 30, "subtitle": 70},
        "decoding": {"resize": "shortest"},
    }
    own = SourceSection.model_validate({"manifest": "m.csv", "frames": 4, "slices": 3, "text_tokens": 9})
    found = _source_options(own, vast)
    assert (found["frames"], found["slices"], found["tokens"]) == (4, 3, {"text": 9})


def test_small_parts_of_media():
    items = [
        SimpleNamespace(columns={"split": "val"}),
        SimpleNamespace(columns={}),
        SimpleNamespace(columns={"split": ""}),
    ]
    assert _splits(SimpleNamespace(items=items)).tolist() == ["val", "train", "train"]
    assert (str(_at("x", None)), str(_at("x", "r"))) == ("x", "r/x")


# ---- reproduce


def test_tables_and_figures_by_name():
    assert list(EXHIBITS) == [*(f"table{i}" for i in range(1, 9)), *(f"figure{i}" for i in range(3, 8))]


def test_devices_and_roots(tmp_path, monkeypatch):
    assert _device("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _device("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert _device("auto") == "cuda"
    with pytest.raises(
        InputError, match='device is "auto" or "cpu"; got \'cuda:1\'; choose a GPU with CUDA_VISIBLE_DEVICES'
    ):
        _device("cuda:1")
    with pytest.raises(InputError, match="--smoke makes its own data; leave out --root"):
        reproduce("table1", tmp_path, tmp_path / "out", smoke=True)
    with pytest.raises(InputError, match="name the folder of the data with --root, or pass --smoke"):
        reproduce("table1", None, tmp_path / "out")


def test_cells_are_means_of_their_values():
    def cell(*makers):
        return SimpleNamespace(values=[SimpleNamespace(maker=maker) for maker in makers])

    measured = {"gram-both": {"value": 3.0, "n": 7}, "pmrl-both": {"value": 5.0, "n": 8}}
    bench = SimpleNamespace(value=lambda value: measured.get(value.maker))
    cells = [cell("gram-both"), cell("gram-both", "pmrl-both"), cell("clip"), cell("vast-start")]
    found = _measure(SimpleNamespace(cells=cells), bench)
    assert [(one.ours, one.n) for one in found] == [(3.0, 7), (4.0, None), (None, None), (None, None)]
    assert found[3].note == "these test rows do not allow it"
    assert found[2].note != found[3].note


def test_needs(tmp_path):
    assert str(Need("x", True, "about")) == "there    x: about"
    assert str(Need("x", False, "about")) == "missing  x: about"
    with pytest.raises(InputError, match="t needs what is not there:\n  missing  b: y"):
        check(SimpleNamespace(name="t"), [Need("a", True, "x"), Need("b", False, "y")])
    check(SimpleNamespace(name="t"), [Need("a", True, "x")])
    assert [need.where for need in _packages(["numpy", "no_such_package"])] == ["the package no_such_package"]
    assert not _tokenizer(tmp_path).there
    lacking = _collection("msrvtt", tmp_path, ["train", "test"])
    assert (lacking.there, "media of train and test (MSR-VTT" in lacking.about) == (False, True)
    (tmp_path / "msrvtt").mkdir()
    spoiled = _collection("msrvtt", tmp_path, ["test"])
    assert (spoiled.there, "; needed: MSRVTT" in spoiled.about) == (False, True)
    assert not _features("esc50", tmp_path).there
    assert (
        _features("esc50", tmp_path).about
        == "features of ImageBind on esc50, with labels and the names of the classes as text"
    )


def test_runs_that_are_made_tiny():
    changes = smoke_changes(RUNS["calmrl-both"])
    assert changes[:4] == ["stages.0.epochs=null", "stages.0.steps=1", "stages.1.epochs=null", "stages.1.steps=1"]
    assert changes[4:9] == [
        "batch_size=4",
        "log_every=1",
        "model.width=8",
        "precision=fp32",
        "calibration.imputer.latent_dim=4",
    ]
    assert changes[-3:] == ["model.image_size=28", "model.frames=2", "model.workers=1"]
    assert smoke_changes(RUNS["vast-start"])[0] == "batch_size=4"
    assert len([c for c in smoke_changes(RUNS["gram-complete"]) if c.startswith("stages")]) == 2
    classes = smoke_changes(RUNS["gram-classes"])
    assert not any(change.startswith("model.sizes") for change in classes)
    assert not any("latent_dim" in change for change in classes)


def test_configs_of_runs(tmp_path):
    calmrl, vast, gram = (config_of(RUNS[name], tmp_path) for name in ("calmrl-both", "vast-both", "gram-complete"))
    assert (calmrl.method, vast.method, gram.method) == ("calmrl-printed", "vast", "gram")
    assert (calmrl.fused_weight, vast.fused_weight) == (0.0, 1.0)
    assert [stage.hide_one for stage in calmrl.stages] == [True, False]
    assert [stage.fresh_best for stage in calmrl.stages] == [False, True]
    assert [stage.hide_one for stage in gram.stages] == [False]
    assert vast.calibration is None
    assert calmrl.validation.every == 0
    assert config_of(RUNS["vast-start"], tmp_path).stages == []
    assert config_of(RUNS["gram-classes"], tmp_path).root == str(tmp_path / "features/imagebind")
    assert RUNS["gram-classes"].config == CLASSIFICATION
    assert RUNS["gram-classes"].collections == RUNS["vast-start"].collections == ()
    assert media_source("msrvtt", RUNS["calmrl-both"])["collection"]["media"] == {"vision": "msrvtt"}
    assert "media" not in media_source("msrvtt", RUNS["pmrl-ideal"])["collection"]
    assert "media" not in media_source("msrvtt")["collection"]
    assert media_source("msrvtt")["allow_missing"] is True


def test_values_that_are_swept(tmp_path):
    assert (swept_name("tau", 0.05), swept_name("tau", 0.1)) == ("calmrl-both", "calmrl-both-tau-0.1")
    assert (swept_name("alpha", 0.1), swept_name("tau2", 0.1)) == ("calmrl-both", "calmrl-both")
    swept = sorted(name for name in RUNS if name.startswith(("calmrl-both-tau", "calmrl-both-alpha")))
    assert swept == sorted(
        [f"calmrl-both-tau-{value}" for value in ("0.1", "0.2", "1")]
        + [f"calmrl-both-tau2-{value}" for value in ("0.05", "0.2", "1")]
        + [f"calmrl-both-alpha-{value}" for value in ("0", "0.5", "1")]
    )
    assert config_of(RUNS["calmrl-both-tau2-0.2"], tmp_path).objective.anchor_temperature == 0.2
    assert config_of(RUNS["calmrl-both-alpha-0"], tmp_path).matching_weight == 0.0


def test_tiny_films_and_sounds(tmp_path):
    av = pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
    _write_media(tmp_path / "f" / "3.mp4", 3, film=True)
    with av.open(str(tmp_path / "f" / "3.mp4")) as film:
        frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
        assert float(film.streams.video[0].average_rate) == 10.0
    assert [frame.shape for frame in frames] == [(32, 32, 3)] * 4
    assert [round(float(frame.mean())) for frame in frames] == pytest.approx([60, 65, 70, 75], abs=3)
    _write_media(tmp_path / "3.wav", 3, film=False)
    with av.open(str(tmp_path / "3.wav")) as sound:
        parts = [frame.to_ndarray().ravel() for frame in sound.decode(audio=0)]
        assert (sound.streams.audio[0].rate, sound.streams.audio[0].channels) == (16_000, 1)
    samples = np.concatenate(parts).astype(float) / 32768
    assert len(samples) == 8000
    spectrum = np.abs(np.fft.rfft(samples))
    assert int(spectrum.argmax()) * 2 == 320  # 200 + 40 * 3 Hz
    assert np.abs(samples).max() == pytest.approx(0.3, abs=0.01)
