"""Models go to a hub on loopback and come back the same, with a card; damaged ones do not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from calmrl import Aligner, GaussianImputer
from calmrl.data import FeatureSet
from calmrl.errors import InputError
from calmrl.hub import Card, Data
from calmrl.imputers import AutoImputer, KernelImputer, MeanImputer
from calmrl.models import Trained
from calmrl.models.heads import Heads
from tests.support.local_hub import local_hub

pytest.importorskip("huggingface_hub")
REPO = "someone/model"


@pytest.fixture
def hub(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with local_hub() as served:
        yield served


@pytest.fixture(scope="module")
def features():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(90, 3))
    z = {
        name: shared @ rng.normal(size=(3, d)) + 0.3 * rng.normal(size=(90, d))
        for name, d in (("image", 6), ("text", 4))
    }
    z["text"][:20] = np.nan
    return FeatureSet(z, name="own pictures", source="a | place\nwith a line")


def rows_of_card(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_an_aligner_there_and_back(hub, features, tmp_path):
    aligner = Aligner("linear", False, 0.5, 3, 30, "never").fit(features)
    address = aligner.push_to_hub(REPO, data=features, license="apache-2.0", token="t", endpoint=hub.endpoint)
    assert address.startswith(f"{hub.endpoint}/{REPO}/commit/")
    assert sorted(hub.repos[REPO]) == ["README.md", "aligner.json", "aligner.safetensors"]
    card = hub.repos[REPO]["README.md"].decode()
    head = yaml.safe_load(card.split("---")[1])
    assert (head["library_name"], head["license"]) == ("calmrl", "apache-2.0")
    assert "Fitted on own pictures, 90 rows. Source: a \\| place with a line." in card
    rows = rows_of_card(card)
    assert ["image", "6", "90"] in rows
    assert ["text", "4", "70"] in rows
    assert ["latent\\_dim", "3"] in rows
    expected = aligner.expected_["text->image"]
    numbers = {row[0]: row[1:] for row in rows}
    assert numbers["text-\\>image"][0] == f"{round(expected['R@1'], 1):.3g}"
    assert "New items must be like the rows" in card
    back = Aligner.from_pretrained(REPO, cache_dir=tmp_path, endpoint=hub.endpoint)
    np.testing.assert_array_equal(back.embed(features), aligner.embed(features))
    assert back.expected_ == aligner.expected_


@pytest.mark.parametrize(
    "imputer",
    [GaussianImputer(2, tol=1e-2), AutoImputer(["ridge", "mean"]), KernelImputer("mean"), MeanImputer()],
    ids=lambda imputer: type(imputer).__name__,
)
def test_an_imputer_there_and_back(imputer, hub, features, tmp_path):
    imputer.fit(features)
    imputer.push_to_hub(REPO, data=Data("ninety rows", 90, {"image": 90, "text": 70}), endpoint=hub.endpoint, token="t")
    back = type(imputer).from_pretrained(REPO, cache_dir=tmp_path, endpoint=hub.endpoint)
    for name, values in imputer.transform(features).z.items():
        np.testing.assert_array_equal(back.transform(features).z[name], values)
    card = hub.repos[REPO]["README.md"].decode()
    assert "adds no information about the single item" in card
    assert ("Not measured" in card) == isinstance(imputer, (GaussianImputer, MeanImputer))
    assert "error" in card or isinstance(imputer, (GaussianImputer, MeanImputer))


def test_a_trained_model_there_and_back(hub, tmp_path):
    torch.manual_seed(0)
    trained = Trained(Heads({"image": 3, "text": 2}, width=4), info={"method": "gram"})
    trained.push_to_hub(REPO, endpoint=hub.endpoint, token="t")
    back = Trained.from_pretrained(REPO, cache_dir=tmp_path / "cache", endpoint=hub.endpoint)
    z = {"image": np.ones((2, 3), np.float32), "text": np.ones((2, 2), np.float32)}
    np.testing.assert_array_equal(back.embed(z), trained.embed(z))
    card = hub.repos[REPO]["README.md"].decode()
    assert "# gram: image, text in one space of 4 dimensions" in card
    assert "does not say which rows" in card
    trained.save(tmp_path / "folder")
    np.testing.assert_array_equal(Trained.from_pretrained(tmp_path / "folder").embed(z), trained.embed(z))


def test_what_is_not_as_it_was_saved_is_refused(hub, features, tmp_path):
    MeanImputer().fit(features).push_to_hub(REPO, endpoint=hub.endpoint, token="t")
    weights = bytearray(hub.repos[REPO]["imputer.safetensors"])
    weights[-1] ^= 1
    hub.repos[REPO] |= {"imputer.safetensors": bytes(weights), "run_me.pkl": b"x"}
    with pytest.raises(InputError, match=r"imputer\.safetensors is damaged"):
        MeanImputer.from_pretrained(REPO, cache_dir=tmp_path, endpoint=hub.endpoint)
    assert not [call for call in hub.calls if "run_me" in call]
    weights[-1] ^= 1
    hub.repos[REPO]["imputer.safetensors"] = bytes(weights)
    with pytest.raises(InputError, match="'MeanImputer' imputer, not KernelImputer"):
        KernelImputer.from_pretrained(REPO, cache_dir=tmp_path / "again", endpoint=hub.endpoint)


def test_names_that_the_hub_does_not_know(hub, features, tmp_path):
    with pytest.raises(InputError, match="the Hub has no someone/nothing"):
        Aligner.from_pretrained("someone/nothing", cache_dir=tmp_path, endpoint=hub.endpoint)
    with pytest.raises(InputError, match="neither a folder nor a name on the Hub"):
        Aligner.from_pretrained("a/b/c", cache_dir=tmp_path, endpoint=hub.endpoint)
    for data in (3, SimpleNamespace(present=features.present), SimpleNamespace(names=features.names)):
        with pytest.raises(InputError, match=f"data must be the feature set.*; got {type(data).__name__}"):
            MeanImputer().fit(features).push_to_hub(REPO, data=data, endpoint=hub.endpoint)
    assert not hub.calls[2:]  # nothing was sent


def test_what_the_hub_refuses(hub, features, tmp_path):
    MeanImputer().fit(features).push_to_hub(REPO, endpoint=hub.endpoint, token="t")
    with pytest.raises(InputError, match=r"someone/model has no such revision \("):
        MeanImputer.from_pretrained(REPO, revision="old", cache_dir=tmp_path, endpoint=hub.endpoint)
    hub.closed.add(REPO)
    with pytest.raises(InputError, match=r"the Hub does not give or take someone/model \(.*\); try again later"):
        MeanImputer.from_pretrained(REPO, cache_dir=tmp_path, endpoint=hub.endpoint)


def test_a_repository_is_open_unless_asked_and_may_be_there_already(hub, features):
    imputer = MeanImputer().fit(features)
    assert imputer.push_to_hub(REPO, endpoint=hub.endpoint, token="t") == imputer.push_to_hub(
        REPO, endpoint=hub.endpoint, token="t"
    )
    imputer.push_to_hub("someone/other", private=True, endpoint=hub.endpoint, token="t")
    closed = {
        name
        for name, given in hub.created.items()
        if given.get("visibility", given.get("private")) in (True, "private")
    }
    assert list(hub.created) == [REPO, "someone/other"]
    assert closed == {"someone/other"}


def test_data_without_a_name(features):
    data = Data("mine", 3, {"image": 2})
    assert Data.of(data) is data
    unnamed = FeatureSet({"image": features.z["image"], "text": features.z["text"]})
    assert Data.of(unnamed) == Data("features in memory", 90, {"image": 90, "text": 70}, unnamed.source)
    assert Data.of(features) == Data("own pictures", 90, {"image": 90, "text": 70}, features.source)


SMALL_CARD = Card(
    title="A small model",
    code="load({repo!r})",
    widths={"image": 3, "text": 1200},
    choice={"rank": 2, "width": 0.123456, "given": None, "each": {"image": 1.5, "text": None}, "mark": "<a|b>"},
    quality=[],
    quality_note="Not measured.",
    limits=["One.", "Two."],
    tags=["gaussian"],
)


def test_a_whole_card():
    data = Data("mine", 1234, {"image": 7}, "mine")
    assert (
        SMALL_CARD.text("a/b", data, "mit")
        == """---
library_name: calmrl
tags:
- multimodal
- missing-modalities
- gaussian
license: mit
---

# A small model

```python
load('a/b')
```

## Data

Fitted on mine, 1,234 rows.

| modality | columns | rows that have it |
| --- | --- | --- |
| image | 3 | 7 |
| text | 1200 | 0 |

## Choice

| setting | value |
| --- | --- |
| rank | 2 |
| width | 0.123 |
| given | not known |
| each | image 1.5, text not known |
| mark | \\<a\\|b\\> |

## Expected quality

Not measured.

## Limits

- One.
- Two.
"""
    )


def test_a_card_that_knows_less_or_more():
    bare = SMALL_CARD.text("a/b", None, None)
    assert "license" not in bare
    assert "which rows the model was fitted on.\n\n| modality | columns |\n| --- | --- |\n| image | 3 |" in bare
    assert "Fitted on mine, 3 rows.\n" in SMALL_CARD.text("a/b", Data("mine", 3, {}, ""), None)
    assert "Fitted on mine, 3 rows. Source: there.\n" in SMALL_CARD.text("a/b", Data("mine", 3, {}, "there"), None)
    full = replace(SMALL_CARD, encoders={"text": "minilm"}, quality=[{"error": 0.25}, {"error": 1.0}]).text(
        "a", None, None
    )
    assert "| image | 3 | unknown |\n| text | 1200 | minilm |\n" in full
    assert "| error |\n| --- |\n| 0.25 |\n| 1 |\n" in full
    assert "fitted on.\n\n\n## Choice" in replace(SMALL_CARD, widths={}).text("a", None, None)
