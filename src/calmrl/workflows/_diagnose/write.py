"""A diagnosis as files: report.html, report.md, figures and diagnosis.json."""

from __future__ import annotations

import json
from pathlib import Path

from calmrl._support.output import WRITTEN_BY
from calmrl.report import write_page
from calmrl.workflows._diagnose.page import as_page
from calmrl.workflows._diagnose.result import Diagnosis


def write(found: Diagnosis, folder: str | Path, command: str) -> None:
    """Write into an existing directory; `command` is what repeats the diagnosis."""
    folder = Path(folder)
    numbers = {"command": command, **found.as_dict()}
    (folder / "diagnosis.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    write_page(as_page(found, command), folder / "report.html")
    (folder / "config.yaml").write_text(f"{WRITTEN_BY}: {command}\n", encoding="utf-8")
