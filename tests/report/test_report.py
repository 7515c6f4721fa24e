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

from calmrl.cli import main
from calmrl.data.hiding import hide
from calmrl.data.media.streams import SECONDS, clip, read_audio
from calmrl.data.patterns import patterns
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
from calmrl.report.style import KNOWN, base_method, is_ours, style_of
from tests.support import report_data
from tests.support.report_data import results, row

HOSTILE = "</script><script>alert(1)</script> \"x\" 'y' & $a_b$ <b>|`*[z](http://z)"
VOID = {"meta", "img", "br", "wbr", "link", "input", "hr"}


def _rows(**values):
    return [row(m.replace("_", "-"), v, s) for m, found in values.items() for s, v in enumerate(found)]


def _write(folder, told):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(told if isinstance(told, str) else json.dumps(told))
    return folder


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
        ([row("calmrl", 5), row("gram", 4, seed=1)], "calmrl is best, average R@1 5.0 % (n = 50, 1 seed), not measured on a"),
        (
            [row(m, v, task="imputation", metric="nmse") for m, v in (("gaussian", 0.5), ("knn", 0.7))],
            "d: gaussian is best, imputation nmse 0.500 (n = 50, 1 seed), 0.200 (one seed) ahead of knn",
        ),
    ],
)  # fmt: skip
def test_the_verdict_follows_the_numbers(tmp_path, rows, said):
    (sentence,) = verdict(results(*rows))
    assert said in sentence


def test_differences_are_paired_and_know_the_direction(tmp_path):
    rows = results(*_rows(a=[1.0, 5.0], b=[2.0, 6.0])).rows
    assert difference(rows, "b", "a", "R@1")[:3] == (1.0, 1.0, 1.0)
    assert difference(rows, "b", "a", "nmse").difference == -1.0
    assert headline(rows) == ("average", "R@1")


def test_the_main_table(tmp_path):
    rows = [r | {"setting": s} for s in ("x", "y") for r in _rows(gram=[1, 2], calmrl=[3, 5], ideal=[9, 9])]
    rows = [one for one in rows if (one["setting"], one["method"]) != ("y", "gram")] + [row("vast", 7.0, setting="y")]
    table = build_page(results(*rows)).first[0]
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


def test_one_run_is_not_called_a_comparison(tmp_path):
    page = build_page(results(row("pmrl"), remarks=["few queries: a->b (7)"]))
    assert page.title.startswith("Evaluation of pmrl on ")
    assert [section.title for section in page.sections] == ["Repeat it"]
    assert "is best" not in page.answer[0]
    assert page.answer[-1] == "Few queries: a->b (7)."


@pytest.mark.filterwarnings("error")  # a drawing whose names leave no room for it warns
def test_names_cannot_break_out(tmp_path):
    rows = [row(HOSTILE, 2.0), row("gram"), row(HOSTILE, 3.0, task=f"{HOSTILE}->b")]
    found = [{"caption": HOSTILE, "id": 1, "own": True, "picture": "../" + HOSTILE}]
    patterns = {HOSTILE: [{"has": [HOSTILE], "rows": 3}]}
    near = [{"method": HOSTILE, "task": HOSTILE, "query": HOSTILE, "rank": 1, "found": found}]
    curves = [{"method": HOSTILE, "seed": 0, "step": i, "loss": 1.0} for i in range(3)]
    points = {HOSTILE: {"x": [0, 1], "y": [0, 1], "modality": [HOSTILE, "b"], "item": [0, 0]}}
    meta = {"neighbours": near, "patterns": patterns, "curves": curves, "maps": points, "words": [HOSTILE],
            "command": HOSTILE, "config": {HOSTILE: HOSTILE}, "settings": {HOSTILE: HOSTILE}}  # fmt: skip
    page = build_page(results(*rows, **meta))
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
    found = [{"caption": "a", "picture": "big.png"}, {"caption": "b"}]
    near = [{"method": "m", "task": "text->image", "query": "q", "rank": 2, "found": found}]
    page = build_page(results(row(), folder=tmp_path, neighbours=near))
    (image,) = [attributes for tag, attributes in _Tags(as_html(page)).tags if tag == "img"]
    assert image["src"].startswith("data:image/jpeg;base64,")
    assert len(image["src"]) < 5000
    assert image["alt"] == "picture: a"
    written = write_page(page, tmp_path / "out" / "report.html")
    assert Image.open(next(path for path in written if path.suffix == ".jpg")).size == (96, 64)


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
    found = [{"caption": "a", "sound": "long.wav"}, {"caption": "b", "sound": inside}, {"caption": "c"},
             {"caption": "d", "sound": "data:audio/mpeg;base64,AAA"}, {"caption": "e", "sound": "gone.wav"}]  # fmt: skip
    near = [{"method": "m", "task": "text->sound", "query": "q", "rank": 2, "found": found}]
    page = build_page(results(row(), folder=tmp_path, neighbours=near))
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


@pytest.mark.parametrize(("columns", "turned"), [(8, False), (9, True)])
def test_a_wide_table_of_few_methods_is_turned(tmp_path, columns, turned):
    rows = [row(method, j, task=f"task {j}") for j in range(columns) for method in ("calmrl", "pmrl")]
    found = results(*rows)
    table = matrix(found, found.rows, lambda row: row.task, "Caption.")
    assert len(table.lines) == (columns if turned else 2)


def test_steps_of_complete_rows_are_apart_from_other_settings(tmp_path):
    steps = [row(setting=f"all but {count}", complete=count) for count in (25, 50)]
    found = results(*steps, row(setting="two-source"))
    assert [row.setting for row in headline_rows(found, rated=True)] == ["all but 25", "all but 50"]
    assert [row.setting for row in headline_rows(found, rated=False)] == ["two-source"]
    assert len(headline_rows(found)) == 3
