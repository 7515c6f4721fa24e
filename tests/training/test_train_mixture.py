"""Batches from several sources: every row in its turn, the same for any number of processes, resumable."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmrl.data.loaders.mixed_batches import Mixture
from calmrl.errors import InputError
from train_data import WIDTHS, source


def drawn(mixture: Mixture, epochs: int = 1) -> Counter[int]:
    return Counter(int(i) for _ in range(epochs) for batch in mixture for i in batch["index"])


@pytest.mark.parametrize("composition", ["mixed", "source", "pattern"])
def test_every_row_comes_exactly_once_per_epoch(composition):
    mixture = Mixture([source(50, "a"), source(33, "b", seed=1)], 16, composition=composition)
    for _ in range(2):
        assert drawn(mixture) == Counter(range(83))


def test_weights_are_times_per_epoch():
    mixture = Mixture([source(20, "a", weight=2.0), source(30, "b", weight=0.5, seed=1)], 16)
    for _ in range(2):
        counts = drawn(mixture, 2)
        assert [counts[i] for i in range(20)] == [4] * 20
        assert [counts[20 + i] for i in range(30)] == [1] * 30
    once = drawn(mixture)
    assert sum(once[20 + i] for i in range(30)) == 15


def test_values_are_those_of_the_row_and_zero_where_missing():
    sources = [source(20, "a"), source(20, "b", seed=1)]
    for batch in Mixture(sources, 16):
        for i, index in enumerate(batch["index"].tolist()):
            home = sources[index // 20]
            assert np.array_equal(batch["present"][i].numpy(), home.present[index % 20])
            for j, name in enumerate(WIDTHS):
                truth = home.z[name][index % 20] if home.present[index % 20, j] else 0
                assert np.array_equal(batch["z"][name][i].numpy(), np.broadcast_to(truth, (WIDTHS[name],)))


def test_source_batches_hold_one_source_and_pattern_batches_one_pattern():
    sources = [source(50, "a"), source(33, "b", seed=1)]
    for batch in Mixture(sources, 16, composition="source"):
        assert len({int(i) < 50 for i in batch["index"]}) == 1
    for batch in Mixture(sources, 16, composition="pattern"):
        assert len({int(i) < 50 for i in batch["index"]}) == 1
        assert len(torch.unique(batch["present"], dim=0)) == 1
    mixed = [batch["index"] < 50 for batch in Mixture(sources, 16)]
    assert any(bool(part.any()) and not bool(part.all()) for part in mixed)


def test_hide_one_hides_one_of_several_and_never_the_last():
    home = source(80)
    mixture = Mixture([home], 16, hide_one=True)
    seen = []
    for _ in range(2):
        for batch in mixture:
            before = home.present[batch["index"].numpy()].sum(1)
            after = batch["present"].numpy()
            assert np.array_equal(after.sum(1), np.where(before > 1, before - 1, before))
            assert not (after & ~home.present[batch["index"].numpy()]).any()
            for j, name in enumerate(WIDTHS):
                assert not batch["z"][name][~batch["present"][:, j]].any()
        seen.append(after)
    assert not np.array_equal(*seen)  # drawn anew each epoch


def test_complete_only_leaves_out_and_says_how_many():
    home = source(80)
    mixture = Mixture([home], 16, complete_only=True)
    assert drawn(mixture) == Counter(np.flatnonzero(home.present.all(1)).tolist())
    assert mixture.left_out == 80 - len(np.flatnonzero(home.present.all(1)))


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

    def make(rank: int = 0, size: int = 1) -> Mixture:
        how = {"composition": composition, "hide_one": hide_one, "seed": seed}
        return Mixture(sources, batch_size, rank=rank, world=size, **how)

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


def two_epochs(mixture: Mixture) -> list[dict]:
    return [batch for _ in range(2) for batch in mixture]


def test_another_data_set_or_setting_is_refused():
    state = Mixture([source(30)], 16).state_dict()
    with pytest.raises(InputError, match="another batch_size"):
        Mixture([source(30)], 8).load_state_dict(state)
    with pytest.raises(InputError, match="another set of training rows"):
        Mixture([source(30, rate=0.1)], 16).load_state_dict(state)
    with pytest.raises(InputError, match="another weights of the sources"):
        Mixture([source(30, weight=2.0)], 16).load_state_dict(state)
    Mixture([source(30)], 16, rank=1, world=2).load_state_dict(state)  # more processes are fine


def test_what_cannot_be_batched_is_said():
    with pytest.raises(InputError, match="an epoch has no rows"):
        Mixture([source(30, weight=0.001)], 16)
    with pytest.raises(InputError, match="fewer than the 3 processes"):
        Mixture([source(30), source(2, "b")], 16, composition="source", rank=0, world=3)
    with pytest.raises(InputError, match="only 1 complete training rows"):
        Mixture([source(4, rate=0.99)], 16, complete_only=True)
    with pytest.raises(InputError, match="must be one of mixed, source, pattern"):
        Mixture([source(4)], 16, composition="mixd")


def test_a_bad_value_is_an_error_that_names_the_row():
    home = source(30)
    home.z["text"][7] = np.nan
    home.present[7, 1] = True
    with pytest.raises(InputError, match="source s: text of row 's7' is marked present but holds NaN"):
        drawn(Mixture([home], 16))
