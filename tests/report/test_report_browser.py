"""The report in a real browser: no errors, nothing wider than the window, tables that sort. Needs chromium."""

from __future__ import annotations

import json
import os
import re
import subprocess
from html import unescape

import pytest

from calmrl.report import build_page, read_results, write_page
from tests.support import report_data
from tests.support.browser import CHROMIUM, WHY_NOT
from tests.support.waiting import patience

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
WIDTHS = (400, 1400)
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--allow-file-access-from-files", "--enable-logging=stderr",
    "--virtual-time-budget=10000", "--dump-dom",
)  # fmt: skip
# Frames have exactly the widths asked for; a window may be wider than asked.
FRAMES = """<!doctype html><title>frames</title>
%s
<pre id="out">not done</pre>
<script>
onload = () => {
  document.getElementById("out").textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    const button = page.querySelector("table.sortable th.num button");
    let sorted = null;
    if (button) {
      button.click();
      const head = button.closest("th");
      sorted = [...head.closest("table").tBodies[0].rows].map(row => Number(row.cells[head.cellIndex].dataset.value));
    }
    const boxes = [...page.querySelectorAll(".panels svg")].map(svg => svg.getBoundingClientRect().width);
    return {over: root.scrollWidth - root.clientWidth, sorted, narrowest: Math.min(...boxes), widest: Math.max(...boxes)};
  }));
};
</script>
"""


def _look(page, tmp_path):
    """What the frames measured, and what the browser complained about."""
    frames = "\n".join(
        f'<iframe src="{page.as_uri()}" width="{w}" height="900" style="border:0"></iframe>' for w in WIDTHS
    )
    (tmp_path / "frames.html").write_text(FRAMES % frames)
    run = [CHROMIUM, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "frames.html").as_uri()]
    done = subprocess.run(
        run, capture_output=True, text=True, timeout=patience(120), env={**os.environ, "HOME": str(tmp_path)}
    )
    told = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.S)
    assert told, done.stderr[-2000:]
    return json.loads(unescape(told[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("make", [report_data.demo_like, report_data.six_modalities])
def test_the_report_fits_and_runs(make, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(make()))
    write_page(build_page(read_results([tmp_path])), tmp_path / "report.html")
    phone, desk = (found := _look(tmp_path / "report.html", tmp_path))[0]
    assert found[1] == []
    for frame in (phone, desk):
        assert frame["over"] == 0
        assert len(frame["sorted"]) > 5
        assert frame["sorted"] == sorted(frame["sorted"], reverse=True)
    assert 340 <= phone["narrowest"] <= phone["widest"] <= 400  # letters of drawings keep their size on a phone
    assert desk["narrowest"] >= 340


def test_the_look_would_see_errors_and_overflow(tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text('<!doctype html><title>x</title><div style="width:900px">x</div><script>nowhere();</script>')
    frames, complaints = _look(bad, tmp_path)
    assert [frame["over"] > 0 for frame in frames] == [True, False]
    assert any("nowhere is not defined" in line for line in complaints)
