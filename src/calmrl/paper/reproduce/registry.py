"""The tables and figures of the paper by name; Figures 1 and 2 are illustrations. They are listed without importing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from calmrl._support.registry import Registry

if TYPE_CHECKING:
    from calmrl.paper.reproduce.tables import PaperTable

HOME = "calmrl.paper.reproduce.tables"
PAPER_TABLES: Registry[Callable[[], PaperTable]] = Registry(
    "table or figure",
    {
        **{f"table{number}": f"{HOME}:table{number}" for number in range(1, 9)},
        **{f"figure{number}": f"{HOME}:figure{number}" for number in range(3, 8)},
    },
)
