"""Run the benchmarks, show a table, write results.json."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported by any benchmark


def main() -> None:
    known = sorted(
        module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if not module.name.startswith("_")
    )
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(known)}; all by default")
    parser.add_argument("--out", type=Path, required=True, help="directory for results.json")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    rows = []
    for name in options.names or known:
        print(name, flush=True)
        for row in importlib.import_module(f"benchmarks.{name}").run():
            rows.append({"benchmark": name, **row})
            ratio = "none" if row["ratio"] is None else f"{row['ratio']:.3g}"
            print(f"  {row['case']:<44} {ratio:>8} x  (target {row['target']})  {row['note']}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    meta = {"python": platform.python_version(), "platform": platform.platform()}
    (options.out / "results.json").write_text(json.dumps({"rows": rows, "meta": meta}, indent=2))
    print(f"wrote {options.out / 'results.json'}")


if __name__ == "__main__":
    main()
