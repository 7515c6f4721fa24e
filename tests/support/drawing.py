"""What is drawn, as calls of matplotlib, so that it does not depend on the version of matplotlib."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from calmrl.report.figures import Panel


class Drawing:
    """Stands for matplotlib in the modules that draw; `text` is what it was told."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        patch.setattr("calmrl.report.figures.draw", self.draw)
        patch.setattr("calmrl.report.figures.finish", self.finish)
        patch.setattr("matplotlib.lines.Line2D", lambda *given, **named: self.all.Line2D(*given, **named))

    def draw(self, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, list[Any]]:
        self.all = MagicMock(name="")
        self.all.figure.get_figheight.return_value = height
        self.opened = (
            f"draw({height:.4g}, {rows}, {columns}{''.join(f', {name}={shown(o)}' for name, o in options.items())})"
        )
        return self.all.figure, [getattr(self.all, f"axes{j}") for j in range(rows * columns)]

    def finish(self, figure: Any, name: str, alt: str, title: str = "") -> Panel:
        self.lines += [f"# {name}: {title}", alt, self.opened]
        for where, given, named in self.all.mock_calls:
            if not where.endswith(("get_figheight", "__len__")):
                parts = [*map(shown, given), *(f"{key}={shown(value)}" for key, value in named.items())]
                self.lines.append(f"{where}({', '.join(parts)})")
        self.lines.append("")
        return Panel(name, alt, "<svg></svg>")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def shown(value: Any) -> str:
    """A value with four digits of every number."""
    if isinstance(value, MagicMock):
        return value._extract_mock_name().strip(".")
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    return repr(value)
