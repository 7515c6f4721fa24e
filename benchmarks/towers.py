"""What a training step of the paper's towers costs at real size: memory, time and operations, with random weights.

EVA01-CLIP ViT-g/14 on one picture of 224 x 224, BEATs on 10 s of sound (1024 frames of 64 filter banks), BERT base on 40
tokens; in float32 and under bfloat16 autocast, with and without gradient checkpointing; on a CPU with one thread.

- What the forward pass keeps for the backward pass is counted tensor by tensor, at full width with 2 and 3 blocks and for
  one item and two. All blocks are alike, so the count at full depth follows to the byte; the difference of items is the
  cost of an item, the rest that of the model.
- In float32 a whole step at full depth is made in a process of its own: its time, operations and peak of memory, and
  the count of what it keeps, which must be what follows from 2 and 3 blocks.

`_tower_budget` then says what the paper's batch needs.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from benchmarks._tower_budget import budget_rows

DEPTHS = {"eva01-g14": 40, "beats-iter3plus": 12, "bert-base-uncased": 12}  # blocks
ITEMS = {"eva01-g14": "a picture", "beats-iter3plus": "10 s of sound", "bert-base-uncased": "40 tokens"}
PRECISIONS = ("float32", "bfloat16")
FEW, MORE = 2, 3  # blocks at which what is kept is counted
MB, GIGA = 1e6, 1e9


def build(tower: str, blocks: int) -> tuple[Any, Callable[[int], torch.Tensor]]:
    """(the tower, how many items -> its tokens)."""
    from calmrl.models.vast.beats import Beats
    from calmrl.models.vast.bert import bert_tokens, build_bert
    from calmrl.models.vast.eva import EvaVit

    torch.manual_seed(0)
    net: Any
    if tower == "eva01-g14":
        net = EvaVit(layers=blocks, output_width=None)
        return net, lambda n: net(torch.randn(n, 3, 224, 224))
    if tower == "beats-iter3plus":
        net = Beats(layers=blocks)
        return net, lambda n: net(torch.randn(n, 1024, 64))
    net = build_bert(layers=blocks, cross_attention=False)
    ids = torch.arange(40)[None]
    return net, lambda n: bert_tokens(
        net, {"input_ids": ids.expand(n, 40), "attention_mask": torch.ones(n, 40, dtype=torch.long)}
    )


def set_checkpointing(net: Any, on: bool) -> None:
    """For the own towers and for BERT."""
    from calmrl.models.vast import bert

    net.train()
    if hasattr(net, "checkpointing"):
        net.checkpointing = on
    else:
        bert.set_checkpointing(net, on)


def forward_loss(tokens: Callable[[int], torch.Tensor], items: int, precision: str) -> torch.Tensor:
    """A loss that needs every token."""
    context: AbstractContextManager[Any] = nullcontext()
    if precision == "bfloat16":
        context = torch.autocast("cpu", torch.bfloat16)
    with context:
        return tokens(items).float().square().mean()


def kept_bytes(net: nn.Module, forward: Callable[[], torch.Tensor]) -> tuple[int, torch.Tensor]:
    """(bytes that a forward pass keeps for the backward pass, each storage once and without the weights; its loss)."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    storages: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = forward()
    return sum(storages.values()), loss


def count(tower: str, precision: str, checkpointing: bool) -> dict[str, int]:
    """Bytes kept at full depth: per item, once per model, and per block and item."""
    kept = {}
    for blocks in (FEW, MORE):
        net, tokens = build(tower, blocks)
        set_checkpointing(net, checkpointing)
        for items in (1, 2):
            kept[blocks, items], _ = kept_bytes(net, lambda: forward_loss(tokens, items, precision))  # noqa: B023
    per_item = {blocks: kept[blocks, 2] - kept[blocks, 1] for blocks in (FEW, MORE)}
    once = {blocks: kept[blocks, 1] - per_item[blocks] for blocks in (FEW, MORE)}
    more = DEPTHS[tower] - FEW
    return {
        "per_item": per_item[FEW] + more * (per_item[MORE] - per_item[FEW]),
        "once": once[FEW] + more * (once[MORE] - once[FEW]),
        "block_per_item": per_item[MORE] - per_item[FEW],
    }


def whole_step(tower: str, checkpointing: bool) -> dict[str, Any]:
    """A forward and backward pass of one item at full depth, in float32, in this process."""
    from torch.utils.flop_counter import FlopCounterMode

    torch.set_num_threads(1)
    net, tokens = build(tower, DEPTHS[tower])
    set_checkpointing(net, checkpointing)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    with FlopCounterMode(display=False) as forward_count:
        kept, loss = kept_bytes(net, lambda: forward_loss(tokens, 1, "float32"))
    middle = time.process_time()
    with FlopCounterMode(display=False) as backward_count:
        loss.backward()  # type: ignore[no-untyped-call]
    ended = time.process_time()
    return {
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "kept": kept,
        "peak_above_start": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before),
        "forward_s": middle - began,
        "backward_s": ended - middle,
        "forward_flops": forward_count.get_total_flops(),
        "backward_flops": backward_count.get_total_flops(),
    }


def in_own_process(tower: str, checkpointing: bool) -> dict[str, Any]:
    """`whole_step` in a new process, so that the peak of its memory is its own."""
    arguments = [sys.executable, "-m", "benchmarks.towers", json.dumps([tower, checkpointing])]
    result: dict[str, Any] = json.loads(subprocess.run(arguments, stdout=subprocess.PIPE, check=True).stdout)
    return result


def row_of(tower: str, precision: str, checkpointing: bool, plain: int | None) -> dict[str, Any]:
    """One case; its ratio is the memory kept per item against float32 without checkpointing."""
    counted = count(tower, precision, checkpointing)
    note = f"{counted['per_item'] / MB:.1f} MB kept per item, {counted['once'] / MB:.1f} MB once"
    step: dict[str, Any] = {}
    if precision == "float32":
        step = in_own_process(tower, checkpointing)
        if step["kept"] != counted["per_item"] + counted["once"]:
            raise SystemExit(f"{tower} keeps {step['kept']} bytes at full depth, but {counted} follows from few blocks")
        operations = (step["forward_flops"] + step["backward_flops"]) / GIGA
        note += f"; step: {operations:.0f} GFLOP, {step['forward_s'] + step['backward_s']:.1f} s"
    return {
        "case": f"{tower}, {ITEMS[tower]}, {precision}{', checkpointing' if checkpointing else ''}",
        "ratio": counted["per_item"] / (plain or counted["per_item"]),
        "target": "none",
        "note": note,
        "tower": tower,
        "precision": precision,
        "checkpointing": checkpointing,
        **counted,
        **step,
    }


def run() -> list[dict[str, Any]]:
    """A row per case, then what the paper's batch needs."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for tower in DEPTHS:
        plain: int | None = None
        for precision in PRECISIONS:
            for checkpointing in (False, True):
                rows.append(row_of(tower, precision, checkpointing, plain))
                plain = plain or rows[-1]["per_item"]
                print(f"  measured: {rows[-1]['case']}: {rows[-1]['note']}", file=sys.stderr, flush=True)
    return rows + budget_rows(rows)


if __name__ == "__main__":
    print(json.dumps(whole_step(*json.loads(sys.argv[1]))))
