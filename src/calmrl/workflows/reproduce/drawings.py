"""The curves and maps that belong to a figure, as SVG."""

from __future__ import annotations

from calmrl.report.figures.lines import Curve, curves
from calmrl.report.figures.scatter import scatter
from calmrl.report.look import look
from calmrl.report.results import PointMap
from calmrl.report.svg import standalone
from calmrl.workflows.reproduce.bench import Bench, loss_curve
from calmrl.workflows.reproduce.exhibit import Exhibit
from calmrl.workflows.reproduce.figures import CONTINUED
from calmrl.workflows.reproduce.tables import run_of


def drawings(exhibit: Exhibit, bench: Bench) -> dict[str, str]:
    """File name -> SVG; empty for tables and for figures whose numbers are all in the table."""
    if exhibit.name == "figure6":
        return {f"figure6-{run_of(row)}.svg": _map(row, bench) for row in CONTINUED}
    if exhibit.name == "figure7":
        return {"figure7.svg": _losses(bench)}
    return {}


def _map(row: str, bench: Bench) -> str:
    cloud = PointMap.model_validate(bench.map_of(run_of(row), "msrvtt"))
    alt = f"t-SNE map of the test items of MSR-VTT by {row}"
    return standalone(scatter(run_of(row), alt, cloud, title=row))


def _losses(bench: Bench) -> str:
    lines = []
    for row in CONTINUED:
        curve = loss_curve(bench.folder(run_of(row)))
        style = look(row.removesuffix("↑").lower())
        lines.append(Curve(row, [step for step, _ in curve], [loss for _, loss in curve], style))
    return standalone(curves("figure7", "Loss over steps for five methods", lines, x="step", y="loss"))
