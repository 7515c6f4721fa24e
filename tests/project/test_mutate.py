"""The script that changes the code: what it changes, which tests it chooses, and how it counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(SCRIPTS))
    try:
        import mutant_tests
        import mutate

        yield mutate, mutant_tests
    finally:
        sys.path.remove(str(SCRIPTS))


TEXT = '''
def f(a: int = 3, é=None):
    """Doc."""
    if a < 4 and not é:
        raise ValueError(f"a is {a + 1}")
    a += 1
    print(a)
    return a * 2
'''


def changes(mutate, text):
    return {(m.before, m.after) for m in mutate.mutants_of("x/y.py", text)}


def test_what_is_changed(scripts):
    found = changes(scripts[0], TEXT)
    assert ("a < 4", "(a) <= (4)") in found
    assert ("a < 4 and not é", "((a < 4) or (not é))") in found
    assert ("not é", "(é)") in found
    assert ("3", "4") in found
    assert ("a += 1", "pass") in found
    assert ("print(a)", "pass") in found
    assert ("a * 2", "((a) / (2))") in found
    assert ("return a * 2", "return None") in found
    assert ('raise ValueError(f"a is {a + 1}")', "pass") in found
    assert ("return None", "return None") not in changes(scripts[0], "def f():\n    return None\n")
    assert not any("a + 1" in before and "raise" not in before for before, _ in found)  # texts of errors stay


def test_what_asserts_is_not_changed(scripts):
    assert not changes(scripts[0], "x = zip(a, b, strict=True)\nassert c < d\n")


def test_a_change_is_one_place_and_still_python(scripts):
    for mutant in scripts[0].mutants_of("x/y.py", TEXT):
        changed = TEXT[: mutant.start] + mutant.after + TEXT[mutant.stop :]
        assert TEXT[mutant.start : mutant.stop] == mutant.before
        compile(changed, "y.py", "exec")


def test_tests_that_failed_or_take_too_long_are_not_chosen(scripts, tmp_path):
    log = tmp_path / "suite.log"
    log.write_text(
        "1.00s call     tests/a/test_y.py::test_own\n0.50s setup    tests/a/test_y.py::test_own\n"
        "2.00s call     tests/b.py::test_b[x y]\n900.00s call     tests/c.py::test_slow\n"
        "3.00s call     tests/d.py::test_bad\nFAILED tests/d.py::test_bad - assert 1 == 2\n"
    )
    seconds = scripts[1].durations(log)
    assert seconds == {
        "tests/a/test_y.py::test_own": 1.5,
        "tests/b.py::test_b[x y]": 2.0,
        "tests/c.py::test_slow": 900.0,
        "tests/d.py::test_bad": float("inf"),
    }
    names = [*seconds, "tests/e.py::test_too_quick_to_be_listed"]
    assert scripts[1].rounds("x/y.py", names, seconds, 0) == [
        ["tests/a/test_y.py::test_own", "tests/e.py::test_too_quick_to_be_listed", "tests/b.py::test_b[x y]"]
    ]
    assert scripts[1].rounds("x/y.py", ["tests/d.py::test_bad"], seconds, 0) == []


def test_a_change_is_caught_by_a_test_that_fails_and_survives_others(scripts, tmp_path):
    (tmp_path / "src" / "calmrl").mkdir(parents=True)
    target = tmp_path / "src" / "calmrl" / "y.py"
    target.write_text("def double(a):\n    return a * 2\n")
    (tmp_path / "test_it.py").write_text(
        "import runpy, pathlib\nY = pathlib.Path(__file__).parent / 'src/calmrl/y.py'\n"
        "def test_two(): assert runpy.run_path(Y)['double'](1) == 2\ndef test_one(): pass\n"
    )
    (mutant,) = [m for m in scripts[0].mutants_of("y.py", target.read_text()) if m.after == "((a) / (2))"]
    seconds = {"test_it.py::test_two": 1.0, "test_it.py::test_one": 1.0}
    fates = [
        scripts[0].fate(mutant, [f"test_it.py::{name}"], seconds, tmp_path, 0) for name in ("test_two", "test_one")
    ]
    assert fates == ["caught", "survived"]
    assert scripts[0].fate(mutant, [], seconds, tmp_path, 0) == "not reached"
    assert target.read_text() == "def double(a):\n    return a * 2\n"


def test_equivalent_changes_are_not_counted(scripts):
    fates = ["caught", "caught", "hung", "survived", "equivalent"]
    last = scripts[0].table([{"package": "a", "fate": fate} for fate in fates]).splitlines()[-1]
    assert last == "| all | 5 | 1 | 3 | 1 | 0 | 75 % |"


def test_every_listed_change_is_there(scripts):
    """With the line that it is on, where others in the file look the same."""
    mutate, _ = scripts
    listed = mutate.listed_changes()
    assert any(entry.get("on") for entry in listed)
    texts = {path: (mutate.SOURCE / path).read_text("utf-8") for path in {entry["change"][0] for entry in listed}}
    of_file = {path: list(mutate.mutants_of(path, text)) for path, text in texts.items()}
    for entry in listed:
        assert set(entry) <= {"change", "on", "why"}
        path, before, after = entry["change"]
        same = [m for m in of_file[path] if (m.before, m.after) == (before, after)]
        lines = texts[path].splitlines()
        found = {lines[m.line - 1] for m in same if m.is_listed(entry, texts[path])}
        assert found, entry
        assert len(found) == 1 or "on" not in entry, entry


def test_lines_of_a_module_are_reached_by_all_tests_of_the_file(scripts):
    text = "X = f(\n    1,\n    2,\n)\ndef g(a=3):\n    if a:\n        return (\n            4)\n    return 5\n"
    lines = {1: [], 5: [], 6: ["s", "t"], 7: ["t"]}  # as coverage has it: what runs on import belongs to no test
    for line, expected in {1: ["s", "t"], 3: ["s", "t"], 5: ["s", "t"], 6: ["s", "t"], 8: ["t"], 9: []}.items():
        assert scripts[1].reaching(lines, text, line) == expected, line
