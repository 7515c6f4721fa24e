"""What a release consists of fits together. Building and installing are in scripts/release_check.py."""

from __future__ import annotations

import re
import runpy
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
CHECK = runpy.run_path(str(ROOT / "scripts" / "release_check.py"))
AUDIT = runpy.run_path(str(ROOT / "scripts" / "audit.py"))
TRY_PYTHON = runpy.run_path(str(ROOT / "scripts" / "try_python.py"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_the_version_is_set_in_one_place():
    version = CHECK["check_version"](None)
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    holders = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src").rglob("*.py")
        if re.search(rf'__version__ = "|["\']{re.escape(version)}["\']', path.read_text(encoding="utf-8"))
    ]
    assert holders == []
    with pytest.raises(SystemExit, match="is not version"):
        CHECK["check_version"]("v9.9.9")


def test_lowest_versions_are_the_bounds_of_the_project():
    lines = CHECK["constraints_of"]("lowest").splitlines()
    lowest = {Requirement(line).name: Requirement(line).specifier for line in lines}
    assert str(lowest["numpy"]) == "==1.26"
    assert str(lowest["torch"]) == str(CHECK["constraints_of"]("highest").split("torch", 1)[1].strip())
    pinned = [Requirement(line) for line in CHECK["constraints_of"]("pinned").splitlines() if not line.startswith("#")]
    for pin in pinned:
        if pin.name in lowest and pin.name != "torch":
            (low,), (used,) = lowest[pin.name], pin.specifier
            assert Version(low.version) <= Version(used.version), pin.name


def test_every_core_dependency_has_a_bound_that_the_check_reads():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.findall(r'"([^"]+)"', text.partition("\ndependencies = [")[2].partition("\n]")[0])
    assert len(listed) == len(CHECK["core_requirements"]()) > 10


@pytest.mark.parametrize("extra", CHECK["EXTRAS"])
def test_extras_that_are_tried_have_bounds_and_tests(extra):
    assert CHECK["extra_requirements"](extra)
    assert all((ROOT / word).exists() for word in CHECK["EXTRAS"][extra] if word.startswith("tests/"))


def test_what_is_tried_without_torch_exists():
    for test in (*TRY_PYTHON["TESTS"], *TRY_PYTHON["NEED_TORCH"]):
        path, _, name = test.partition("::")
        assert (ROOT / path).exists()
        if name:
            assert any(path.startswith(listed) for listed in TRY_PYTHON["TESTS"])
            assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8")


def test_names_that_another_python_lacks_are_seen(tmp_path):
    (tmp_path / "m.py").write_text(
        "import compression.zstd\ndef f():\n    from typing import Self9, cast\nimport os.path, torch\n"
    )
    taken = set(TRY_PYTHON["taken"](TRY_PYTHON["compiled"](tmp_path / "m.py")))
    assert taken == {("compression.zstd", ""), ("typing", "Self9"), ("typing", "cast"), ("os.path", "")}
    assert not TRY_PYTHON["exists"]("typing", "Self9")
    assert not TRY_PYTHON["exists"]("no_such_module", "")
    assert TRY_PYTHON["exists"]("typing", "cast")
    assert TRY_PYTHON["exists"]("concurrent", "futures")


@pytest.mark.parametrize(
    ("code", "printed", "refused"),
    [
        (0, "No broken requirements found.", False),
        (1, "calmrl 0.1.0 requires torch, which is not installed.", True),  # this Python has torch
        (1, "calmrl 0.1.0 has requirement numpy>=1.26, but you have numpy 1.25.", True),
    ],
)
def test_requirements_that_are_not_met(monkeypatch, capsys, code, printed, refused):
    done = subprocess.CompletedProcess([], code, stdout=printed + "\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *line, **options: done)
    with pytest.raises(SystemExit, match=re.escape(printed)) if refused else nullcontext():
        TRY_PYTHON["check_requirements"]()
    assert ("requirements are met\n" in capsys.readouterr().out) is not refused


def test_a_warning_of_the_compiler_is_an_error(tmp_path):
    (tmp_path / "m.py").write_text("assert (1, 'always true')\n")
    with pytest.warns(SyntaxWarning, match="always true"):
        TRY_PYTHON["compiled"](tmp_path / "m.py")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_commands_that_exist(path):
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        words = command.split()
        if words[0] == "make":
            assert f"\n{words[1]}:" in makefile
        for word in words:
            if "/" in word and not word.startswith("$"):
                assert (ROOT / word).exists(), command


def test_publishing_needs_no_password():
    publish = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "check"
    assert "password" not in str(publish)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_can_be_read(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem != "config":
        assert {"name", "description", "body"} <= set(content)
        assert all("label" in part["attributes"] for part in content["body"])


def test_the_files_that_a_stranger_looks_for_are_there():
    for name in ("LICENSE", "CHANGELOG.md", "CITATION.cff", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"):
        assert (ROOT / name).is_file()


# ---- no bound and no pin allows a package with a known weakness


def test_nothing_known_is_allowed(capsys):
    assert AUDIT["main"]() == 0, capsys.readouterr().out


@pytest.mark.parametrize(("version", "lines"), [("2.5.1", 1), ("2.6.0", 0), ("2.13.0", 0)])
def test_an_older_version_is_named(version, lines):
    advisories = {"torch": [{"fixed": "2.6.0", "id": "CVE-2025-32434", "why": "loads checkpoints"}]}
    assert len(AUDIT["weaknesses"](advisories, [("torch", Version(version))])) == lines


def test_bounds_and_pins_are_read():
    assert ("torch", Version("2.6")) in AUDIT["lowest_versions"]('dependencies = ["torch>=2.6", "a[b]==1.0"]')
    text = '# note\nPillow==13.0.0; python_version >= "3.11"\npillow==12.3.0; python_version < "3.11"\n'
    assert AUDIT["pinned_versions"](text) == [("pillow", Version("13.0.0")), ("pillow", Version("12.3.0"))]
