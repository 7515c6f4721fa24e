"""Runs the test suite as strangers would: other users, homes, temporary folders, locales, cores and loads; prints a table.

python scripts/anywhere.py --out anywhere-out             # every environment, one after the other
python scripts/anywhere.py --jobs 4 --times 2             # four at once, which is a load of its own; everything twice
python scripts/anywhere.py --only bare --only "one core"

Each environment gets a clone of the last commit, in a folder of its own, and no variables but PATH and those that it names.
They share one virtual environment, which `make` creates as on any machine. Some need root (another user, a small /dev/shm);
without it their rows say so. Logs are kept beside the table.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOAD = 10
SUMMARY = re.compile(r"^(?:=+ )?((?:\d+ \w+(?:, )?)+) in [\d.]+s", re.MULTILINE)
BUSY = "import time\nwhile True: sum(range(10**6))"


@dataclass(frozen=True)
class Environment:
    """What a run has; `{at}` in a variable is the folder of the environment."""

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    checkout: str = "calmrl"
    user: bool = False  # another one than root
    cores: int | None = None
    load: bool = False
    read_only_home: bool = False
    small_shm: bool = False
    without: tuple[str, ...] = ()


ENVIRONMENTS = [
    Environment("bare, load of ten", {"HOME": "{at}/home"}, load=True),
    Environment(
        "plain user, no HOME, C locale, Auckland, small /dev/shm",
        {"LC_ALL": "C", "TZ": "Pacific/Auckland", "PYTHONHASHSEED": "1234"},
        user=True,
        small_shm=True,
    ),
    Environment(
        "odd paths: spaces, umlauts, 150 bytes; read-only HOME",
        {"HOME": "{at}/home", "TMPDIR": "{at}/a long temporary folder, ünder which äll tests write" + "/deeper" * 8},
        checkout="the check out, möglichst",
        user=True,
        read_only_home=True,
    ),
    Environment("one core, no Ray, no Chromium", {"HOME": "{at}/home"}, cores=1, without=("ray", "chromium")),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("anywhere-out"), help="folder for logs and table.md")
    parser.add_argument("--only", action="append", help="an environment, by its name or the beginning of it")
    parser.add_argument("--jobs", type=int, default=1, help="environments at once")
    parser.add_argument("--times", type=int, default=1, help="how often each is run")
    parser.add_argument(
        "--venv", type=Path, help="a virtual environment that `make test` has set up, instead of a new one"
    )
    parser.add_argument("tests", nargs="*", help="arguments for pytest, such as -k NAME, instead of the whole suite")
    options, rest = parser.parse_known_args()
    chosen = [one for one in ENVIRONMENTS if not options.only or any(map(one.name.startswith, options.only))]
    if not chosen:
        parser.error(f"no environment is called {options.only}; there are: {', '.join(e.name for e in ENVIRONMENTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="anywhere") as folder:
        os.chmod(folder, 0o755)  # other users work below it
        venv = options.venv.absolute() if options.venv else set_up(Path(folder))
        runs = [(one, time) for time in range(options.times) for one in chosen]
        with ThreadPoolExecutor(options.jobs) as pool:
            rows = list(
                pool.map(lambda run: measure(*run, venv, Path(folder), options.out, [*options.tests, *rest]), runs)
            )
    commit = git("rev-parse", "--short", "HEAD").strip()
    lines = [f"Commit {commit}, {options.jobs} at once:", "", "| environment | passed | failed | skipped | minutes |"]
    lines += ["|---|---:|---:|---:|---:|", *(row for row, _ in rows)]
    (options.out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0 if all(good for _, good in rows) else 1


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout


def set_up(folder: Path) -> Path:
    """The virtual environment, made as `make test` makes it, by a Python that every user may run."""
    clone = folder / "set up"
    git("clone", "--quiet", "--shared", str(ROOT), str(clone))
    venv = folder / "venv"
    python = next((path for path in (sys.executable, "/usr/bin/python3") if _runs_for_everyone(path)), sys.executable)
    line = ["make", f"PYTHON={python}", f"VENV={venv}", f"{venv}/.calmrl-dev"]
    done = subprocess.run(line, cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"the environment could not be set up:\n{done.stdout}")
    return venv


def _runs_for_everyone(python: str) -> bool:
    code = "import ensurepip, os, sys; sys.exit(sys.version_info < (3, 10) or not os.access(sys.argv[1], os.X_OK))"
    return subprocess.run([*as_nobody(), python, "-c", code, python], cwd="/", capture_output=True).returncode == 0


def as_nobody() -> list[str]:
    """What starts a command as a user without rights; nothing where this one has none either."""
    if os.geteuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    return ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]


def measure(one: Environment, again: int, venv: Path, folder: Path, out: Path, tests: list[str]) -> tuple[str, bool]:
    """(a row of the table, whether all is well)"""
    if one.small_shm and os.geteuid() != 0:
        return f"| {one.name} | not run: a small /dev/shm needs root | | | |", True
    at = folder / f"{ENVIRONMENTS.index(one)}-{again}"
    checkout = at / one.checkout
    (at / "home").mkdir(parents=True)
    git("clone", "--quiet", "--no-hardlinks", str(ROOT), str(checkout))
    variables = {name: value.format(at=at) for name, value in one.variables.items()}
    path = os.environ["PATH"] if not one.user else f"{venv}/bin:/usr/local/bin:/usr/bin:/bin"
    if "TMPDIR" in variables:
        Path(variables["TMPDIR"]).mkdir(parents=True)
    if one.user and os.geteuid() == 0:
        subprocess.run(["chown", "-R", "nobody", str(at)], check=True)
    if one.read_only_home:
        (at / "home").chmod(0o555)
    if "chromium" in one.without:
        path = _without("chromium", path, at / "bin")
    if "ray" in one.without:
        variables["CALMRL_TESTS_WITHOUT"] = "ray"
    words = ["make", "-o", f"{venv}/.calmrl-dev", f"VENV={venv}", "test"]
    words += [f"TESTS={subprocess.list2cmdline(tests)}"] if tests else []
    words = ["env", "-i", f"PATH={path}", *(f"{name}={value}" for name, value in variables.items()), *words]
    words = [*(as_nobody() if one.user else []), *words]
    if one.cores is not None:
        words = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[: one.cores])), *words]
    if one.small_shm:
        mount = 'mount -t tmpfs -o size=64M tmpfs /dev/shm && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", mount, "sh", *words]
    log = out / f"{re.sub('[^a-z0-9]+', '-', one.name.lower())}-{again + 1}.log"
    began = time.monotonic()
    with log.open("w") as file, busy() if one.load else open(os.devnull):
        done = subprocess.run(words, cwd=checkout, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    minutes = (time.monotonic() - began) / 60
    counts = _counts(log.read_text(errors="replace"))
    good = done.returncode == 0 and counts["passed"] > 0
    subprocess.run(["chmod", "-R", "u+w", str(at)], check=False)
    shutil.rmtree(at, ignore_errors=True)
    failed = f"{counts['failed'] + counts['error']}" if good or counts["passed"] else f"all; see {log}"
    row = f"| {one.name} | {counts['passed']:,} | {failed} | {counts['skipped']} | {minutes:.1f} |"
    print(row, flush=True)
    return row, good


def _counts(text: str) -> dict[str, int]:
    """What pytest counted, by its last line."""
    found = SUMMARY.findall(text)
    words = [part.split() for part in (found[-1] if found else "").split(", ") if part]
    counts = {word.rstrip("s") if word == "errors" else word: int(number) for number, word in words}
    return {"passed": 0, "failed": 0, "skipped": 0, "error": 0, **counts}


def _without(program: str, path: str, bin: Path) -> str:
    """A PATH on which a program is not found, and everything else is."""
    bin.mkdir()
    kept = []
    for part in path.split(os.pathsep):
        names = os.listdir(part) if os.path.isdir(part) else []
        if not any(name.startswith(program) for name in names):
            kept.append(part)
            continue
        for name in names:
            if not name.startswith(program) and not (bin / name).exists():
                (bin / name).symlink_to(os.path.join(part, name))
    return os.pathsep.join([*kept, str(bin)])


@contextmanager
def busy():
    """So many processes that, with what runs already, ten want a core; each second some of them are halted or continued."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(LOAD)]
    ended = threading.Event()

    def balance() -> None:
        active = LOAD
        while not ended.wait(1.0):
            running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
            active = min(LOAD, max(0, active + LOAD - running))
            for number, process in enumerate(processes):
                process.send_signal(signal.SIGCONT if number < active else signal.SIGSTOP)

    thread = threading.Thread(target=balance)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
