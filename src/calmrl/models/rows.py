"""Encoders run on the rows that are there; these put the results back among all rows."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import normalize

from calmrl.errors import InputError


def check_columns(present: Tensor, names: Sequence[str]) -> None:
    """Raise InputError unless there is a column for each modality."""
    if present.ndim != 2 or present.shape[1] != len(names):
        raise InputError(f"present has shape {tuple(present.shape)}; pass one column for each of {', '.join(names)}")


def rows_with(present: Tensor, column: int, name: str, given: int) -> Tensor:
    """The numbers of the rows that have a modality; there must be as many as inputs were given."""
    rows = present[:, column].nonzero()[:, 0]
    if len(rows) != given:
        raise InputError(
            f"inputs[{name!r}] holds {given} rows but present says that {len(rows)} rows have it; pass the rows that "
            "are there, in order, and no others"
        )
    return rows


def spread(values: Tensor, rows: Tensor, n: int) -> Tensor:
    """(n, ...) with `values` in the given rows and 0 elsewhere."""
    return values.new_zeros(n, *values.shape[1:]).index_copy(0, rows, values)


def unit(head: Callable[[Tensor], Tensor], pooled: Tensor) -> Tensor:
    """Through the head, then to length 1, in full precision."""
    return normalize(head(pooled).float(), dim=-1)


def length(value: Any) -> int:
    """Rows of a tensor, or of a dict of tensors."""
    return len(value if isinstance(value, Tensor) else next(iter(value.values())))
