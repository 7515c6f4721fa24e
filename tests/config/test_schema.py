"""The sections of configs: what they are when nothing is said, where their limits lie, and what does not go together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from calmrl.config.loading import load_values
from calmrl.config.schema.commands import CompareConfig, DatasetSection, ExtractConfig, SettingSection
from calmrl.config.schema.train import (
    CheckpointSection,
    CollectionSection,
    HideSection,
    OptimiserSection,
    ResplitSection,
    SourceSection,
    TrainConfig,
    ValidationSection,
    check_method,
    fill_in,
)

DIGITS, FILES, CLOTHO = {"dataset": "digits"}, {"manifest": "m.csv"}, {"name": "clotho", "root": "r"}
HIDING = {**DIGITS, "hide": {"rate": 0.5}}
COMPARE, EXTRACT = {"kind": "compare"}, {"kind": "extract"}
OF_DIGITS = {**COMPARE, "source": DIGITS}
VAST = {"kind": "vast", "tokenizer": "t"}


def train(**values) -> TrainConfig:
    return TrainConfig.model_validate({"kind": "train", "sources": {"a": DIGITS}, **values})


def compare(**values) -> CompareConfig:
    return CompareConfig.model_validate({**COMPARE, **values})


@pytest.mark.parametrize(
    ("section", "values", "key", "taken", "refused"),
    [
        (HideSection, {}, "rate", [0.01, 1], [0, 1.01]),
        (HideSection, {"kind": "source", "rate": 0.5}, "groups", [[["a"]]], [[]]),
        (HideSection, {"kind": "all-but"}, "complete", [0], [-1]),
        (ResplitSection, {}, "val", [0.01, 0.49], [0, 0.5]),
        (ResplitSection, {}, "test", [0, 0.79], [-0.1, 0.8]),
        (OptimiserSection, {}, "betas", [[0.0, 0.99]], [[0.9], [0.9, 0.9, 0.9], [0.9, 1.0]]),
        (ValidationSection, {}, "every", [0], [-1]),
        (ValidationSection, {}, "fraction", [0.01, 0.49], [0, 0.5]),
        (CheckpointSection, {}, "every", [0], [-1]),
        (CompareConfig, OF_DIGITS, "batch_size", [2], [1]),
        (CompareConfig, OF_DIGITS, "trials", [1, 16], [0, 17]),
        (CompareConfig, OF_DIGITS, "workers", [0], [-1]),
        (CompareConfig, OF_DIGITS, "seeds", [[0], [5]], [[], [-1]]),
        (CompareConfig, OF_DIGITS, "methods", [["gram"]], [[], ["grim"]]),
        (CompareConfig, OF_DIGITS, "measures", [[], ["shift"]], [["shaft"]]),
        (CompareConfig, OF_DIGITS, "table", [["R@5"]], [[]]),
        (CompareConfig, OF_DIGITS, "settings", ["as-is", {"a": "as-is"}], [{}, "mcar", 3]),
        (DatasetSection, {"source": DIGITS}, "settings", ["as-is", {"a": {"rate": 0.5}}, None], [{}, "mcar"]),
        (TrainConfig, {"kind": "train", "sources": {"a": DIGITS}}, "batch_size", [2], [1]),
        (TrainConfig, {"kind": "train"}, "sources", [{"a": DIGITS}], [{}]),
        (ExtractConfig, {**EXTRACT, **FILES}, "workers", [0], [-1]),
        (ExtractConfig, {**EXTRACT, **FILES}, "encoders", [{"image": "x"}, None], [{}]),
    ],
)
def test_limits(section, values, key, taken, refused):
    for value in taken:
        section.model_validate({**values, key: value})
    for value in refused:
        with pytest.raises(ValidationError):
            section.model_validate({**values, key: value})


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        (HideSection, {"kind": "source", "rate": 0.5}, 'groups belongs to kind "source"'),
        (HideSection, {"rate": 0.5, "groups": [["a"]]}, 'groups belongs to kind "source"'),
        (HideSection, {"kind": "all-but"}, 'complete belongs to kind "all-but"'),
        (HideSection, {"rate": 0.5, "complete": 3}, 'complete belongs to kind "all-but"'),
        (HideSection, {}, "kind mcar needs a rate, for instance 0.5"),
        (HideSection, {"kind": "all-but", "complete": 3, "rate": 0.5}, "kind all-but has no rate"),
        (SettingSection, {"kind": "as-is", "rate": 0.5}, "kind as-is has no rate"),
        (SourceSection, {}, "give one of dataset (a name), features (a path)"),
        (SourceSection, {**DIGITS, "features": "f"}, "give one of dataset (a name), features (a path)"),
        (SourceSection, {**DIGITS, "allow_missing": True}, "allow_missing belongs to a manifest or a collection"),
        *((SourceSection, {**DIGITS, **one}, "layout, media and part belong to a manifest")
          for one in ({"layout": "x"}, {"media": {"a": "b"}}, {"part": "val"})),
        (SourceSection, {**DIGITS, "frames": 3}, "frames, test_frames, slices, resize and text_tokens belong to"),
        (DatasetSection, {"source": HIDING}, "settings say what is hidden; leave out source.hide"),
        (CompareConfig, COMPARE, "give either source (one collection) or datasets"),
        (CompareConfig, {**OF_DIGITS, "datasets": {"a": {"source": DIGITS}}}, "give either source"),
        (CompareConfig, {**COMPARE, "source": HIDING}, "leave out source.hide"),
        (CompareConfig, {**COMPARE, "datasets": {"a": {"source": DIGITS}}, "modalities": ["x"]}, "datasets.NAME.modalities"),
        (ExtractConfig, EXTRACT, "manifest or collection is missing"),
        (ExtractConfig, {**EXTRACT, **FILES, "collection": CLOTHO}, "give one of manifest"),
        (ExtractConfig, {**EXTRACT, "collection": CLOTHO, "root": "r"}, "a collection has keys of its"),
        (ExtractConfig, {**EXTRACT, "collection": CLOTHO, "media": {"a": "b"}}, "belong to a manifest"),
        (CollectionSection, {"name": "cloto", "root": "r"}, 'did you mean "clotho"'),
        (CollectionSection, {**CLOTHO, "split": "v3"}, 'unknown split of clotho "v3"'),
    ],
)  # fmt: skip
def test_what_does_not_go_together(section, values, said):
    with pytest.raises(ValidationError, match=re.escape(said)):
        section.model_validate(values)


@pytest.mark.parametrize(
    ("method", "values", "said"),
    [
        ("gram", {"objective": {"name": "pmrl"}}, "method gram is the objective gram, but objective.name is pmrl"),
        ("gram", {"calibration": {}}, "method gram does not calibrate; remove calibration"),
        ("gram", {"model": {"kind": "aligner"}}, "does not go with model.kind aligner; set method=aligner"),
        ("aligner", {"model": {"kind": "heads"}}, "not go with model.kind heads; set method=calibrated or contrastive"),
        ("aligner", {"stages": [{"epochs": 1}]}, "aligner is in closed form and makes no step; leave out stages"),
        ("gram", {"sources": {"a": FILES}}, "model.kind heads reads dataset or features, but source a is something else"),
        ("contrastive", {"model": VAST}, "reads a manifest or a collection, but source a is something else"),
        ("gram", {"fused_weight": 0.1}, "fused_weight needs a model with fused heads"),
        ("gram", {"stages": [{"epochs": 1, "sources": ["a", "b"]}]}, "stage joint names the source b; there are a"),
        ("calibrated", {"objective": {"name": "structure"}}, "the objective structure uses what goes into the heads, and "
         "imputed vectors have no such features; set method=structure"),
        ("fusemix", {"model": VAST, "sources": {"a": FILES}}, "the objective fusemix uses what goes into the heads, but "
         "model.kind vast reads raw media; extract features"),
        ("fusemix", {"objective": {"name": "fusemix", "alpha": 0.0}}, "greater than 0"),
        ("structure", {"objective": {"name": "structure", "weight": -1.0}}, "greater than or equal to 0"),
        ("structure", {"objective": {"name": "structure", "warmup": -1}}, "greater than or equal to 0"),
        ("confu", {"objective": {"name": "confu", "weight": 1.5}}, "less than or equal to 1"),
        ("confu", {"objective": {"name": "confu", "fusion": "sum"}}, "'mean' or 'learned'"),
        ("confu", {"objective": {"name": "confu", "width": 4}}, "Extra inputs are not permitted"),
        ("symile", {"objective": {"name": "symile", "negatives": "none"}}, "'mixed' or 'rows'"),
        ("ideal", {}, "ideal is a row of comparisons only; to train on complete rows, hide nothing"),
    ],
)  # fmt: skip
def test_trainings_that_do_not_fit(method, values, said):
    with pytest.raises(ValidationError, match=re.escape(said)):
        train(method=method, **values)


def test_trainings_that_fit():
    assert train(method="calibrated", objective={"name": "gram"}, calibration={}).objective.name == "gram"
    assert train(method="gram", matching={}).matching.heads == 4
    assert train(method="gram", stages=[{"steps": 3, "sources": ["a"]}]).stages[0].steps == 3
    assert train(method="gram").chosen_objective.name == "gram"
    assert train(method="gram", objective={"name": "gram", "temperature": 0.5}).chosen_objective.temperature == 0.5
    assert check_method("gram") == "gram"
    assert SourceSection(**FILES, allow_missing=True, frames=3, part="val", media={"a": "b"}).is_media
    assert SourceSection(collection={"name": "clotho", "root": "r"}, allow_missing=True, frames=3).is_media
    assert not SourceSection(**DIGITS).is_media


def test_a_recipe_lies_beneath_what_is_given():
    recipe = fill_in({"method": "contrastive"})
    given = fill_in({"method": "contrastive", "optimiser": {"learning_rate": 0.5}, "model": {"width": 7}, "stages": []})
    assert given["optimiser"]["learning_rate"] == 0.5
    assert given["model"] == {**recipe["model"], "width": 7}
    assert given["stages"] == []
    assert given["objective"] == recipe["objective"]
    assert recipe["optimiser"]["learning_rate"] == 0.003
    assert recipe["objective"]["temperature"] == 0.2
    for wrong in ({"method": "none"}, {"method": 3}, {"method": "contrastive", "model": 3, "optimiser": 3}):
        filled = fill_in(wrong)
        assert {key: filled[key] for key in wrong} == wrong
    other = fill_in({"method": "calibrated", "objective": {"name": "pmrl"}})
    assert other["objective"] == {"name": "pmrl"}  # the temperature of the recipe is that of another objective
    assert fill_in({"method": "contrastive", "model": {"kind": "vast"}})["model"] == {"kind": "vast"}


def test_a_comparison_on_one_of_several():
    own = {"steps": 5, "relevant_by": "labels", "settings": {"half": {"rate": 0.5}}, "modalities": ["x"]}
    config = compare(datasets={"a": {"source": DIGITS, **own}, "b": {"source": {"features": "f"}}}, steps=9)
    assert config.names == ["a", "b"]
    one, two = config.only("a"), config.only("b")
    assert (one.steps, one.relevant_by, list(one.settings), one.modalities) == (5, "labels", ["half"], ["x"])
    assert (two.steps, two.relevant_by, list(two.settings), two.modalities) == (9, "id", ["as-is"], None)
    assert two.source.features == "f"
    assert not two.datasets
    assert two.only("anything") is two
    for source, name in ((DIGITS, "digits"), ({"features": "x/e"}, "e"), (FILES, "m.csv"), ({"features": "/"}, "data")):
        assert compare(source=source).names == [name]
    assert compare(source=DIGITS, modalities=["x"]).modalities == ["x"]


def test_a_collection_lies_where_the_config_says():
    section = CollectionSection(name="clotho", root="r", annotations="n", media={"audio": "m"})
    here, there = section.at(None), section.at("home")
    assert (Path(here.root), Path(there.root)) == (Path("r"), Path("home/r"))
    assert (Path(here.annotations), Path(there.annotations)) == (Path("n"), Path("home/n"))
    assert Path(there.media["audio"]) == Path("home/m")
    assert CollectionSection(name="clotho", root="r").at("home").annotations != Path("home/n")


def test_an_extraction_may_name_a_collection():
    config = load_values({**EXTRACT, "collection": CLOTHO}, name="mine")
    assert (config.manifest, config.collection.name) == (None, "clotho")
    assert load_values({**EXTRACT, **FILES, "root": "r"}, name="mine").root == "r"
    with pytest.raises(ValueError, match=r"(?s)mine: 1 mistake\n.*cloto"):
        load_values({**EXTRACT, **FILES, "collection": {"name": "cloto", "root": "r"}}, name="mine")


def test_what_a_setting_hides():
    assert SettingSection(kind="as-is").hide is None
    hidden = SettingSection(kind="mcar", rate=0.5, regime="continual")
    assert hidden.hide == {"kind": "mcar", "rate": 0.5, "groups": None, "complete": None, "seed": None}
