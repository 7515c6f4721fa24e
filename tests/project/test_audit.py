"""No bound and no pin allows a package with a known weakness."""

import runpy
from pathlib import Path

import pytest
from packaging.version import Version

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts/audit.py"))


def test_nothing_known_is_allowed(capsys):
    assert SCRIPT["main"]() == 0, capsys.readouterr().out


@pytest.mark.parametrize(("version", "lines"), [("2.5.1", 1), ("2.6.0", 0), ("2.13.0", 0)])
def test_an_older_version_is_named(version, lines):
    advisories = {"torch": [{"fixed": "2.6.0", "id": "CVE-2025-32434", "why": "loads checkpoints"}]}
    assert len(SCRIPT["weaknesses"](advisories, [("torch", Version(version))])) == lines


def test_bounds_and_pins_are_read():
    assert ("torch", Version("2.6")) in SCRIPT["lowest_versions"]('dependencies = ["torch>=2.6", "a[b]==1.0"]')
    text = '# note\nPillow==13.0.0; python_version >= "3.11"\npillow==12.3.0; python_version < "3.11"\n'
    assert SCRIPT["pinned_versions"](text) == [("pillow", Version("13.0.0")), ("pillow", Version("12.3.0"))]
