"""Figures: how much one panel holds, and how it is drawn."""

from __future__ import annotations

import zlib
from types import SimpleNamespace

import pytest

from calmrl.report.figures import (
    Curve,
    Mark,
    clean,
    clip,
    curves,
    dots,
    draw,
    finish,
    legend_below,
    points,
    scatter,
    small_curves,
    standalone,
    upset,
)
from calmrl.report.results import PointMap
from calmrl.report.style import COLOURS, MARKERS, Style, style_of
from tests.support.drawing import Drawing

STYLE = Style("#0072b2", "o", "full", "-", "", False)


@pytest.fixture
def told(monkeypatch):
    """A function that draws -> what matplotlib is told."""
    drawing = Drawing(monkeypatch)

    def run(function, *given, **named):
        drawing.lines.clear()
        function("name", "alt", *given, **named)
        return list(drawing.lines)

    return run


def lines_of(lines, start):
    return [line for line in lines if line.startswith(start)]


@pytest.mark.parametrize(("rows", "labels", "height", "step"), [
    (16, 2, 0.75 + 0.21 * 16, 0.5), (17, 2, 0.75 + 0.175 * 17, 0.0), (2, 3, 0.75 + 0.3 * 2, 0.25), (2, 1, 0.75 + 0.21 * 2, 0.0),
])  # fmt: skip
def test_marks_of_a_row_are_moved_apart_where_there_is_room(rows, labels, height, step, told):
    marks = [Mark(f"r{i}", 1.0, STYLE, 0.5, 1.5, label=f"l{j}") for i in range(rows) for j in range(labels)]
    lines = told(dots, marks, x="x")
    assert f"draw({height:.4g}, 1, 1)" in lines
    centres = [line for line in lines if "marker=" in line][:labels]
    middle = (labels - 1) / 2
    assert [float(line.split("], [")[1].split("]")[0]) for line in centres] == [
        pytest.approx(step * (j - middle)) for j in range(labels)
    ]


def test_marks_without_intervals_or_labels_stay_in_line(told):
    plain = told(
        dots, [Mark("a", 1.0, STYLE, label=label) for label in "xy"], x="x" * 61, line=(2.0, "here"), connect=True
    )
    assert len([line for line in plain if "plot([1], [0], marker" in line]) == 2
    assert "axes0.set_xlabel('" + "x" * 59 + "…')" in plain
    assert "axes0.axvline(2, color='#1b1f24', linewidth=0.9, linestyle=[0, [4, 2]], zorder=2)" in plain
    assert "axes0.plot([1, 1], [0, 0], color='#7d8590', linewidth=0.8, zorder=1)" in plain
    half = told(dots, [Mark("a", 1.0, STYLE, low=0.5)], x="x", marked=["a"])
    assert not [line for line in half if "linewidth=1.1" in line]  # a bar needs both ends
    assert any("['▸ a']" in line for line in half)


@pytest.mark.parametrize(
    ("values", "least", "limits"),
    [((58.3, 58.8), 5.0, (55.8, 61.3)), ((50.0, 58.0), 5.0, None), ((58.3, 58.8), 0.0, None)],
)
def test_a_small_difference_looks_small(values, least, limits, told):
    lines = told(dots, [Mark(f"r{value}", value, STYLE) for value in values], x="x", least=least)
    assert lines_of(lines, "axes0.set_xlim") == (
        [] if limits is None else [f"axes0.set_xlim({limits[0]}, {limits[1]})"]
    )


@pytest.mark.parametrize(("count", "bands"), [(5, 5), (6, 1)])
def test_bands_of_many_curves_would_hide_each_other(count, bands, told):
    styles = [Style("#0072b2", "o", "full", "-", "", j == 0) for j in range(count)]
    lines = told(
        curves, [Curve(str(j), [0, 1], [1, 2], styles[j], [0, 1], [2, 3]) for j in range(count)], x="x", y="y" * 45
    )
    assert len(lines_of(lines, "axes0.fill_between")) == bands
    assert "axes0.set_ylabel('" + "y" * 43 + "…')" in lines
    assert "draw(2.7, 1, 1)" in lines


def test_a_long_curve_is_thinned_out_and_the_diagonal_spans_all(told):
    curve = Curve("a", list(range(81)), list(range(81)), STYLE)
    lines = told(curves, [curve, Curve("b", [5, 90], [0, 0], STYLE)], x="x", y="y", diagonal="as promised", height=1.0)
    drawn = lines_of(lines, "axes0.plot([0, 1, 2")[0]
    assert drawn.split("], [")[0].count(",") == 79
    assert "axes0.plot([0, 90], [0, 90], color='#1b1f24', linewidth=0.9, linestyle=[0, [4, 2]], zorder=1)" in lines
    whole = told(curves, [Curve("a", list(range(80)), list(range(80)), STYLE)], x="x", y="y")
    assert lines_of(whole, "axes0.plot([0, 1")[0].split("], [")[0].count(",") == 79


@pytest.mark.parametrize(
    ("frames", "size", "hidden", "labelled", "below"),
    [
        (1, "draw(1.65, 1, 1", [], [0], []),
        (2, "draw(1.65, 1, 2", [], [0, 1], []),
        (3, "draw(2.8, 2, 2", [3], [1, 2], [1]),
    ],
)
def test_small_frames_two_in_a_row(frames, size, hidden, labelled, below, told):
    curve = Curve("a", [0, 1], [1, 2], STYLE)
    lines = told(small_curves, {f"f{j}": [curve] for j in range(frames)}, x="step", y="y" * 23)
    assert lines[2].startswith(size)
    assert [int(line[4]) for line in lines if ".set_visible(False)" in line] == hidden
    assert [int(line[4]) for line in lines if ".set_xlabel('step')" in line] == labelled
    assert [int(line[4]) for line in lines if ".tick_params(labelbottom=True)" in line] == below
    assert lines_of(lines, "axes0.set_ylabel")[0] == f"axes0.set_ylabel('{'y' * 21}…', fontsize=7)"


@pytest.mark.parametrize(("count", "rows", "rest"), [(20, 20, None), (21, 19, "2 rarer patterns: 3 rows (1.3 %)")])
def test_rare_patterns_are_one_line(count, rows, rest, told):
    names = [f"m{j}" for j in range(5)]
    counts = [([names[j % 5]] if j < 5 else names[: j % 5], count - j) for j in range(count)]
    lines = told(upset, counts, names)
    assert len([line for line in lines_of(lines, "axes0.plot") if "'o-'" in line]) == rows
    text = lines_of(lines, "axes1.text")
    assert (text == []) if rest is None else f"'{rest}'" in text[0]
    assert f"axes0.set_ylim({rows + (rest is not None) - 0.4:.4g}, -0.6)" in lines


@pytest.mark.parametrize(("modalities", "left"), [(2, 1.0), (5, 1.3), (12, 2.6)])
def test_room_for_dots(modalities, left, told):
    names = [f"m{j}" for j in range(modalities)]
    lines = told(upset, [(names, 0)], names)
    assert f"width_ratios=[{left:.4g}, {4 - left:.4g}]" in lines[2]
    assert "axes1.set_xlim(0, 0)" in lines
    assert any("0 (0.0 %)" in line for line in lines)


@pytest.mark.parametrize(("items", "drawn"), [(450, 450), (451, 450), (1800, 450)])
def test_a_map_shows_some_hundred_points(items, drawn, told):
    cloud = PointMap(
        x=[0.0] * 2 * items, y=[0.0] * 2 * items, modality=["a", "b"] * items, item=[i // 2 for i in range(2 * items)]
    )
    lines = told(scatter, cloud)
    shown = lines_of(lines, "axes0.plot")
    assert shown[0].split("], [")[0].count("0") == drawn + 1  # and that of "axes0"
    none = told(scatter, cloud, modalities=["c", "a", "b"])
    assert len(lines_of(none, "axes0.plot")) == 2


def test_the_size_and_the_title_of_a_panel():
    figure, axes = draw(2.5, 2, 3, sharex=True)
    assert figure.get_size_inches().tolist() == [4.0, 2.5]
    assert len(axes) == 6
    assert [figure.get_layout_engine().get()[name] for name in ("w_pad", "h_pad")] == [0.05, 0.05]
    assert len(draw(1.0)[1]) == 1
    panel = finish(figure, "p", "alt", "t" * 51)
    assert figure.get_suptitle() == "t" * 49 + "…"
    assert panel.svg.startswith(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 288 180" width="384" height="240"'
    )
    assert finish(draw(1.0)[0], "p", "alt").svg


class Noting:
    """Takes any call and writes it down."""

    def __init__(self):
        self.calls = []

    def get_figheight(self):
        return 2.0

    def __getattr__(self, name):
        return lambda *given, **named: self.calls.append((name, given, named))


@pytest.mark.parametrize(("labels", "columns", "height"), [
    (["a"], 1, 2.285), (["a"] * 7, 3, 2 + 3 * 0.185 + 0.1), (["a" * 20] * 4, 2, 2.47), (["a" * 21] * 4, 1, 2 + 4 * 0.185 + 0.1),
    (["a" * 50], 1, 2.285),
])  # fmt: skip
def test_a_legend_in_as_many_columns_as_fit(labels, columns, height):
    figure = Noting()
    legend_below(figure, [1] * len(labels), labels)
    (size, (inches,), _), (_, (_, shown), options) = figure.calls
    assert (size, inches) == ("set_figheight", pytest.approx(height))
    assert shown == [label if len(label) <= 44 else "a" * 43 + "…" for label in labels]
    assert options == {
        "loc": "outside lower left", "ncols": columns, "fontsize": 8.5, "frameon": False, "handlelength": 2.4,
        "columnspacing": 1.2, "labelspacing": 0.35, "borderaxespad": 0.2,
    }  # fmt: skip
    legend_below(figure, [], [])
    assert len(figure.calls) == 2


@pytest.mark.parametrize(("marker", "fill", "strong", "size", "edge", "width"), [
    ("o", "full", False, 6.0, "#1b1f24", 0.9), ("*", "none", True, 9.5, "red", 0.9), ("x", "full", False, 6.0, "red", 1.6),
    ("P", "left", False, 8.5, "#1b1f24", 0.9), ("s", "bottom", True, 7.0, "#1b1f24", 0.9),
])  # fmt: skip
def test_markers(marker, fill, strong, size, edge, width):
    axes = Noting()
    points(axes, [1], [2], Style("red", marker, fill, "-", "", strong))
    ((_, _, options),) = axes.calls
    assert (options["markersize"], options["markeredgecolor"], options["markeredgewidth"]) == (size, edge, width)
    assert options["markerfacecolor"] == ("#fffffe" if fill == "none" else "red")
    assert ("fillstyle" in options) == (fill in ("left", "bottom"))
    assert options["clip_on"] is False  # whole also at the edge of the axes


def test_a_drawing_without_what_is_not_needed():
    raw = (
        '<?xml version="1.0"?><!-- made --><svg xmlns:x="y" viewBox="0 0 90.5 45" height="1"><metadata>m</metadata>\n'
        '<style type="a">b</style><defs> </defs><path id="used" d="M 1.23456 -0.001 L 12.500"/> <path id="other"/>\n'
        '<use xlink:href="#used" x="3.1000" y="7"/> <text style="font-family: A, B">a <b/></text></svg>'
    )
    assert clean(raw, "p", 'a "b"') == (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 90.5 45" width="121" height="60" role="img" '
        'aria-label="a &quot;b&quot;" stroke-linejoin="round" stroke-linecap="butt">'
        '<path id="p-used" d="M 1.23 -0 L 12.5"/><path/><use href="#p-used" x="3.1" y="7"/> '
        '<text style="font-family: sans-serif">a <b/></text></svg>\n'
    )
    assert clip("abcd", 4) == "abcd"
    assert clip("abcde", 4) == "abc…"
    panel = SimpleNamespace(svg="<svg a><b/></svg>")
    assert standalone(panel) == '<svg a><rect width="100%" height="100%" fill="#fffffe"/><b/></svg>'


@pytest.mark.parametrize("name", ["one", "two", "three", "four"])
def test_unknown_names_get_a_style_of_their_own_letters(name):
    code = zlib.crc32(name.encode())
    assert (style_of(name).colour, style_of(name).marker) == (COLOURS[code % 6], MARKERS[code // 6 % 10])
