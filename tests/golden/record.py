"""Renew the record, after a change of behaviour on purpose; look at the difference before committing it.

python -m tests.golden.record                # every case
python -m tests.golden.record imputers/ ls   # cases whose names contain one of these
python -m tests.golden.record --check ...    # write nothing, show what differs and how long each case takes
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.golden import golden_record as golden
from tests.golden.golden_cases import CASES


def main(words: list[str]) -> int:
    check = "--check" in words
    parts = [word for word in words if word != "--check"]
    results, different = {}, 0
    for name, case in CASES.items():
        if parts and not any(part in name for part in parts):
            continue
        if case.lacks():
            print(f"left as it is: {name} needs {', '.join(case.lacks())}")
            continue
        began = time.process_time()
        try:
            with tempfile.TemporaryDirectory() as folder:
                results[name] = golden.result_of(name, Path(folder).resolve())
        except Exception:
            traceback.print_exc()
            different += 1
            continue
        print(f"{time.process_time() - began:6.2f} s  {name}", flush=True)
        if check:
            found = golden.differences(golden.expected_of(name), results[name], case.tolerance)
            different += bool(found)
            print("".join(f"          {line}\n" for line in found[:5]), end="")
    if not check:
        golden.write_expected(results)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
