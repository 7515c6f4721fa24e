"""Draw hostile names and take them everywhere that a name goes: terminal, report, tables, feature files, index, server.

python -m tests.hostile_names --cases 2000 --seed 0        # exit code 1 if a name acts, breaks out or is changed

A name is right where it comes back as it was, and where a person reads it, it is only text: nothing that acts on a terminal, no
tag, no link, no command of LaTeX. It may also be refused with a sentence.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np

from calmrl._support.parsing import visible
from calmrl._support.text import to_terminal
from calmrl.cli import runs
from calmrl.cli.printing import Progress, error, note, stderr_console
from calmrl.data.features.directory import meta_table
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.features.writer import write_features
from calmrl.errors import InputError
from calmrl.report import as_html, as_markdown, build_page, read_results
from calmrl.report.page import drawings
from calmrl.report.table_files import to_csv, to_latex, to_markdown
from calmrl.report.tables import SWEPT, retrieval_table

PIECES = {
    "control": ["\x1b[2J", "\x1b]0;t\x07", "\r", "\x00", "\x08", "\x9b31m", "\x7f", "\x1f"],
    "direction": ["\u202e", "\u2066", "\u202a", "\u2069", "\u200f"],
    "html": ["<script>alert(1)</script>", "</title>", '" onload="x', "<img src=x onerror=y>", "-->", "&lt;",
             "{{7*7}}", "javascript:x"],
    "latex": ["\\input{x}", "$", "%", "}{", "^^5c", "\\end{tabular}", "~", "&"],
    "markdown": ["|", "](http://z)", "```", "**", "\n# x", "<!--", "![x](http://y)", "`"],
    "path": ["../", "/etc/passwd", "\\..\\", ".", "C:\\x", "%2e%2e%2f", "~", "con"],
    "query": ["' OR 1=1 --", '"', ";", "`", "%", "_", "\\'", "{}"],
    "plain": ["dog", " ", "é", "犬", "🐕", "a b", "+", "=1+1"],
}  # fmt: skip
LONG = 3000  # letters
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Wrong(AssertionError):
    """A name that acted, broke out, or came back changed."""


def draw(rng: Random) -> str:
    """Some pieces of one or two kinds, now and then very long."""
    kinds = rng.sample(list(PIECES), 2)
    parts = [rng.choice(PIECES[rng.choice([*kinds, "plain"])]) for _ in range(rng.randint(1, 6))]
    name = "".join(parts)
    return name * (LONG // len(name)) if rng.random() < 0.08 else name


def need(condition: bool, sentence: str) -> None:
    if not condition:
        raise Wrong(sentence)


# ---- where names go


def terminal(name: str, folder: Path) -> None:
    """Notes, errors, tables and progress, as people see them."""
    shown, rows = io.StringIO(), [{"task": name, "metric": "R@1", "value": 1.0, "n": 5}]
    with redirect_stderr(shown), redirect_stdout(shown):
        note(name)
        error(name)
        for _, table in runs.tables(rows):
            stderr_console().print(to_terminal(table))
        progress = Progress(shown=False)
        progress.what = name
        note(progress.line())
    need(not ACTS.search(shown.getvalue()), "a name acts on the terminal")


class _Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def _results(name: str, folder: Path) -> Any:
    row = {"dataset": name, "method": name, "seed": 0, "task": "average", "metric": "R@1", "value": 1.0, "n": 50}
    rows = [row, row | {"method": "gram"}, row | {"task": f"{name}->b", "value": 2.0}]
    near = [
        {"method": name, "task": name, "query": name, "rank": 1, "found": [{"caption": name, "id": 1, "own": True}]}
    ]
    meta = {"patterns": {name: [{"has": [name], "rows": 3}]}, "neighbours": near, "words": [name], "command": name,
            "config": {name: name}, "settings": {name: name}}  # fmt: skip
    (folder / "results.json").write_text(json.dumps({"rows": rows, "meta": meta}), encoding="utf-8")
    return read_results([folder])


def report(name: str, folder: Path) -> None:
    """The page as HTML and Markdown, with its drawings."""
    page = build_page(_results(name, folder))
    html = as_html(page)
    tags = _Tags(html).tags
    need(sum(tag == "script" for tag, _ in tags) == 1, "another script in the page")
    need(
        not [1 for tag, _ in tags if tag in ("iframe", "object", "embed", "base", "form")], "a foreign tag in the page"
    )
    need(not [1 for _, a in tags for key in a if key.startswith("on")], "a handler in the page")
    need(all((a.get("href") or "#").startswith("#") for _, a in tags), "a link out of the page")
    need(all((a.get("src") or "data:").startswith("data:") for _, a in tags), "a source outside the page")
    text = as_markdown(page)
    bare = re.sub(r"\\.", "", text.split("```")[0])
    need("<script" not in bare and "](http" not in bare and "<img" not in bare, "Markdown lets a name through")
    need(not ACTS.search(html) and not ACTS.search(text), "a control character or a turn of direction in the report")
    for drawing in drawings(page).values():
        ElementTree.fromstring(drawing.decode())


def tables(name: str, folder: Path) -> None:
    """The tables of a paper as Markdown, LaTeX and CSV."""
    rows = [{"dataset": name, "method": method, "seed": seed, "task": task, "metric": "R@1", "value": 1.0 + seed, "n": 9}
            for method in (name, "calmrl", "gram") for seed in (0, 1) for task in ("a->b", f"b->{name}")]  # fmt: skip
    table = retrieval_table(rows)
    text, source, sheet = (form(table) for form in (to_markdown, to_latex, to_csv))
    bare = re.sub(r"\\.", "", text)
    need("<script" not in bare and "](" not in bare and "`" not in bare, "Markdown lets a name through")
    need(
        len({len(re.findall(r"(?<!\\)[|]", line)) for line in text.splitlines() if line.startswith("|")}) == 1,
        "columns",
    )
    _check_latex(source, columns=len(table.columns))
    need(not ACTS.search(text) and not ACTS.search(source), "a control character or a turn of direction in a table")
    methods = {line["method"] for line in csv.DictReader(io.StringIO(sheet, newline=""))}
    own = set() if SWEPT.fullmatch(name) else {visible(name)}  # "method key=value" has a table of its own
    need(methods == {"calmrl", "gram"} | own, "a name in the CSV is not what it was")


def _check_latex(source: str, columns: int) -> None:
    commands = set(re.findall(r"\\([A-Za-z]+)", source))
    known = {"begin", "end", "centering", "caption", "label", "toprule", "midrule", "bottomrule", "cmidrule", "multicolumn",
             "textbf", "emph", "underline", "textbackslash", "textasciitilde", "textasciicircum", "rightarrow", "pm", "dagger",
             "tau", "alpha"}  # fmt: skip
    need(commands <= known, f"LaTeX has the command {sorted(commands - known)[:1]}")
    escaped = re.sub(r"\\[&%$#_{}\\]", "", source)
    need(escaped.count("{") == escaped.count("}"), "braces of LaTeX are not balanced")
    need("%" not in escaped and "#" not in escaped, "LaTeX has a comment or a parameter")
    need("^^" not in source and source.count("\n\n") == 0, "LaTeX has an escape or a paragraph in an argument")
    body = [
        line
        for line in re.sub(r"\\[&%$#_{}]", "", source).splitlines()
        if line.endswith(r"\\") and "multicolumn" not in line
    ]
    need(all(line.count("&") == columns for line in body), "LaTeX has another column")


def features(name: str, folder: Path) -> None:
    """A modality, an id and a caption of this name, written to files and read again."""
    place = folder / "features"
    z = {name: np.ones((3, 2), np.float32), "other": np.zeros((3, 2), np.float32)}
    write_features(place, z, ids=[name, "b", "c"], text=[name, "", "x"], columns={f"my {name}": [name, "y", "z"]})
    again = open_features(place)
    need(list(again.z) == [name, "other"], "a modality has another name")
    need(list(again.ids) == [name, "b", "c"], "an id changed")
    need(again.text is not None and again.text[0] in (name, [name]), "a caption changed")
    need({path.name for path in folder.iterdir()} <= {"features", "results.json"}, "a file outside the folder")


def _index(names: list[str], folder: Path) -> Any:
    from calmrl import Aligner, Index

    rows = len(names)
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(rows, 3))
    z = {"image": shared @ rng.normal(size=(3, 6)), "sound": shared @ rng.normal(size=(3, 5))}
    meta = meta_table(rows, ids=names, labels=names, text=names, columns={"my name": names})
    model = Aligner("linear", False, 0.5, 3, 1.0, "never", random_state=0)
    data = FeatureSet({key: values.astype(np.float32) for key, values in z.items()}, np.ones((rows, 2), bool), meta)
    return Index.build(data, folder / "index", model=model)


def index(names: list[str], folder: Path) -> Callable[[str], None]:
    """All names in one index, as ids, captions, labels and values of a column."""
    made = _index(names, folder)

    def check(name: str) -> None:
        text = name.replace("'", "''")
        found = made.items(where=f"\"my name\" = '{text}'", limit=5)
        need([one.id for one in found] == [name], "a filter by this name does not find it, or finds others")
        need(made.item(name).text == name, "an item is not found by its id, or its caption changed")
        need(len(made.search(like=name, k=3)) == 3, "the item has no neighbours")

    return check


def serve(names: list[str], folder: Path) -> Callable[[str], None]:
    """The same, over HTTP: as an item, in a search, and as an address that is not there."""
    from starlette.testclient import TestClient

    from calmrl.server import build_app

    client = TestClient(
        build_app(_index(names, folder)), base_url="http://127.0.0.1:8000", raise_server_exceptions=False
    )

    def check(name: str) -> None:
        got = client.get(f"/api/items/{quote(name, safe='').replace('.', '%2E')}")
        need(got.status_code in (200, 400, 404, 414, 422), f"status {got.status_code}")
        need(got.headers["content-type"].startswith("application/json"), "an answer that is no JSON")
        need(got.status_code != 200 or got.json()["id"] == name, "another item")
        if got.status_code != 200:
            raise InputError(got.text[:200])
        for address in (f"/{quote(name)}", f"/api/items/{quote(name + 'x', safe='')}/files/{quote(name, safe='')}"):
            answer = client.get(address)
            need(answer.status_code < 500 and "passwd" not in answer.text[:20], f"status {answer.status_code}")
            need(
                "<script>alert" not in answer.text or "html" not in answer.headers["content-type"],
                "a script comes back",
            )

    return check


ONE_BY_ONE = {"terminal": terminal, "report": report, "tables": tables, "features": features}
TOGETHER = {"index": index, "serve": serve}
SHARE = {"report": 0.05}  # of the cases: a page takes a second


def outcome(check: Callable[[], Any]) -> tuple[str, str]:
    """("right", ""), ("refused", the sentence) or ("wrong", what happened)"""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check()
    except InputError as refused:
        return "refused", str(refused)
    except Exception as problem:
        return "wrong", f"{type(problem).__name__}: {problem}"
    return "right", ""


def run(cases: int, seed: int, shown: int = 3) -> dict[str, Counter[str]]:
    """Counts per place; every place gets the same number of names but the report, which gets a twentieth."""
    counts: dict[str, Counter[str]] = {place: Counter() for place in [*ONE_BY_ONE, *TOGETHER]}
    for place in counts:
        number = max(8, round(cases / len(counts) * SHARE.get(place, 1.0)))
        names = list(dict.fromkeys(draw(Random(f"{seed} {place} {case}")) for case in range(number)))
        with tempfile.TemporaryDirectory() as base:
            check = _together(place, names, Path(base)) if place in TOGETHER else _alone(place, Path(base))
            for name in names:
                kind, text = outcome(partial(check, name))
                counts[place][kind] += 1
                if kind == "wrong" and counts[place]["wrong"] <= shown:
                    print(f"{place}: {text} {name[:80]!r}", flush=True)
    return counts


def _alone(place: str, base: Path) -> Callable[[str], None]:
    """A name by itself, in a folder of its own."""

    def one(name: str) -> None:
        with tempfile.TemporaryDirectory(dir=base) as folder:
            ONE_BY_ONE[place](name, Path(folder))

    return one


def _together(place: str, names: list[str], folder: Path) -> Callable[[str], None]:
    """One index of all names that it takes; a name that it does not take is refused when its turn comes."""
    refusals: dict[str, str] = {}
    for name in names:
        kind, text = outcome(partial(meta_table, 1, ids=[name]))
        if kind == "refused":
            refusals[name] = text
    check = TOGETHER[place]([name for name in names if name not in refusals], folder)

    def one(name: str) -> None:
        if name in refusals:
            raise InputError(refusals[name])
        check(name)

    return one


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts = run(options.cases, options.seed)
    for place, count in counts.items():
        print(f"{place:10} right {count['right']:6} refused {count['refused']:6} wrong {count['wrong']:6}")
    return int(sum(count["wrong"] for count in counts.values()) > 0)


if __name__ == "__main__":
    sys.exit(main())
