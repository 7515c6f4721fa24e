"""The shared convention: `z`, a dict of modality name -> (N, d_m) array, and `present`, a bool (N, k) mask.

Every public function that takes representations goes through `check`, so that all checks and error texts live here.

- `present[i, j]` is True iff row i has the j-th modality of the dict.
- `present=None` means: a row that is entirely NaN is missing; a partly-NaN row is an error.
- Who can complete single entries (`holes=True`) takes partly-NaN rows: the modality is present, the NaN entries are holes.
- Values in missing rows are never used, whatever they are.
- NumPy in, NumPy out; torch in, torch out, on the same device and in the same dtype.
- Every row needs at least one modality.
"""

from __future__ import annotations

import mmap
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calmrl.errors import InputError

Array = Any  # np.ndarray (memory-mapped or not) or torch.Tensor
LARGEST = {torch.float64: 1e100}  # observed values are at most so large: their squares, summed over rows, stay finite
LARGEST_ELSE = 1e15
SCAN_BYTES = 1 << 26  # values are checked in blocks of rows of about this size
_NAME = re.compile(r"(?!\s)[^/\\.<>:\"|?*\0-\x1f\ud800-\udfff]+(?<!\s)")
_DEVICE = re.compile(r"con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]", re.IGNORECASE)  # Windows has no such files
LONGEST_NAME = 200  # bytes
FIRST_IMPUTE = "Complete single values first with an imputer (calmrl.imputers.AutoImputer, or calmrl impute for files)"


@dataclass(frozen=True)
class Views:
    """Checked input. `arrays` is as it came (None for a modality of the model that the input does not have at all)."""

    arrays: Mapping[str, Array]
    present: torch.Tensor  # (N, k) bool, on the arrays' device
    widths: tuple[int, ...]
    holes: frozenset[str] = frozenset()  # modalities with NaN entries in rows that are present

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    def __len__(self) -> int:
        return len(self.present)

    def rows(self, start: int, stop: int) -> list[torch.Tensor | None]:
        """The rows start:stop of every modality as tensors; a view where that is possible."""
        return [None if a is None else to_tensor(a[start:stop]) for a in self.arrays.values()]

    def take(self, rows: torch.Tensor) -> Views:
        """Some rows, by their indices."""
        arrays = {
            name: a if a is None else a[rows.to(a.device)] if isinstance(a, torch.Tensor) else a[rows.cpu().numpy()]
            for name, a in self.arrays.items()
        }
        return Views(arrays, self.present[rows.to(self.present.device)], self.widths, self.holes)

    def observed(self, start: int, stop: int) -> list[torch.Tensor]:
        """Of the rows start:stop, which entries of every modality were observed, bool (n, d_m), or (n, 1) for whole rows."""
        has = [column[:, None] for column in self.present[start:stop].unbind(1)]
        rows = zip(self.names, self.rows(start, stop), has, strict=True)
        return [mask if v is None or name not in self.holes else mask & ~torch.isnan(v) for name, v, mask in rows]

    def mask(self) -> Array:
        """`present` as the kind of array that was given."""
        return self.present if isinstance(self.given(), torch.Tensor) else self.present.cpu().numpy()

    def given(self) -> Array:
        """One of the arrays that were given: it tells kind, device and dtype of what must be returned."""
        return next(a for a in self.arrays.values() if a is not None)


def check(
    z: Mapping[str, Array],
    present: Array | None = None,
    *,
    names: Sequence[str] | None = None,
    widths: Sequence[int] | None = None,
    min_rows: int = 0,
    values: bool = True,
    empty_rows: bool = False,
    any_size: bool = False,
    holes: bool = False,
) -> Views:
    """Check `z` and `present` against the convention and return them as `Views`.

    Parameters
    ----------
    z : dict
        Modality -> (N, d_m), NumPy or torch.
    present : bool array (N, k), optional
        By default a row that is entirely NaN is missing, and a partly NaN row is an error.
    names, widths : sequences, optional
        Those of a fitted model: the input is put in that order, and modalities it lacks altogether count as missing.
    min_rows : int
        Fewer rows are an error.
    values : bool
        False skips everything that reads the values; then `present` is required.
    empty_rows : bool
        True lets rows without any modality through.
    any_size : bool
        True lets values through that are too large to be squared and summed; otherwise they are an error.
    holes : bool
        True lets single NaN entries through, in rows that have others; `Views.holes` says where they are.
    """
    if not isinstance(z, Mapping):
        raise InputError(
            f"z must be a dict of modality name -> (N, d) array; got {type(z).__name__}. "
            "Example: {'image': image_embeddings, 'text': text_embeddings}"
        )
    check_names(list(z))
    for name, array in z.items():
        _check_array(name, array)
    _check_same_kind(z)
    n = _common_length(z)
    values = values and not (present is not None and getattr(z, "checked", False))  # who made it has checked them
    if n < min_rows:
        raise InputError(f"z has {n} row{'' if n == 1 else 's'}; at least {min_rows} needed")
    torn = frozenset(getattr(z, "holes", ()))  # of who has checked them; else they are found here
    mask = None if present is None else _check_present(present, z, n)
    if mask is None and not values:
        raise InputError("present is None; pass a bool array with one column per modality")
    if values or mask is None:
        columns = [None] * len(z) if mask is None else mask.unbind(1)
        found = {name: _scan(name, z[name], column, any_size, holes) for name, column in zip(z, columns, strict=True)}
        mask = torch.stack([column for column, _ in found.values()], dim=1) if mask is None else mask
        torn = frozenset(name for name, (_, some) in found.items() if some)
    if not empty_rows:
        _check_no_empty_row(mask)
    arrays: Any = z if getattr(z, "checked", False) else dict(z)
    if names is not None:
        arrays, mask = _align(dict(z), mask, names, widths)
    own_widths = tuple(
        array.shape[1] if array is not None else width
        for array, width in zip(arrays.values(), widths or [0] * len(arrays), strict=True)
    )
    return Views(arrays, mask, own_widths, torn)


def with_holes(z: Mapping[str, Array], observed: Mapping[str, Array] | None) -> dict[str, Array]:
    """`z` with NaN where `observed` (modality -> bool (N, d_m)) is False; modalities that it does not name as they are."""
    made = dict(z)
    for name, mask in (observed or {}).items():
        if name not in made:
            raise InputError(f"observed has modality {name!r}, which z does not have; z has {', '.join(made)}")
        _check_array(name, made[name])
        shape = tuple(made[name].shape)
        if not isinstance(mask, (np.ndarray, torch.Tensor)) or mask.dtype not in (torch.bool, np.dtype(bool)):
            kind = getattr(mask, "dtype", type(mask).__name__)
            raise InputError(
                f"observed[{name!r}] must be a bool array of shape {shape}, True where observed; got {kind}"
            )
        if tuple(mask.shape) != shape:
            raise InputError(
                f"observed[{name!r}] has shape {tuple(mask.shape)} but z[{name!r}] has {shape}; pass one per entry"
            )
        if isinstance(made[name], torch.Tensor):
            made[name] = torch.where(to_tensor(mask).to(made[name].device), made[name], float("nan"))
        else:
            made[name] = np.where(to_tensor(mask).cpu().numpy(), made[name], made[name].dtype.type("nan"))
    return made


def check_names(names: Sequence[Any]) -> None:
    """Modality names are non-empty, distinct (whatever their case), and fit in a file name."""
    if not names:
        raise InputError("z is empty; pass at least one modality, for instance {'image': array, 'text': array}")
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"modality names must be strings; got {name!r} of type {type(name).__name__}")
        if not _NAME.fullmatch(name):
            raise InputError(
                f"modality name {name!r} cannot be used; a name is not empty, has no space at its ends and no control "
                'character or one of / \\ . < > : " | ? * in it, because it also names files and modules'
            )
        if _DEVICE.fullmatch(name):
            raise InputError(
                f"modality name {name!r} cannot be used: a file is named after it, and Windows keeps that name for a "
                "device; rename it"
            )
        if len(name.encode()) > LONGEST_NAME:
            raise InputError(
                f"modality name {name[:40]!r}... has more than {LONGEST_NAME} bytes; a file is named after it"
            )
        twin = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if twin != name or list(names).count(name) > 1:
            raise InputError(f"duplicate modality name: {twin!r} and {name!r}; rename one")


def as_mask(values: Any, label: str) -> np.ndarray:
    """Stored values of a mask as bools: bools, or whole numbers 0 and 1; anything else is an error."""
    array = np.asarray(values)
    if array.dtype == bool:
        return array
    if array.dtype.kind not in "iu" or (array.size and (array.min() < 0 or array.max() > 1)):
        raise InputError(
            f"{label} must be boolean, or whole numbers 0 and 1; got {array.dtype}"
            f"{'' if array.dtype.kind not in 'iu' else f' from {array.min()} to {array.max()}'}. Convert it, for "
            "instance with numpy: values != 0"
        )
    return array.astype(bool)


def to_tensor(array: Array) -> torch.Tensor:
    """A tensor with the array's values: the same memory where torch can share it, else a copy."""
    if isinstance(array, torch.Tensor):
        return array
    array = np.asarray(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = np.array(array)
    return torch.from_numpy(array)


def like_input(tensor: torch.Tensor, given: Array) -> Array:
    """`tensor` as the kind, device and dtype of the array it belongs to."""
    if isinstance(given, torch.Tensor):
        return tensor.to(device=given.device, dtype=given.dtype)
    return tensor.detach().cpu().numpy().astype(given.dtype, copy=False)


def full_precision(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """A context in which autocast is off on the tensor's device: what is inside computes in float32 or float64."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def maybe_any(mask: torch.Tensor) -> bool:
    """False if nothing is set, where that is free to see: on the CPU. Elsewhere True, without waiting for the device."""
    return mask.device.type != "cpu" or bool(mask.any())


def within_limit(values: torch.Tensor, any_size: bool = False) -> bool:
    """True only if all values are finite and small enough to be squared and summed; False asks for a closer look.

    No value is larger than the length of all of them together, and one that is NaN makes that NaN.
    """
    return float(torch.linalg.vector_norm(values.detach())) <= _limit(values, any_size)


def blocks_of_rows(n: int, row_bytes: int, limit: int = SCAN_BYTES) -> Iterator[tuple[int, int]]:
    """(start, stop) pairs that cover n rows in blocks of at most `limit` bytes, at least one row each."""
    step = max(1, limit // max(1, row_bytes))
    for start in range(0, n, step):
        yield start, min(n, start + step)


def release(array: Array) -> None:
    """Tell the system that the pages of a file-backed, shared mapping need not stay in memory."""
    if not isinstance(array, np.memmap) or array.mode not in ("r", "r+"):
        return
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.base
    if base is not None and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def _check_array(name: str, array: Any) -> None:
    if not isinstance(array, (np.ndarray, torch.Tensor)):
        raise InputError(f"z[{name!r}] must be a NumPy array or a torch tensor; got {type(array).__name__}")
    if array.ndim != 2:
        raise InputError(
            f"z[{name!r}] must have two dimensions (rows, width); got shape {tuple(array.shape)}"
            + ("; one row of width d is array[None, :]" if array.ndim == 1 else "")
        )
    if array.shape[1] == 0:
        raise InputError(f"z[{name!r}] has width 0; every modality needs at least one column")
    if isinstance(array, torch.Tensor):
        good = array.dtype.is_floating_point and array.dtype.itemsize >= 2
    else:
        good = array.dtype.kind == "f" and array.dtype.itemsize in (2, 4, 8)
    if not good:
        raise InputError(
            f"z[{name!r}] has dtype {array.dtype}; representations must be floating point "
            f"(float16, float32 or float64): convert it, for instance to float32"
        )


def _check_same_kind(z: Mapping[str, Array]) -> None:
    libraries = {name: "torch" if isinstance(a, torch.Tensor) else "NumPy" for name, a in z.items()}
    if len(set(libraries.values())) > 1:
        listed = ", ".join(f"{name}: {library}" for name, library in libraries.items())
        raise InputError(f"z mixes NumPy arrays and torch tensors ({listed}); pass one kind")
    devices = {name: str(a.device) for name, a in z.items() if isinstance(a, torch.Tensor)}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{name}: {device}" for name, device in devices.items())
        raise InputError(f"z is spread over several devices ({listed}); move all modalities to one")


def _common_length(z: Mapping[str, Array]) -> int:
    lengths = {name: array.shape[0] for name, array in z.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise InputError(
            f"modalities differ in their number of rows ({listed}); row i must be the same item everywhere. "
            "Give items that lack a modality a NaN row"
        )
    return next(iter(lengths.values()))


def _check_present(present: Any, z: Mapping[str, Array], n: int) -> torch.Tensor:
    if not isinstance(present, (np.ndarray, torch.Tensor)):
        raise InputError(f"present must be a bool array of shape ({n}, {len(z)}); got {type(present).__name__}")
    if present.dtype not in (torch.bool, np.dtype(bool)):
        raise InputError(f"present must be boolean; got dtype {present.dtype}. Convert it, for instance present != 0")
    listed = f"{len(z)} modalit{'y' if len(z) == 1 else 'ies'} ({', '.join(z)})"
    if present.ndim != 2:
        raise InputError(
            f"present has shape {tuple(present.shape)} but z has {n} rows and {listed}; pass ({n}, {len(z)})"
        )
    if present.shape[1] != len(z):
        raise InputError(
            f"present has {present.shape[1]} columns but z has {listed}; pass one column per modality, in that order"
        )
    if present.shape[0] != n:
        raise InputError(f"present has {present.shape[0]} rows but z has {n}; pass one row per item")
    first = next(iter(z.values()))
    return to_tensor(present).to(first.device if isinstance(first, torch.Tensor) else "cpu")


def _limit(block: torch.Tensor, any_size: bool) -> float:
    largest = torch.finfo(block.dtype).max
    return largest if any_size else min(largest, LARGEST.get(block.dtype, LARGEST_ELSE))


def _scan(
    name: str, array: Array, column: torch.Tensor | None, any_size: bool, holes: bool
) -> tuple[torch.Tensor, bool]:
    """(which rows have the modality, whether some of them have holes); values that cannot be used are an error.

    `column` says which rows have it; None: those that are not NaN throughout.
    """
    if column is not None and isinstance(array, torch.Tensor) and within_limit(array, any_size):
        return column, False
    present = [torch.ones(0, dtype=torch.bool, device=getattr(array, "device", "cpu"))]
    some = False
    for start, stop in blocks_of_rows(len(array), array.shape[1] * array.dtype.itemsize):
        block = to_tensor(array[start:stop]).detach()
        limit = _limit(block, any_size)
        usable = (block.abs() <= limit).all(dim=1)
        release(array)
        rows = (~usable if column is None else ~usable & column[start:stop]).nonzero()[:, 0]
        odd = block[rows]
        gap = torch.isnan(odd)
        whole = gap.all(dim=1)
        torn = gap.any(dim=1) & ~whole & (gap | (odd.abs() <= limit)).all(dim=1) if holes else torch.zeros_like(whole)
        wrong = ~torn & ~whole if column is None else ~torn
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0, 0])
            raise InputError(_complaint(name, start + int(rows[at]), odd[at], column is not None, holes))
        some = some or bool(torn.any())
        usable[rows] = torn
        present.append(usable)
    return torch.cat(present) if column is None else column, some


def _complaint(name: str, row: int, values: torch.Tensor, given: bool, holes: bool) -> str:
    """Why a row that has the modality cannot be used; `given`: `present` says that it has it."""
    gap = torch.isnan(values)
    where = f"in row {row}, which present marks as observed" if given else f"in row {row}"
    if bool(torch.isinf(values).any()) or bool(gap.all()):
        what = "NaN" if bool(gap.all()) else "an infinite value"
        missing = "set present to False there" if given else "set the whole row to NaN to mark the modality as missing"
        return f"z[{name!r}] has {what} {where}; repair the value, or {missing}"
    if holes or not bool(gap.any()):
        largest = float(values[~gap].abs().max())
        return (
            f"z[{name!r}] has a value of size {largest:.3g} in row {row}, too large for {values.dtype} to be "
            "squared and summed: repair it, or divide the modality by a constant"
        )
    if given:
        return f"z[{name!r}] is partly NaN {where}. {FIRST_IMPUTE}, or set present to False there"
    return (
        f"z[{name!r}] is partly NaN {where}; a missing modality is NaN in the whole row. {FIRST_IMPUTE} and "
        "pass present=, so that missing modalities stay missing, or set the whole row to NaN"
    )


def _check_no_empty_row(mask: torch.Tensor) -> None:
    has_any = mask.any(dim=1)
    if not bool(has_any.all()):
        empty = torch.nonzero(~has_any)[:, 0]
        shown = ", ".join(str(int(i)) for i in empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise InputError(
            f"{len(empty)} of {len(mask)} rows have no modality at all (rows {shown}); every row needs at least one: "
            "leave these rows out"
        )


def _align(
    arrays: dict[str, Array], mask: torch.Tensor, names: Sequence[str], widths: Sequence[int] | None
) -> tuple[dict[str, Array], torch.Tensor]:
    """Put the input in the model's order of modalities; those it lacks count as missing everywhere."""
    unknown = [name for name in arrays if name not in names]
    if unknown:
        raise InputError(f"z has modality {unknown[0]!r}, which the model does not know; it has {', '.join(names)}")
    for name, width in zip(names, widths or [], strict=False):
        if name in arrays and arrays[name].shape[1] != width:
            raise InputError(f"z[{name!r}] has width {arrays[name].shape[1]} but the model was fitted with {width}")
    column = {name: mask[:, j] for j, name in enumerate(arrays)}
    nowhere = torch.zeros(len(mask), dtype=torch.bool, device=mask.device)
    ordered = {name: arrays.get(name) for name in names}
    return ordered, torch.stack([column.get(name, nowhere) for name in names], dim=1)
