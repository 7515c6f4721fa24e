"""From the cost of one item to that of the paper's batch on its cards, in bytes.

    weights      4 P                          float32
    training     4 T + 8 T                    gradients and the two moments of AdamW; T parameters are trained
    reduction    4 T with several cards       DistributedDataParallel's buckets of gradients
    copies       what towers keep once per pass: weights in bfloat16 (with checkpointing one block at a time), tables
    kept         rows * items per row * bytes per item, for each tower
    one block    what one block of the vision tower keeps, for all pictures: with checkpointing it is computed again

Not counted: the fragmentation of CUDA's memory, the context of CUDA (near 0.5 GB), workspaces of its libraries, and the
objective and the latent model, which see vectors of width 512.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PARAMETERS = 1_247_224_818  # of VastModel.from_sizes()
BLOCK, BLOCKS = 25_248_768, 40  # parameters of a vision block, and how many there are
STEM = 1408 * (1 + 257 + 3 * 14 * 14 + 1)  # class token, positions, patch embedding with its bias
FRAMES, PAIRS = 8, 3  # per row: pictures; pairs of the matching encoder (itself and two negatives)
CONDITIONS = FRAMES * 257 + 256 + 70  # tokens of pictures, sound and subtitle that the matching encoder looks at
OWN_WEIGHTS = ("eva01-g14", "beats-iter3plus", "matching")  # the text tower is the matching encoder's BERT
GB, TERA = 1e9, 1e12
CARDS = (
    ("2 x 80 GB, 32 rows each, bfloat16, checkpointing", 80, 32, 0, True, 2),
    ("2 x 80 GB, 32 rows each, bfloat16", 80, 32, 0, False, 2),
    ("24 GB, 16 rows, bfloat16, checkpointing", 24, 16, 0, True, 1),
    ("24 GB, 16 rows, bfloat16, checkpointing, 36 vision blocks frozen", 24, 16, 36, True, 1),
)


def budget_rows(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per card; its ratio is the need over what the card has."""
    rows = []
    for name, card, items, frozen, checkpointing, cards in CARDS:
        parts = need(cases, items, frozen, checkpointing, cards)
        total = sum(parts.values())
        work = operations(cases, items, frozen, checkpointing)
        sums = " + ".join(f"{part} {value / GB:.1f}" for part, value in parts.items() if value)
        note = f"{sums} = {total / GB:.1f} GB; {work / TERA:.0f} TFLOP per pass of {items} rows"
        rows.append(
            {"case": name, "ratio": total / GB / card, "target": "below 1", "note": note, "flops": work, **parts}
        )
    return rows


def find_case(cases: Sequence[dict[str, Any]], tower: str, checkpointing: bool) -> dict[str, Any]:
    """The case of a tower in bfloat16."""
    wanted = (tower, "bfloat16", checkpointing)
    return next(row for row in cases if (row["tower"], row["precision"], row["checkpointing"]) == wanted)


def items_per_row() -> dict[str, int]:
    """How many items of each tower a row has, if nothing is missing; a subtitle counts like a caption."""
    return {"eva01-g14": FRAMES, "beats-iter3plus": 1, "bert-base-uncased": 2, "matching": PAIRS}


def need(cases: Sequence[dict[str, Any]], rows: int, frozen: int, checkpointing: bool, cards: int) -> dict[str, float]:
    """Bytes on one card, by part."""
    trained = PARAMETERS - (frozen * BLOCK + STEM if frozen else 0)
    kept = {
        tower: rows * items * float(find_case(cases, tower, checkpointing)["per_item"])
        for tower, items in items_per_row().items()
    }
    kept["eva01-g14"] *= (BLOCKS - frozen) / BLOCKS  # frozen blocks come first and keep nothing
    plain = float(find_case(cases, "eva01-g14", False)["per_item"])
    return {
        "weights": 4.0 * PARAMETERS,
        "training": 12.0 * trained,
        "reduction": 4.0 * trained if cards > 1 else 0.0,
        "copies": sum(float(find_case(cases, tower, checkpointing)["once"]) for tower in OWN_WEIGHTS),
        **kept,
        "one block": rows * FRAMES * plain / BLOCKS if checkpointing else 0.0,
    }


def operations(cases: Sequence[dict[str, Any]], rows: int, frozen: int, checkpointing: bool) -> float:
    """Floating-point operations of one forward and backward pass of so many rows."""
    total = 0.0
    for tower, items in items_per_row().items():
        case = find_case(cases, tower, checkpointing)
        share = (BLOCKS - frozen) / BLOCKS if tower == "eva01-g14" else 1.0
        total += rows * items * (case["forward_flops"] + share * case["backward_flops"])
    return total
