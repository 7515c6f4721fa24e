"""From the cost of one item to that of the paper's batch on its cards, in bytes.

    weights      4 P                          float32
    training     4 T + 8 T                    gradients and the two moments of AdamW; T parameters are trained
    reduction    4 T with several cards       DistributedDataParallel's buckets of gradients
    kept         sum over towers of items * bytes per item
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
GB = 1e9
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
        sums = " + ".join(f"{part} {value / GB:.1f}" for part, value in parts.items())
        note = f"{sums} = {total / GB:.1f} GB"
        rows.append({"case": name, "ratio": total / GB / card, "target": "below 1", "note": note, **parts})
    return rows


def need(cases: Sequence[dict[str, Any]], rows: int, frozen: int, checkpointing: bool, cards: int) -> dict[str, float]:
    """Bytes on one card, by part."""

    def per_item(tower: str, again: bool) -> float:
        wanted = (tower, "bfloat16", again)
        case = next(row for row in cases if (row["tower"], row["precision"], row["checkpointing"]) == wanted)
        return float(case["per_item"])

    trained = PARAMETERS - (frozen * BLOCK + STEM if frozen else 0)
    share = (BLOCKS - frozen) / BLOCKS  # frozen blocks come first and keep nothing
    kept = {
        "pictures": rows * FRAMES * share * per_item("eva01-g14", checkpointing),
        "sounds": rows * per_item("beats-iter3plus", checkpointing),
        "texts": 2 * rows * per_item("bert-base-uncased", checkpointing),  # subtitles counted like captions
        "matching": PAIRS * rows * per_item("matching", checkpointing),
    }
    block = rows * FRAMES * per_item("eva01-g14", False) / BLOCKS if checkpointing else 0.0
    copies = (
        0.0 if checkpointing else 2.0 * PARAMETERS
    )  # of weights in bfloat16; with checkpointing one block at a time
    return {
        "weights": 4.0 * PARAMETERS,
        "training": 12.0 * trained,
        "reduction": 4.0 * trained if cards > 1 else 0.0,
        "copies": copies,
        **kept,
        "one block": block,
    }
