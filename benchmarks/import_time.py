"""How long `import calmrl` takes, against `import torch` alone: fresh processes, in turn, the median of each."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import Any

ROUNDS = 7
CASES = {
    "import calmrl": "import calmrl",
    "both public names": "from calmrl import CalibratedAlignment, GaussianImputer",
}


def seconds(statement: str) -> float:
    """Time of one statement in a fresh process."""
    code = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def run() -> list[dict[str, Any]]:
    statements = {"torch": "import torch", **CASES}
    for statement in statements.values():  # the first reading fills the file cache
        seconds(statement)
    times = {name: [seconds(statement) for _ in range(ROUNDS)] for name, statement in statements.items()}
    middle = {name: statistics.median(values) for name, values in times.items()}
    return [
        {
            "case": case,
            "ours_s": middle[case],
            "theirs_s": middle["torch"],
            "ratio": middle[case] / middle["torch"],
            "target": "< 2.5",
            "note": f"against import torch, median of {ROUNDS} fresh processes",
        }
        for case in CASES
    ]
