"""Spaces side by side: bases that were learned elsewhere, their weights, and what they say without any pair."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import Ridge

from calmrl import Aligner
from calmrl.aligner import found_in, load_base, shared_space
from calmrl.aligner.base import ridge
from calmrl.aligner.posterior import embed_with_certainty, fuse
from calmrl.aligner.storage import half_of, packed, unpacked, whole_of
from calmrl.errors import InputError

LATENTS = 8
WIDTHS = {"image": 24, "text": 16, "sound": 12}
FAST = {"features": "linear", "unit_rows": True, "whitening": 0.5, "latent_dim": 8, "prior": 10.0, "refine": "never"}
rng = np.random.default_rng(0)
MIXING = {name: rng.normal(size=(LATENTS, width)) for name, width in WIDTHS.items()}
CENTRE = {name: rng.normal(size=width) for name, width in WIDTHS.items()}


def items(n, seed, names=("image", "text"), noise=0.6, shift=0.0):
    """Rows of one world: the same encoders look at other items, which may lie around another centre."""
    random = np.random.default_rng(seed)
    beta = random.normal(size=(n, LATENTS))
    return {
        name: beta @ MIXING[name] + CENTRE[name] + shift + noise * random.normal(size=(n, WIDTHS[name]))
        for name in names
    }


def unpaired(z):
    """The same rows, each with one modality."""
    count = len(z)
    return {
        name: np.where((np.arange(len(values)) % count == j)[:, None], values, np.nan)
        for j, (name, values) in enumerate(z.items())
    }


def without_pairs(**arguments):
    """An aligner that has only seen rows with one modality."""
    with pytest.warns(UserWarning, match="no two modalities are linked by 20 rows or more, so that nothing is learned"):
        return Aligner(**FAST, **arguments).fit(unpaired(items(120, 5)))


def found(aligner, seed=9, n=80, **options):
    """Share of texts that find their image."""
    new = items(n, seed, **options)
    scores = aligner.embed({"text": new["text"]}) @ aligner.embed({"image": new["image"]}).T
    return float((scores.argmax(1) == np.arange(n)).mean())


@pytest.fixture(scope="module")
def base():
    return Aligner(**FAST).fit(items(400, 1))


def test_without_a_pair_the_base_stands_alone(base):
    aligner = without_pairs(base=base)
    assert aligner.space_ is None
    assert aligner.choice_["beside"] == {"own": 0.0, "base": 1.0}
    assert "base (weight 1.00)" in repr(aligner)
    assert found(aligner) > 0.5
    assert aligner.expected_ == {}  # this base has nothing to quote
    with pytest.raises(InputError, match="no row links"):
        Aligner(**FAST).fit(unpaired(items(120, 5)))


def test_vectors_are_blocks_of_unit_length_times_the_root_of_their_weight(base):
    aligner = Aligner(**FAST, base=base).fit(items(150, 2))
    new = items(30, 3)
    vectors = aligner.embed(new)
    own, other = vectors[:, :8], vectors[:, 8:]
    weight = aligner.choice_["beside"]
    assert 0 < weight["own"] < 1
    assert weight["own"] + weight["base"] == pytest.approx(1)
    assert_allclose((own**2).sum(1), weight["own"], atol=1e-10)
    assert_allclose((other**2).sum(1), weight["base"], atol=1e-10)
    assert_allclose((vectors**2).sum(1), 1, atol=1e-10)
    assert aligner.width_ == vectors.shape[1] == len(aligner.get_feature_names_out()) == 16


def test_a_base_is_evened_out_by_the_share_of_the_own_space(base):
    z, new = items(150, 2), items(30, 3)
    aligner = Aligner(**FAST, base=base).fit(z)
    (beside,) = aligner.base_
    assert beside.evened == aligner.choice_["beside"]["share"] > 0
    centres = {name: values.numpy() for name, values in beside.centres.items()}

    def there(rows):
        return {name: base.embed({name: rows[name] - centres[name] + base_centre(base, name)}) for name in rows}

    known = there(z)
    second = np.mean([vectors.T @ vectors / len(vectors) for vectors in known.values()], axis=0)
    moments, axes = np.linalg.eigh(second)
    turn = axes @ np.diag((1 + moments / moments.mean() * 300 / 800) ** (-beside.evened / 2)) @ axes.T
    expected = there(new)["image"] @ turn
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    weight = aligner.choice_["beside"]["base"]
    assert_allclose(aligner.embed({"image": new["image"]})[:, 8:], weight**0.5 * expected, atol=1e-5)


def base_centre(base, name):
    return base.feature_maps_[base.names_.index(name)].centre.numpy()


def test_side_by_side_is_not_behind_the_better_of_both(base):
    few = {name: values.copy() for name, values in items(200, 4).items()}
    few["text"][40::2], few["image"][41::2] = np.nan, np.nan
    own, both, alone = Aligner(**FAST).fit(few), Aligner(**FAST, base=base).fit(few), without_pairs(base=base)
    reached = [np.mean([found(one, seed) for seed in range(20, 26)]) for one in (own, alone, both)]
    assert reached[0] < reached[1]  # forty pairs say less than the base
    assert reached[2] > reached[1] - 0.03
    assert both.choice_["beside"]["share"] < 0.5
    assert {"own", "bases", "score"} == set(both.choice_["beside"]["tried"][0])


def test_a_base_of_something_else_gets_little_weight():
    random = np.random.default_rng(7)
    other = Aligner(**FAST).fit({name: random.normal(size=(300, width)) for name, width in list(WIDTHS.items())[:2]})
    aligner = Aligner(**FAST, base=other).fit(items(300, 2))
    assert aligner.choice_["beside"]["own"] > 0.5
    assert found(aligner) > found(without_pairs(base=other)) + 0.3


def test_rows_of_another_centre_are_moved_to_that_of_the_base(base):
    with pytest.warns(UserWarning, match="no two modalities"):
        moved = Aligner(**FAST, base=base).fit(unpaired(items(600, 5, shift=4.0)))
    assert found(moved, shift=4.0) > found(without_pairs(base=base), shift=4.0) + 0.05


def test_a_modality_that_the_base_does_not_know_gets_a_place_there(base):
    aligner = Aligner(**FAST, base=base).fit(items(60, 6, ("image", "text", "sound")))
    assert set(aligner.base_[0].names) == {"image", "text"}
    new = items(40, 8, ("image", "text", "sound"), noise=0.2)
    block = slice(aligner.space_.latent_dim, None)
    from_sound, from_image = (aligner.embed({name: new[name]})[:, block] for name in ("sound", "image"))
    share = aligner.choice_["beside"]["base"]
    assert_allclose((from_image**2).sum(1), share, atol=1e-10)
    lengths = (from_sound**2).sum(1)
    assert (lengths > 0).all()
    assert lengths.mean() < 0.98 * share  # what is imputed is less certain
    assert ((from_sound @ from_image.T).argmax(1) == np.arange(40)).mean() > 0.3


def test_modalities_of_comparable_vectors_are_a_base():
    vectors = np.random.default_rng(0).normal(size=(60, 10))
    z = {"image": vectors, "text": vectors + 0.3 * np.random.default_rng(1).normal(size=(60, 10))}
    with pytest.warns(UserWarning, match="embeddings are those of image"):
        aligner = Aligner(shared=[("image", "text")], hubs="never").fit(unpaired(z))
    cosines = aligner.similarity({"image": z["image"]}, {"text": z["text"]})
    unit = {name: values / np.linalg.norm(values, axis=1, keepdims=True) for name, values in z.items()}
    assert_allclose(cosines, unit["image"] @ unit["text"].T, atol=1e-10)
    both = aligner.embed(z)
    mean = unit["image"] + unit["text"]
    assert_allclose(both, mean / np.linalg.norm(mean, axis=1, keepdims=True), atol=1e-6)
    _, certainty = embed_with_certainty(aligner, z, np.ones((60, 2), bool))
    assert (certainty > 0.99).all()


def test_two_joint_models_become_one_space():
    """One knows pictures and texts, the other sounds and texts, as CLIP and CLAP do; nobody has seen pictures with sounds."""
    first, second = items(400, 1), items(400, 2, ("sound", "text"))
    pictures, sounds = Aligner(**FAST).fit(first), Aligner(**FAST).fit(second)
    with pytest.warns(UserWarning, match="no two modalities"):
        both = Aligner(base=[pictures, sounds]).fit(unpaired(items(90, 3, ("image", "text", "sound"))))
    new = items(60, 4, ("image", "text", "sound"), noise=0.3)
    for asked in ("image", "sound"):
        scores = both.similarity({"text": new["text"]}, {asked: new[asked]})
        assert (scores.argmax(1) == np.arange(60)).mean() > 0.4, asked
    linked = Aligner(**FAST, base=[pictures, sounds]).fit(items(300, 5, ("image", "text", "sound")))
    assert sorted(set(linked.choice_["beside"]) - {"share", "tried"}) == ["base 1", "base 2", "own"]
    scores = linked.similarity({"image": new["image"]}, {"sound": new["sound"]})
    assert (scores.argmax(1) == np.arange(60)).mean() > 0.4


def test_saved_nested_and_compact(base, tmp_path):
    inner = without_pairs(base=base)
    aligner = Aligner(**FAST, base=[inner, base]).fit(items(200, 2, ("image", "text", "sound")))
    new = items(20, 3, ("image", "text", "sound"))
    new["image"][::3], new["text"][1::3], new["sound"][2::3] = np.nan, np.nan, np.nan
    aligner.save(tmp_path / "whole")
    again = Aligner.load(tmp_path / "whole")
    assert_array_equal(again.embed(new), aligner.embed(new))
    assert again.choice_ == aligner.choice_
    assert repr(again).partition("fitted")[2] == repr(aligner).partition("fitted")[2]
    refitted = clone(again).fit(items(200, 2, ("image", "text", "sound")))
    assert_allclose(refitted.embed(new), aligner.embed(new), atol=1e-9)
    aligner.save(tmp_path / "small", compact=True)
    small = Aligner.load(tmp_path / "small")
    assert_allclose((small.embed(new) * aligner.embed(new)).sum(1), 1, atol=0.01)


def test_a_base_by_path_stays_a_path(base, tmp_path):
    base.save(tmp_path / "base")
    aligner = Aligner(**FAST, base=tmp_path / "base").fit(items(150, 2))
    aligner.save(tmp_path / "aligner")
    assert Aligner.load(tmp_path / "aligner").base == [str(tmp_path / "base")]


def test_numbers_of_six_bits_are_read_as_they_were_written():
    numbers = torch.randint(-31, 32, (5, 7))
    code = packed(numbers)
    assert (code.dtype, code.shape) == (torch.uint8, (5, 6))  # 42 bits, filled up to 48
    first = "".join(f"{int(byte):08b}" for byte in code[0])
    assert [int(first[6 * j : 6 * j + 6], 2) - 32 for j in range(7)] == numbers[0].tolist()
    assert_array_equal(unpacked(code, 7), numbers)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_half_of_a_symmetric_matrix_says_all(size):
    matrix = torch.randn(size, size, dtype=torch.float64)
    half = half_of(matrix + matrix.T)
    assert half.numel() == size * (size + 1) // 2
    assert_array_equal(whole_of(half), matrix + matrix.T)


def test_large_matrices_of_a_compact_aligner_have_six_bits(tmp_path):
    z = {name: np.random.default_rng(j).normal(size=(500, 90)) for j, name in enumerate(("image", "text"))}
    z["text"] += z["image"]
    aligner = Aligner(**{**FAST, "features": "kernel", "latent_dim": 32}).fit(z)
    aligner.save(tmp_path / "whole")
    aligner.save(tmp_path / "small", compact=True)
    sizes = [(tmp_path / name / "aligner.safetensors").stat().st_size for name in ("whole", "small")]
    assert sizes[1] < sizes[0] / 6
    one, other = (Aligner.load(tmp_path / name).embed(z) for name in ("whole", "small"))
    assert_allclose((one * other).sum(1), 1, atol=0.01)
    assert not np.array_equal(one, other)


def test_what_a_base_reached_elsewhere_is_quoted(base):
    quoting = clone(base).fit(items(400, 1))
    quoting.elsewhere_ = {f"collection {seed}": found_in(quoting, items(300, seed)) for seed in (11, 12, 13)}
    aligner = without_pairs(base=quoting)
    expected = aligner.expected(80)
    assert set(expected) == {"image->text", "text->image"}
    row = expected["text->image"]
    assert row["collections"] == 3
    assert row["low"] < row["R@1"] < row["high"]
    assert row["low"] <= 100 * found(aligner, 21) <= row["high"]
    paired = Aligner(**FAST, base=quoting).fit(items(200, 2))
    assert "collections" not in paired.expected_["text->image"]


def test_expected_holds_for_the_whole(base):
    inside = []
    for seed in range(4):
        aligner = Aligner(**FAST, base=base).fit(items(120, 30 + seed))
        row = aligner.expected(80)["text->image"]
        inside += [row["low"] <= 100 * found(aligner, 50 + 3 * seed + j) <= row["high"] for j in range(3)]
    assert len(inside) == 12
    assert sum(inside) >= 9


def test_modalities_are_recognised_by_their_encoders(base):
    known = clone(base).fit(items(400, 1))
    known.encoders_ = {"encoders": {"image": {"name": "eye"}, "text": {"name": "word"}}}
    z = items(120, 5)
    renamed = {"photo": z["image"], "title": z["text"]}
    with pytest.raises(
        InputError, match=r"the base base knows image \(width 24\), text \(width 16\), the rows have photo"
    ):
        Aligner(base=known).fit(renamed)
    encoders = {"photo": "eye", "title": "word"}
    aligner = Aligner(**FAST, base=known).fit(renamed, encoders=encoders)
    assert aligner.base_[0].names == {"photo": "image", "title": "text"}
    with pytest.raises(InputError, match="none is of the same name and width, or made by the same encoder"):
        Aligner(base=known).fit(z, encoders={"image": "other", "text": "else"})


def test_a_base_that_does_not_know_its_encoders_is_matched_by_names(base):
    aligner = Aligner(**FAST, base=base).fit(items(120, 5), encoders={"image": "eye", "text": "word"})
    assert aligner.base_[0].names == {"image": "image", "text": "text"}


def test_texts_can_ask_for_pictures_although_no_row_has_one(base):
    with pytest.warns(UserWarning, match="no two modalities"):
        aligner = Aligner(base=base).fit({"image": items(50, 5)["image"]})
    assert aligner.modalities_ == ("image",)
    assert aligner.widths_ == {"image": 24, "text": 16}
    assert found(aligner) > 0.4


def test_queries_with_weights_are_fused_in_every_space(base):
    aligner = Aligner(**FAST, base=base).fit(items(150, 2))
    new = items(5, 3)
    whole = aligner.embed(new)
    assert_allclose(fuse(aligner, [(name, new[name][0], 1.0) for name in new]).sum(axis=0), whole[0], atol=1e-10)
    towards = fuse(aligner, [("image", new["image"][0], 1.0), ("text", new["text"][1], 0.1)]).sum(axis=0)
    assert (
        towards @ aligner.embed({"image": new["image"][:1]})[0] > towards @ aligner.embed({"text": new["text"][1:2]})[0]
    )


def test_torch_gives_the_same_as_numpy(base):
    aligner = Aligner(**FAST, base=base).fit(items(150, 2))
    new = items(9, 3)
    tensors = {name: torch.from_numpy(values) for name, values in new.items()}
    assert_array_equal(aligner.embed(tensors).numpy(), aligner.embed(new))


def test_chunks_give_the_same_as_arrays(base):
    z = items(300, 2)
    mask = np.ones((100, 2), bool)
    parts = [({name: values[i : i + 100] for name, values in z.items()}, mask) for i in range(0, 300, 100)]
    one, other = Aligner(**FAST, base=base).fit(z), Aligner(**FAST, base=base).fit(parts)
    assert one.choice_["beside"] == other.choice_["beside"]
    assert_allclose(one.embed(z), other.embed(z), atol=1e-8)


def test_modalities_that_too_few_rows_link_are_left_to_the_base(base):
    z = items(200, 2, ("image", "text", "sound"))
    z["text"][10:100], z["image"][100:], z["sound"][100:] = (
        np.nan,
        np.nan,
        np.nan,
    )  # ten rows have image, text and sound
    as_chunks = [({name: values[i : i + 50] for name, values in z.items()}, None) for i in range(0, 200, 50)]
    groups = [f"g{i}" for i in range(200)]
    for given in (z, as_chunks):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            aligner = Aligner(**FAST, base=base).fit(given, groups=groups)
        assert aligner.names_ == ("image", "sound")
        assert aligner.own_weight_ < 1
        assert set(aligner.widths_) == set(WIDTHS)


def test_regression_is_that_of_scikit_learn_with_some_penalty():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(50, 6)), random.normal(size=(50, 3))
    got = ridge(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    penalties = [10.0**power for power in range(-3, 5)]
    wanted = [Ridge(alpha=alpha, fit_intercept=False).fit(x, y).coef_.T for alpha in penalties]
    assert min(np.abs(got - one).max() for one in wanted) < 1e-10
    exact = ridge(torch.from_numpy(x), torch.from_numpy(x[:, :2])).numpy()
    assert_allclose(exact, np.eye(6)[:, :2], atol=1e-3)


BAD = [
    ({"base": "nowhere"}, "there is no base 'nowhere': neither a folder of that name nor one of those that come with"),
    ({"base": 3}, "base must be a fitted Aligner, a name .*, a path, or a list of these; got int"),
    ({"base": Aligner()}, "base is an Aligner that is not fitted"),
    ({"shared": [("image",)]}, "shared is a list of groups of two or more modalities"),
    ({"shared": [("image", "film")]}, "shared names 'film', but the rows have image, text"),
    ({"shared": [("image", "text")]}, "modalities whose vectors are comparable have one width; got image 24, text 16"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bases_that_are_none(arguments, message):
    with pytest.raises(InputError, match=message):
        Aligner(**arguments).fit(items(60, 0))


def test_the_base_that_comes_with_calmrl():
    base = load_base("named-things")
    assert set(base.widths_) == {"image", "text", "multilingual", "speech", "sound"}
    assert {entry["name"] for entry in base.encoders_["encoders"].values()} >= {
        "efficientnet_lite0",
        "minilm",
        "yamnet",
    }
    assert {"stamps", "emoji"} <= set(base.elsewhere_)
    assert "clipart" not in base.elsewhere_


def test_shared_space_is_an_aligner():
    aligner = shared_space(["image", "text"], 5)
    rows = np.random.default_rng(0).normal(size=(4, 5))
    assert_allclose(aligner.embed({"image": rows}), rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-12)


def crowded(n, seed):
    """Rows of `items` with hubs among the images: some lie in the middle of all and are near to every text."""
    z = items(n, seed)
    z["image"][: n // 6] = CENTRE["image"] + 0.15 * (z["image"][: n // 6] - CENTRE["image"])
    return z


def test_hubs_are_corrected_for_with_training_items_alone():
    z, new = crowded(240, 1), crowded(60, 2)
    aligner = Aligner(**FAST, hubs="always").fit(z)
    plain = Aligner(**FAST).fit(z)
    assert aligner.choice_["hubs"] is True
    assert plain.choice_["hubs"] is False
    assert set(aligner.choice_["hub_scores"]) == {"plain", "corrected"}
    text, image = aligner.embed({"text": new["text"]}), aligner.embed({"image": new["image"]})
    assert_array_equal(text, plain.embed({"text": new["text"]}))
    references = aligner.references_["text"].double().numpy()
    level = np.sort(image @ references.T, axis=1)[:, -10:].mean(1)
    got = aligner.similarity({"text": new["text"]}, {"image": new["image"]})
    assert_allclose(got, text @ image.T - level / 2, atol=1e-9)
    one = aligner.similarity({"text": new["text"][:1]}, {"image": new["image"]})
    assert_allclose(one, got[:1], atol=1e-12)  # other queries do not matter
    both = aligner.similarity({"text": new["text"], "image": new["image"]}, {"image": new["image"]})
    other = np.sort(image @ aligner.references_["image"].double().numpy().T, axis=1)[:, -10:].mean(1)
    assert_allclose(both, aligner.embed(new) @ image.T - (level + other) / 4, atol=1e-9)
    levels = aligner.hub_levels(torch.from_numpy(image))
    assert_allclose(levels["text"].numpy(), level, atol=1e-9)


def test_whether_hubs_are_corrected_for_is_chosen_and_saved(tmp_path):
    z, new = items(200, 1), items(30, 2)
    chosen = Aligner(**FAST, hubs="auto").fit(z)
    scores = chosen.choice_["hub_scores"]
    assert chosen.choice_["hubs"] is False or scores["corrected"] > scores["plain"]
    aligner = Aligner(**FAST, hubs="always").fit(z)
    aligner.save(tmp_path / "aligner")
    again = Aligner.load(tmp_path / "aligner")
    wanted = aligner.similarity({"text": new["text"]}, {"image": new["image"]})
    assert_array_equal(again.similarity({"text": new["text"]}, {"image": new["image"]}), wanted)
    assert aligner.hub_levels(aligner.embed(new)).keys() == {"image", "text"}
    assert Aligner(**FAST).fit(z).hub_levels(aligner.embed(new)) == {}


def test_hubs_are_corrected_for_beside_a_base_alone(base):
    z, new = items(200, 1), items(30, 2)
    beside, plain = Aligner(**FAST, base=base).fit(z), Aligner(**FAST, base=base, hubs="never").fit(z)
    scores = beside.choice_["hub_scores"]
    assert beside.choice_["hubs"] is (set(beside.references_) == {"image", "text"})
    assert beside.choice_["hubs"] or scores["corrected"] < scores["plain"]
    assert (plain.choice_["hubs"], plain.references_) == (False, {})
    assert_array_equal(plain.embed(new), beside.embed(new))
    assert Aligner(**FAST).fit(z).choice_["hubs"] is False


def test_without_a_pair_hubs_are_corrected_for_with_unpaired_rows(base):
    aligner, plain = without_pairs(base=base), without_pairs(base=base, hubs="never")
    assert (aligner.choice_["hubs"], plain.choice_["hubs"]) == (True, False)
    new, known = items(40, 8), unpaired(items(120, 5))
    text, image = ({name: new[name]} for name in ("text", "image"))
    asked = plain.embed({"text": known["text"][~np.isnan(known["text"]).any(1)]})
    level = np.sort(plain.embed(image) @ asked.T, axis=1)[:, -10:].mean(1)
    assert_allclose(aligner.similarity(text, image), plain.similarity(text, image) - level / 2, atol=2e-3)
