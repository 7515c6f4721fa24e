"""Processes that are really killed: an index is whole or absent, what was encoded is kept, and the result is the same."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")
pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")

from calmrl import Index
from tests.support import warm
from tests.support.colour_world import NAMES, make_folder, settings, write_item

ITEMS = 60
SCRIPT = Path(__file__).parents[1] / "support" / "colour_world.py"
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
    pytest.mark.usefixtures("colour_encoders"),
]


def start(*arguments, slow: float) -> warm.Started:
    environment = os.environ | {
        "SLOW_ENCODERS": str(slow),
        "PYTHONPATH": os.pathsep.join(warm.PATH),
        "OMP_NUM_THREADS": "1",
    }
    return warm.start([SCRIPT, *arguments], environment)


def kept(part: Path) -> int:
    """Vectors that survive in the working folder."""
    return sum(file.stat().st_size // 65 for file in part.glob("cells/*.sha256"))


def kill_when(process: warm.Started, part: Path, vectors: int) -> None:
    while kept(part) < vectors:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL  # it was killed before its end


def state(index: Index) -> list:
    rows = index.rows(["id", "text", "labels", "paths", "fingerprint", "certainty", "thumbnail", "vector"])
    return sorted(rows, key=lambda row: row["id"])


def test_index_and_add_go_on_after_kills(tmp_path) -> None:
    folder = tmp_path / "colours"
    make_folder(folder, ITEMS)
    plain = Index.build(folder, tmp_path / "plain", NAMES, model=settings())
    plain.aligner.save(tmp_path / "aligner")
    named = [part for name, encoder in NAMES.items() for part in ("--encoder", f"{name}={encoder}")]
    command = ["index", folder, "--out", tmp_path / "ix", "--model", tmp_path / "aligner", *named]
    part = tmp_path / "ix.part"
    for vectors in (10, 50):
        kill_when(start(*command, slow=0.02), part, vectors)
        assert not (tmp_path / "ix").exists()
        assert kept(part) >= vectors
    before = kept(part)
    last = start(*command, slow=0)
    _, err = last.communicate()
    assert last.returncode == 0, err
    assert f"{ITEMS} items" in err
    assert not part.exists()
    assert before > 0
    index = Index.open(tmp_path / "ix")
    assert state(index) == state(plain)

    for number in range(1000, 1040):
        write_item(folder, number)
    version = index.table.version
    kill_when(start("add", tmp_path / "ix", folder, slow=0.02), part, 10)
    reader = Index.open(tmp_path / "ix")
    assert reader.table.version == version  # a reader sees the old state, whole
    assert len(reader) == ITEMS
    last = start("add", tmp_path / "ix", folder, slow=0)
    _, err = last.communicate()
    assert last.returncode == 0, err
    assert "40 added, 0 changed, 60 unchanged" in err
    index.refresh()
    assert len(index) == ITEMS + 40
    plain.add(folder)
    assert [(row["id"], row["vector"]) for row in state(index)] == [(row["id"], row["vector"]) for row in state(plain)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["aligner", "colours", "ix", "plain"]


def test_a_second_run_waits_its_turn(tmp_path) -> None:
    make_folder(tmp_path / "colours", 30)
    named = [part for name, encoder in NAMES.items() for part in ("--encoder", f"{name}={encoder}")]
    first = start("index", tmp_path / "colours", "--out", tmp_path / "ix", *named, slow=0.2)
    while kept(tmp_path / "ix.part") < 1:
        assert first.poll() is None, first.communicate()[1]
        time.sleep(0.01)
    second = start("index", tmp_path / "colours", "--out", tmp_path / "ix", *named, slow=0)
    _, err = second.communicate()
    assert second.returncode == 2
    assert "another run is writing" in err
    assert first.poll() is None
    first.kill()
    first.wait()
