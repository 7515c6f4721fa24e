"""How long `import calmrl` and the commands that compute nothing take: fresh processes, in turn, the median of each.

Imports are compared with `import torch`, commands with `python -c pass`. Each case also says how many modules of calmrl
are loaded at its end, and whether torch is.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

ROUNDS = 7
COMMAND = "import sys; sys.argv = ['calmrl', {}]; from calmrl.cli import main; main()"
IMPORTS = {
    "import calmrl": "import calmrl",
    "both public names": "from calmrl import CalibratedAlignment, GaussianImputer",
}
COMMANDS = {
    "calmrl --help": "'--help'",
    "calmrl ls": "'ls'",
    "calmrl check impute": "'check', 'impute'",
    "calmrl cp impute my.yaml": "'cp', '--force', 'impute', 'my.yaml'",
}
COUNT = """
import atexit, sys
def count():
    modules = [name for name in sys.modules if name.split(".")[0] == "calmrl"]
    print(len(modules), "torch" in sys.modules, file=sys.__stderr__)
atexit.register(count)
"""


def launch(code: str) -> tuple[float, str]:
    """(seconds of a fresh process that runs the code, the last line it wrote to stderr)."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
        return time.perf_counter() - start, done.stderr.strip().rpartition("\n")[2]


def run() -> list[dict[str, Any]]:
    codes = {"pass": "pass", "torch": "import torch"} | IMPORTS
    codes |= {name: COMMAND.format(arguments) for name, arguments in COMMANDS.items()}
    loaded = {name: launch(COUNT + code)[1].split() for name, code in codes.items()}  # also fills the file cache
    times: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(ROUNDS):
        for name, code in codes.items():
            times[name].append(launch(code)[0])
    middle = {name: statistics.median(values) for name, values in times.items()}
    rows = []
    for case in [*IMPORTS, *COMMANDS]:
        other = "torch" if case in IMPORTS else "pass"
        modules, torch = loaded[case]
        rows.append(
            {
                "case": case,
                "ours_s": middle[case],
                "theirs_s": middle[other],
                "ratio": middle[case] / middle[other],
                "target": "< 2.5" if case in IMPORTS else "< 30",
                "note": f"against {'import torch' if case in IMPORTS else 'python -c pass'}, median of {ROUNDS} fresh "
                f"processes; {modules} modules of calmrl, {'with' if torch == 'True' else 'without'} torch",
            }
        )
    return rows
