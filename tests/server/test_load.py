"""Load: a short form of benchmarks/serve.py, with every answer right."""

from __future__ import annotations

import asyncio
import os
import runpy
from pathlib import Path

from tests.support.serving import served

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "serve.py"))


def test_500_requests_32_at_once(shapes):
    with served(shapes) as port:
        result = asyncio.run(BENCHMARK["load"](port, 500, 32, os.getpid(), []))
    assert result["errors"] == []
    assert result["requests"] == 500
    assert result["memory end MB"] - result["memory warm MB"] < 100
