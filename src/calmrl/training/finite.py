"""Stopping at a loss that is no number, with the names of the rows that gave it."""

from collections.abc import Mapping
from typing import Any

import torch

from calmrl._support.distributed import all_sum, gather_objects
from calmrl.data.loaders.batches import Batches
from calmrl.errors import InputError

SHOWN = 8


class NotFinite(InputError):
    """A loss or gradient that is NaN or infinite; `rows` names the rows of the batch, of all processes."""

    def __init__(self, what: str, step: int, rows: list[str]) -> None:
        self.what, self.rows = what, rows
        more = "" if len(rows) <= SHOWN else f", ... ({len(rows)} rows; all of them are in metrics.jsonl)"
        super().__init__(
            f"the {what} of step {step} is not finite. The rows of its batch: {', '.join(rows[:SHOWN])}{more}. "
            "Look at their values, or lower the learning rate; the last checkpoint is whole"
        )


def must_be_finite(value: torch.Tensor, what: str, step: int, batches: Batches, batch: Mapping[str, Any]) -> None:
    """Raise `NotFinite` in every process if `value` is not finite in one of them."""
    (wrong,) = all_sum([(~torch.isfinite(value.detach())).to(torch.float32)])
    if not wrong:
        return
    rows = gather_objects(batches.describe(batch["index"]))
    raise NotFinite(what, step, [name for part in rows for name in part])
