"""The report at its limits: how much one panel, table or sentence holds, and what is said about a broken file."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from calmrl.data.media.unreadable import Unreadable
from calmrl.errors import InputError
from calmrl.metrics.significance import PairedDifference
from calmrl.report import album as album_module
from calmrl.report import build_page, results_of
from calmrl.report.album import Album
from calmrl.report.blocks import Code, Page, Table
from calmrl.report.estimates_table import spread_words
from calmrl.report.figures import Curve, Mark, curves, dots, scatter, small_curves, upset
from calmrl.report.look import COLOURS, MARKERS, Look, family, look
from calmrl.report.markdown import as_markdown
from calmrl.report.numbers import capital, decimals, estimate, fixed, plural
from calmrl.report.results import PointMap, ResultRow, group
from calmrl.report.sections.completion import _directions, imputation
from calmrl.report.sections.neighbours import neighbours
from calmrl.report.svg import SETTINGS, clean, clip, draw, finish, legend_below, points, standalone
from calmrl.report.words import headline, is_clear, verdict
from drawing import Drawing

LOOK = Look("#0072b2", "o", "full", "-", "", False)


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


# ---- figures


@pytest.mark.parametrize(("rows", "labels", "height", "step"), [
    (16, 2, 0.75 + 0.21 * 16, 0.5), (17, 2, 0.75 + 0.175 * 17, 0.0), (2, 3, 0.75 + 0.3 * 2, 0.25), (2, 1, 0.75 + 0.21 * 2, 0.0),
])  # fmt: skip
def test_marks_of_a_row_are_moved_apart_where_there_is_room(rows, labels, height, step, told):
    marks = [Mark(f"r{i}", 1.0, LOOK, 0.5, 1.5, label=f"l{j}") for i in range(rows) for j in range(labels)]
    lines = told(dots, marks, x="x")
    assert f"draw({height:.4g}, 1, 1)" in lines
    centres = [line for line in lines if "marker=" in line][:labels]
    middle = (labels - 1) / 2
    assert [float(line.split("], [")[1].split("]")[0]) for line in centres] == [
        pytest.approx(step * (j - middle)) for j in range(labels)
    ]


def test_marks_without_intervals_or_labels_stay_in_line(told):
    plain = told(
        dots, [Mark("a", 1.0, LOOK, label=label) for label in "xy"], x="x" * 61, line=(2.0, "here"), connect=True
    )
    assert len([line for line in plain if "plot([1], [0], marker" in line]) == 2
    assert "axes0.set_xlabel('" + "x" * 59 + "…')" in plain
    assert "axes0.axvline(2, color='#1b1f24', linewidth=0.9, linestyle=[0, [4, 2]], zorder=2)" in plain
    assert "axes0.plot([1, 1], [0, 0], color='#7d8590', linewidth=0.8, zorder=1)" in plain
    half = told(dots, [Mark("a", 1.0, LOOK, low=0.5)], x="x", marked=["a"])
    assert not [line for line in half if "linewidth=1.1" in line]  # a bar needs both ends
    assert any("['▸ a']" in line for line in half)


@pytest.mark.parametrize(("count", "bands"), [(5, 5), (6, 1)])
def test_bands_of_many_curves_would_hide_each_other(count, bands, told):
    looks = [Look("#0072b2", "o", "full", "-", "", j == 0) for j in range(count)]
    lines = told(
        curves, [Curve(str(j), [0, 1], [1, 2], looks[j], [0, 1], [2, 3]) for j in range(count)], x="x", y="y" * 45
    )
    assert len(lines_of(lines, "axes0.fill_between")) == bands
    assert "axes0.set_ylabel('" + "y" * 43 + "…')" in lines
    assert "draw(2.7, 1, 1)" in lines


def test_a_long_curve_is_thinned_out_and_the_diagonal_spans_all(told):
    curve = Curve("a", list(range(81)), list(range(81)), LOOK)
    lines = told(curves, [curve, Curve("b", [5, 90], [0, 0], LOOK)], x="x", y="y", diagonal="as promised", height=1.0)
    drawn = lines_of(lines, "axes0.plot([0, 1, 2")[0]
    assert drawn.split("], [")[0].count(",") == 79
    assert "axes0.plot([0, 90], [0, 90], color='#1b1f24', linewidth=0.9, linestyle=[0, [4, 2]], zorder=1)" in lines
    whole = told(curves, [Curve("a", list(range(80)), list(range(80)), LOOK)], x="x", y="y")
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
    curve = Curve("a", [0, 1], [1, 2], LOOK)
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


def test_the_style_and_the_size_of_a_panel():
    assert {key: value for key, value in SETTINGS.items() if isinstance(value, (int, float))} == {
        "text.parse_math": False, "font.size": 9, "axes.labelsize": 9, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5,
        "legend.fontsize": 8.5, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "axes.axisbelow": True, "axes.linewidth": 0.7, "xtick.major.width": 0.7, "ytick.major.width": 0.7,
        "xtick.major.size": 3, "ytick.major.size": 3, "grid.alpha": 0.3, "grid.linewidth": 0.5, "legend.frameon": False,
        "lines.linewidth": 1.2, "hatch.linewidth": 0.6,
    }  # fmt: skip
    figure, axes = draw(2.5, 2, 3, sharex=True)
    assert figure.get_size_inches().tolist() == [4.0, 2.5]
    assert len(axes) == 6
    assert [figure.get_layout_engine().get()[name] for name in ("w_pad", "h_pad")] == [0.05, 0.05]
    assert len(draw(1.0)[1]) == 1
    panel = finish(figure, "p", "alt", "t" * 51)
    assert figure._suptitle.get_text() == "t" * 49 + "…"
    assert (figure._suptitle.get_fontsize(), figure._suptitle.get_position()[0]) == (9.5, 0.01)
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
    points(axes, [1], [2], Look("red", marker, fill, "-", "", strong))
    ((_, _, options),) = axes.calls
    assert (options["markersize"], options["markeredgecolor"], options["markeredgewidth"]) == (size, edge, width)
    assert options["markerfacecolor"] == ("#fffffe" if fill == "none" else "red")
    assert ("fillstyle" in options) == (fill in ("left", "bottom"))


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


def test_unknown_names_get_a_look_of_their_own_letters():
    import zlib

    for name in ("one", "two", "three", "four"):
        code = zlib.crc32(name.encode())
        assert (look(name).colour, look(name).marker) == (COLOURS[code % 6], MARKERS[code // 6 % 10])
    assert family("ideal") == ("ideal", "ideal")
    assert family("GRAM + latent") == ("gram", "latent")


# ---- numbers and words


def test_numbers_as_they_are_written():
    assert [fixed(value, 1) for value in (-0.04, 0.04, -1234.56, 0.05, -0.06)] == [
        "0.0",
        "0.0",
        "−1,234.6",
        "0.1",
        "−0.1",
    ]
    assert [capital(text) for text in ("", "a", "abc")] == ["", "A", "Abc"]
    assert [plural(count, "seed") for count in (0, 1, 2, 1234)] == ["0 seeds", "1 seed", "2 seeds", "1,234 seeds"]
    assert [decimals("nmse", values) for values in ([1.0], [0.5], [0.05], [0.001], [0.0], [])] == [3, 3, 4, 5, 3, 3]
    assert decimals("R@1", [0.001]) == 1
    one = estimate([2.0], [5])
    assert (one.low, one.high, one.half, one.items, one.text(1)) == (None, None, None, "5", "2.0")
    two = estimate([1.0, 3.0], [1000, 5])
    assert (two.mean, two.items, two.seeds) == (2.0, "5 to 1,000", 2)
    assert (two.low, two.high) == (two.mean - two.half, two.mean + two.half)
    assert spread_words([one]) == "One seed, so no intervals."
    assert spread_words([one, two]).endswith("over seeds; numbers without ± come from one seed.")
    assert spread_words([two]) == "Mean ± 95 % interval (Student's t) over seeds."


def row(method="pmrl", value=1.0, seed=0, **more):
    return {
        "dataset": "d",
        "method": method,
        "seed": seed,
        "task": "average",
        "metric": "R@1",
        "value": value,
        "n": 50,
    } | more


def results(*rows, **meta):
    return results_of({Path("r/results.json"): {"rows": list(rows), "meta": meta}})


@pytest.mark.parametrize(
    ("low", "high", "clear"),
    [(0.1, 1.0, True), (-1.0, -0.1, True), (0.0, 1.0, False), (-1.0, 0.0, False), (None, None, False)],
)
def test_an_interval_that_holds_zero_is_not_clear(low, high, clear):
    assert is_clear(PairedDifference(difference=0.5, low=low, high=high, p=None)) is clear


def test_what_the_first_screen_shows():
    rows = [ResultRow(**one) for one in (row(task="x", metric="mine"), row(task="a->b", metric="nmse"),
                                         row(task="b->a", metric="nmse"), row("gram", task="b->a", metric="nmse"))]  # fmt: skip
    assert headline(rows) == ("b->a", "nmse")
    assert headline(rows[:1]) == ("x", "mine")
    assert headline([*rows, ResultRow(**row(metric="accuracy"))]) == ("average", "accuracy")
    assert headline([*rows, ResultRow(**row())]) == ("average", "R@1")


def test_equal_methods_and_a_behind_one():
    found = results(row("calmrl", 2.0), row("pmrl", 2.0))
    assert verdict(found) == [
        "d: calmrl is best, average R@1 2.0 % (n = 50, 1 seed), 0.0 (one seed) behind pmrl, the best other method."
    ]
    found = results(row("calmrl", 1.0), row("pmrl", 2.0, seed=1))
    assert "The best of ours, calmrl, is not measured on a common seed with pmrl." in verdict(found)[0]
    assert verdict(results(row("ideal", 3.0))) == ["d: With nothing missing: 3.0 %."]
    assert verdict(results(row("pmrl", 2.0))) == ["d: pmrl reaches average R@1 2.0 % (n = 50, 1 seed)."]


@pytest.mark.parametrize("places", [3, 4])
def test_more_than_three_settings_are_summed_up(places):
    rows = [
        row(method, value, setting=f"s{j}")
        for j in range(places)
        for method, value in (("calmrl", 2.0 + j), ("pmrl", 3.0))
    ]
    said = verdict(results(*rows))
    if places == 3:
        assert len(said) == 3
    else:
        assert said == [
            "Over 4 settings, the best of ours is ahead of the best other method in 2 (clearly in 0) and behind in 2 (clearly "
            "in 0), by average R@1."
        ]
        only = [one for one in rows if one["method"] == "pmrl"]
        assert verdict(results(*only)) == ["average R@1 in 4 settings; the best of each is in bold."]


# ---- sections


@pytest.mark.parametrize(("tasks", "kept"), [(40, 40), (41, 31)])
def test_of_many_directions_some_are_drawn(tasks, kept):
    ends = [f"a{j}->x" for j in range(20)] + [f"a,b,c{j}->x" for j in range(10)]
    middle = [f"a,b{j}->x" for j in range(tasks - 31)] + ["a0,b,c->x"]
    assert len(_directions([*ends, *middle, *ends])) == kept


def test_four_methods_per_panel_ours_first(monkeypatch):
    drawing = Drawing(monkeypatch)
    rows = [row(m, v, task="a->b", metric="nmse") for m, v in
            (("pmrl", 0.1), ("gram", 0.2), ("vast", 0.3), ("calmrl", 0.4), ("mean", 0.5), ("ideal", 0.01))]  # fmt: skip
    imputation(results(*rows))
    assert "per direction, calmrl, pmrl, gram, vast. calmrl has 0.400 on average." in drawing.text
    assert "axvline(1, " in drawing.text


def query(method="m", number=0, **more):
    found = [{"caption": f"c{j}", "id": j} for j in range(7)]
    return {"method": method, "task": "a->b", "query": f"q{number}", "rank": 3, "found": found} | more


def test_neighbours_of_some_queries():
    (table,) = neighbours(results(row(), neighbours=[query("m", j) for j in range(8)]))
    assert len(table.lines) == 8
    assert [str(head) for head in table.head] == [
        "query",
        "method",
        "rank of its own",
        *(f"found {j}" for j in range(1, 6)),
    ]
    assert "results.json has" not in table.caption
    every = [query(m, j) for m in "xy" for j in range(9)]
    every[0]["found"] = every[0]["found"][:2]
    every[1] |= {"relevant_by": "labels"}
    every[1]["found"][0]["relevant"] = True
    (table,) = neighbours(results(row(), neighbours=every))
    assert len(table.lines) == 16
    assert [line[1] for line in table.lines[:4]] == ["x", "y", "x", "y"]
    assert table.lines[0][-3:] == ["", "", ""]
    assert table.head[2] == "rank of the first ✓"
    assert (
        "✓ has the labels of the query. The first 8 queries of each method; results.json has 18 lines." in table.caption
    )
    assert table.lines[2][3].text == "c0 ✓"


def test_pictures_and_sounds_that_cannot_be_read(monkeypatch, tmp_path):
    buffer = io.BytesIO()
    Image.new("RGB", (200, 100), "red").save(buffer, "PNG")
    inside = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    album = Album()
    cell = album.cell(tmp_path, SimpleNamespace(picture=inside, sound=None), "t", "a stamp")
    assert Image.open(io.BytesIO(cell.picture.jpeg)).size == (96, 48)
    assert (cell.picture.name, cell.picture.alt, cell.sound) == ("picture-1.jpg", "picture: a stamp", None)
    for broken in ("data:image/png;base64,a", "nowhere.png"):
        assert album.cell(tmp_path, SimpleNamespace(picture=broken, sound=broken), "t", "x").picture is None
    assert album.unread == ["one inside results.json"] * 2 + ["nowhere.png"] * 2
    read = []
    monkeypatch.setattr(album_module, "read_audio", lambda content: read.append(content))
    monkeypatch.setattr(album_module, "clip", lambda content: b"cut")
    mp3 = "data:audio/mpeg;base64," + base64.b64encode(b"song").decode()
    cells = [album.cell(tmp_path, SimpleNamespace(picture=None, sound=sound), "t", "x") for sound in (mp3, "a.wav")]
    assert [(cell.sound.name, cell.sound.content) for cell in cells] == [
        ("sound-1.mp3", b"song"),
        ("sound-2.mp3", b"cut"),
    ]
    assert read == [b"song"]

    def unreadable(content):
        raise Unreadable("sound", "damaged")

    monkeypatch.setattr(album_module, "read_audio", unreadable)
    assert album.cell(tmp_path, SimpleNamespace(picture=None, sound=mp3), "t", "x").sound is None


def test_fences_are_longer_than_what_they_hold():
    page = Page("t", [], [Code("l", "a ``` b", "sh"), Code("l", "a `` b"), Table("c", ["h"], [["`a`|b"]])])
    text = as_markdown(page)
    assert "````sh\na ``` b\n````" in text
    assert "```\na `` b\n```" in text
    assert r"| \`a\`\|b |" in text


# ---- files


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], 'should hold {"rows": [...], "meta": {...}}; got list'),
        ({"x": 1}, "got the keys ['x']"),
        ({"rows": []}, "has no rows; there is nothing to report"),
        ({"rows": [row(value="x" * 60)]}, f'unable to parse string as a number; got "{"x" * 56}...'),
        ({"rows": [row(n=-1)]}, "1 mistakes\n  rows.0.n: input should be greater than or equal to 0; got -1"),
        ({"rows": [row(rate=1.5)]}, "less than or equal to 1"), ({"rows": [row(rate=-0.1)]}, "greater than or equal to 0"),
        ({"rows": [row(seconds=-1.0)]}, "greater than or equal to 0"),
        ({"rows": [{}] * 3}, "21 mistakes"),
        ({"rows": [row()], "meta": {"maps": {"m": {"x": [1], "y": [], "modality": [], "item": []}}}}, "of the same length"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file(content, said):
    with pytest.raises(InputError) as caught:
        results_of({Path("a/results.json"): content})
    assert said in str(caught.value)


@pytest.mark.parametrize(("mistakes", "more"), [(8, None), (9, "  and 1 more")])
def test_eight_mistakes_are_listed(mistakes, more):
    with pytest.raises(InputError) as caught:
        results_of({Path("a/results.json"): {"rows": [row(n=-1)] * mistakes}})
    lines = str(caught.value).splitlines()
    assert len(lines) == 9 + (more is not None)
    assert (lines[-1] == more) == (more is not None)


def test_files_that_say_different_things():
    files = {Path(f"{name}/x/results.json"): {"rows": [row(value=value, setting="s")], "meta": {"settings": {"s": about}}}
             for name, value, about in (("a", 1.0, "one"), ("b", 1.0, "two"))}  # fmt: skip
    with pytest.raises(InputError, match=r'setting "s" is described differently in a/x/results\.json'):
        results_of(files)
    files[Path("b/x/results.json")]["meta"] = {}
    merged = results_of(files)
    assert len(merged.rows) == 1
    assert [source.name for source in merged.sources] == ["a/x", "b/x"]
    files[Path("b/x/results.json")]["rows"][0]["value"] = 2.0
    with pytest.raises(
        InputError, match=r"two values for the same measurement \(d, s, pmrl, 0, average, R@1\): 1 \(n=50\)"
    ):
        results_of(files)
    with pytest.raises(InputError, match=r"no directory given; name one or several that hold results\.json"):
        results_of({})
    one = {Path(f"a/{name}.json"): {"rows": [row(method=name)]} for name in "xy"}
    assert [source.name for source in results_of(one).sources] == ["x.json", "y.json"]


def test_a_seed_that_was_measured_twice_counts_once():
    rows = [ResultRow(**row(value=value, seed=seed, n=n)) for value, seed, n in ((1.0, 0, 5), (3.0, 0, 6), (4.0, 1, 7))]
    (mean,) = group(rows, lambda one: one.method).values()
    assert (mean.mean, mean.values, mean.fewest, mean.most) == (3.0, (2.0, 4.0), 5, 7)


def test_a_map_needs_twenty_items(monkeypatch):
    Drawing(monkeypatch)
    for items, shown in ((19, False), (20, True)):
        cloud = {"x": [0.0] * items, "y": [0.0] * items, "modality": ["a"] * items, "item": list(range(items))}
        page = build_page(results(row(), maps={"m": cloud}))
        assert ("Maps" in [section.title for section in page.sections]) == shown


@pytest.mark.parametrize(("methods", "frames"), [(6, False), (7, True)])
def test_many_methods_over_rates_have_a_frame_per_family(methods, frames, monkeypatch):
    drawing = Drawing(monkeypatch)
    names = ("calmrl", "gram", "gram+latent", "pmrl", "vast", "ideal", "triangle")[:methods]
    rows = [
        row(name, 10.0 + j, setting=f"mcar {rate}", rate=rate) for j, name in enumerate(names) for rate in (0.1, 0.5)
    ]
    build_page(results(row("calmrl", 1.0), *rows))
    assert ("draw(2.8, 2, 2" in drawing.text or "draw(3.95, 3, 2" in drawing.text) == frames


def test_json_of_a_long_value_is_cut():
    from calmrl.report.results import _shown

    assert _shown("x" * 58) == json.dumps("x" * 58)
    assert _shown("x" * 59) == '"' + "x" * 56 + "..."
