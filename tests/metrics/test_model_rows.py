"""What is measured on the test rows of a model, and what is left out where they do not allow it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from calmrl import CalibratedAlignment, GaussianImputer
from calmrl.errors import InputError
from calmrl.metrics import classification, mixed_pool, retrieval, scored_retrieval
from calmrl.metrics.measures import anchor_shift_rows, coverage, imputation_error
from calmrl.metrics.model_rows import (
    LabelledRows,
    NotMeasurable,
    classification_rows,
    coverage_rows,
    fused_rows,
    imputation_rows,
    measure_rows,
    neighbours,
    picture,
    pool_rows,
    reranked_rows,
    retrieval_rows,
    shift_rows,
)
from calmrl.metrics.retrieve import chance


def test_a_modality_that_no_test_row_has_does_not_hinder_the_others():
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(60, 3, generator=generator)
    names = ("vision", "audio", "text", "subtitle")
    z = {
        name: torch.nn.functional.normalize(
            shared @ torch.randn(3, 5, generator=generator) + 0.1 * torch.randn(60, 5, generator=generator), dim=1
        )
        for name in names
    }
    align = CalibratedAlignment(imputer=GaussianImputer(latent_dim=3, random_state=0).fit(z), update="frozen").eval()
    present = torch.ones(60, 4, dtype=torch.bool)
    present[:, 3] = False
    left_out: list[str] = []
    rows = measure_rows(["imputation", "shift"], left_out, z=z, present=present, align=align)
    assert left_out == []
    tasks = {row["task"] for row in rows if row["metric"] == "mse"}
    assert {"vision->audio", "vision,text->audio"} <= tasks
    assert not any("subtitle" in task for task in tasks)
    shift = {row["task"]: row["value"] for row in rows if row["metric"] == "anchor_shift"}
    assert shift["calibrated"] < shift["observed"]


def unit(seed, n=12, d=4):
    return normalize(torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1)


def three(n=12):
    """Three modalities with a common part."""
    common = unit(9, n)
    return {name: normalize(common + 0.7 * unit(j, n), dim=1) for j, name in enumerate(("image", "text", "audio"))}


def values(rows):
    return {(row["task"], row["metric"]): row["value"] for row in rows}


# ---- retrieval


def test_retrieval_in_every_direction():
    z, present = three(), torch.ones(12, 3, dtype=torch.bool)
    present[2:, 2] = False  # two rows have sound: just enough
    present[0, 0] = False  # and one of them an image: too few for that pair
    hits, asked = {}, {}
    rows = retrieval_rows(z, present, hits, asked)
    tasks = ["image->text", "text->image", "text->audio", "audio->text"]
    assert list(hits) == list(asked) == tasks
    assert asked == {task: list(range(2)) if "audio" in task else list(range(1, 12)) for task in tasks}
    found = values(rows)
    both = present[:, 0] & present[:, 1]
    expected = retrieval(z["image"][both], z["text"][both], per_query=True)
    for metric in ("R@1", "R@5", "R@10", "MedR"):
        assert found["image->text", metric] == expected[metric]
    assert found["image->text", "MRR"] == pytest.approx(100 * (1 / expected["ranks"]).mean())
    assert found["image->text", "chance R@5"] == pytest.approx(100 * 5 / 11)
    assert hits["image->text"] == expected["hits"]["R@1"].tolist()
    averages = [row for row in rows if row["task"] == "average"]
    assert [row["metric"] for row in averages] == [row["metric"] for row in rows if row["task"] == "image->text"]
    assert found["average", "R@1"] == pytest.approx(sum(found[task, "R@1"] for task in tasks) / 4)
    assert {row["n"] for row in averages} == {11 + 11 + 2 + 2}
    assert retrieval_rows(z, present) == rows
    kinds = list("abcabcabcabc")
    of_kinds, corrected = retrieval_rows(z, present, relevant=kinds), retrieval_rows(z, present, hubs="csls")
    expected = retrieval(z["image"][1:], z["text"][1:], kinds[1:], kinds[1:])
    assert values(of_kinds)["image->text", "R@1"] == expected["R@1"]
    assert values(of_kinds)["image->text", "chance R@1"] == pytest.approx(chance(11, kinds[1:])["R@1"])
    expected = retrieval(z["image"][1:], z["text"][1:], hubs="csls")
    assert values(corrected)["image->text", "MedR"] == expected["MedR"]


def test_rows_that_never_meet_cannot_be_measured():
    present = torch.eye(3, dtype=torch.bool).repeat(4, 1)
    present[0] = True
    with pytest.raises(NotMeasurable, match="no two modalities meet in two of the 12 test rows"):
        retrieval_rows(three(), present)


class Head:
    """A matching head that finds nothing and remembers how many it was given."""

    anchor = "text"

    def __init__(self):
        self.tops = []

    def rerank(self, queries, gallery, present, scores, top):
        assert list(gallery) == ["image", "audio"]
        self.tops.append(top)
        return -scores


def test_ranking_again_is_measured_before_and_after():
    z, present, head = three(), torch.ones(12, 3, dtype=torch.bool), Head()
    present[2:, 0] = False
    rows = reranked_rows(head, z, present)
    assert set(head.tops) == {50}
    assert [(row["task"], row["metric"]) for row in rows] == [
        (f"text->all{end}", metric) for end in ("", " re-ranked") for metric in ("R@1", "R@5", "R@10", "MedR")
    ]
    assert {row["n"] for row in rows} == {2}
    part = {name: rows[:2] for name, rows in z.items()}
    before = scored_retrieval(part.pop("text"), part)
    assert values(rows)["text->all", "R@1"] == before["R@1"]
    present[1, 0] = False
    assert reranked_rows(head, z, present) == []


# ---- completing


def frozen(z):
    return CalibratedAlignment(imputer=GaussianImputer(latent_dim=2, tol=1e-1).fit(z), update="frozen").eval()


def test_rows_of_a_calibration():
    z, present = three(), torch.ones(12, 3, dtype=torch.bool)
    present[10, 0] = False
    align, whole = frozen(z), {name: torch.cat([x[:10], x[11:]]) for name, x in z.items()}
    hidden = torch.arange(11)[:, None] % 3 == torch.arange(3)
    assert imputation_rows(z, present, align) == imputation_error(align.imputer, whole)
    assert coverage_rows(z, present, align) == coverage(align.imputer, whole, None, hidden)
    completed = align.complete(whole, ~hidden)
    assert shift_rows(z, present, align) == anchor_shift_rows(whole, ~hidden, completed, renormalize=False)
    assert imputation_rows(z, present, None) == coverage_rows(z, present, None) == []
    before = [row for row in shift_rows(z, present, align) if row["task"] == "observed"]
    assert len(before) == 3
    assert shift_rows(z, present, None) == before


def test_queries_and_calibrations_that_cannot_be_measured():
    z, present = three(), torch.ones(12, 3, dtype=torch.bool)
    align = frozen(z)
    two = {name: z[name] for name in ("image", "text")}
    assert shift_rows(two, present[:, :2], align) == pool_rows(two, present[:, :2], align, 0) == []
    present[:, 2] = False
    for rows in (lambda: shift_rows(z, present, align), lambda: pool_rows(z, present, align, 0)):
        with pytest.raises(NotMeasurable, match="the test rows have image, text only; three modalities are needed"):
            rows()
    present[:, 2], present[2:, 1] = True, False
    assert {row["n"] for row in imputation_rows(z, present, align)} == {2}
    present[1, 1] = False
    with pytest.raises(NotMeasurable, match="1 of 12 test rows have every modality; at least two are needed"):
        imputation_rows(z, present, align)


def test_the_pool_asks_by_every_modality():
    z, present = three(), torch.ones(12, 3, dtype=torch.bool)
    rows = pool_rows(z, present, frozen(z), 3)
    tasks = [f"mixed-pool {scoring}" for scoring in ("raw", "centred", "anchor", "imputed", "posterior")]
    assert list(dict.fromkeys(row["task"] for row in rows)) == tasks
    assert {row["n"] for row in rows} == {36}
    assert rows == pool_rows(z, present, frozen(z), 3)
    assert rows != pool_rows(z, present, frozen(z), 4)
    assert pool_rows(z, present, None, 3) == [row for row in rows if row["task"] in tasks[:3]]
    generator, recalls = np.random.default_rng(3), []
    for j, name in enumerate(z):
        left = np.ones((12, 3), dtype=bool)
        left[:, j] = False
        left[np.arange(12), generator.choice([i for i in range(3) if i != j], 12)] = False
        recalls.append(mixed_pool(z[name], z, left, scoring="raw")["R@5"])
    assert values(rows)["mixed-pool raw", "R@5"] == pytest.approx(np.mean(recalls))


# ---- queries of several modalities


def test_late_fusion_adds_the_cosines_of_what_asks():
    z, present = three(30), torch.ones(30, 3, dtype=torch.bool)
    present[:4, 2] = False  # rows without sound: they are found, but cannot ask with two for an image
    found = values(fused_rows(z, present, seed=0))
    cosines = sum(z[name] @ z["image"].T for name in ("text", "audio"))[4:]
    expected = retrieval(scores=cosines, query_ids=list(range(4, 30)), gallery_ids=list(range(30)))
    assert 0 < expected["R@1"] < 100
    assert found["fused 2 to image, late fusion", "R@1"] == pytest.approx(expected["R@1"])
    assert found["fused 2 to image, late fusion", "MedR"] == expected["MedR"]
    assert found["fused 2 to image, late fusion", "chance R@5"] == pytest.approx(100 * 5 / 30)
    each = [found[f"fused 2 to {name}, late fusion", "R@1"] for name in z]
    assert found["fused 2, late fusion", "R@1"] == pytest.approx(np.mean(each))
    assert not any("posterior" in task or "concatenation" in task for task, _ in found)
    assert fused_rows({name: z[name] for name in ("image", "text")}, present[:, :2], seed=0) == []


def test_a_posterior_is_asked_with_what_the_query_may_use():
    z, present, asked = three(30), torch.ones(30, 3, dtype=torch.bool), []
    present[:10, 1] = False

    def embed(rows, may):
        asked.append((rows, may))
        return unit(5, 30, 4)[rows]  # the same vector whatever is shown: every item is its own nearest

    found = values(fused_rows(z, present, seed=0, embed=embed))
    assert found["fused halves, posterior", "R@1"] == 100
    assert found["fused halves, late fusion", "R@1"] < 100
    assert all((present.numpy()[rows] | ~may).all() and may.any(1).all() for rows, may in asked)
    counts = {tuple(np.unique(may.sum(1))) for _, may in asked[:6]}  # for each target one modality, then two
    assert counts == {(1,), (2,)}


def test_a_concatenation_learns_from_the_training_rows_whom_to_listen_to():
    """The image is the text turned round; sound says nothing."""
    turned = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    text, noise = unit(2, 240), unit(3, 240)
    z = {"image": text @ turned, "text": text, "audio": noise}
    learnt, tested = ({name: x[part] for name, x in z.items()} for part in (slice(200), slice(200, 240)))
    everything = torch.ones(200, 3, dtype=torch.bool)
    found = values(fused_rows(tested, everything[:40], seed=0, training=lambda: (learnt, everything)))
    assert found["fused 2 to image, concatenation", "R@1"] > 95
    assert found["fused 2 to image, late fusion", "R@1"] < 40
    few = values(
        fused_rows(tested, everything[:40], seed=0, training=lambda: (tested, torch.eye(3).bool()[:1].repeat(40, 1)))
    )
    assert not any("concatenation" in task for task, _ in few)  # no training row has the target and another


# ---- classes


def labelled(classes):
    z, split = three(24), ["train", "train", "val", "test"] * 6
    labels = [classes[i % len(classes)] if part == "train" else "cat" for i, part in enumerate(split)]
    return LabelledRows(z, torch.ones(24, 3, dtype=torch.bool), labels, split)


def test_two_classes_are_enough():
    assert classification_rows(lambda: None) == []
    rows = labelled(["cat", "dog"])
    expected = classification(rows.z, rows.present, rows.labels, rows.split)
    assert classification_rows(lambda: rows) == expected
    with pytest.raises(NotMeasurable, match="the training rows have 1 class of labels; a classifier needs two"):
        classification_rows(lambda: labelled(["cat"]))


# ---- what is left out


def test_measures_that_the_rows_do_not_allow(monkeypatch):
    def good_rows(n):
        return [{"task": "t", "metric": "m", "value": 1.0, "n": n}]

    def thin_rows(n):
        raise NotMeasurable(f"{n} rows")

    def wrong(n):
        raise InputError("no such thing")

    def listed(*functions):
        monkeypatch.setattr("calmrl.metrics.model_rows.functions_of", lambda groups: list(functions))

    listed(good_rows, thin_rows, wrong)
    left_out: list[str] = []
    rows = measure_rows(["x"], left_out, n=3, unused=1)
    assert rows == good_rows(3)
    assert left_out == ["thin: 3 rows", "wrong: no such thing"]
    with pytest.raises(InputError, match="no such thing"):
        measure_rows(["x"], n=3)
    listed(thin_rows, good_rows)
    assert measure_rows(["x"], n=3) == good_rows(3)


# ---- examples for a report


@pytest.mark.parametrize(("n", "most", "perplexity"), [(200, {}, 30), (12, {}, 6), (4, {"most": 2}, 2), (44, {}, 22)])
def test_the_map_of_all_vectors(monkeypatch, n, most, perplexity):
    asked = {}

    class Places:
        def __init__(self, **options):
            asked.update(options)

        def fit_transform(self, vectors):
            asked["vectors"] = vectors
            return np.stack([np.arange(len(vectors)) / 3, -np.arange(len(vectors)) / 7], 1)

    monkeypatch.setattr("calmrl.metrics.model_rows.TSNE", Places)
    z = {name: unit(j, n) for j, name in enumerate(("image", "text"))}
    drawn, shown = picture(z, **most), min(n, most.get("most", 120))
    vectors = asked.pop("vectors")
    assert asked == {"init": "pca", "perplexity": perplexity, "max_iter": 500, "random_state": 0}
    assert np.array_equal(vectors, torch.cat([z["image"][:shown], z["text"][:shown]]))
    assert drawn["modality"] == ["image"] * shown + ["text"] * shown
    assert drawn["item"] == [*range(shown), *range(shown)]
    assert drawn["x"][:3] == [0.0, 0.33, 0.67]
    assert drawn["y"][:3] == [-0.0, -0.14, -0.29]


def test_nearest_items_of_a_few_queries():
    angles = torch.arange(12) / 10
    line = torch.stack([angles.cos(), angles.sin()], 1)
    z = {"text": line, "image": line[torch.tensor([1, 0, *range(2, 12)])]}  # two pictures are swapped
    captions, ids = [f"item {i}" for i in range(12)], [f"id{i}" for i in range(12)]
    shown = neighbours(z, captions, ids, "text", "image")
    assert [one["id"] for one in shown] == ["id0", "id3", "id6", "id8", "id11"]  # evenly spaced, both ends
    first = shown[0]
    assert (first["task"], first["query"], first["rank"]) == ("text->image", "item 0", 2)
    assert [(one["id"], one["caption"], one["own"], one["relevant"]) for one in first["found"]] == [
        ("id1", "item 1", False, False),
        ("id0", "item 0", True, True),
        ("id2", "item 2", False, False),
    ]
    kinds = neighbours(z, captions, ids, "text", "image", relevant=list("aabbccddeeff"), count=2)
    assert [one["rank"] for one in kinds] == [1, 1]
    assert [one["relevant"] for one in kinds[0]["found"]] == [True, True, False]
    assert [one["own"] for one in kinds[0]["found"]] == [False, True, False]
    assert len(neighbours({name: x[:3] for name, x in z.items()}, captions, ids, "text", "image")) == 3
