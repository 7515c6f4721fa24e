"""The sentences and sections of a report, how much each holds, and what is said about a broken file."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from calmrl._support.text import fixed
from calmrl.data.media.problems import Unreadable
from calmrl.errors import InputError
from calmrl.metrics.significance import PairedDifference
from calmrl.report import build_page, results_of
from calmrl.report import sections as album_module
from calmrl.report.comparison import main_table
from calmrl.report.completion import imputation
from calmrl.report.estimates import headline, is_clear, spread_words, verdict
from calmrl.report.page import as_markdown
from calmrl.report.results import ResultRow, decimals, estimate, group
from calmrl.report.sections import Album, Code, Page, Table, neighbours
from tests.support.drawing import Drawing
from tests.support.report_data import results, row

# ---- numbers and words


def test_numbers_as_they_are_written():
    assert [decimals("nmse", values) for values in ([1.0], [0.5], [0.05], [0.001], [0.0], [])] == [3, 3, 4, 5, 3, 3]
    assert decimals("R@1", [0.001]) == 1
    one = estimate([2.0], [5])
    assert (one.low, one.high, one.half, one.items, one.text(1)) == (None, None, None, "5", "2.0")
    assert [fixed(value, 1) for value in (-0.04, -1234.5)] == ["0.0", "−1,234.5"]
    assert estimate([1.0, 2.0, 4.0], [9] * 3).half == pytest.approx(4.302653 * np.std([1, 2, 4], ddof=1) / np.sqrt(3))
    two = estimate([1.0, 3.0], [1000, 5])
    assert (two.mean, two.items, two.seeds) == (2.0, "5 to 1,000", 2)
    assert (two.low, two.high) == (two.mean - two.half, two.mean + two.half)
    assert spread_words([one]) == "One seed, so no intervals."
    assert spread_words([one, two]).endswith("over seeds; numbers without ± come from one seed.")
    assert spread_words([two]) == "Mean ± 95 % interval (Student's t) over seeds."


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
        "d: calmrl is best, average R@1 2.0 % (n = 50, 1 seed), level with pmrl (one seed), the best other method."
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
            "Over 4 settings, the best of ours is ahead of the best other method in 2 (clearly in 0) and behind in 1 (clearly "
            "in 0), level in 1, by average R@1."
        ]
        assert verdict(results(*rows, words=["Mine."])) == ["Mine."]
        only = [one for one in rows if one["method"] == "pmrl"]
        assert verdict(results(*only)) == ["average R@1 in 4 settings; the best of each is in bold."]


@pytest.mark.parametrize(("remark", "said"), [("the same value.", "The same value."), ("no stop", "No stop.")])
def test_remarks_end_in_one_full_stop(remark, said):
    assert verdict(results(row(), remarks=[remark]))[-1] == said


@pytest.mark.parametrize(("best", "chance", "bold"), [(2.0, 0.5, True), (2.0, 2.0, False), (2.0, None, True)])
def test_a_number_at_chance_level_is_not_bold(best, chance, bold):
    level = [] if chance is None else [row("pmrl", chance, metric="chance R@1")]
    table = main_table(results(row("calmrl", best), row("pmrl", 1.0), *level))
    assert [line[1].best for line in table.lines] == [bold, False]
    assert ("Bold" in table.caption) == bold


# ---- sections


@pytest.mark.parametrize(("tasks", "kept"), [(40, 40), (41, 31)])
def test_of_many_directions_some_are_drawn(tasks, kept, monkeypatch):
    Drawing(monkeypatch)
    ends = [f"a{j}->x" for j in range(20)] + [f"a,b,c{j}->x" for j in range(10)]
    middle = [f"a,b{j}->x" for j in range(tasks - 31)] + ["a0,b,c->x"]
    figure, table = imputation(results(*(row(task=task, metric="nmse") for task in ends + middle)))
    assert (f"Drawn are {kept} directions" in figure.caption) == (kept < tasks)
    assert len(table.head) + len(table.lines) - 2 == tasks  # the table has all


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
        ({"rows": [row(value=float("nan"))]}, "rows.0.value: input should be a finite number"),
        ({"rows": [{"dataset": "d"}]}, "rows.0.method: field required"),
        ({"rows": [row(n=-1)]}, "1 mistake\n  rows.0.n: input should be greater than or equal to 0; got -1"),
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
