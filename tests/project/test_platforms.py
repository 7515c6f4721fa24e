"""Everything imports and works on a system that has none of what is POSIX only, and that does not touch open files.

The child removes it from Python and lets `os` refuse what Windows refuses; its locks are `msvcrt.locking`, made of `flock`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
OTHERS = [
    *("numpy", "torch", "accelerate", "safetensors.torch", "sklearn.linear_model", "sklearn.cluster", "scipy.stats"),
    *("pyarrow.parquet", "pyarrow.dataset", "lancedb", "lance_namespace", "typer", "PIL.Image", "av", "yaml", "pydantic"),
    *("fastapi", "uvicorn", "multiprocessing.synchronize", "asyncio", "tarfile", "importlib.metadata"),
]  # fmt: skip
WINDOWS = f"""
import contextlib, errno, fcntl, importlib, os, shutil, signal, sys, types
for name in {OTHERS!r}:  # they have been told which system this is
    with contextlib.suppress(ImportError):
        importlib.import_module(name)

locks = []

def locking(handle, how, count):
    locks.append(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "Permission denied") from None

sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=locking)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for module, names in ((os, ("fork", "forkpty", "O_DIRECTORY", "O_NOFOLLOW", "sched_getaffinity", "geteuid", "getuid",
                            "pathconf", "killpg", "getpgid", "uname", "mkfifo", "getloadavg")),
                      (signal, ("SIGKILL", "SIGHUP", "SIGPIPE", "SIGALRM", "alarm", "setitimer"))):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "win32"

def refuse(path):
    raise PermissionError(errno.EACCES, "The process cannot access the file because it is in use", str(path))

def open_below(path):
    path = os.path.realpath(path)
    for handle in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            used = os.readlink("/proc/self/fd/" + handle)
            if used == path or used.startswith(path + os.sep):
                return True
    return False

def unlink(path, *rest, real=os.unlink, **named):
    refuse(path) if not named and open_below(path) else real(path, *rest, **named)

def rename(old, new, *rest, real=os.rename):
    if os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, "exists", str(new))
    refuse(old) if open_below(old) else real(old, new)

def replace(old, new, *rest, real=os.replace):
    refuse(new) if os.path.isdir(new) or open_below(old) or open_below(new) else real(old, new)

os.unlink = os.remove = unlink
os.rename, os.replace = rename, replace
shutil._use_fd_functions = False
"""
USE = """
import pkgutil
import numpy as np
import calmrl
from pathlib import Path
for module in pkgutil.walk_packages(calmrl.__path__, "calmrl."):
    if module.name != "calmrl.__main__":
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            if (error.name or "").split(".")[0] not in sys.argv[2].split(","):
                raise
from calmrl import Aligner, GaussianImputer, Index
from calmrl._support.filesystem import locked
from calmrl.cli import main
from calmrl.data.features.feature_set import open_features
from calmrl.data.features.writer import write_features
from calmrl.errors import InputError

os.chdir(sys.argv[1])
rng = np.random.default_rng(0)
hidden = rng.normal(size=(60, 3))
z = {name: (hidden @ rng.normal(size=(3, 4)) + 0.1 * rng.normal(size=(60, 4))).astype(np.float32) for name in ("image", "text")}
present = rng.random((60, 2)) > 0.2
present[:, 0] |= ~present.any(1)
write_features("features", z, present)
open_features("features").verify()
aligner = Aligner(**FIXED, random_state=0).fit(z, present)
imputer = GaussianImputer(latent_dim=2, max_iter=200).fit(z, present)
for overwrite in (False, True):  # the second replaces a directory that is not empty
    aligner.save("aligner", overwrite=overwrite)
    imputer.save("imputer", overwrite=overwrite)
assert np.allclose(Aligner.load("aligner").embed(z, present), aligner.embed(z, present))
assert np.array_equal(GaussianImputer.load("imputer").embed(z, present), imputer.embed(z, present))
with locked(Path("out")):
    try:
        locked(Path("out")).__enter__()
    except InputError as error:
        assert "another run is writing out" in str(error)
    else:
        raise AssertionError("two at once")
for words in (["impute", "features", "--out", "imputed", "imputer.method=mean"],
              ["impute", "features", "--out", "imputed", "--force", "imputer.method=mean"],
              ["impute", "features", "--out", "imputed", "--force", "--allow-missing", "imputer.method=mean"],
              ["cp", "impute", "impute.yaml"], ["cp", "impute", "impute.yaml", "--force"], ["doctor"]):
    try:
        main(words)
    except SystemExit as stop:
        assert not stop.code, words
if sys.argv[3] == "search":
    Path("index").mkdir()  # an empty one is free
    index = Index.build("features", "index", model=aligner)
    more = {name: array[:5] for name, array in z.items()}
    write_features("more", more, ids=[f"more {i}" for i in range(5)])
    assert len(index.add("more").added) == 5
    assert index.remove(["more 0"]) == 1
    assert len(Index.open("index").search(like="3", k=4)) == 4
assert locks
print(sorted(path.name for path in Path().iterdir()))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd") or not hasattr(os, "fork"), reason="Linux is what is changed")
def test_a_system_without_posix(tmp_path):
    from tests.support.colour_world import FIXED

    if len(os.fsencode(tmp_path)) > 130:
        pytest.skip("Windows has no paths of more than 260 bytes, which a long temporary folder leads to")
    try:
        import lancedb  # noqa: F401

        search = "search"
    except ImportError:
        search = "none"
    may_lack = "lancedb,PIL,av,fastapi,starlette,uvicorn,anyio,h11"
    program = WINDOWS + f"FIXED = {FIXED!r}\n" + USE
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    run = [sys.executable, "-c", program, str(tmp_path), may_lack, search]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    made = [
        "aligner",
        "features",
        "imputed",
        "imputer",
        "impute.yaml",
        *(["index", "more"] if search == "search" else []),
    ]
    assert done.stdout.splitlines()[-1] == str(sorted(made))  # and nothing else stays
