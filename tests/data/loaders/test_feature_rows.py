"""Batches and rows of features in numbers: the order of an epoch, what may be mixed, and how columns are scaled."""

from __future__ import annotations

import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.loaders import batches as batches_module
from calmrl.data.loaders import feature_rows
from calmrl.data.loaders.batches import BLOCK, POOL, Batches
from calmrl.data.loaders.feature_rows import FeatureRows, pattern_counts, principal_axes, standardization, widths_of
from calmrl.errors import InputError
from tests.support.train_data import source


def drawn(seed: int, *numbers: int) -> np.random.Generator:
    return np.random.default_rng([seed, *numbers])


def order_of(rows: int, s: int, turn: int, seed: int = 3) -> np.ndarray:
    """The rows of source s, fewer than a block of them, in their turn."""
    rng = drawn(seed, 0, s, turn)
    rng.permutation(1)  # the order of the one block
    return rng.permutation(rows)


def test_the_order_is_part_of_the_format() -> None:
    """A run that is continued by another version must meet the rows that it has not seen."""
    batches = Batches([source(9, "a"), source(5, "b", weight=2.0, seed=1)], 8, seed=3)
    for epoch in (0, 1):
        orders = [order_of(9, 0, epoch), 9 + np.concatenate([order_of(5, 1, 2 * epoch + turn) for turn in (0, 1)])]
        turn = drawn(3, 1, epoch).permutation([0] * 9 + [1] * 10)
        rows = [iter(orders[0]), iter(orders[1])]
        want = [int(next(rows[s])) for s in turn]
        assert [part.tolist() for part in batches.plan(epoch)] == [want[:7], want[7:13], want[13:]]
    by_source = Batches([source(9, "a"), source(5, "b", seed=1)], 4, seed=3, composition="source")
    parts = [*np.array_split(order_of(9, 0, 1), 3), *np.array_split(9 + order_of(5, 1, 1), 2)]
    want_parts = [parts[i].tolist() for i in drawn(3, 1, 1).permutation(5)]
    assert [part.tolist() for part in by_source.plan(1)] == want_parts
    assert (BLOCK, POOL) == (256, 64)


def test_what_is_hidden_is_part_of_the_format() -> None:
    home = source(9, "a")
    hidden = Batches([home], 5, seed=3, hide_one=True)
    for epoch in (0, 1):
        for number, batch in enumerate(hidden):
            want = home.present[batch["index"].numpy()]
            draw = drawn(3, 2, epoch, number).random(want.shape)
            for row in range(len(want)):
                if want[row].sum() > 1:
                    want[row, np.where(want[row], draw[row], -1).argmax()] = False
            assert batch["present"].tolist() == want.tolist()
    state = hidden.state_dict()
    assert (state["epoch"], state["step"], state["batch_size"], state["seed"]) == (2, 0, 5, 3)
    assert state["weights of the sources"] == zlib.crc32(b"1.0")
    assert state["composition of batches"] == zlib.crc32(b"mixed True False")


def test_the_time_that_the_loop_waited(monkeypatch) -> None:
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr(batches_module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    batches = Batches(source(9, "a"), 4)
    for _ in range(2):
        list(batches)
        assert batches.waited == 3 * (len(batches) + 1)  # every step, and the end; anew in every epoch


def test_only_rows_that_lack_something_or_nothing() -> None:
    home = source(30)
    complete = home.present.all(1)
    for lacking, rows in ((True, np.flatnonzero(~complete)), (False, np.flatnonzero(complete))):
        batches = Batches(home, 8, incomplete_only=lacking, complete_only=not lacking)
        assert sorted(int(i) for batch in batches for i in batch["index"]) == rows.tolist()
        assert batches.left_out == 30 - len(rows)
    with pytest.raises(InputError, match="complete_only and incomplete_only leave no row; set one of them"):
        Batches(home, 8, complete_only=True, incomplete_only=True)
    whole = source(30)
    whole.present[:] = True
    with pytest.raises(InputError, match=r"only 0 incomplete training rows; 1 process\(es\) need at least 2"):
        Batches(whole, 8, incomplete_only=True)


@pytest.mark.parametrize("world", [1, 2])
def test_two_rows_for_each_process(world: int) -> None:
    assert len(Batches(source(2 * world), 2 * world, world=world)) == 1
    with pytest.raises(InputError, match=f"only {2 * world - 1} training rows; {world} process"):
        Batches(source(2 * world - 1), 8, world=world)
    with pytest.raises(
        InputError, match=f"batch_size {2 * world - 1} gives {world} processes fewer than two rows each"
    ):
        Batches(source(8), 2 * world - 1, world=world)
    with pytest.raises(InputError, match="rank -1 of"):
        Batches(source(8), 8, rank=-1, world=world)
    assert len(Batches([source(8), source(world, "b")], 8, composition="source", world=world)) == 2


@pytest.mark.parametrize(
    ("sources", "how", "said"),
    [
        ([source(30, weight=0.001)], {}, "an epoch has no rows"),
        (
            [source(30), source(1, "b")],
            {"composition": "source", "world": 3},
            r"only 1 row\(s\), fewer than the 3 processes",
        ),
        (
            [source(30), source(2, "b")],
            {"composition": "source", "world": 3},
            r"only 2 row\(s\), fewer than the 3 processes",
        ),
        ([source(4, rate=0.99)], {"complete_only": True}, "only 1 complete training rows"),
        ([source(4)], {"composition": "mixd"}, "must be one of mixed, source, pattern"),
        ([source(30)], {"rank": 2, "world": 2}, "rank 2 of 2"),
        ([source(30)], {"prefetch": 0}, "prefetch must be at least 1"),
        (
            FeatureSet({"a": np.ones((9, 2))}, np.arange(9)[:, None] != 4),
            {},
            r"1 row has no modality at all \(first: row 4\)",
        ),
    ],
)
def test_what_cannot_be_batched_is_said(sources, how, said) -> None:
    with pytest.raises(InputError, match=said):
        Batches(sources, 16, **how)


def test_the_place_in_an_epoch_and_names_of_rows() -> None:
    batches = Batches(source(9, "a"), 4, prefetch=1)
    assert len(batches) == batches.steps == 3
    stream = iter(batches)
    next(stream)
    assert (batches.epoch, batches.step) == (0, 1)
    stream.close()
    assert batches.describe([0, 8]) == ["a:a0", "a:a8"]
    assert Batches([source(9, "a"), source(5, "b")], 4).describe(np.array([9, 8, 13])) == ["b:b0", "a:a8", "b:b4"]


@pytest.mark.parametrize(
    ("change", "said"),
    [({"hide_one": True}, "composition of batches"), ({"composition": "source"}, "composition of batches"),
     ({"complete_only": True}, "composition of batches"), ({"incomplete_only": True}, "composition of batches"),
     ({"seed": 1}, "seed"), ({"batch_size": 9}, "batch_size")],
)  # fmt: skip
def test_a_position_belongs_to_its_settings(change, said) -> None:
    state = Batches(source(30), 8).state_dict()
    with pytest.raises(InputError, match=f"saved with another {said}; continue with the same data and settings"):
        Batches(source(30), **{"batch_size": 8} | change).load_state_dict(state)
    Batches(source(30), 8, rank=1, world=2).load_state_dict(state)  # more processes are fine
    with pytest.raises(InputError, match="another weights of the sources"):
        Batches(source(30, weight=2.0), 8).load_state_dict(state)
    for other in (source(30, "t"), source(30)):  # other ids, other settings of the source
        if other.name == "s":
            other.settings = lambda: "another"  # type: ignore[method-assign]
        with pytest.raises(InputError, match="another set of training rows"):
            Batches(other, 8).load_state_dict(state)


# ---- rows of feature sets


def features(n: int = 4) -> FeatureSet:
    rng = np.random.default_rng(0)
    return FeatureSet({"image": rng.normal(size=(n, 2)), "text": rng.normal(size=(n, 3))}, np.ones((n, 2), bool))


def test_rows_beside_another_source() -> None:
    seen = np.array([[True, True], [False, True], [False, False], [True, False]])
    rows = FeatureRows.of(features(), np.array([3, 1, 2]), seen, {"sound": 5, "text": 3, "image": 2}, weight=2.0)
    assert (rows.name, rows.names, rows.weight, rows.unusable) == ("features", ("sound", "text", "image"), 2.0, 1)
    assert rows.present.tolist() == [[False, False, True], [False, True, False]]
    assert rows.rows.tolist() == rows.home.tolist() == [3, 1]
    assert rows.ids.tolist() == ["3", "1"]
    with pytest.raises(InputError, match="source x: text has width 3, but another source has 4"):
        FeatureRows.of(features(), widths={"text": 4}, name="x")
    plain = FeatureRows.of(features())
    assert (plain.weight, plain.unusable, plain.widths, plain.settings()) == (1.0, 0, {"image": 2, "text": 3}, "")
    assert FeatureRows("a", {}, seen, np.arange(4), np.arange(4), (), {}).weight == 1.0
    assert FeatureRows("a", {}, seen, np.arange(4), np.arange(4), (), {}).unusable == 0


def test_widths_of_all_sources() -> None:
    more = FeatureSet({"text": np.zeros((1, 3)), "sound": np.zeros((1, 5))})
    assert widths_of({"a": features(), "b": more}, None) == {"image": 2, "text": 3, "sound": 5}
    assert list(widths_of({"a": features(), "b": more}, ["sound", "image"])) == ["sound", "image"]
    with pytest.raises(InputError, match='no source has the modality "smell"; there are image, text'):
        widths_of({"a": features()}, ["smell", "text"])
    with pytest.raises(InputError, match="training needs at least two modalities; got image"):
        widths_of({"a": features()}, ["image"])


def test_patterns_are_counted_per_source() -> None:
    rows = FeatureRows.of(features(), present=np.array([[True, True]] * 3 + [[True, False]]), name="a", weight=0.5)
    assert pattern_counts([rows]) == [
        {"source": "a", "has": ["image", "text"], "rows": 3, "weight": 0.5},
        {"source": "a", "has": ["image"], "rows": 1, "weight": 0.5},
    ]


def spread(values: np.ndarray, how: str, **options) -> tuple[np.ndarray, np.ndarray]:
    rows = FeatureRows.of(FeatureSet({"image": values.astype(np.float32)}, np.ones((len(values), 1), bool)))
    centres, maps = standardization(principal_axes([rows], **options), how)
    return centres["image"].numpy(), maps["image"].numpy()


@pytest.mark.parametrize(("how", "power"), [("scale", 0.0), ("whiten", 0.25)])
def test_scales_and_directions(how: str, power: float) -> None:
    x = np.random.default_rng(0).normal(size=(50, 4)) * [5, 1, 1, 0.5] + 3
    x[:, 2] = x[:, 1]  # three directions
    centre, directions = spread(x, how)
    np.testing.assert_allclose(centre, x.mean(0), rtol=1e-5)
    assert directions.shape == (4, 3)
    turned = (x - x.mean(0)) @ directions
    assert np.square(turned).mean() == pytest.approx(1, rel=1e-4)
    values = np.linalg.eigvalsh(np.cov(x.T, bias=True))[-3:]
    want = values * (values + values.mean()) ** (-2 * power)
    got = np.square(turned).mean(0)
    np.testing.assert_allclose(np.sort(got / got.sum()), np.sort(want / want.sum()), rtol=1e-3)
    np.testing.assert_allclose(np.corrcoef(turned.T), np.eye(3), atol=1e-3)


def test_which_rows_are_measured(monkeypatch) -> None:
    x = np.random.default_rng(0).normal(size=(10, 2))
    for most, pace in ((10, 1), (9, 2), (5, 2), (4, 3)):
        np.testing.assert_allclose(spread(x, "scale", most=most)[0], x[::pace].mean(0), rtol=1e-5)
    monkeypatch.setattr(feature_rows, "AT_A_TIME", 3)
    np.testing.assert_allclose(spread(x, "scale")[0], x.mean(0), rtol=1e-5)
    two = [source(6, "a"), source(4, "b", seed=1)]
    for rows in two:
        rows.present[:, 2] = False
    with pytest.raises(InputError, match="no training row has audio; leave it out of modalities, or add a source"):
        standardization(principal_axes(two), "scale")
    both = np.concatenate([rows.z["image"][rows.present[:, 0]] for rows in two])
    for rows in two:
        rows.names = ("image", "text")
    np.testing.assert_allclose(standardization(principal_axes(two), "scale")[0]["image"], both.mean(0), rtol=1e-5)
    with pytest.raises(InputError, match="image is the same in every training row; leave it out of modalities"):
        spread(np.ones((5, 2)), "scale")


@pytest.mark.parametrize("size", [1e-5, 1.0, 10.0])
@pytest.mark.parametrize(("small", "kept"), [(1e-2, 2), (0.9e-3, 1)])
def test_directions_below_a_millionth_are_left_out(size: float, small: float, kept: int) -> None:
    turn = np.array([1.0, -1.0, 1.0, -1.0])
    other = np.array([1.0, 1.0, -1.0, -1.0])
    assert spread(size * np.stack([turn, small * other], axis=1), "scale")[1].shape == (2, kept)


def test_sources_are_joined_in_their_places() -> None:
    parts = [(np.array([2, 0]), {"a": torch.tensor([[1.0], [2.0]])}), (np.array([1]), {"a": torch.tensor([[3.0]])})]
    assert FeatureRows.join(parts, np.ones((3, 1), bool))["a"].tolist() == [[2.0], [3.0], [1.0]]
