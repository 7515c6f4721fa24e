"""A process of `warm` is what an ordinary Python is: its words, directory, environment, output and exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

import warm

SHOW = "import os, sys; print(sys.argv, __name__, os.getcwd(), os.environ['MARK'], sys.stdin.read()); sys.stderr.write('e')"


def ordinary(words, env, cwd):
    line = [sys.executable, *map(str, words)]
    return subprocess.run(line, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def script(folder, code):
    (folder / "script.py").write_text(code)
    return ["script.py", "a", "b c"]


@pytest.mark.parametrize(
    "words",
    [
        lambda folder: ["-c", SHOW, "x"],
        lambda folder: ["-c", SHOW + "; sys.exit(3)"],
        lambda folder: ["-c", SHOW + "; sys.exit('said at the end')"],
        lambda folder: ["-c", SHOW + "; os.kill(os.getpid(), 9)"],
        lambda folder: [
            "-c",
            "import atexit, threading; atexit.register(print, 2); threading.Timer(0.1, print, (1,)).start()",
        ],
        lambda folder: script(
            folder, SHOW + "; import script as again; print(again.__file__ == os.path.abspath(__file__))"
        ),
        lambda folder: ["-m", "calmrl", "check", "impute"],
        lambda folder: ["-m", "calmrl", "check", "nothing.yaml"],
    ],
    ids=[
        "code",
        "exit 3",
        "exit with words",
        "killed",
        "threads and atexit",
        "script",
        "calmrl",
        "calmrl with an error",
    ],
)
def test_it_is_what_an_ordinary_python_is(words, tmp_path):
    words = words(tmp_path)
    env = {**os.environ, "MARK": "here", "PYTHONPATH": os.pathsep.join(warm.PATH), "PYTHONUNBUFFERED": "1"}
    one, other = ordinary(words, env, tmp_path), warm.run(words, env, tmp_path)
    assert (other.returncode, other.stdout, other.stderr) == (one.returncode, one.stdout, one.stderr)


def test_an_error_ends_with_code_1_and_its_traceback():
    done = warm.run(["-c", "1 / 0"])
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_it_ends_with_who_asked_for_it(tmp_path):
    """In a shell, where another process stands for it."""
    line = [*warm.command(), "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        assert pid != process.pid
        process.kill()
    assert process.returncode == -signal.SIGKILL
    end = time.monotonic() + 60
    while psutil.pid_exists(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not psutil.pid_exists(pid)


def test_torch_is_imported_already():
    assert (
        warm.run(["-c", "import sys; print('torch' in sys.modules, 'lancedb' in sys.modules)"]).stdout == "True False\n"
    )
