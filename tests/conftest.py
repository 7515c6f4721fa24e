"""What several test files use, and one environment for all of them, whatever the machine's is.

Tests never see the home directory, the caches, the terminal or the settings of who runs them: a variable that changes what a
library does is removed, and what is written outside a test's own folder goes to a home of the run, which is removed at its end.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

HOME = "CALMRL_TESTS_HOME"
SETTINGS = re.compile(
    "PYTHON(?!HASHSEED).*|OMP_.*|MKL_.*|OPENBLAS_.*|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_.*|TORCH.*|ACCELERATE_.*|FSDP_.*|SLURM_.*"
    "|RAY_.*|HF_.*|HUGGINGFACE_.*|TRANSFORMERS_.*|MTEB_.*|WANDB_.*|TENSORBOARD_.*|MPL.*|XDG_.*|CUDA_VISIBLE_DEVICES|CALMRL_(?!TESTS_WITHOUT).*"
    "|COLUMNS|LINES|TERM|COLORTERM|NO_COLOR|FORCE_COLOR|CLICOLOR.*|PY_COLORS|TTY_.*|CI|GITHUB_ACTIONS|_TYPER.*|SOURCE_DATE_EPOCH"
    "|.*_proxy|.*_PROXY|LANGUAGE|PAGER|BROWSER|JUPYTER.*|IPYTHON.*|HYPOTHESIS.*"
)


def _own_environment() -> None:
    """In the process that was started, once; workers of pytest-xdist and processes of tests inherit it."""
    if HOME in os.environ:
        return
    for name in [name for name in os.environ if SETTINGS.fullmatch(name)]:
        del os.environ[name]
    home, ray = (
        tempfile.mkdtemp(prefix="home"),
        tempfile.mkdtemp(prefix="r"),
    )  # the paths of Ray's sockets must be short
    for folder in (home, ray):
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ |= {HOME: home, "HOME": home, "USERPROFILE": home, "MPLCONFIGDIR": f"{home}/matplotlib"}
    os.environ |= {"HF_HOME": f"{home}/huggingface", "RAY_TMPDIR": ray, "OMP_NUM_THREADS": "1"}
    root = Path(__file__).resolve().parents[1]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root / "src"), str(root)])


WITHOUT = os.environ.get("CALMRL_TESTS_WITHOUT", "")  # packages that count as not installed, with commas between
_own_environment()  # before anything is imported that looks at it

for _package in filter(None, WITHOUT.split(",")):
    sys.modules[_package] = None

from calmrl.cli import main  # noqa: E402
from tests.support import warm  # noqa: E402

LONGEST = ["test_ray.py", "test_snippets.py", "test_train_distributed.py", "test_reproduce.py", "test_compare.py",
           "test_kills.py", "test_diagnose.py", "test_train_run.py", "test_train_media.py", "test_notebooks.py",
           "test_browser.py", "test_real_index.py"]  # fmt: skip


MARKS = {
    "ray": re.compile(r"^(import ray$|from tests\.engines\.ray_cluster import )", re.MULTILINE),
    "browser": re.compile(r"^from tests\.support\.browser import ", re.MULTILINE),
    "processes": re.compile(
        r"^ *(import|from) (subprocess|psutil)\b|^from tests\.support import .*\bwarm\b|^from tests\.support\.warm import "
        r"|^from tests\.support\.train_data import .*\b(calmrl|python)\b",
        re.MULTILINE,
    ),
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ray: needs Ray, and starts a cluster on this machine")
    config.addinivalue_line("markers", "browser: needs Chromium")
    config.addinivalue_line("markers", "processes: starts other processes")
    config.addinivalue_line("markers", "soak: a short run of something that can run for hours")
    if config.getoption("numprocesses", None):  # in the process that starts the workers
        warm.share()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first: workers take whole files, and none shall wait for another at the end."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))
    texts = {path: path.read_text(encoding="utf-8") for path in {item.path for item in items}}
    for item in items:
        for mark, found in MARKS.items():
            if found.search(texts[item.path]):
                item.add_marker(mark)


def pytest_terminal_summary(terminalreporter) -> None:
    """What was skipped, grouped by its reason."""
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped")
    )
    for reason, number in reasons.most_common():
        terminalreporter.write_line(f"skipped {number}: {reason}")


@pytest.fixture
def colour_encoders(monkeypatch):
    """The encoders of `colour_world` by name; what they encode is counted from nothing."""
    from tests.support import colour_world

    colour_world.register(monkeypatch)
    colour_world.ENCODED.clear()


@pytest.fixture
def colours_by_default(tmp_path, monkeypatch, colour_encoders):
    """The encoders of `colour_world` are the default ones, and the user's cache is empty."""
    from calmrl.encoders.registry import DEFAULTS, PACKAGES

    for kind, name in {"text": "read", "image": "see", "audio": "hear"}.items():
        monkeypatch.setitem(DEFAULTS, kind, name)
        monkeypatch.setitem(PACKAGES, name, ())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def colour_index(tmp_path_factory):
    """A folder that holds files (`colours`), their index (`ix`) and its `aligner`: to be read or copied, never changed."""
    from calmrl import Index
    from tests.support import colour_world

    root = tmp_path_factory.mktemp("colour_index")
    colour_world.make_folder(root / "colours", colour_world.ITEMS)
    with pytest.MonkeyPatch.context() as patch:
        colour_world.register(patch)
        index = Index.build(root / "colours", root / "ix", colour_world.NAMES, model=colour_world.settings())
    index.aligner.save(root / "aligner")
    return root


@pytest.fixture
def calmrl(capsys, monkeypatch):
    """The command line: arguments -> (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run
