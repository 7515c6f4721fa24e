"""From a clone to the first find: seconds of every step, words to read, quiet or on a busy machine.

    python scripts/measure_first_find.py FOLDER --query "a dog" --work WORK
    python scripts/measure_first_find.py FOLDER --query "a dog" --work WORK --load 8

Clones this repository, installs `calmrl[files]` in a fresh environment as docs/how-to/search.md says, searches a folder, and
searches it again, also through a running server. Everything is made in WORK; what is installed there already is not installed
again, the cache of indexes is made anew. Processor seconds say how long a step takes where nothing runs beside it.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READ = "## A folder, at once\n"  # what a new user reads of docs/how-to/search.md, up to the first table
BUSY = "while True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--query", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--load", type=int, default=0, help="so many processes compute beside it")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    beside = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(options.load)]
    try:
        _measure(options.folder.resolve(), options.query, options.work.resolve())
    finally:
        for process in beside:
            process.kill()


def _measure(folder: Path, query: str, work: Path) -> None:
    clone, python, calmrl = work / "calmrl", work / "env/bin/python", work / "env/bin/calmrl"
    environment = {**os.environ, "XDG_CACHE_HOME": str(work / "cache")}
    environment.pop("PYTHONPATH", None)
    shutil.rmtree(work / "cache", ignore_errors=True)
    files = sum(file.is_file() for file in folder.rglob("*"))
    page = (ROOT / "docs/how-to/search.md").read_text(encoding="utf-8")
    words = len(re.findall(r"\w+", page[page.index(READ) : page.index("\n| file |")]))
    print(f"{files} files, {words} words to read, load {os.getloadavg()[0]:.1f}", flush=True)
    print("| step | seconds | processor seconds |\n|---|---:|---:|")

    def step(name: str, *command: str | Path, inside: Path = work) -> str:
        began, used = time.monotonic(), _used()
        done = subprocess.run(command, cwd=inside, env=environment, capture_output=True, text=True, check=False)
        print(f"| {name} | {time.monotonic() - began:.1f} | {_used() - used:.1f} |", flush=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
        return done.stdout

    if not calmrl.exists():
        step("git clone", "git", "clone", "-q", ROOT, clone)
        step("python -m venv", sys.executable, "-m", "venv", work / "env")
        install = [python, "-m", "pip", "install", "-q", "-c", "constraints.txt", ".[files]"]
        step('pip install ".[files]"', *install, inside=clone)
    found = step("the first search, which makes the index", calmrl, "search", folder, query, "-k", "3")
    step("the second search", calmrl, "search", folder, query, "-k", "3")
    began = time.monotonic()
    with subprocess.Popen(
        [calmrl, "open", folder, "--no-browser"], env=environment, stderr=subprocess.PIPE, text=True
    ) as server:
        for line in server.stderr or ():
            if "Ctrl-C stops" in line:
                break
        print(f"| calmrl open until the page is there | {time.monotonic() - began:.1f} | |", flush=True)
        step("the first search through it", calmrl, "search", folder, query, "-k", "3")
        again = step("a search through it", calmrl, "search", folder, query, "-k", "3")
        server.terminate()
    print(found, end="")
    if again != found:
        raise SystemExit(f"through the server something else was found:\n{again}")


def _used() -> float:
    """Processor seconds of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
