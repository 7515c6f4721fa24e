"""The tables and figures of the paper by name; Figures 1 and 2 are illustrations."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from calmrl._support.registry import Registry

if TYPE_CHECKING:
    from calmrl.workflows.reproduce.exhibit import Exhibit

TABLES, FIGURES = "calmrl.workflows.reproduce.tables", "calmrl.workflows.reproduce.figures"
EXHIBITS: "Registry[Callable[[], Exhibit]]" = Registry(
    "table or figure",
    {
        **{f"table{number}": f"{TABLES}:table{number}" for number in range(1, 9)},
        **{f"figure{number}": f"{FIGURES}:figure{number}" for number in range(3, 8)},
    },
)
