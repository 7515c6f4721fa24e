"""Python processes that start with torch and scikit-learn imported: forks of one server, started when first asked.

`run` and `start` take what follows `python` on a command line: -m MODULE, -c CODE or a script, and its arguments. The process
has its own directory, environment, streams, exit handlers and exit code, as any other; only the time of importing is spared.
As a program, with the words `command()`, this file stands for `python` in a shell. Without fork, it is an ordinary Python.

A client may die at any moment without harm to the server. Should the server be gone all the same, the next one who asks starts
another.

Tests of launchers, of imports and of what starts quickly use ordinary processes.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATH = [str(ROOT / "src"), str(ROOT)]
# Not lancedb: it starts threads, and they do not outlive a fork.
ONCE = ["accelerate", "sklearn.linear_model", "sklearn.cluster", "torch._dynamo", "torch.multiprocessing", "PIL.Image", "av",
        "pyarrow.dataset", "lance_namespace", "matplotlib.figure", "matplotlib.backends.backend_svg", "calmrl.cli",
        "calmrl.workflows.compare.run", "calmrl.workflows.diagnose", "calmrl.workflows.extract", "calmrl.workflows.impute",
        "calmrl.workflows.train", "calmrl.workflows.evaluate", "calmrl.search.index", "tests.support.train_data"]  # fmt: skip
SHARED = "CALMRL_TESTS_WARM"
LONGEST = 100  # bytes of a Unix socket's path, on every system
REQUEST_SECONDS = 600.0  # that a client has to send its request


# ---- asking


class Started:
    """A process of the server: `poll`, `wait` and `kill` as of `subprocess.Popen`."""

    def __init__(self, words: list[str], env: dict[str, str], cwd: str, streams: tuple[int, int, int], address: str):
        self.args, self.returncode, self.kept = words, None, ()
        self._line = socket.socket(socket.AF_UNIX)
        with _short(address) as path:
            self._line.connect(path)
        request = json.dumps({"words": words, "env": env, "cwd": cwd}).encode()
        socket.send_fds(self._line, [struct.pack("i", len(request))], list(streams))
        self._line.sendall(request)
        self.pid = self._number()

    def _number(self) -> int:
        data = self._line.recv(4, socket.MSG_WAITALL)
        if len(data) < 4:
            raise RuntimeError("the server of warm processes has ended")
        return struct.unpack("i", data)[0]

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                self.returncode = self._number()
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout) from None
            self._line.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.001)
        return None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait, and return what was printed, if no files were given for it."""
        self.wait(timeout)
        said = []
        for file in self.kept:
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
            file.close()
        return tuple(said)


def start(words, env=None, cwd=None, said=None) -> Started:
    """Start a process that prints into an open file; without one, what it prints is kept for `communicate`."""
    kept = () if said else (tempfile.TemporaryFile(), tempfile.TemporaryFile())  # noqa: SIM115 (closed by `communicate`)
    out, err = kept or (said, said)
    with open(os.devnull) as nothing:
        streams = (nothing.fileno(), out.fileno(), err.fileno())
        env = dict(os.environ if env is None else env)
        process = Started([*map(str, words)], env, str(cwd or os.getcwd()), streams, _address())
    process.kept = kept
    return process


def run(words, env=None, cwd=None, timeout=600.0) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, and return its code and what it printed."""
    if not hasattr(os, "fork"):
        line = [sys.executable, *map(str, words)]
        return subprocess.run(line, env=env, cwd=cwd, timeout=timeout, capture_output=True, text=True, check=False)
    process = start(words, env, cwd)
    try:
        out, err = process.communicate(_patience(timeout))
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _patience(seconds: float) -> float:
    from tests.support.waiting import patience  # not where this file stands for `python`

    return patience(seconds)


def launch(words, size: int, env=None, said=None) -> list[Started]:
    """So many processes that know of each other, as `torchrun --nproc_per_node SIZE` starts them."""
    from torch.distributed import TCPStore

    # Where they meet is open before they start, as with torchrun: a free port that they open later may be taken by then.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(size)}
    known |= {"LOCAL_WORLD_SIZE": str(size), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    known = {**(os.environ if env is None else env), **known}
    started = [start(words, {**known, "RANK": str(rank), "LOCAL_RANK": str(rank)}, said=said) for rank in range(size)]
    for process in started:
        process.store = store  # open as long as one of them is known
    return started


def run_all(words, size: int, env=None, timeout: float = 300.0) -> None:
    """Launch, and wait until all processes have ended; one that fails ends the others. An error shows all that was said."""
    with tempfile.TemporaryFile() as said:
        processes = launch(words, size, env, said)
        end = time.monotonic() + _patience(timeout)
        while None in [process.poll() for process in processes]:
            if any(process.returncode for process in processes) or time.monotonic() > end:
                for process in processes:
                    if process.poll() is None:
                        process.kill()
            time.sleep(0.01)
        said.seek(0)
        codes = [process.returncode for process in processes]
        assert codes == [0] * size, f"exit codes {codes}\n{said.read().decode(errors='replace')}"


def ranks(work, *arguments, size: int = 2) -> None:
    """`work(rank, *arguments)`, a function of a test file, in so many processes at once; all must succeed."""
    code = f"import os, sys; sys.path[:0] = {PATH}; from {work.__module__} import {work.__name__} as work; "
    run_all(["-c", f"{code}work(int(os.environ['RANK']), *{[*map(str, arguments)]})"], size)


def command() -> list[str]:
    """The words that stand for `python` in a shell."""
    return [sys.executable, "-I", "-S", __file__, _address()] if hasattr(os, "fork") else [sys.executable]


def share() -> None:
    """Let all processes that this one starts from now on, such as the workers of pytest-xdist, ask one server."""
    if hasattr(os, "fork"):
        os.environ[SHARED] = json.dumps([_address(), str(ROOT)])


def _address() -> str:
    """The socket of a shared server, or of one that is started where there is none; that one ends with this process."""
    shared, root = json.loads(os.environ.get(SHARED, '["", ""]'))
    if root == str(ROOT) and _answers(shared):  # not for another copy of the project
        return shared
    if _Server.own is None or not _answers(_Server.own.address):
        _Server.own = _Server()
    return _Server.own.address


def _answers(address: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as line, _short(address) as path:
            line.connect(path)
    except OSError:
        return False
    return True


class _Server:
    """A server that this process has started, and that ends with it."""

    own: _Server | None = None

    def __init__(self, imports: Sequence[str] = ONCE) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm")
        self.address = f"{self._folder.name}/s"
        path = os.pathsep.join([*PATH, os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONUNBUFFERED", None)  # every request says for itself
        line = [sys.executable, __file__, "serve", self.address, *imports]
        self._process = subprocess.Popen(line, stdin=subprocess.PIPE, env=environment)
        atexit.register(self._end)
        while not os.path.exists(self.address):
            assert self._process.poll() is None, "the server of warm processes did not start"
            time.sleep(0.02)

    def _end(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


@contextlib.contextmanager
def _short(address: str):
    """A path of the same socket that is short enough for the system, wherever the temporary folder is."""
    if len(os.fsencode(address)) <= LONGEST:
        yield address
        return
    folder = os.open(os.path.dirname(address), os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(address)}"
    finally:
        os.close(folder)


# ---- answering


def _import_once(names: Sequence[str]) -> None:
    import gc
    import importlib

    for name in names:
        with contextlib.suppress(ImportError):  # of an extra
            importlib.import_module(name)
    gc.freeze()  # forks need not look through it


def serve(address: str, imports: Sequence[str]) -> list[str]:
    """Fork a process per request until standard input ends; in a fork, return the words that it has to run.

    The imports are made at the first request.
    """
    import select

    listening = socket.socket(socket.AF_UNIX)
    with _short(f"{address}.part") as path:
        listening.bind(path)
    listening.listen(64)
    os.rename(f"{address}.part", address)
    running: dict[int, socket.socket] = {}
    imported = False
    while True:
        lines = list(running.values())
        ready, _, _ = select.select([0, listening, *lines], [], [], 0.005 if running else None)
        if 0 in ready:
            for child in running:
                os.kill(child, signal.SIGKILL)
            os._exit(0)
        for child, line in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                with contextlib.suppress(OSError):  # who asked is gone
                    line.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))
                running.pop(child).close()
            elif line in ready:  # closed by who asked
                os.kill(child, signal.SIGKILL)
        if listening not in ready:
            continue
        line, _ = listening.accept()
        request, streams = _received(line)
        if request is None:  # who asked died before the end of the request
            line.close()
            _close(streams)
            continue
        if not imported:
            _import_once(imports)
            imported = True
        child = os.fork()
        if child == 0:
            for one in (listening, line, *lines):
                one.close()
            _forget_the_server()
            _become(request, streams)
            return request["words"]
        _close(streams)
        running[child] = line
        with contextlib.suppress(
            OSError
        ):  # who asked is gone: the line is closed, and the child ends in the next round
            line.sendall(struct.pack("i", child))


def _received(line: socket.socket) -> tuple[dict | None, list[int]]:
    """(a request, or None if it did not come whole; the streams that came with it)"""
    streams: list[int] = []
    line.settimeout(REQUEST_SECONDS)
    try:
        head, streams, _, _ = socket.recv_fds(line, 4, 3)
        request = line.recv(struct.unpack("i", head)[0], socket.MSG_WAITALL)
        line.settimeout(None)
        return json.loads(request), streams
    except (OSError, ValueError, struct.error):
        return None, streams


def _close(streams: list[int]) -> None:
    for stream in streams:
        os.close(stream)


def _forget_the_server() -> None:
    """What the server's own imports wanted to do at its end is not done at the end of every process."""
    import multiprocessing.util
    import weakref

    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    multiprocessing.util._finalizer_registry.clear()
    atexit.register(multiprocessing.util._exit_function)
    tempfile.tempdir = None  # TMPDIR may be another one


def _become(request: dict, streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    time.tzset()
    if request["env"].get("PYTHONUNBUFFERED"):
        sys.stdout, sys.stderr = _unbuffered(sys.stdout), _unbuffered(sys.stderr)
    own = [part for part in request["env"].get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = ["", *own, *(part for part in sys.path[1:] if part not in own)]


def _unbuffered(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    raw = io.FileIO(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, write_through=True)


def end(words: list[str]) -> None:
    """Run, and end as Python ends, except that it does not take apart all that was imported, which takes a second."""
    import threading
    import traceback

    code: object = 0
    try:
        execute(words)
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException as error:
        traceback.print_exception(error)
        code = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 255)


def execute(words: list[str]) -> None:
    """Do what `python WORDS` does, as `__main__`."""
    import runpy
    import types

    if words[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(words[1], "<string>", "exec"), vars(main))
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__" and sys.argv[1] == "serve":
    end(serve(sys.argv[2], sys.argv[3:]))
elif __name__ == "__main__":
    _code = Started(sys.argv[2:], dict(os.environ), os.getcwd(), (0, 1, 2), sys.argv[1]).wait()
    if _code < 0:
        os.kill(os.getpid(), -_code)
    sys.exit(_code)
