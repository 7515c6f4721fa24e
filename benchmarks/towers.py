"""What a training step of the paper's towers costs at real size: memory, time and operations, with random weights.

EVA01-CLIP ViT-g/14 on one picture of 224 x 224, BEATs on 10 s of sound (1024 frames of 64 filter banks), BERT base on 40
tokens, and BERT as the matching encoder of one pair; in float32 and under bfloat16 autocast, with and without gradient
checkpointing.

- What the forward pass keeps for the backward pass is counted tensor by tensor, for one item and for two: the difference
  is the cost of an item, the rest that of the model. Operations are counted with `torch.utils.flop_counter`. Both need
  the shapes of all tensors, not their values, so the towers run without computing anything (fake tensors).
- In float32 a step is also made, on a CPU with one thread and in a process of its own: its processor time and the peak of
  its memory, and what it keeps, beside what was counted.

`_tower_budget` then says what the paper's batch needs on its cards.
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

from benchmarks._tower_budget import CONDITIONS, budget_rows

ITEMS = {
    "eva01-g14": "a picture",
    "beats-iter3plus": "10 s of sound",
    "bert-base-uncased": "40 tokens",
    "matching": f"40 tokens that look at {CONDITIONS} others",
}
MADE = ("eva01-g14", "beats-iter3plus", "bert-base-uncased")  # steps that are made, not only counted
PRECISIONS = ("float32", "bfloat16")
MB, GIGA = 1e6, 1e9


def build(tower: str) -> tuple[Any, Callable[[int], torch.Tensor]]:
    """(the tower, how many items -> its tokens)."""
    from calmrl.paper.vast.matching import bert_tokens, build_bert
    from calmrl.paper.vast.towers import Beats, EvaVit

    net: Any
    if tower == "eva01-g14":
        net = EvaVit(output_width=None)
        return net, lambda n: net(torch.randn(n, 3, 224, 224))
    if tower == "beats-iter3plus":
        net = Beats()
        return net, lambda n: net(torch.randn(n, 1024, 64))
    net = build_bert(cross_attention=tower == "matching")

    def text(n: int) -> torch.Tensor:
        tokens = {name: torch.ones(n, 40, dtype=torch.long) for name in ("input_ids", "attention_mask")}
        return bert_tokens(
            net, tokens, torch.randn(n, CONDITIONS, 768, requires_grad=True) if tower == "matching" else None
        )

    return net, text


def set_checkpointing(net: Any, on: bool) -> None:
    """For the own towers and for BERT."""
    from calmrl.paper.vast import matching as bert

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
    weights = {parameter.untyped_storage()._cdata for parameter in net.parameters()}
    storages: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            storages[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = forward()
    return sum(storages.values()), loss


def count(tower: str, precision: str, checkpointing: bool) -> dict[str, int]:
    """Parameters; bytes kept per item and once per model; operations of one item forward and backward."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        net, tokens = build(tower)  # here, because drawing weights needs values
    with FakeTensorMode(allow_non_fake_inputs=True):
        net.to_empty(device="cpu").train()
        set_checkpointing(net, checkpointing)
        kept = [kept_bytes(net, lambda n=n: forward_loss(tokens, n, precision))[0] for n in (1, 2)]  # type: ignore[misc]
        with FlopCounterMode(display=False) as forward:
            loss = forward_loss(tokens, 1, precision)
        with FlopCounterMode(display=False) as backward:
            loss.backward()  # type: ignore[no-untyped-call]
    return {
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "per_item": kept[1] - kept[0],
        "once": 2 * kept[0] - kept[1],
        "forward_flops": forward.get_total_flops(),
        "backward_flops": backward.get_total_flops(),
    }


def whole_step(tower: str, checkpointing: bool) -> dict[str, Any]:
    """A forward and backward pass of one item in float32, in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, tokens = build(tower)
    net.train()
    set_checkpointing(net, checkpointing)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    kept, loss = kept_bytes(net, lambda: forward_loss(tokens, 1, "float32"))
    middle = time.process_time()
    loss.backward()  # type: ignore[no-untyped-call]
    ended = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "kept": kept,
        "peak_above_weights": 1024 * (peak - before),
        "forward_s": middle - began,
        "backward_s": ended - middle,
    }


def in_own_process(tower: str, checkpointing: bool) -> dict[str, Any]:
    """`whole_step` in a new process, so that the peak of its memory is its own."""
    arguments = [sys.executable, "-m", "benchmarks.towers", json.dumps([tower, checkpointing])]
    result: dict[str, Any] = json.loads(subprocess.run(arguments, stdout=subprocess.PIPE, check=True).stdout)
    return result


def row_of(tower: str, precision: str, checkpointing: bool, plain: int | None) -> dict[str, Any]:
    """One case; its ratio is the memory kept per item against float32 without checkpointing."""
    counted = count(tower, precision, checkpointing)
    operations = (counted["forward_flops"] + counted["backward_flops"]) / GIGA
    note = f"{counted['per_item'] / MB:.1f} MB per item, {counted['once'] / MB:.1f} MB once, {operations:.0f} GFLOP"
    step: dict[str, Any] = {}
    if precision == "float32" and tower in MADE:
        step = in_own_process(tower, checkpointing)
        seconds, peak = step["forward_s"] + step["backward_s"], step["peak_above_weights"] / GIGA
        note += f"; made: {seconds:.1f} s, peak {peak:.2f} GB above the weights, {step['kept'] / MB:.1f} MB kept"
    return {
        "case": f"{tower}, {precision}{', checkpointing' if checkpointing else ''}",
        "item": ITEMS[tower],
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
    for tower in ITEMS:
        plain: int | None = None
        for precision in PRECISIONS:
            for checkpointing in (False, True):
                rows.append(row_of(tower, precision, checkpointing, plain))
                plain = plain or rows[-1]["per_item"]
                print(f"  {rows[-1]['case']}: {rows[-1]['note']}", file=sys.stderr, flush=True)
    return rows + budget_rows(rows)


if __name__ == "__main__":
    print(json.dumps(whole_step(*json.loads(sys.argv[1]))))
