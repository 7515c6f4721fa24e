"""A process of `warm` is what an ordinary Python is: its words, directory, environment, output and exit code."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

from tests.support import warm
from tests.support.waiting import patience

SHOW = "import os, sys; print(sys.argv, __name__, os.getcwd(), os.environ['MARK'], sys.stdin.read()); sys.stderr.write('e')"


def ordinary(words, env, cwd):
    line = [sys.executable, *map(str, words)]
    return subprocess.run(line, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


LATE = "import atexit, threading; atexit.register(print, 2); threading.Timer(0.1, print, (1,)).start()"
ITSELF = SHOW + "; import script as again; print(again.__file__ == os.path.abspath(__file__))"
LINES = {
    "code": ["-c", SHOW, "x"],
    "exit 3": ["-c", SHOW + "; sys.exit(3)"],
    "exit with words": ["-c", SHOW + "; sys.exit('said at the end')"],
    "killed": ["-c", SHOW + "; os.kill(os.getpid(), 9)"],
    "threads and atexit": ["-c", LATE],
    "script": ["script.py", "a", "b c"],
    "calmrl": ["-m", "calmrl", "check", "impute"],
    "calmrl with an error": ["-m", "calmrl", "check", "nothing.yaml"],
}


@pytest.mark.parametrize("words", LINES.values(), ids=LINES)
def test_it_is_what_an_ordinary_python_is(words, tmp_path):
    (tmp_path / "script.py").write_text(ITSELF)
    env = {**os.environ, "MARK": "here", "PYTHONPATH": os.pathsep.join(warm.PATH), "PYTHONUNBUFFERED": "1"}
    one, other = ordinary(words, env, tmp_path), warm.run(words, env, tmp_path)
    assert (other.returncode, other.stdout, other.stderr) == (one.returncode, one.stdout, one.stderr)


def test_output_is_buffered_as_the_environment_of_the_process_says(tmp_path):
    """Killed before the buffer is written, a process has printed nothing, unless it runs unbuffered."""
    words = ["-c", "import os; print('printed'); os.kill(os.getpid(), 9)"]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for env, printed in ((plain, ""), ({**plain, "PYTHONUNBUFFERED": "1"}, "printed\n")):
        one, other = ordinary(words, env, tmp_path), warm.run(words, env, tmp_path)
        assert (other.returncode, other.stdout) == (one.returncode, one.stdout) == (-9, printed)


@pytest.fixture(scope="class")
def own_server(tmp_path_factory):
    """The address of a server of these tests alone, in a folder whose path is long and has a space and an umlaut."""
    folder = tmp_path_factory.mktemp("a b ü" * 20)
    assert len(os.fsencode(folder)) > warm.LONGEST
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(warm.SHARED, raising=False)
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setattr(warm._Server, "own", warm._Server(imports=["json"]))
        yield warm._address()


REQUEST = json.dumps({"words": ["-c", "import time; time.sleep(600)"], "env": {}, "cwd": os.sep}).encode()
HEAD = struct.pack("i", len(REQUEST))


class TestOwnServer:
    @pytest.mark.parametrize(
        "parts",
        [(), (HEAD[:2],), (HEAD,), (HEAD, REQUEST[:20]), (HEAD, REQUEST), (HEAD, REQUEST[:-1] + b"?")],
        ids=["nothing", "half a head", "a head", "half a request", "a request", "no JSON"],
    )
    def test_a_client_that_dies_does_no_harm(self, parts, own_server):
        with socket.socket(socket.AF_UNIX) as line, open(os.devnull) as nothing, warm._short(own_server) as path:
            line.connect(path)
            if parts:
                socket.send_fds(line, [parts[0]], [nothing.fileno()] * 3)
            for part in parts[1:]:
                line.sendall(part)
        assert warm.run(["-c", "print('here')"]).stdout == "here\n"
        assert warm._address() == own_server  # the same one as before

    def test_a_server_that_was_killed_is_replaced(self, own_server, monkeypatch):
        monkeypatch.setattr(warm._Server.__init__, "__defaults__", (["json"],))
        assert warm.run(["-c", "print('here')"]).stdout == "here\n"
        warm._Server.own._process.kill()
        warm._Server.own._process.wait()
        assert warm.run(["-c", "print('again')"]).stdout == "again\n"
        assert warm._address() != own_server


def test_exit_handlers_of_the_server_do_not_run_in_its_processes(tmp_path):
    """matplotlib removes at its exit the folder that it made at its import: it must not be that of the server."""
    code = "import atexit, weakref, matplotlib, sys; print(atexit._ncallbacks(), len(weakref.finalize._registry))"
    assert warm.run(["-c", code]).stdout == "1 0\n"  # that of multiprocessing, of this process
    code = "import tempfile; kept = tempfile.TemporaryDirectory(); print(kept.name)"
    folder = warm.run(["-c", code]).stdout.strip()
    assert folder
    assert not os.path.exists(folder)  # own handlers do run


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
    end = time.monotonic() + patience(60)
    while psutil.pid_exists(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not psutil.pid_exists(pid)


def test_torch_is_imported_already():
    assert (
        warm.run(["-c", "import sys; print('torch' in sys.modules, 'lancedb' in sys.modules)"]).stdout == "True False\n"
    )
