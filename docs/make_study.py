"""Write the tables of README.md and docs/results.md and draw docs/assets/study.svg again from the study.

    calmrl compare study --out study-out     or, for one split and fewer methods, calmrl demo --out study-out
    python docs/make_study.py study-out

A table stands between `<!-- study: NAME -->` and `<!-- end of study -->`; `average` is R@1 of every method on every data set
and setting, `ahead` is `average` with a last line on how far the aligner is ahead of the best other row, `words` are the
sentences of the comparison. A comparison without `ideal` fills the tables between `<!-- classical: NAME -->` and
`<!-- end of classical -->` and draws nothing.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from marked_tables import asked, fill, head, line
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from calmrl.report import Results
from calmrl.report.results import Estimate, group
from calmrl.report.style import style_of

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs/results.md")
PICTURE = ROOT / "docs/assets/study.svg"
INK = "#808890"  # readable on light and on dark


def average(results: Results) -> str:
    """Methods down, data sets and settings across; the best in bold, ideal last."""
    places, order, cells = _cells(results)
    best = {place: max(cells[m, place].mean for m in order if not results.ideal(m)) for place in places}
    chance = _chance(results)
    lines = head("R@1 (%)", [f"{dataset}, {setting}" for dataset, setting in places])
    for method in order:
        bold = [not results.ideal(method) and cells[method, place].mean == best[place] for place in places]
        texts = [cells[method, place].text(1) for place in places]
        lines.append(
            line(method, [f"**{text}**" if strong else text for text, strong in zip(texts, bold, strict=True)])
        )
    lines.append(line("by chance", [f"{chance[place]:.1f}" for place in places]))
    return "\n".join(lines)


def ahead(results: Results, tests: dict[str, Any]) -> str:
    """The full table, and the aligner against the best other row of each column: paired bootstrap over test items."""
    places, *_ = _cells(results)
    gains = []
    for place in places:
        test = tests[results.place_name(place)]
        gain, low, high, _ = test["methods"]["aligner"].values()
        gains.append(f"{gain:+.1f} ({low:+.1f} to {high:+.1f}), `{test['against']}`")
    return f"{average(results)}\n{line('aligner - best of the others', gains)}"


def _cells(
    results: Results,
) -> tuple[list[tuple[str, str]], list[str], dict[tuple[str, tuple[str, str]], Estimate]]:
    """(data sets and settings, methods from the best to the worst and ideal at the end, their R@1)."""
    rows = [row for row in results.rows if (row.task, row.metric) == ("average", "R@1")]
    places = results.places(rows)
    cells = group(rows, lambda row: (row.method, row.place))
    mean = {method: sum(cells[method, place].mean for place in places) for method in {row.method for row in rows}}
    return places, sorted(mean, key=lambda method: (results.ideal(method), -mean[method])), cells


def _chance(results: Results) -> dict[tuple[str, str], float]:
    rows = [row for row in results.rows if (row.task, row.metric) == ("average", "chance R@1")]
    return {place: estimate.mean for place, estimate in group(rows, lambda row: row.place).items()}


def words(results: Results) -> str:
    """The sentences, a list."""
    return "\n".join(f"- {sentence}" for source in results.sources for sentence in source.meta.words)


def draw(results: Results) -> Figure:
    """A frame per data set and setting, a line per method: mean and 95 % interval over seeds."""
    places, order, cells = _cells(results)
    figure = Figure(figsize=(2.2 + 2.4 * len(places), 0.9 + 0.27 * len(order)), layout="constrained")
    figure.patch.set_alpha(0)
    frames = figure.subplots(1, len(places), sharey=True, squeeze=False)[0]
    for frame, place in zip(frames, places, strict=True):
        _frame(frame, order, {method: cells[method, place] for method in order}, place)
    frames[0].set_yticks(range(len(order)), order, color=INK)
    frames[0].set_ylim(len(order) - 0.5, -0.5)
    figure.supxlabel("R@1 (%), average over all directions", color=INK, fontsize=9)
    return figure


def _frame(frame: Axes, order: list[str], values: dict[str, Estimate], place: tuple[str, str]) -> None:
    frame.patch.set_alpha(0)
    frame.set_title(f"{place[0]}\n{place[1]}", fontsize=9, color=INK)
    for y, method in enumerate(order):
        style, here = style_of(method), values[method]
        colour = INK if method == "ideal" else style.colour
        if here.low is not None and here.high is not None:  # more than one seed
            frame.plot([here.low, here.high], [y, y], color=colour, linewidth=2)
        frame.plot(here.mean, y, marker=style.marker, color=colour, markersize=8 if style.strong else 6)
    frame.set_xlim(left=0)
    frame.tick_params(colors=INK, labelsize=8)
    frame.grid(axis="x", color=INK, alpha=0.25)
    for side in frame.spines.values():
        side.set_visible(False)


MAKERS = {"average": average, "words": words}


def main() -> None:
    results, meta = asked(__doc__, "calmrl compare study")
    makers = MAKERS | {"ahead": partial(ahead, tests=meta["tests"])}
    whole = any(results.ideal(row.method) for row in results.rows)
    for page in PAGES:
        fill(page, "study" if whole else "classical", lambda name: makers[name](results))
    if not whole:
        return
    FigureCanvasSVG(draw(results)).print_svg(PICTURE, metadata={"Date": None})
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
