"""Two gloo processes give the loss and the gradients of one process with the joined batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from calmrl._support.distributed import leave
from calmrl.errors import InputError
from calmrl.losses import LOSSES, ConfuLoss, InstanceMatching, StructureLoss
from calmrl.losses.base import joined
from tests.support import warm

NAMES = ("image", "text", "audio")
ROWS = (5, 3)  # unequal batches; the second process's dict lacks audio altogether
CHUNKS = (None, 2)


def whole() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = {name: torch.randn(sum(ROWS), 6, generator=generator, dtype=torch.float64) for name in NAMES}
    present = torch.rand(sum(ROWS), 3, generator=generator) < 0.8
    present[:, 1] |= ~present.any(1)
    present[ROWS[0] :, 2] = False
    return x, present


class Encoders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.heads = nn.ModuleDict({name: nn.Linear(6, 4, dtype=torch.float64) for name in NAMES})

    def forward(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: normalize(self.heads[name](values), dim=1) for name, values in x.items()}


def measure(encoders: nn.Module, x: dict[str, torch.Tensor], present: torch.Tensor) -> dict[str, list[torch.Tensor]]:
    """Value, gradients of the encoders and of the loss's parameters, for every loss."""
    found = {}
    makes = dict(LOSSES.items()) | {
        "structure": lambda chunk_size: StructureLoss(chunk_size=chunk_size, warmup=0),
        "confu, learned": lambda chunk_size: ConfuLoss(fusion="learned", names=NAMES, width=4, chunk_size=chunk_size),
    }
    for kind, make in makes.items():
        for chunk in CHUNKS:
            torch.manual_seed(2)
            loss = make(chunk_size=chunk).double()
            encoders.zero_grad()
            value = loss(encoders(x), present, **({"features": x} if kind == "structure" else {}))
            value.backward()
            parts = [value.detach(), *(p.grad for p in loss.parameters())]
            parts += [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in encoders.parameters()]
            found[f"{kind} {chunk}"] = parts
    return found


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    x, present = whole()
    mine = slice(0, ROWS[0]) if rank == 0 else slice(ROWS[0], None)
    names = NAMES if rank == 0 else NAMES[:2]
    x, present = {name: x[name][mine] for name in names}, present[mine, : len(names)]
    encoders = DistributedDataParallel(Encoders(), find_unused_parameters=True)
    found = measure(encoders, x, present)

    # the vectors' own gradients, on a process whose vectors need none as well
    z = {name: normalize(v, dim=1) for name, v in x.items()}
    if rank == 0:
        z = {name: v.requires_grad_() for name, v in z.items()}
    LOSSES["pmrl"](temperature=0.5)(z, present).backward()
    found["vectors"] = [z[name].grad for name in names] if rank == 0 else []

    matching = InstanceMatching(NAMES, 6, hidden=8, layers=1, heads=2).double()
    value = matching(
        {name: v.detach() for name, v in z.items()}, present, generator=torch.Generator().manual_seed(rank)
    )
    value.backward()
    found["matching"] = [value.detach()]
    batch = joined(z, present)
    found["own rows"] = [batch.z[batch.own], torch.where(present[..., None], torch.stack([*z.values()], 1), 0.0)]

    with pytest.raises(InputError, match="differ in width"):  # raised by both, so that nobody waits
        LOSSES["pmrl"]()({name: v[:, : 3 + rank] for name, v in z.items()}, present)
    torch.save(found, f"{folder}/{rank}.pt")
    leave()


def test_two_processes_equal_one(tmp_path: Path) -> None:
    warm.ranks(work, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    x, present = whole()
    expected = measure(Encoders(), x, present)
    for name, parts in expected.items():
        assert any(part.any() for part in parts[1:])
        for one, a, b in zip(parts, first[name], second[name], strict=True):
            torch.testing.assert_close(a, one, rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(b, one, rtol=1e-6, atol=1e-9)
    z = {name: normalize(v, dim=1).requires_grad_() for name, v in x.items()}
    LOSSES["pmrl"](temperature=0.5)(z, present).backward()
    for name, got in zip(NAMES, first["vectors"], strict=True):  # averaging over processes divides by two
        torch.testing.assert_close(got / 2, z[name].grad[: ROWS[0]], rtol=1e-6, atol=1e-9)
    assert all(torch.isfinite(part).all() for part in first["matching"] + second["matching"])
    for part, rows in zip((first, second), ROWS, strict=True):  # of the joined batch, each process knows its own
        joint, given = part["own rows"]
        assert len(joint) == len(given) == rows
        torch.testing.assert_close(joint[:, : given.shape[1]], given, rtol=0, atol=0)
