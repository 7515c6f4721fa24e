"""What every loss works on: one tensor with all modalities of all rows of all processes, missing ones zero."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calmrl._support.distributed import gather_headers, gather_objects, gather_rows, world
from calmrl.convention import check, maybe_any
from calmrl.errors import InputError

LARGEST = 1e4  # volumes of several vectors of such values are finite


@dataclass(frozen=True)
class Batch:
    names: tuple[str, ...]
    z: Tensor  # (N, k, d), float32 or float64, zero where missing
    present: Tensor  # (N, k) bool
    own: slice  # the rows of this process

    def index(self, name: str) -> int:
        """The column of a modality that the user named."""
        if name not in self.names:
            raise InputError(
                f"anchor {name!r} is not one of the modalities ({', '.join(self.names)}); name one of them, or pass "
                "anchor=None to let every modality take its turn"
            )
        return self.names.index(name)

    def split(self, anchor: int) -> tuple[Tensor, list[Tensor], Tensor]:
        """The anchor's vectors, those of each other modality, and which of the others are there (N, k - 1)."""
        vectors = list(self.z.unbind(1))
        has = torch.cat([self.present[:, :anchor], self.present[:, anchor + 1 :]], dim=1)
        return vectors.pop(anchor), vectors, has


class Stacked(Mapping[str, Tensor]):
    """Modalities that are one tensor (N, k, d) already: `joined` takes it as it is; to all others it is a dict of columns."""

    def __init__(self, names: Sequence[str], stacked: Tensor) -> None:
        self.stacked = stacked
        self._columns = {name: j for j, name in enumerate(names)}

    def __getitem__(self, name: str) -> Tensor:
        return self.stacked[:, self._columns[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def joined(z: Mapping[str, Tensor], present: Tensor | None) -> Batch:
    """Check, stack and gather: the rows of all processes in the order of the ranks, with gradient.

    Half precision is raised to float32. Values of missing rows are never used, in value or in gradient. A modality
    that the dict of one process lacks altogether counts as missing there.
    """
    names, stacked, mask = _taken(z, present) or _stacked(z, present)
    if maybe_any(~mask):
        stacked = torch.where(mask[:, :, None], stacked, 0.0)  # (N, k, d)
    _check_size(stacked, names)
    own = slice(0, len(mask))
    if world()[0] > 1:
        names, stacked, mask, own = _gather(names, stacked, mask)
    if len(names) < 2:
        raise InputError(f"a loss needs at least two modalities; z has only {names[0]!r}")
    return Batch(names, stacked, mask, own)


def _taken(z: Mapping[str, Tensor], present: Tensor | None) -> tuple[tuple[str, ...], Tensor, Tensor] | None:
    """(names, tensor, mask) of what is stacked already, if the mask fits; None otherwise."""
    if not isinstance(z, Stacked) or present is None or present.dtype != torch.bool:
        return None
    return (tuple(z), z.stacked, present) if present.shape == z.stacked.shape[:2] else None


def _stacked(z: Mapping[str, Tensor], present: Tensor | None) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """(names, tensor, mask) of a dict, checked."""
    views = check(z, present, values=present is None, empty_rows=True)
    first = views.given()
    if not isinstance(first, Tensor):
        raise InputError("losses take torch tensors; got NumPy arrays: convert them with torch.from_numpy")
    width = views.widths[0]
    for name, other in zip(views.names, views.widths, strict=True):
        if other != width:
            raise InputError(
                f"z[{views.names[0]!r}] has width {width} but z[{name!r}] has {other}; an alignment loss compares "
                "modalities in one space: project them to the same width first"
            )
    double = any(tensor.dtype == torch.float64 for tensor in z.values())
    stacked = torch.stack([tensor.to(torch.float64 if double else torch.float32) for tensor in z.values()], dim=1)
    return views.names, stacked, views.present


def _check_size(stacked: Tensor, names: tuple[str, ...]) -> None:
    """Refuse vectors whose products overflow, where that is free to see: on the CPU. Elsewhere the loss is not finite."""
    if stacked.device.type != "cpu" or not stacked.numel():
        return
    sizes = stacked.detach().abs().amax((0, 2))  # (k,)
    if bool((sizes > LARGEST).any()):
        raise InputError(
            f"z[{names[int(sizes.argmax())]!r}] has values of up to {float(sizes.max()):.3g}; an alignment loss compares "
            "directions: divide every vector by its length first"
        )


def _gather(names: tuple[str, ...], z: Tensor, present: Tensor) -> tuple[tuple[str, ...], Tensor, Tensor, slice]:
    """Agree on names and sizes in one small message, then exchange rows of one fixed shape."""
    digest = zlib.crc32("/".join(names).encode())
    headers = gather_headers([len(z), z.shape[2], z.element_size(), digest], z.device)
    counts, widths, sizes, digests = zip(*headers, strict=True)
    if len(set(widths)) > 1 or len(set(sizes)) > 1:
        raise InputError(
            f"the processes differ in width or dtype (widths {list(widths)}, bytes per value {list(sizes)}, in the "
            "order of the ranks); every process must pass the same"
        )
    if len(set(digests)) > 1:
        every = gather_objects(names)
        union = tuple(dict.fromkeys(name for part in every for name in part))
        column = [names.index(name) if name in names else None for name in union]
        z = torch.stack([torch.zeros_like(z[:, 0]) if j is None else z[:, j] for j in column], dim=1)
        nowhere = torch.zeros_like(present[:, 0])
        present = torch.stack([nowhere if j is None else present[:, j] for j in column], dim=1)
        names = union
    start = sum(counts[: world()[1]])
    every_present = gather_rows(present.to(torch.uint8), counts).bool()
    return names, gather_rows(z, counts), every_present, slice(start, start + len(z))
