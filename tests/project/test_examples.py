"""The examples run and do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_drop_in_loss() -> None:
    before, after = runpy.run_path(str(EXAMPLES / "drop_in_loss.py"))["main"](steps=60)
    assert before < 0.05
    assert after > 0.3


def test_make_collection(tmp_path) -> None:
    pytest.importorskip("PIL", reason="Pillow (calmrl[media]) is not installed")
    from calmrl.data.media.collection_problems import Problems
    from calmrl.data.media.folder import read_folder

    main = runpy.run_path(str(EXAMPLES / "make_collection.py"))["main"]
    files = main(tmp_path / "c", items=40)
    problems = Problems()
    manifest = read_folder(tmp_path / "c", problems)
    assert not problems
    assert len(manifest.items) == 40
    assert sum(len(item.cells) for item in manifest.items) == files
    assert set(manifest.kinds) == {"text", "image", "sound"}
    assert (tmp_path / "c/elephant").is_dir()
    texts = {path.read_text().strip() for path in (tmp_path / "c").rglob("*.txt")}
    assert {text for text in texts if text.split()[1][0] in "aeiou"} == {text for text in texts if text[:2] == "an"}
    assert 0.3 * main.__globals__["COMPLETE"] * 551 < 10  # so that fewer than ten test rows are complete
