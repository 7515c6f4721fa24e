"""README and docs import only public packages, and their links lead to files and headings."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import calmrl

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PUBLIC = {
    *("calmrl", *(f"calmrl.{name}" for name in calmrl.__all__)),
    "calmrl.datasets.emoji",  # a data set with pictures and query words of its own
    "calmrl.paper.reproduce",  # the function behind `calmrl reproduce`, and what it returns
}
IMPORT = re.compile(r"^\s*(?:>>> )?(?:from\s+(calmrl[\w.]*)\s+import|import\s+(calmrl[\w.]*))", re.MULTILINE)
REFERENCED = sorted(
    {name for page in PAGES for name in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.MULTILINE)}
)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(([^)#:\s]*\.md)?#([^)]+)\)")


def inner_imports(text: str) -> list[str]:
    """The modules of calmrl that `text` imports although they are not public."""
    return [module for names in IMPORT.findall(text) if (module := names[0] or names[1]) not in PUBLIC]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_import_only_public_packages(page):
    assert inner_imports(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    missing = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert missing == []


def anchors(text: str) -> set[str]:
    """The addresses of the headings of a page, as GitHub and Python-Markdown make them where the two agree."""
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = [re.sub(r"[^\w\s-]", "", head).strip().lower() for head in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)]
    return {re.sub(r"\s", "-", head) for head in headings} & {re.sub(r"[-\s]+", "-", head) for head in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings(page):
    links = ANCHOR.findall(page.read_text(encoding="utf-8"))
    there = {name: (page.parent / name if name else page).read_text(encoding="utf-8") for name, _ in links}
    assert [(name, anchor) for name, anchor in links if anchor not in anchors(there[name])] == []


@pytest.mark.parametrize("name", REFERENCED)
def test_the_reference_shows_public_names(name):
    package, _, own = name.rpartition(".")
    assert package in PUBLIC
    assert hasattr(importlib.import_module(package), own)


def test_contributing_has_no_relative_links():
    """The page on the site includes the file, from another folder, so that relative links would break in one of them."""
    assert LINK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")) == []


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    listed = set(re.findall(r"- (\S+\.md)", navigation))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.parent != ROOT}


def test_inner_imports_are_noticed():
    text = "```python\nfrom calmrl.data import hide\nimport calmrl\nfrom calmrl.data.hiding import hide\n"
    assert inner_imports(text + "    import calmrl.report.figures as svg\n") == [
        "calmrl.data.hiding",
        "calmrl.report.figures",
    ]


# ---- docs/reference/recipe.md lists thirty rules, and every test that it names exists

RULE = re.compile(r"^\| (\d+) \| (.+?) \| (same|option|intended) \| ?(.*?) ?\| (.*?) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rules() -> list[tuple[str, ...]]:
    return RULE.findall((ROOT / "docs" / "reference" / "recipe.md").read_text(encoding="utf-8"))


def test_there_are_thirty_rules_in_order():
    assert [int(number) for number, *_ in rules()] == list(range(1, 31))


def test_every_rule_names_tests_that_exist():
    for number, _, _, _, tests in rules():
        named = NAMED.findall(tests)
        assert named, f"rule {number} names no test"
        for file, name in named:
            text = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {name}(" in text, f"rule {number}: {file} has no {name}"


def test_an_option_names_its_key():
    assert [number for number, _, how, key, _ in rules() if (how == "option") and not key] == []
