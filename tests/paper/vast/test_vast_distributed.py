"""Two gloo processes train one VastModel, though the rows of one of them lack audio altogether."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from calmrl._support.distributed import leave
from calmrl.paper.vast.matching import cat_conditions
from tests.support import warm
from tests.support.tiny_models import seeded, tiny_inputs, tiny_vast

pytest.importorskip("transformers", reason="transformers is not installed")
ROWS = (4, 3)


def masks() -> list[torch.Tensor]:
    first = torch.ones(ROWS[0], 4, dtype=torch.bool)
    first[1, 0] = first[2, 3] = False
    second = torch.tensor([[True, False, True, True]] * ROWS[1])
    second[0, 2] = False  # no text
    return [first, second]


class Both(nn.Module):
    """Representations and matching in one forward pass; remembers the drawn pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_vast()
        self.pairs: list[torch.Tensor] = []
        plain = self.model.matching.logits

        def watch(text, conditions, i, j):
            self.pairs = [i, j]
            return plain(text, conditions, i, j)

        self.model.matching.logits = watch

    def forward(self, inputs, present, seed: int) -> torch.Tensor:
        z, tokens = self.model.encode(inputs, present)
        matched = self.model.matching(z, present, tokens=tokens, generator=seeded(seed))
        return matched + sum((value[:, 0] * value[:, 1]).sum() for value in (*z.values(), tokens["fused"]))


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    net = DistributedDataParallel(Both(), find_unused_parameters=True)
    present = masks()[rank]
    pairs = []
    for seed in range(4):
        net.zero_grad()
        net(tiny_inputs(present, seed=rank), present, seed).backward()
        pairs.append(net.module.pairs)
    z, tokens = net.module.model.encode(tiny_inputs(present, seed=rank), present)
    value = net.module.model.matching(z, present, tokens=tokens, generator=seeded(0))
    gradients = {name: p.grad for name, p in net.module.named_parameters()}
    torch.save({"pairs": pairs, "value": value.detach(), "gradients": gradients}, f"{folder}/{rank}.pt")
    leave()


def test_two_processes(tmp_path: Path) -> None:
    warm.ranks(work, tmp_path)
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for name, gradient in found[0]["gradients"].items():
        torch.testing.assert_close(gradient, found[1]["gradients"][name], msg=name)
        assert gradient is not None
    texts, sets = (torch.cat([pair[side] for pair in found[0]["pairs"]]) for side in (0, 1))
    assert max(texts.max(), sets.max()) >= ROWS[0]  # rows of the other process
    assert ROWS[0] not in texts  # it has no text

    model = tiny_vast()  # all rows in one process, the same pairs
    text, conditions = [], []
    for rank, present in enumerate(masks()):
        _, tokens = model.encode(tiny_inputs(present, seed=rank), present)
        text.append(tokens["text"])
        conditions.append(model.matching.conditions(tokens, present))
    joined = {key: torch.cat([part[key] for part in text]) for key in text[0]}
    total, values = 0, []
    for part in found:
        i, j = part["pairs"][0]
        logits = model.matching.logits(joined, cat_conditions(conditions), i, j).detach()
        target = (i == j).long()
        values.append(nn.functional.cross_entropy(logits, target, reduction="sum"))
        total += len(i)
    for part, value in zip(found, values, strict=True):
        torch.testing.assert_close(part["value"], 2 * value / total, atol=1e-5, rtol=1e-5)
