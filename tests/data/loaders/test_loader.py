"""Batches: every row once per epoch, well mixed, the same after a restart, in any number of processes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmrl.data.features.feature_set import open_features
from calmrl.data.features.writer import write_features
from calmrl.data.loaders import feature_batches as loader
from calmrl.data.loaders.background import ahead
from calmrl.data.loaders.feature_batches import Batches
from calmrl.errors import InputError


def arrays(n: int, dtype: str = "float32") -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Row i of the first modality is (i, i), of the second (-i, -i, -i)."""
    numbers = np.arange(n, dtype=dtype)[:, None]
    z = {"image": np.repeat(numbers, 2, axis=1), "text": -np.repeat(numbers, 3, axis=1)}
    present = np.ones((n, 2), dtype=bool)
    present[::3, 1] = False
    z["text"][::3] = np.nan
    return z, present


def order(batches: Batches) -> list[int]:
    return [int(i) for batch in batches for i in batch["index"]]


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 300),
    batch=st.integers(1, 40),
    world=st.integers(1, 4),
    block=st.integers(1, 30),
    pool=st.integers(1, 5),
    drop=st.booleans(),
    shuffle=st.booleans(),
)
def test_every_row_once_in_one_process(
    n: int, batch: int, world: int, block: int, pool: int, drop: bool, shuffle: bool
) -> None:
    z, present = arrays(n)
    options: dict[str, Any] = {"block_rows": block, "pool_blocks": pool, "drop_last": drop, "shuffle": shuffle}
    if n // world < (batch if drop else 1):
        with pytest.raises(InputError, match="too few"):
            Batches(z, present, batch, rank=0, world=world, **options)
        return
    seen, lengths = [], set()
    for rank in range(world):
        batches = Batches(z, present, batch, rank=rank, world=world, **options)
        rows = [b["index"].tolist() for b in batches]
        lengths.add(len(rows))
        assert len(rows) == len(batches)
        assert all(len(b) == batch for b in rows[:-1])
        assert 1 <= len(rows[-1]) <= batch + 1
        if drop:
            assert len(rows[-1]) == batch
        seen += [i for b in rows for i in b]
    assert len(lengths) == 1  # all processes make the same number of steps
    assert len(set(seen)) == len(seen)
    assert n - len(seen) == batches.dropped
    if not drop:
        assert batches.dropped == 0


@pytest.mark.parametrize("source", ["memory", "directory"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_values_belong_to_their_rows(tmp_path: Path, source: str, dtype: str) -> None:
    z, present = arrays(500, dtype)
    if source == "directory":
        write_features(tmp_path / "f", z, present)
        features = open_features(tmp_path / "f")
        z, present = features.z, features.present
    rows = np.flatnonzero(np.random.default_rng(0).random(500) < 0.1)  # large and small gaps
    for chosen in (None, rows):
        count = 0
        for batch in Batches(z, present, 32, rows=chosen, block_rows=16, pool_blocks=3):
            index = batch["index"]
            assert batch["z"]["image"].dtype == torch.float32
            assert torch.equal(batch["present"], torch.from_numpy(present)[index])
            assert torch.equal(batch["z"]["image"], index[:, None].float().expand(-1, 2))
            here = batch["present"][:, 1:]
            assert torch.equal(batch["z"]["text"], torch.where(here, -index[:, None].float(), 0.0).expand(-1, 3))
            count += len(index)
        assert count == (500 if chosen is None else len(rows))
    kept = next(iter(Batches(z, present, 4, dtype=None)))
    assert str(kept["z"]["image"].dtype) == f"torch.{dtype}"
    assert np.isnan(np.asarray(z["text"][0])).all()  # the source is left alone


@pytest.mark.parametrize("batch_size", [5, 64, 700])  # within a pool, over several, the whole epoch at once
@pytest.mark.parametrize("slow", ["reading", "training"])
def test_batches_keep_their_values_while_pools_are_read(
    monkeypatch: pytest.MonkeyPatch, batch_size: int, slow: str
) -> None:
    """Pools share buffers: nothing may be overwritten before it is copied, and no batch after it is handed out."""
    read = loader._read

    def slowly(*args: Any) -> None:
        time.sleep(0.001)
        read(*args)

    if slow == "reading":
        monkeypatch.setattr(loader, "_read", slowly)
    z, present = arrays(700)
    kept = []
    for batch in Batches(z, present, batch_size, block_rows=4, pool_blocks=3, prefetch=1):
        if slow == "training":
            time.sleep(0.001)
        kept.append(batch)
    index = torch.cat([batch["index"] for batch in kept])
    assert sorted(index.tolist()) == list(range(700))
    assert torch.equal(torch.cat([batch["z"]["image"] for batch in kept])[:, 0], index.float())


def test_row_choices() -> None:
    z, present = arrays(20)
    mask = np.zeros(20, dtype=bool)
    mask[[3, 5, 8]] = True
    assert sorted(order(Batches(z, present, 2, rows=mask))) == [3, 5, 8]
    assert sorted(order(Batches(z, present, 2, rows=np.array([8, 3, 5])))) == [3, 5, 8]
    assert order(Batches(z, present, 2, rows=mask, shuffle=False)) == [3, 5, 8]
    for rows, said in [
        (np.array([1, 1]), "1 rows more than once"),
        (np.array([20]), "between 0 and 19"),
        (np.ones(3, dtype=bool), r"shape \(3,\)"),
    ]:
        with pytest.raises(InputError, match=said):
            Batches(z, present, 1, rows=rows)


def test_epochs_differ_and_seeds_count() -> None:
    z, present = arrays(300)
    batches = Batches(z, present, 32, block_rows=8, pool_blocks=4)
    first, second = order(batches), order(batches)
    assert batches.epoch == 2
    assert first != second
    assert sorted(first) == sorted(second)
    again = Batches(z, present, 32, block_rows=8, pool_blocks=4)
    assert order(again) == first
    assert order(Batches(z, present, 32, block_rows=8, pool_blocks=4, seed=1)) != first


@settings(deadline=None, max_examples=25)
@given(stop=st.integers(0, 20), world=st.sampled_from([1, 2]), drop=st.booleans())
def test_continuing_gives_the_same_batches(stop: int, world: int, drop: bool) -> None:
    z, present = arrays(331)

    def make() -> Batches:
        return Batches(
            z, present, 16, rank=world - 1, world=world, block_rows=10, pool_blocks=4, drop_last=drop, seed=7
        )

    whole = make()
    expected = [b["index"].tolist() for _ in range(2) for b in whole]
    broken, got = make(), []
    while len(got) < stop:
        for batch in broken:
            got.append(batch["index"].tolist())
            if len(got) == stop:
                break
    state = json.loads(json.dumps(broken.state_dict()))
    fresh = make()
    fresh.load_state_dict(state)
    while fresh.epoch < 2:
        got += [b["index"].tolist() for b in fresh]
    assert got == expected


def test_continuing_with_something_else_is_refused() -> None:
    z, present = arrays(50)
    state = Batches(z, present, 8).state_dict()
    with pytest.raises(InputError, match="has batch_size 8 but this loader has 4"):
        Batches(z, present, 4).load_state_dict(state)
    with pytest.raises(InputError, match="has rows 50 but this loader has 49"):
        Batches(z, present, 8, rows=np.arange(49)).load_state_dict(state)
    state = Batches(z, present, 8, rows=np.arange(49)).state_dict()
    with pytest.raises(InputError, match="checksum of the row numbers"):
        Batches(z, present, 8, rows=np.arange(1, 50)).load_state_dict(state)


def test_shuffling_is_nearly_uniform() -> None:
    """Positions of rows are uncorrelated with their numbers, and neighbours are pulled apart."""
    n = 65_536
    z, present = arrays(n)
    batches = Batches(z, present, 256, block_rows=64, pool_blocks=32)
    positions = np.array(order(batches))
    assert abs(np.corrcoef(np.arange(n), positions)[0, 1]) < 0.05
    together = np.mean([len({row // 64 for row in positions[i : i + 256]}) for i in range(0, n, 256)])
    assert together > 30  # a batch draws from (almost) all 32 blocks of its pool
    mean = positions.reshape(-1, 256).mean(axis=1)
    assert mean.std() < 0.25 * n / np.sqrt(12)  # 1 / sqrt(32) expected: batches look alike; one block each gives 1.0


def test_errors_reach_the_loop(tmp_path: Path) -> None:
    z, present = arrays(400)
    write_features(tmp_path / "f", z, present)
    features = open_features(tmp_path / "f")
    os.truncate(tmp_path / "f" / "text.npy", 300)
    with pytest.raises(InputError, match=r"text\.npy ends before row"):
        order(Batches(features.z, features.present, 8))


def test_leaving_the_loop_ends_the_threads() -> None:
    z, present = arrays(5000)
    before = threading.active_count()
    for _ in range(3):
        for _ in Batches(z, present, 8, block_rows=8, pool_blocks=2):
            break
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_refuses() -> None:
    z, present = arrays(10)
    with pytest.raises(InputError, match="rank 2 of 2"):
        Batches(z, present, 2, rank=2, world=2)
    with pytest.raises(InputError, match="at least 1"):
        Batches(z, present, 0)
    hollow = present.copy()
    hollow[4] = False
    with pytest.raises(InputError, match="1 rows have no modality at all \\(first: row 4\\)"):
        Batches(z, hollow, 2)
    assert 4 not in order(Batches(z, hollow, 2, rows=hollow.any(axis=1)))


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
