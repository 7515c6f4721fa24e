"""Batches: every row in its turn, well mixed, the same after a restart and for any number of processes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.features.writer import write_features
from calmrl.data.loaders import feature_rows
from calmrl.data.loaders.batches import Batches, ahead
from calmrl.data.loaders.feature_rows import FeatureRows
from calmrl.errors import InputError
from tests.support.train_data import WIDTHS, source
from tests.support.waiting import patience


def drawn(batches: Batches, epochs: int = 1) -> Counter[int]:
    return Counter(int(i) for _ in range(epochs) for batch in batches for i in batch["index"])


@pytest.mark.parametrize("composition", ["mixed", "source", "pattern"])
def test_every_row_comes_exactly_once_per_epoch(composition):
    batches = Batches([source(50, "a"), source(33, "b", seed=1)], 16, composition=composition)
    for _ in range(2):
        epoch = list(batches)
        assert Counter(int(i) for batch in epoch for i in batch["index"]) == Counter(range(83))
        assert all((len({int(i) < 50 for i in batch["index"]}) == 1) for batch in epoch) == (composition != "mixed")
        alike = all(len(torch.unique(batch["present"], dim=0)) == 1 for batch in epoch)
        assert alike == (composition == "pattern")


def test_weights_are_times_per_epoch():
    batches = Batches([source(20, "a", weight=2.0), source(30, "b", weight=0.5, seed=1)], 16)
    for _ in range(2):
        counts = drawn(batches, 2)
        assert [counts[i] for i in range(20)] == [4] * 20
        assert [counts[20 + i] for i in range(30)] == [1] * 30
    once = drawn(batches)
    assert sum(once[20 + i] for i in range(30)) == 15


def test_hide_one_hides_one_of_several_and_never_the_last():
    home = source(80)
    batches = Batches([home], 16, hide_one=True)
    seen = []
    for _ in range(2):
        for batch in batches:
            before = home.present[batch["index"].numpy()].sum(1)
            after = batch["present"].numpy()
            assert np.array_equal(after.sum(1), np.where(before > 1, before - 1, before))
            assert not (after & ~home.present[batch["index"].numpy()]).any()
            for j, name in enumerate(WIDTHS):
                assert not batch["z"][name][~batch["present"][:, j]].any()
        seen.append(after)
    assert not np.array_equal(*seen)  # drawn anew each epoch


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(8, 60), min_size=1, max_size=3),
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 1.7]), min_size=3, max_size=3),
    batch_size=st.integers(4, 40),
    world=st.integers(1, 2),
    composition=st.sampled_from(["mixed", "source"]),
    hide_one=st.booleans(),
    seed=st.integers(0, 3),
    cut=st.integers(0, 6),
)
def test_processes_share_the_batches_and_resuming_changes_nothing(
    sizes, weights, batch_size, world, composition, hide_one, seed, cut
):
    sources = [source(n, f"s{i}", w, seed=i) for i, (n, w) in enumerate(zip(sizes, weights, strict=False))]

    def make(rank: int = 0, size: int = 1) -> Batches:
        how = {"composition": composition, "hide_one": hide_one, "seed": seed}
        return Batches(sources, batch_size, rank=rank, world=size, **how)

    whole = two_epochs(make())
    assert all(len(batch["index"]) <= batch_size for batch in whole)
    parts = [two_epochs(make(rank, world)) for rank in range(world)]
    for number, batch in enumerate(whole):
        for rank in range(world):
            mine = slice(rank, None, world)
            assert torch.equal(batch["index"][mine], parts[rank][number]["index"])
            assert torch.equal(batch["present"][mine], parts[rank][number]["present"])
            for name in WIDTHS:
                assert torch.equal(batch["z"][name][mine], parts[rank][number]["z"][name])

    first = make()
    stream = (batch for _ in range(2) for batch in first)
    done = [next(stream) for _ in range(min(cut, len(whole)))]
    state = first.state_dict()
    stream.close()
    again = make()
    again.load_state_dict(state)
    rest = [batch for _ in range(3 - again.epoch) for batch in again][: len(whole) - len(done)]
    for batch, truth in zip([*done, *rest], whole, strict=True):
        assert torch.equal(batch["index"], truth["index"])
        assert torch.equal(batch["present"], truth["present"])


def two_epochs(batches: Batches) -> list[dict]:
    return [batch for _ in range(2) for batch in batches]


def numbered(n: int, dtype: str = "float32") -> FeatureSet:
    """Row i of the first modality is (i, i), of the second (-i, -i, -i); every third row lacks the second."""
    numbers = np.arange(n, dtype=dtype)[:, None]
    z = {"image": np.repeat(numbers, 2, axis=1), "text": -np.repeat(numbers, 3, axis=1)}
    present = np.ones((n, 2), dtype=bool)
    present[::3, 1] = False
    z["text"][::3] = np.nan
    return FeatureSet(z, present)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_feature_directory_is_a_source(tmp_path: Path, dtype: str) -> None:
    made = numbered(500, dtype)
    write_features(tmp_path / "f", made.z, made.present)
    features = open_features(tmp_path / "f")
    gaps = np.flatnonzero(np.random.default_rng(0).random(500) < 0.1)
    for source_rows, rows in [(features, np.arange(500)), (FeatureRows.of(features, gaps), gaps)]:
        come = []
        for batch in Batches(source_rows, 32):
            index = torch.from_numpy(rows)[batch["index"]]
            assert batch["z"]["image"].dtype == torch.float32
            assert torch.equal(batch["present"], torch.from_numpy(made.present)[index])
            assert torch.equal(batch["z"]["image"], index[:, None].float().expand(-1, 2))
            here = batch["present"][:, 1:]
            assert torch.equal(batch["z"]["text"], torch.where(here, -index[:, None].float(), 0.0).expand(-1, 3))
            come += index.tolist()
        assert sorted(come) == rows.tolist()
    assert np.isnan(np.asarray(features.z["text"][0])).all()  # the source is left alone


class Watched(np.ndarray):
    """Notes how many rows were asked for at a time."""

    asked: list[int]

    def __array_finalize__(self, parent) -> None:
        self.asked = getattr(parent, "asked", [])

    def __getitem__(self, key):
        part = super().__getitem__(key)
        self.asked.append(len(part))
        return part


def test_only_the_rows_of_a_batch_are_read_and_neighbours_together() -> None:
    features = numbered(40_000)
    watched = {name: array.view(Watched) for name, array in features.z.items()}
    for array in watched.values():
        array.asked = []
    batches = Batches(FeatureRows.of(FeatureSet(watched, features.present)), 64)
    for array in watched.values():
        array.asked.clear()
    stream = iter(batches)
    batch = next(stream)
    stream.close()
    assert watched["image"].asked
    assert max(watched["image"].asked + watched["text"].asked) <= 64
    assert len(watched["image"].asked) <= 1 + 1 + batches.prefetch + 1  # the batch, those ahead, one being put
    assert len({int(i) // 256 for i in batch["index"]}) <= 64  # from one pool of 64 blocks


def test_a_thread_reads_files_and_no_thread_takes_rows_in_memory(tmp_path: Path) -> None:
    def loaders() -> int:
        return sum(thread.name.startswith("calmrl-loader") for thread in threading.enumerate())

    features, before = numbered(50), loaders()
    write_features(tmp_path / "f", features.z, features.present)
    for rows, threads in ((features, 0), (open_features(tmp_path / "f"), 1)):
        stream = iter(Batches(rows, 16))
        next(stream)
        assert loaders() - before == threads
        stream.close()
        assert loaders() == before


def test_rows_are_a_split_a_mask_or_numbers() -> None:
    features = numbered(20)
    mask = np.zeros(20, dtype=bool)
    mask[[3, 5, 8]] = True
    for rows in (mask, np.array([8, 3, 5])):
        chosen = FeatureRows.of(features, rows)
        assert sorted(chosen.home.tolist()) == [3, 5, 8]
        assert drawn(Batches(chosen, 2)) == Counter(range(3))
    for rows, message in [
        (np.array([1, 1]), "named more than once"),
        (np.array([20]), "between 0 and 19"),
        (np.ones(3, dtype=bool), r"shape \(3,\)"),
        ("train", "no split column"),
    ]:
        with pytest.raises(InputError, match=message):
            FeatureRows.of(features, rows)


def test_shuffling_is_nearly_uniform() -> None:
    """Positions of rows are uncorrelated with their numbers, and a batch draws from all blocks of its pool."""
    n = 65_536
    order = np.concatenate(Batches(numbered(n), 256).plan(0))
    assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 0.1
    assert np.mean([len(set(order[i : i + 256] // 256)) for i in range(0, n, 256)]) > 55  # of 64
    assert order.reshape(-1, 256).mean(axis=1).std() < 0.2 * n / np.sqrt(12)  # 1 / sqrt(64) expected; one block gives 1


def test_errors_reach_the_loop_and_leaving_it_ends_the_thread() -> None:
    made = numbered(5000)
    features = FeatureSet({name: array.view(Watched) for name, array in made.z.items()}, made.present)  # gets a thread
    before = threading.active_count()
    for _ in range(3):
        for _ in Batches(features, 8):
            break
    features.z["image"][17] = np.inf
    with pytest.raises(InputError, match="image of row '17' is marked present but holds NaN or infinity"):
        drawn(Batches(features, 8))
    deadline = time.monotonic() + patience(10)
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_ahead_keeps_order_and_errors() -> None:
    def numbers(fail: bool) -> Generator[int, None, None]:
        yield from range(5)
        if fail:
            raise KeyError("six")

    items = ahead(numbers(True), 2)
    assert [next(items) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="six"):
        next(items)
    assert list(ahead(numbers(False), 1)) == [0, 1, 2, 3, 4]


def test_every_row_is_looked_at_whatever_is_read_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr(feature_rows, "AT_A_TIME", 4)
    for bad in range(10):
        values = np.ones((10, 2), dtype=np.float32)
        values[bad, 1] = np.inf
        rows = FeatureRows.of(FeatureSet({"image": values}, np.ones((10, 1), dtype=bool)))
        with pytest.raises(InputError, match=f"image of row '{bad}' is marked present but holds NaN or infinity"):
            rows.check()
