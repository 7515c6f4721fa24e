"""results.json, a figure and one HTML page that needs nothing else."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calmrl.demo.words import by_method, in_words, spread

Row = dict[str, Any]
PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>calmrl demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
td, th {{ padding: .2rem .5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8885; }}
td:first-child, th:first-child {{ text-align: left; white-space: normal; }}
figure {{ margin: 1rem 0; background: #fff; padding: .5rem; }} svg {{ max-width: 100%; height: auto; }}
</style></head>
<body>
<h1>Completing missing modalities</h1>
<p>{what}</p>
{words}
<figure>{figure}</figure>
{tables}
<p>Error 0 is perfect, 1 is as good as filling in the mean. &plusmn; is the standard deviation over the seeds; n is the
number of hidden blocks per seed. One setting per method, without tuning by hand. All numbers are in results.json.</p>
</body></html>
"""


def write_report(rows: Sequence[Row], meta: dict[str, Any], folder: Path) -> None:
    """Write results.json, errors.svg and report.html into an existing directory."""
    (folder / "results.json").write_text(json.dumps({"rows": list(rows), "meta": meta}, indent=1), encoding="utf-8")
    figure = draw(rows)
    (folder / "errors.svg").write_text(figure, encoding="utf-8")
    missing = meta["config"]["missing"]
    what = f"{100 * missing['rate']:.0f} % of the blocks (one modality of one row) were hidden ({missing['kind']}), "
    what += f"filled in by every method, and compared with what was there, for seeds {meta['config']['seeds']}."
    page = PAGE.format(
        what=html.escape(what),
        words="\n".join(f"<p>{html.escape(sentence)}</p>" for sentence in in_words(rows)),
        figure=figure[figure.index("<svg") :],
        tables="\n".join(_table(rows, dataset, known) for dataset, known in meta["datasets"].items()),
    )
    (folder / "report.html").write_text(page, encoding="utf-8")


def draw(rows: Sequence[Row]) -> str:
    """One panel per dataset, one line per method, a dot per seed and a bar at the mean; as SVG text."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    methods = len({row["method"] for row in rows})
    figure = Figure(figsize=(4 * len(datasets) + 1, 0.4 * methods + 1.2), layout="constrained")
    panels = figure.subplots(1, len(datasets), squeeze=False)[0]
    for panel, dataset in zip(panels, datasets, strict=True):
        values = by_method(rows, dataset)
        for height, (method, found) in enumerate(values.items()):
            colour = "#0f766e" if method.startswith("gaussian") else "#6b7280"
            panel.plot(found, [height] * len(found), "o", color=colour, alpha=0.5, markersize=5)
            panel.plot([found.mean()] * 2, [height - 0.3, height + 0.3], color=colour, linewidth=2.5)
        panel.axvline(1.0, color="#9ca3af", linewidth=0.8, linestyle=":")
        panel.set_yticks(range(len(values)), list(values))
        panel.invert_yaxis()
        panel.set_title(dataset, loc="left")
        panel.set_xlabel("error (1 = the mean)")
        panel.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None})
    return text.getvalue()


def _table(rows: Sequence[Row], dataset: str, known: dict[str, Any]) -> str:
    sizes = ", ".join(f"{name} {width}" for name, width in known["modalities"].items())
    lines = [f"<h2>{html.escape(dataset)}</h2>", f"<p>{known['rows']} rows; widths: {html.escape(sizes)}.</p>"]
    lines += ["<table><tr><th>method</th><th>error</th><th>n</th><th>seconds</th></tr>"]
    for method, values in by_method(rows, dataset).items():
        mine = [row for row in rows if (row["dataset"], row["method"]) == (dataset, method)]
        seconds = sum(row["seconds"] for row in mine) / len(mine)
        cells = [
            html.escape(method),
            f"{values.mean():.3f} {spread(values)}",
            str(mine[0]["n"]),
            f"{seconds:.1f}",
        ]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join([*lines, "</table>"])
