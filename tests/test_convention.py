"""Every case of the shared convention: what is accepted, what comes back, and what each error says."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmrl import arrays as convention
from calmrl.arrays import as_mask, blocks_of_rows, check, check_names, like_input, maybe_any, release, to_tensor
from calmrl.errors import InputError

A, B = np.ones((4, 3), dtype=np.float32), np.ones((4, 2), dtype=np.float32)
HERE = np.ones((4, 2), dtype=bool)


def _with(array, row, value):
    out = array.copy()
    out[row] = value
    return out


WRONG = {
    "not a dict": (([A, B], None), r"z must be a dict of modality name -> \(N, d\) array; got list.*Example"),
    "empty dict": (({}, None), "z is empty; pass at least one modality"),
    "a list inside": (({"a": [[1.0]]}, None), r"z\['a'\] must be a NumPy array or a torch tensor; got list"),
    "one dimension": (({"a": A[0]}, None), r"two dimensions.*got shape \(3,\); one row of width d is array\[None, :\]"),
    "three dimensions": (({"a": A[None]}, None), r"two dimensions \(rows, width\); got shape \(1, 4, 3\)$"),
    "no columns": (({"a": A[:, :0]}, None), "width 0; every modality needs at least one column"),
    "integers": (({"a": A.astype(int)}, None), "dtype int64; representations must be floating point.*convert it"),
    "booleans": (({"a": A > 0}, None), "dtype bool; representations must be floating point"),
    "complex": (({"a": A.astype(complex)}, None), "dtype complex128"),
    "objects": (({"a": A.astype(object)}, None), "dtype object"),
    "integer tensor": (({"a": torch.ones(4, 3, dtype=torch.int32)}, None), "dtype torch.int32"),
    "rows differ": (({"a": A, "b": B[:3]}, None), r"number of rows \(a: 4, b: 3\).*Give items .* a NaN row"),
    "numpy and torch": (({"a": A, "b": torch.ones(4, 2)}, None), r"mixes NumPy.*\(a: NumPy, b: torch\); pass one kind"),
    "partly NaN": (
        ({"a": _with(A, (2, 1), np.nan)}, None),
        r"z\['a'\] is partly NaN in row 2;.*Complete single values first with an imputer \(.*AutoImputer.*pass present=",
    ),
    "infinite": (({"a": _with(A, (1, 1), np.inf)}, None), r"z\['a'\] has an infinite value in row 1; repair"),
    "infinite row": (({"a": _with(A, 3, -np.inf)}, None), r"z\['a'\] has an infinite value in row 3"),
    "NaN observed": (
        ({"a": A, "b": _with(B, 0, np.nan)}, HERE),
        r"z\['b'\] has NaN in row 0, which present marks as observed; repair",
    ),
    "partly NaN observed": (
        ({"a": A, "b": _with(B, (0, 1), np.nan)}, HERE),
        r"z\['b'\] is partly NaN in row 0, which present marks as observed\. Complete single values first with an imputer",
    ),
    "infinite observed": (({"a": _with(A, (3, 0), np.inf), "b": B}, HERE), r"z\['a'\] has an infinite value in row 3"),
    "nothing, inferred": (({"a": _with(A, 1, np.nan)}, None), r"1 of 4 rows have no modality at all \(rows 1\)"),
    "nothing, given": (({"a": A, "b": B}, ~HERE), r"4 of 4 rows .* \(rows 0, 1, 2, 3\).*leave these rows out"),
    "present: list": (({"a": A, "b": B}, HERE.tolist()), r"present must be a bool array of shape \(4, 2\); got list"),
    "present: integers": (
        ({"a": A, "b": B}, HERE.astype(int)),
        "present must be boolean; got dtype int64.*present != 0",
    ),
    "present: one dimension": (({"a": A, "b": B}, HERE[:, 0]), r"shape \(4,\) but z has 4 rows and 2.*pass \(4, 2\)"),
    "present: columns": (
        ({"image": A, "text": B, "audio": B}, HERE),
        r"present has 2 columns but z has 3 modalities \(image, text, audio\); pass one column per modality, in that",
    ),
    "present: rows": (({"a": A, "b": B}, HERE[:3]), "present has 3 rows but z has 4; pass one row per item"),
    "name: empty": (({"": A}, None), "modality name '' cannot be used"),
    "name: space": (
        ({" a": A}, None),
        "modality name ' a' cannot be used; a name is not empty, has no space at its ends",
    ),
    "name: path": (({"a/b": A}, None), "modality name 'a/b' cannot be used"),
    "name: no file of Windows": (({"a:b": A}, None), r"modality name 'a:b' cannot be used; .* < > : \" \| \? \* in it"),
    "name: control character": (({"a\nb": A}, None), r"modality name 'a\\nb' cannot be used"),
    "name: device": (
        ({"Com1": A}, None),
        "modality name 'Com1' cannot be used: .* Windows keeps that name for a device",
    ),
    "name: same but for composition": (({"\u00e9": A, "e\u0301": B}, None), "duplicate modality name"),
    "name: number": (({1: A}, None), "modality names must be strings; got 1 of type int"),
    "name: same but for case": (
        ({"Text": A, "text": B}, None),
        "duplicate modality name: 'Text' and 'text'; rename one",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_error_text(case):
    arguments, said = WRONG[case]
    with pytest.raises(InputError, match=said):
        check(*arguments)


@pytest.mark.parametrize("case", [case for case in WRONG if not case.startswith(("integer tensor", "numpy and"))])
def test_torch_gets_the_same_errors(case):
    (z, present), said = WRONG[case]
    if not isinstance(z, dict) or any(isinstance(a, np.ndarray) and a.dtype == object for a in z.values()):
        pytest.skip("torch has no such array")
    said = said.replace("dtype ", "dtype torch.")
    z = {name: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for name, a in z.items()}
    with pytest.raises(InputError, match=said):
        check(z, torch.from_numpy(present) if isinstance(present, np.ndarray) else present)


def test_names_given_twice():
    with pytest.raises(InputError, match="duplicate modality name: 'a' and 'a'; rename one"):
        check_names(["a", "b", "a"])


@pytest.mark.parametrize(("empty", "shown"), [(5, "0, 1, 2, 3, 4"), (6, "0, 1, 2, 3, 4, ...")])
def test_the_list_of_empty_rows_says_whether_it_goes_on(empty, shown):
    with pytest.raises(InputError, match=re.escape(f"{empty} of {empty} rows have no modality at all (rows {shown});")):
        check({"a": np.full((empty, 2), np.nan)})


def test_zero_rows():
    views = check({"a": A[:0], "b": B[:0]})
    assert (len(views), views.present.shape, views.widths) == (0, (0, 2), (3, 2))
    with pytest.raises(InputError, match="z has 0 rows; at least 2 needed"):
        check({"a": A[:0]}, min_rows=2)


def test_as_many_rows_as_needed_are_enough():
    assert len(check({"a": A}, min_rows=4)) == 4
    with pytest.raises(InputError, match="z has 4 rows; at least 5 needed"):
        check({"a": A}, min_rows=5)


@pytest.mark.parametrize("length", [200, 201])
def test_the_longest_name(length):
    name = "é" * (length // 2) + "e" * (length % 2)
    if length == 200:
        check_names([name])
    else:
        with pytest.raises(InputError, match=r"^modality name 'é{40}'\.\.\. has more than 200 bytes"):
            check_names([name])


def test_kinds_of_numbers_that_are_not_taken():
    with pytest.raises(InputError, match=r"dtype torch\.float8_e4m3fn; representations must be floating point"):
        check({"a": torch.ones(4, 3).to(torch.float8_e4m3fn)})
    if np.dtype(np.longdouble).itemsize > 8:
        with pytest.raises(InputError, match="representations must be floating point"):
            check({"a": A.astype(np.longdouble)})


def test_several_devices():
    with pytest.raises(InputError, match=r"several devices \(a: cpu, b: meta\); move all modalities to one"):
        check({"a": torch.ones(4, 3), "b": torch.ones(4, 2, device="meta")}, HERE)


class _Checked(dict):
    """Rows that whoever made them has checked."""

    checked = True


def test_what_is_checked_already_is_not_read_again():
    z = _Checked(a=_with(A, (1, 1), np.nan), b=B)
    assert check(z, HERE).arrays is z
    with pytest.raises(InputError, match="partly NaN in row 1"):
        check(z)
    plain = {"a": A, "b": B}
    assert check(plain, HERE).arrays is not plain


LARGEST = [(np.float16, 65504.0), (np.float32, 1e15), (np.float64, 1e100)]


@pytest.mark.parametrize(("dtype", "largest"), LARGEST)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("as_torch", [False, True])
def test_values_up_to_the_largest_are_taken(dtype, largest, given, as_torch):
    limit = np.asarray(largest, dtype)
    values = np.stack([np.full(3, limit), np.full(3, -limit), np.full(3, limit)])
    present = np.ones((3, 1), dtype=bool) if given else None
    convert = torch.from_numpy if as_torch else np.asarray
    assert bool(check({"a": convert(values)}, present).present.all())
    if dtype is not np.float16:  # the largest there is
        values[2, 1] = np.nextafter(limit, np.asarray(np.inf, dtype))
        with pytest.raises(InputError, match=r"z\['a'\] has a value of size 1e\+\d+ in row 2, too large for"):
            check({"a": convert(values)}, present)
    huge = np.full((2, 2), np.finfo(dtype).max)
    assert len(check({"a": convert(huge)}, present if present is None else present[:2], any_size=True)) == 2


def test_the_first_bad_row_is_named_beside_missing_ones():
    rows = np.ones((8, 3), dtype=np.float32)
    rows[1] = np.nan
    rows[3, 2] = np.inf
    rows[5, 0] = np.nan
    for bad, said in [(rows, "has an infinite value in row 3"), (_with(rows, 3, 1.0), "is partly NaN in row 5")]:
        with pytest.raises(InputError, match=said):
            check({"a": bad, "b": np.ones((8, 1), dtype=np.float32)})


def test_rows_taken_out():
    rows = torch.tensor([2, 0])
    present = np.array([[True, False], [True, True], [False, True], [True, True]])
    ordered = {"names": ["a", "c", "b"], "widths": [3, 5, 2]}
    a, b = np.arange(12.0).reshape(4, 3), np.arange(8.0).reshape(4, 2)
    for made in (np.asarray, torch.from_numpy):
        taken = check({"b": made(b), "a": made(a)}, present, **ordered).take(rows)
        assert taken.names == ("a", "c", "b")
        assert taken.widths == (3, 5, 2)
        assert taken.present.tolist() == [[True, False, False], [False, False, True]]
        assert [None if part is None else part.tolist() for part in taken.arrays.values()] == [
            a[[2, 0]].tolist(),
            None,
            b[[2, 0]].tolist(),
        ]


def test_a_model_whose_widths_are_not_known():
    views = check({"b": B, "a": A}, HERE, names=["a", "c", "b"])
    assert views.widths == (3, 0, 2)


MASKS = {
    "bools": ([True, False], [True, False]),
    "0 and 1": ([0, 1], [False, True]),
    "unsigned": (np.array([1, 0], dtype=np.uint8), [True, False]),
    "nothing": (np.zeros(0, dtype=int), []),
    "two": ([0, 2], r"^the mask must be boolean, or whole numbers 0 and 1; got int64 from 0 to 2\. Convert it"),
    "negative": ([-1, 1], "got int64 from -1 to 1"),
    "fractions": ([0.0, 1.0], r"got float64\. Convert it, for instance with numpy: values != 0"),
    "no fractions": (np.zeros(0), "got float64"),
}


@pytest.mark.parametrize("case", MASKS)
def test_stored_masks(case):
    values, expected = MASKS[case]
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            as_mask(values, "the mask")
    else:
        found = as_mask(values, "the mask")
        assert found.dtype == bool
        assert found.tolist() == expected


def test_whether_anything_is_set():
    assert maybe_any(torch.zeros(3, dtype=torch.bool)) is False
    assert maybe_any(torch.tensor([False, True])) is True
    assert maybe_any(torch.zeros(3, dtype=torch.bool, device="meta")) is True


def test_memory_is_shared_unless_torch_cannot():
    for mine in (A.copy(), np.lib.stride_tricks.as_strided(A.copy(), (4, 3), (0, 4))):
        to_tensor(mine)[0, 0] = 7.0
        assert mine[0, 0] == 7.0
    locked = A.copy()
    locked.flags.writeable = False
    for other in (locked, A.copy()[::-1]):
        to_tensor(other)[0, 0] = 7.0
        assert other[0, 0] == 1.0


def _in_memory(path):
    """Kilobytes of a mapped file that are in memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    return sum(
        int(next(line for line in lines if line.startswith("Rss:")).split()[1])
        for line in lines
        if line.endswith(str(path))
    )


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells")
def test_checked_rows_of_a_file_do_not_stay_in_memory(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((1 << 12, 64), dtype=np.float32))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert mapped.sum() == 1 << 18
    assert _in_memory(tmp_path / "a.npy") >= 1024
    release(mapped[10:20])  # a part stands for all of its file
    assert _in_memory(tmp_path / "a.npy") == 0
    check({"a": mapped})
    assert _in_memory(tmp_path / "a.npy") == 0


def test_own_changes_of_a_mapped_file_are_kept(tmp_path):
    np.save(tmp_path / "a.npy", A)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="c")
    mapped[0, 0] = 7.0
    release(mapped)
    assert mapped[0, 0] == 7.0
    release(A)  # not a file at all


def test_empty_rows_pass_when_asked_for():
    views = check({"a": _with(A, 1, np.nan)}, empty_rows=True)
    assert views.present[:, 0].tolist() == [True, False, True, True]


def test_values_can_be_left_unread():
    views = check({"a": _with(A, (0, 0), np.nan)}, np.ones((4, 1), dtype=bool), values=False)
    assert bool(views.present.all())
    with pytest.raises(InputError, match="present is None; pass a bool array"):
        check({"a": A}, values=False)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_strided_reversed_foreign_and_read_only_arrays(dtype):
    base = np.arange(48, dtype=dtype).reshape(8, 6)
    base[4] = np.nan
    for view in (base[::2], base[::-1], base[:, ::-2], np.asfortranarray(base), base.T.copy().T):
        view.flags.writeable = False
        expected = ~np.isnan(view.astype("float64")).all(axis=1)
        views = check({"a": view}, empty_rows=True)
        assert views.present[:, 0].tolist() == expected.tolist()
        (rows,) = views.rows(1, 3)
        np.testing.assert_array_equal(rows.numpy(), np.asarray(view[1:3]).astype(view.dtype.newbyteorder("=")))


def test_memory_mapped_rows_are_views(tmp_path):
    np.save(tmp_path / "a.npy", A)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r+")
    views = check({"a": mapped})
    assert views.arrays["a"] is mapped
    (rows,) = views.rows(0, 2)
    rows[0, 0] = 7.0
    assert mapped[0, 0] == 7.0


def test_input_is_put_in_the_order_of_the_model():
    views = check({"b": B, "a": A}, HERE, names=["a", "c", "b"], widths=[3, 5, 2])
    assert views.names == ("a", "c", "b")
    assert views.arrays["c"] is None
    assert views.widths == (3, 5, 2)
    assert views.present.tolist() == [[True, False, True]] * 4
    assert views.rows(0, 1)[1] is None
    assert views.given() is A


def test_input_that_does_not_fit_the_model():
    with pytest.raises(InputError, match="modality 'b', which the model does not know; it has a, c"):
        check({"a": A, "b": B}, names=["a", "c"], widths=[3, 3])
    with pytest.raises(InputError, match=r"z\['a'\] has width 3 but the model was fitted with 4"):
        check({"a": A}, names=["a"], widths=[4])


def test_the_row_number_is_right_beyond_the_first_block(monkeypatch):
    monkeypatch.setattr(convention, "SCAN_BYTES", 24)
    monkeypatch.setattr(convention.blocks_of_rows, "__defaults__", (24,))
    big = np.ones((50, 3), dtype=np.float32)
    with pytest.raises(InputError, match="partly NaN in row 41"):
        check({"a": _with(big, (41, 1), np.nan)})
    with pytest.raises(InputError, match="NaN in row 43, which present"):
        check({"a": _with(big, (43, 1), np.nan)}, np.ones((50, 1), dtype=bool))
    with pytest.raises(InputError, match=r"has a value of size 1e\+20 in row 43, too large for torch\.float32"):
        check({"a": _with(big, (43, 1), 1e20)}, np.ones((50, 1), dtype=bool))


def test_like_input_restores_kind_and_dtype():
    tensor = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    assert like_input(tensor, A).dtype == np.float32
    assert like_input(tensor, torch.ones(1, dtype=torch.float16)).dtype == torch.float16
    assert like_input(tensor, tensor) is tensor
    assert np.shares_memory(like_input(tensor, np.ones(1)), tensor.detach().numpy())


names = st.lists(
    st.text(
        st.characters(blacklist_categories=("Cs", "Cc", "Z"), blacklist_characters='/\\.<>:"|?*'),
        min_size=1,
        max_size=50,
    ).filter(lambda name: not re.fullmatch(r"con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]", name, re.IGNORECASE)),
    min_size=1,
    max_size=4,
    unique_by=lambda name: unicodedata.normalize("NFC", name).casefold(),
)


@st.composite
def inputs(draw):
    """z with missing rows as NaN and the mask that says so; every row has something."""
    listed, n = draw(names), draw(st.integers(0, 12))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    present = draw(hnp.arrays(bool, (n, len(listed))))
    present[~present.any(axis=1), 0] = True
    values = st.floats(-100, 100, width=16)
    z = {name: draw(hnp.arrays(dtype, (n, draw(st.integers(1, 5))), elements=values)) for name in listed}
    for j, name in enumerate(listed):
        z[name][~present[:, j]] = np.nan
    return z, present


@settings(deadline=None)
@given(inputs(), st.booleans())
def test_the_mask_is_inferred_exactly(case, as_torch):
    z, present = case
    if as_torch:
        z = {name: torch.from_numpy(a) for name, a in z.items()}
    assert check(z).present.tolist() == present.tolist()
    assert check(z).present.tolist() == check(z, present).present.tolist()


@settings(deadline=None)
@given(inputs(), st.data())
def test_one_bad_value_is_always_found_and_named(case, data):
    z, present = case
    rows, columns = np.nonzero(present)
    if not len(rows):
        return
    at = data.draw(st.integers(0, len(rows) - 1))
    name = list(z)[columns[at]]
    bad = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    z[name][rows[at], data.draw(st.integers(0, z[name].shape[1] - 1))] = bad
    nan = "has NaN" if z[name].shape[1] == 1 else "is partly NaN"
    said = f"z[{name!r}] {nan if np.isnan(bad) else 'has an infinite value'} in row {rows[at]}, which present"
    with pytest.raises(InputError, match=re.escape(said)):
        check(z, present)


@settings(deadline=None)
@given(inputs(), st.randoms())
def test_garbage_in_missing_rows_changes_nothing(case, random):
    z, present = case
    noisy = {name: a.copy() for name, a in z.items()}
    for j, name in enumerate(z):
        noisy[name][~present[:, j]] = random.choice([np.inf, -np.inf, np.nan, 0.0, 3.5])
    assert check(noisy, present).present.tolist() == present.tolist()


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(0, 5000), st.integers(1, 10_000))
def test_blocks_cover_every_row_once(n, row_bytes, limit):
    blocks = list(blocks_of_rows(n, row_bytes, limit))
    assert [i for start, stop in blocks for i in range(start, stop)] == list(range(n))
    assert all(stop - start == 1 or (stop - start) * row_bytes <= limit for start, stop in blocks)


@settings(deadline=None)
@given(hnp.arrays(st.sampled_from([">f8", "<f4", "=f2"]), hnp.array_shapes(min_dims=2, max_dims=2)), st.booleans())
def test_to_tensor_keeps_values(array, reverse):
    array = array[::-1] if reverse else array
    np.testing.assert_array_equal(to_tensor(array).numpy(), array.astype(array.dtype.newbyteorder("=")))
