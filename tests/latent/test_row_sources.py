"""Rows in memory, in files and in chunks: the same counts, means and rows; and a fitted state that does not fit together."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from calmrl import GaussianImputer
from calmrl.errors import InputError
from calmrl.latent import rows as row_sources
from calmrl.latent.em import expected_statistics, start_at_random
from calmrl.latent.rows import mapped_source, open_source
from calmrl.latent.statistics import block_sums, pattern_moments, patterns_of
from tests.support.latent_data import from_model


def rows(n=50):
    z, present = from_model(n=n, widths=(3, 2, 4))
    present[:2] = True
    return {name: values + 5 for name, values in z.items()}, present


def opened(way, z, present, tmp_path, monkeypatch):
    if way == "memory":
        return open_source(z, present)
    if way == "file":
        monkeypatch.setattr("calmrl.data.features.distributed_rows.BLOCK_BYTES", 7 * 9 * 8)
        mapped = {}
        for name, values in z.items():
            np.save(tmp_path / f"{name}.npy", values)
            mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
        return open_source(mapped, present)
    chunks = [({name: a[i : i + 17] for name, a in z.items()}, present[i : i + 17]) for i in range(0, len(present), 17)]
    nothing = ({name: a[:0] for name, a in z.items()}, present[:0])
    return open_source([*chunks[:1], nothing, *chunks[1:]], None)


@pytest.mark.parametrize("way", ["memory", "file", "chunks"])
def test_what_is_known_of_the_rows(way, tmp_path, monkeypatch):
    z, present = rows()
    source = opened(way, z, present, tmp_path, monkeypatch)
    assert (source.names, source.widths, source.rows) == (("m0", "m1", "m2"), (3, 2, 4), 50)
    assert source.in_memory == (way == "memory")
    assert source.dtype == torch.float64
    assert source.count.tolist() == present.sum(0).tolist()
    assert source.together.tolist() == (present.T.astype(int) @ present).tolist()
    for m, values in enumerate(z.values()):
        seen = values[present[:, m]]
        np.testing.assert_allclose(source.mean[m], seen.mean(0))
        np.testing.assert_allclose(source.square[m], seen.var(0) * len(seen))
        np.testing.assert_allclose(source.variance[m], seen.var(0))
    found = [
        np.concatenate(parts) for parts in zip(*([z.numpy() for z in pack.z] for pack in source.packs()), strict=True)
    ]
    for m, values in enumerate(z.values()):
        want = values[present[:, m]] - values[present[:, m]].mean(0)
        np.testing.assert_allclose(np.sort(found[m], axis=0), np.sort(want, axis=0))
    assert sum(source.each_chunk(len)) == 50
    numbers = list(source.each(lambda packs, extra: (sum(len(pack) for pack in packs), extra), "x"))
    assert sum(number for number, _ in numbers) == 50
    assert {extra for _, extra in numbers} == {"x"}
    assert len(numbers) == {"memory": 1, "file": 8, "chunks": 3}[way]


def test_rows_in_memory_are_packed_once(monkeypatch):
    monkeypatch.setattr(row_sources, "PACK_ROWS", 20)
    z, present = rows()
    source = open_source(z, present)
    packs = list(source.packs())
    assert [len(pack) for pack in packs] == [20, 20, 10]
    assert all(one is two for one, two in zip(packs, source.packs(), strict=True))


def test_working_dtype():
    z, present = rows()
    small = {name: values.astype(np.float32) for name, values in z.items()}
    assert open_source(small, present).dtype == torch.float32
    assert open_source({**small, "m1": z["m1"]}, present).dtype == torch.float64
    half = {name: values.astype(np.float16) for name, values in z.items()}
    assert open_source(half, present).dtype == torch.float32
    assert open_source([(small, present), (z, present)], None).dtype == torch.float64
    assert open_source([(z, present), (small, present)], None).dtype == torch.float64


def test_rows_with_other_columns():
    z, present = rows()
    source = open_source(z, present)

    def doubled(views):
        arrays = {name: np.concatenate([values, values], axis=1) for name, values in views.arrays.items()}
        return type(views)(arrays, views.present, (6, 4, 8))

    found = mapped_source(source, doubled, (6, 4, 8))
    assert found.widths == (6, 4, 8)
    assert (found.rows, found.in_memory, found.shared) == (50, True, True)
    np.testing.assert_allclose(found.mean[0], np.tile(source.mean[0], 2))
    assert not open_source(z, present, shared=False).shared


def test_chunks_that_cannot_be():
    z, present = rows()
    for wrong, said in (
        ([(z, present), (z, present, 3)], "chunk 1 must be a pair \\(z, present\\); got tuple"),
        ([[z, present], 7], "chunk 1 must be a pair \\(z, present\\); got int"),
        ([({name: a[:0] for name, a in z.items()}, present[:0])], "the iterable of chunks is empty"),
    ):
        with pytest.raises(InputError, match=said):
            open_source(wrong, None)


@pytest.mark.parametrize("blocks", [1, 3])
def test_sums_by_pattern_are_as_good_as_the_rows(blocks):
    z, present = rows()
    source = open_source(z, present)
    params = start_at_random(source, 2, 0)
    whole = pattern_moments(
        source,
        [
            block_sums(
                [pack_without_mean(pack, source.mean) for pack in source.packs()], source.widths, patterns_of(source)
            )
        ],
        patterns_of(source),
    )
    assert sorted(whole.sums) == sorted({tuple(row) for row in present.tolist()})
    for pattern, one in whole.sums.items():
        at = (present == pattern).all(1)
        values = [a[at] - a[present[:, m]].mean(0) for m, a in enumerate(z.values()) if pattern[m]]
        side_by_side = np.concatenate(values, axis=1)
        assert float(one.rows) == at.sum()
        np.testing.assert_allclose(one.first, side_by_side.sum(0), atol=1e-9)
        np.testing.assert_allclose(one.second, side_by_side.T @ side_by_side, atol=1e-8)
    for mine, theirs in zip(
        expected_statistics(whole, params).tensors(), expected_statistics(source, params).tensors(), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-7)
    if blocks > 1:
        parts = [
            block_sums(
                [pack_without_mean(pack, part.mean) for pack in part.packs()], source.widths, patterns_of(source)
            )
            for part in (
                open_source({n: a[i::blocks] for n, a in z.items()}, present[i::blocks]) for i in range(blocks)
            )
        ]
        again = pattern_moments(source, parts, patterns_of(source))
        for pattern, one in again.sums.items():
            np.testing.assert_allclose(one.second, whole.sums[pattern].second, atol=1e-8)
            assert float(one.rows) == float(whole.sums[pattern].rows)


def pack_without_mean(pack, mean):
    made = copy.copy(pack)
    object.__setattr__(made, "z", [z + m for z, m in zip(pack.z, mean, strict=True)])
    return made


# ---- a state that does not fit together


@pytest.fixture(scope="module")
def state():
    z, present = rows()
    return GaussianImputer(2, max_iter=3, tol=1e-1).fit(z, present).get_state()


def changed(state, **tensors):
    kept = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    return {"meta": state["meta"], "tensors": {k: t for k, t in {**state["tensors"], **kept}.items() if t is not None}}


@pytest.mark.parametrize(
    "change",
    [
        {"W__m1": torch.zeros(1, 2, 3)},
        {"W__m1": torch.zeros(2, 2, 2)},
        {"W__m1": torch.zeros(2, 2)},
        {"mu__m1": torch.zeros(1, 3)},
        {"noise__m1": torch.zeros(1, 3)},
        {"noise__m1": torch.zeros(2)},
    ],
    ids=lambda change: " ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in change.items()),
)
def test_tensors_that_do_not_fit_together(state, change):
    with pytest.raises(InputError, match="the saved imputer's tensors for 'm1' do not fit together; it is damaged"):
        GaussianImputer(2).set_state(changed(state, **change))


def test_tensors_that_are_not_there(state):
    for name in ("log_weight", "mu.m1", "noise.m2"):
        with pytest.raises(InputError, match=f"the saved imputer lacks {name}; it is damaged, or from another program"):
            GaussianImputer(2).set_state(changed(state, **{name.replace(".", "__"): None}))
    turn = {"turn__scale__m0": torch.ones(3)}
    with pytest.raises(InputError, match=r"the saved imputer lacks turn\.directions\.m0, turn\.centre\.m0"):
        GaussianImputer(2).set_state(changed(state, **turn))


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"names": ["m0", "m1"]}, r"has tensors of m0, m1, m2 but names \['m0', 'm1'\]"),
        ({"names": ["m0", "m1", "m2", "m2"]}, "has tensors of m0, m1, m2 but names"),
        ({"names": "m0"}, "has tensors of m0, m1, m2 but names 'm0'"),
        ({"running_rows": "many"}, r"is incomplete \(running_rows is 'many'\); save it again"),
        ({"running_squares": "few"}, r"is incomplete \(running_squares is 'few'\); save it again"),
        ({"settings": {"size": 3}}, "the saved imputer is incomplete"),
    ],
)
def test_words_that_do_not_fit(state, meta, said):
    with pytest.raises(InputError, match=said):
        GaussianImputer(2).set_state({"meta": {**state["meta"], **meta}, "tensors": state["tensors"]})
    without = {key: value for key, value in state["meta"].items() if key != "n_iter"}
    with pytest.raises(InputError, match=r"is incomplete \('n_iter'\); save it again"):
        GaussianImputer(2).set_state({"meta": without, "tensors": state["tensors"]})
