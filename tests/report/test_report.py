"""The report: numbers are what the rows say, the page stands alone, names cannot break out, the same input is the same."""

from __future__ import annotations

import base64
import io
import json
import re
import wave
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from calmrl._support.text import fixed
from calmrl.cli import main
from calmrl.data.hiding import hide
from calmrl.data.media.streams import SECONDS, clip, read_audio
from calmrl.data.patterns import patterns
from calmrl.errors import InputError
from calmrl.report import (
    Cell,
    Code,
    Figure,
    Number,
    Page,
    PageSection,
    Table,
    Text,
    as_html,
    as_markdown,
    build_page,
    plot_patterns,
    read_results,
    write_page,
)
from calmrl.report.estimates import difference, headline, headline_rows, matrix, verdict
from calmrl.report.figures import Mark, dots
from calmrl.report.results import decimals, estimate, group
from calmrl.report.style import KNOWN, base_method, is_ours, style_of
from calmrl.report.table_files import to_latex
from calmrl.report.tables import all_tables
from tests.support import report_data

HOSTILE = "</script><script>alert(1)</script> \"x\" 'y' & $a_b$ <b>|`*[z](http://z)"
VOID = {"meta", "img", "br", "wbr", "link", "input", "hr"}


def _row(method="calmrl", value=1.0, seed=0, **more):
    row = {"dataset": "d", "method": method, "seed": seed, "task": "average", "metric": "R@1", "value": value, "n": 50}
    return row | more


def _rows(**values):
    return [_row(m.replace("_", "-"), v, s) for m, found in values.items() for s, v in enumerate(found)]


def _write(folder, told):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(told if isinstance(told, str) else json.dumps(told))
    return folder


def _results(tmp_path, rows, **meta):
    return read_results([_write(tmp_path / "r", {"rows": rows, "meta": meta})])


class _Tags(HTMLParser):
    """All tags with their attributes; checks that they close."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags = [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo-like report, written once: its directory."""
    folder = _write(tmp_path_factory.mktemp("report") / "demo", report_data.demo_like())
    write_page(build_page(read_results([folder])), folder / "report.html")
    return folder


# the numbers


def test_the_interval_is_students(tmp_path):
    found = estimate([1.0, 2.0, 4.0], [10, 10, 12])
    assert found.mean == pytest.approx(7 / 3)
    assert found.half == pytest.approx(4.302653 * np.std([1, 2, 4], ddof=1) / np.sqrt(3), rel=1e-6)
    assert (found.seeds, found.items) == (3, "10 to 12")
    assert estimate([5.0], [3]).half is None
    assert estimate([5.0], [3]).text(1) == "5.0"
    assert fixed(-0.04, 1) == "0.0"
    assert fixed(-1234.5, 1) == "−1,234.5"
    assert decimals("mse", [0.0041, 0.001]) == 5
    assert decimals("R@1", [0.001]) == 1
    twice = _results(tmp_path, [_row(value=1.0, task="a->b"), _row(value=3.0, task="b->a")]).rows
    assert group(twice, lambda row: row.method)["calmrl"].values == (2.0,)  # one seed, one value


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            _rows(calmrl=[30.0, 31.0, 32.0], gram=[20.1, 21.0, 22.0]),
            "d: calmrl is best, average R@1 31.0 ± 2.5 % (n = 50, 3 seeds), 10.0 (95 % interval 9.8 to 10.1) ahead of "
            "gram, the best other method.",
        ),
        (
            _rows(calmrl=[30.0, 31.0], gram=[31.0, 30.2]),
            "d: gram is best, average R@1 30.6 ± 5.1 % (n = 50, 2 seeds). The best of ours, calmrl, is 0.1 (95 % "
            "interval −11.5 to 11.3: no difference shown) behind gram.",
        ),
        (_rows(calmrl=[30.0], gram=[20.0]), "10.0 (one seed) ahead of gram"),
        (_rows(vast=[30.0], gram=[20.0]), "d: vast is best, average R@1 30.0 % (n = 50, 1 seed)."),
        (_rows(calmrl=[3.0], ideal=[9.0]), "average R@1 3.0 % (n = 50, 1 seed). With nothing missing: 9.0 %."),
        ([_row("calmrl", 5), _row("gram", 4, seed=1)], "calmrl is best, average R@1 5.0 % (n = 50, 1 seed), not measured on a"),
        (
            [_row(m, v, task="imputation", metric="nmse") for m, v in (("gaussian", 0.5), ("knn", 0.7))],
            "d: gaussian is best, imputation nmse 0.500 (n = 50, 1 seed), 0.200 (one seed) ahead of knn",
        ),
    ],
)  # fmt: skip
def test_the_verdict_follows_the_numbers(tmp_path, rows, said):
    (sentence,) = verdict(_results(tmp_path, rows))
    assert said in sentence


def test_many_settings_are_summed_up_and_given_words_are_used(tmp_path):
    wins = {"a": (5, 4), "b": (5, 4), "c": (4, 5), "e": (5, 1)}
    rows = [
        _row(m, v + 0.01 * seed, seed, setting=s)
        for s, pair in wins.items()
        for m, v in zip(("calmrl", "gram"), pair, strict=True)
        for seed in range(2)
    ]
    (sentence,) = verdict(_results(tmp_path, rows))
    assert "Over 4 settings, the best of ours is ahead of the best other method in 3" in sentence
    assert "behind in 1" in sentence
    assert verdict(_results(tmp_path, rows, words=["Mine."])) == ["Mine."]


def test_differences_are_paired_and_know_the_direction(tmp_path):
    rows = _results(tmp_path, _rows(a=[1.0, 5.0], b=[2.0, 6.0])).rows
    assert difference(rows, "b", "a", "R@1")[:3] == (1.0, 1.0, 1.0)
    assert difference(rows, "b", "a", "nmse").difference == -1.0
    assert headline(rows) == ("average", "R@1")


def test_the_main_table(tmp_path):
    rows = [r | {"setting": s} for s in ("x", "y") for r in _rows(gram=[1, 2], calmrl=[3, 5], ideal=[9, 9])]
    rows = [row for row in rows if (row["setting"], row["method"]) != ("y", "gram")] + [_row("vast", 7.0, setting="y")]
    table = build_page(_results(tmp_path, rows)).first[0]
    assert [str(getattr(h, "text", h)) for h in table.head] == ["method", "x", "y"]
    assert table.head[1].note == "n = 50, 2 seeds"
    found = {line[0].removeprefix("▸ "): line[1:] for line in table.lines}
    assert list(found) == ["calmrl", "gram", "vast"]  # best of the first column on top
    assert found["calmrl"][0] == Number("4.0 ± 12.7", 4.0, True)
    assert found["gram"] == ["–"] or found["gram"][1] == "–"
    assert found["vast"][1] == Number("7.0", 7.0, True, "n = 50, 1 seed")
    assert [line[0] for line in table.apart] == ["ideal"]
    assert not any(cell.best for line in table.apart for cell in line[1:])
    assert "numbers without ± come from one seed" in table.caption


# the looks


def test_one_method_one_look():
    assert base_method("GRAM + latent") == ("gram", "latent")
    assert base_method("contrastive staged") == ("contrastive", "staged")
    assert base_method("pmrl (ideal)") == base_method("ideal pmrl") == ("pmrl", "ideal")
    assert base_method("calmrl-printed") == ("calmrl", "printed")
    assert base_method("ideal") == ("ideal", "ideal")
    for base in ("gram", "calmrl", "something new"):
        variants = [style_of(base + end) for end in ("", "+latent", " staged", " ideal")]
        assert len({(v.colour, v.marker) for v in variants}) == 1
        assert len({(v.fill, v.line) for v in variants}) >= 3
    assert len(set(KNOWN.values())) == len(KNOWN)  # no two known methods look the same
    assert all(map(is_ours, ("aligner", "calmrl", "calmrl-printed", "closed-form")))
    assert not any(map(is_ours, ("pmrl", "ideal", "ideal calmrl")))
    assert style_of("something new") == style_of("something new")


# the page


def test_the_page_stands_alone(demo):
    page = (demo / "report.html").read_text()
    tags = _Tags(page).tags
    assert len(page) < 5e6
    for tag, attributes in tags:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = {a["href"][1:] for tag, a in tags if tag in ("a", "use") and a.get("href", "").startswith("#")}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", page))
    assert wanted <= set(ids)


def test_every_figure_has_a_text_and_a_caption(demo):
    page = (demo / "report.html").read_text()
    drawings = [attributes for tag, attributes in _Tags(page).tags if tag == "svg"]
    assert len(drawings) >= 20
    assert all(a["role"] == "img" and len(a["aria-label"]) > 30 for a in drawings)
    assert len({a["aria-label"] for a in drawings}) == len(drawings)
    assert page.count("<figure>") == page.count("<figcaption>")
    shown = ("Comparison", "Missing rates", "Imputed vectors", "Predicted uncertainty", "Anchor shift", "Maps",
             "Nearest neighbours", "Training", "Data and missing patterns", "Methods", "Repeat it")  # fmt: skip
    assert [title for title in shown if f">{title}</h2>" in page] == list(shown)
    assert "calmrl demo --out demo-out" in page
    assert "epochs: 30" in page
    for _, first in enumerate(re.findall(r"<figcaption><b>Figure (\d+)", page), 1):
        assert int(first) == _


def test_only_what_was_measured_is_shown(tmp_path):
    page = build_page(_results(tmp_path, [_row(), _row("pmrl")]))
    assert [section.title for section in page.sections] == ["Comparison", "Repeat it"]
    assert "was not recorded" in as_html(page)


def test_one_run_is_not_called_a_comparison(tmp_path):
    page = build_page(_results(tmp_path, [_row("pmrl")], remarks=["few queries: a->b (7)"]))
    assert page.title.startswith("Evaluation of pmrl on ")
    assert [section.title for section in page.sections] == ["Repeat it"]
    assert "is best" not in page.answer[0]
    assert page.answer[-1] == "Few queries: a->b (7)."


def test_bold_means_best_and_nothing_else(tmp_path):
    page = as_markdown(build_page(_results(tmp_path, _rows(gram=[5, 6], calmrl=[1, 2]))))
    assert "| ▸ calmrl | 1.5" in page
    assert "| gram | **5.5" in page


def test_nothing_measured_is_left_out(tmp_path):
    rows = [_row(), _row(metric="a new one", value=0.25), _row(task="image", metric="uniformity", value=-1.5)]
    text = as_markdown(build_page(_results(tmp_path, rows)))
    assert "a new one" in text
    assert "0.250" in text
    assert "−1.500" in text


@pytest.mark.filterwarnings("error")  # a drawing whose names leave no room for it warns
def test_names_cannot_break_out(tmp_path):
    rows = [_row(HOSTILE, 2.0), _row("gram"), _row(HOSTILE, 3.0, task=f"{HOSTILE}->b")]
    found = [{"caption": HOSTILE, "id": 1, "own": True, "picture": "../" + HOSTILE}]
    patterns = {HOSTILE: [{"has": [HOSTILE], "rows": 3}]}
    near = [{"method": HOSTILE, "task": HOSTILE, "query": HOSTILE, "rank": 1, "found": found}]
    curves = [{"method": HOSTILE, "seed": 0, "step": i, "loss": 1.0} for i in range(3)]
    points = {HOSTILE: {"x": [0, 1], "y": [0, 1], "modality": [HOSTILE, "b"], "item": [0, 0]}}
    meta = {"neighbours": near, "patterns": patterns, "curves": curves, "maps": points, "words": [HOSTILE],
            "command": HOSTILE, "config": {HOSTILE: HOSTILE}, "settings": {HOSTILE: HOSTILE}}  # fmt: skip
    page = build_page(_results(tmp_path, rows, **meta))
    tags = _Tags(as_html(page)).tags
    assert sum(tag == "script" for tag, _ in tags) == 1
    assert not any(tag == "b" and attributes for tag, attributes in tags)
    assert all(a.get("href", "#").startswith("#") for _, a in tags)
    prose = as_markdown(page).split("```")[0]
    assert "<script" not in re.sub(r"\\.", "", prose)
    assert "](http" not in re.sub(r"\\.", "", prose)
    assert "1 file could not be read" in as_html(page)
    written = write_page(page, tmp_path / "out" / "report.html")
    for path in written[2:]:
        assert re.fullmatch(r"[a-z]+-\d+\.svg", path.name)
        ElementTree.fromstring(path.read_text())


def test_pictures_are_small_and_inside(tmp_path):
    Image.new("RGB", (900, 600), "red").save(tmp_path / "big.png")
    found = [{"caption": "a", "picture": "../big.png"}, {"caption": "b"}]
    near = [{"method": "m", "task": "text->image", "query": "q", "rank": 2, "found": found}]
    page = build_page(_results(tmp_path, [_row()], neighbours=near))
    (image,) = [attributes for tag, attributes in _Tags(as_html(page)).tags if tag == "img"]
    assert image["src"].startswith("data:image/jpeg;base64,")
    assert len(image["src"]) < 5000
    assert image["alt"] == "picture: a"
    written = write_page(page, tmp_path / "out" / "report.html")
    assert Image.open(next(path for path in written if path.suffix == ".jpg")).size == (96, 64)


def test_pictures_may_be_inside_results(tmp_path):
    buffer = io.BytesIO()
    Image.new("RGBA", (30, 20), (255, 0, 0, 255)).save(buffer, "WEBP")
    good = "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
    found = [{"caption": "a", "picture": good}, {"caption": "b", "picture": "data:image/webp;base64,AAAA"}]
    near = [{"method": "m", "task": "text->image", "query": "q", "rank": 2, "found": found}]
    html = as_html(build_page(_results(tmp_path, [_row()], neighbours=near)))
    assert sum(tag == "img" for tag, _ in _Tags(html).tags) == 1
    assert "1 file could not be read, first one inside results.json" in html


def _tone(seconds: float) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        samples = 9000 * np.sin(np.arange(round(16_000 * seconds)) * 0.2)
        file.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


def test_sounds_are_short_inside_and_load_when_played(tmp_path):
    """From a file beside the results, and from inside them; what is no sound is counted."""
    (tmp_path / "long.wav").write_bytes(_tone(20))
    inside = "data:audio/mpeg;base64," + base64.b64encode(clip(_tone(1))).decode()
    found = [{"caption": "a", "sound": "../long.wav"}, {"caption": "b", "sound": inside}, {"caption": "c"},
             {"caption": "d", "sound": "data:audio/mpeg;base64,AAA"}, {"caption": "e", "sound": "gone.wav"}]  # fmt: skip
    near = [{"method": "m", "task": "text->sound", "query": "q", "rank": 2, "found": found}]
    page = build_page(_results(tmp_path, [_row()], neighbours=near))
    html = as_html(page)
    players = [attributes for tag, attributes in _Tags(html).tags if tag == "audio"]
    assert [player["aria-label"] for player in players] == ["sound: a", "sound: b"]
    assert all("controls" in player and player["preload"] == "none" for player in players)
    assert players[1]["src"] == inside
    assert "2 files could not be read, first one inside results.json" in html
    assert len(players[0]["src"]) < 40_000
    seconds = [len(read_audio(base64.b64decode(player["src"].partition(",")[2]))) / 16_000 for player in players]
    assert seconds == pytest.approx([SECONDS, 1], abs=0.2)
    written = write_page(page, tmp_path / "out" / "report.html")
    mp3 = [path for path in written if path.suffix == ".mp3"]
    assert [path.name for path in mp3] == ["sound-1.mp3", "sound-2.mp3"]
    assert "b [listen](figures/sound-2.mp3)" in (tmp_path / "out" / "report.md").read_text()


def test_every_item_that_counts_is_marked(tmp_path):
    found = [{"caption": "a", "relevant": True}, {"caption": "b"}, {"caption": "c", "own": True, "relevant": True}]
    near = {"method": "m", "task": "text->image", "query": "q", "rank": 1, "found": found}
    text = as_markdown(build_page(_results(tmp_path, [_row()], neighbours=[near | {"relevant_by": "labels"}])))
    assert "| q | m | 1 | a ✓ | b | c ✓ |" in text
    assert "✓ has the labels of the query" in text
    assert "rank of the first ✓" in text
    own = as_markdown(build_page(_results(tmp_path, [_row()], neighbours=[near])))
    assert "✓ is the query's own item" in own
    assert "rank of its own" in own


def test_markdown_says_the_same(demo):
    text = (demo / "report.md").read_text()
    refs = re.findall(r"\]\((figures/[^)]+)\)", text)
    assert sorted(refs) == sorted(f"figures/{path.name}" for path in (demo / "figures").iterdir())
    page = (demo / "report.html").read_text()
    plain = re.sub(r"<[^>]+>", "", page)
    for number in ("26.7 ± 0.5", "21.3 ± 0.1"):
        assert f"**{number}**" in text
        assert number in plain
    assert text.count("**Figure ") == page.count("<figure>")
    assert text.count("**Table ") == page.count("<table")
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    assert min(widths) >= 3


def test_the_same_results_give_the_same_bytes(demo, tmp_path):
    again = _write(tmp_path / "again", (demo / "results.json").read_text())
    write_page(build_page(read_results([again])), again / "report.html")
    for path in [p for p in demo.rglob("*") if p.is_file()]:
        assert (again / path.relative_to(demo)).read_bytes() == path.read_bytes(), path.name


def test_blocks_by_hand():
    panel = dots("one", "What it shows", [Mark("a", 1.0, style_of("gram"), 0.5, 1.5)], x="value (unit)")
    table = Table("Words", ["a", "b"], [["x", Cell("y")], ["z", Number("1.0 ± 0.1", 1.0, True)]])
    page = Page("T", ["Yes."], [table], [PageSection("S", [Figure("See.", [panel]), Text("t"), Code("run", "`x`")])])
    assert '<td class="num" data-value="1.0"><strong>1.0 <span class="pm">± 0.1</span></strong></td>' in as_html(page)
    assert "value (unit)" in panel.svg
    assert "| z | **1.0 ± 0.1** |" in as_markdown(page)


def test_patterns_as_a_file(tmp_path):
    present = hide(np.ones((400, 5), dtype=bool), 0.4, np.random.default_rng(0))
    names = ["image", "text", "sound", "speech", "depth"]
    panel = plot_patterns(present, names, tmp_path / "patterns.svg")
    texts = [node.text for node in ElementTree.parse(tmp_path / "patterns.svg").iter() if node.tag.endswith("text")]
    counted = patterns(present, names)
    assert set(names) <= set(texts)
    for pattern in counted[:19]:
        assert f"{pattern.rows:,} ({100 * pattern.share:.1f} %)" in texts
    rest = sum(pattern.rows for pattern in counted[19:])
    assert f"{len(counted) - 19} rarer patterns: {rest} rows ({100 * rest / 400:.1f} %)" in texts
    assert panel.alt == f"Missing patterns: 400 rows, {len(counted)} patterns."


# what is read


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", 'should hold {"rows": [...], "meta": {...}}; got list'),
        ({"meta": {}}, "got the keys ['meta']"),
        ({"rows": []}, "has no rows"),
        ({"rows": [{"dataset": "d"}]}, "rows.0.method: field required"),
        ({"rows": [_row(value="x"), _row(n=-1)]}, "2 mistakes"),
        ({"rows": [_row(value=float("nan"))]}, "rows.0.value: input should be a finite number"),
        ({"rows": [_row(rate=30)]}, "rows.0.rate: input should be less than or equal to 1"),
        ({"rows": [_row(), _row(value=2.0)]}, "two values for the same measurement (d, calmrl, 0, average, R@1): 1 (n=50)"),
        (
            {"rows": [_row()], "meta": {"maps": {"m": {"x": [1], "y": [], "modality": ["a"], "item": [1]}}}},
            "the map of m needs lists of the same length",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(tmp_path, told, said):
    with pytest.raises(InputError, match=re.escape(said)):
        read_results([_write(tmp_path / "r", told)])


def test_directories_are_merged(tmp_path):
    one = _write(tmp_path / "one", {"rows": [_row("gram", 1.0), _row("vast", 2.0)], "meta": {"command": "c1"}})
    two = _write(tmp_path / "two", {"rows": [_row("gram", 1.0), _row("calmrl", 3.0)], "meta": {"command": "c2"}})
    merged = read_results([one, two])
    assert [(row.method, row.value) for row in merged.rows] == [("gram", 1.0), ("vast", 2.0), ("calmrl", 3.0)]
    assert [source.name for source in merged.sources] == ["one", "two"]
    text = as_markdown(build_page(merged))
    assert "Command of one:" in text
    assert "c2" in text
    _write(two, {"rows": [_row("gram", 1.5)]})
    with pytest.raises(InputError, match=r"1 \(n=50\) in .*one.*1\.5 \(n=50\) in .*two"):
        read_results([one, two])
    data = {"modalities": {"a": 2}, "source": ""}
    _write(one, {"rows": [_row()], "meta": {"datasets": {"d": {"rows": 3, **data}}}})
    _write(two, {"rows": [_row(seed=1)], "meta": {"datasets": {"d": {"rows": 4, **data}}}})
    with pytest.raises(InputError, match='dataset "d" is described differently'):
        read_results([one, two])


def test_rates_of_one_setting_are_told_apart(tmp_path):
    rows = [_row(m, 9 - 5 * r, setting="mcar", rate=r) for m in ("calmrl", "gram") for r in (0.1, 0.5)]
    results = _results(tmp_path, rows)
    assert {row.setting for row in results.rows} == {"mcar 0.1", "mcar 0.5"}
    assert "Missing rates" in [section.title for section in build_page(results).sections]


# the command


def test_report_from_the_command_line(tmp_path, capsys):
    one = _write(tmp_path / "one", {"rows": _rows(calmrl=[1, 2], gram=[3, 4])})
    two = _write(tmp_path / "two", {"rows": _rows(vast=[1, 2])})

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["report", *map(str, arguments)])
        return stop.value.code or 0, *capsys.readouterr()

    code, out, err = run(one)
    assert (code, out) == (0, f"{one / 'report.html'}\n"), err
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*"))
    assert names == ["figures", "figures/compare-1.svg", "report.html", "report.md", "results.json"]
    assert run(one)[0] == 2
    assert run(one, "--force")[0] == 0
    code, _, err = run(one, two)
    assert (code, "--out FILE.html" in err) == (2, True)
    assert run(one, two, "--out", tmp_path / "both" / "all.html")[0] == 0
    assert "vast" in (tmp_path / "both" / "all.md").read_text()
    assert run(tmp_path / "nowhere")[0] == 2
    assert run(one, "--out", tmp_path / "x.txt")[0] == 2


def test_every_table_says_what_is_left_out(tmp_path):
    content = report_data.demo_like()
    content["meta"]["datasets"]["stamps"]["left_out"] = {"listed": 260, "items": 10, "image": 3}
    said = "Skipped: stamps: 10 items, image of 3 (of 260 listed items)."
    (tmp_path / "results.json").write_text(json.dumps(content))
    page = build_page(read_results([tmp_path]))
    shown = [block for block in page.blocks() if isinstance(block, Table)]
    assert shown
    assert all(said in table.caption for table in shown)
    made = all_tables(content)
    assert made
    assert all(said in table.notes for table in made.values())
    assert said in "".join(to_latex(made["retrieval-R1"]).split("\n"))


@pytest.mark.parametrize(("columns", "turned"), [(8, False), (9, True)])
def test_a_wide_table_of_few_methods_is_turned(tmp_path, columns, turned):
    rows = [_row(method, j, task=f"task {j}") for j in range(columns) for method in ("calmrl", "pmrl")]
    results = _results(tmp_path, rows)
    table = matrix(results, results.rows, lambda row: row.task, "Caption.")
    assert len(table.lines) == (columns if turned else 2)


def test_steps_of_complete_rows_are_apart_from_other_settings(tmp_path):
    steps = [_row(setting=f"all but {count}", complete=count) for count in (25, 50)]
    results = _results(tmp_path, [*steps, _row(setting="two-source")])
    assert [row.setting for row in headline_rows(results, rated=True)] == ["all but 25", "all but 50"]
    assert [row.setting for row in headline_rows(results, rated=False)] == ["two-source"]
    assert len(headline_rows(results)) == 3
