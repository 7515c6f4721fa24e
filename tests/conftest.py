"""What several test files use."""

from __future__ import annotations

import pytest

import warm
from calmrl.cli import main

LONGEST = ["test_ray.py", "test_snippets.py", "test_train_distributed.py", "test_reproduce.py", "test_compare.py",
           "test_kills.py", "test_diagnose.py", "test_train_run.py", "test_train_media.py", "test_notebooks.py",
           "test_browser.py", "test_real_index.py"]  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):  # in the process that starts the workers
        warm.share()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first: workers take whole files, and none shall wait for another at the end."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))


@pytest.fixture
def colour_encoders(monkeypatch):
    """The encoders of `colour_world` by name; what they encode is counted from nothing."""
    import colour_world

    colour_world.register(monkeypatch)
    colour_world.ENCODED.clear()


@pytest.fixture(scope="session")
def colour_index(tmp_path_factory):
    """A folder that holds files (`colours`), their index (`ix`) and its `aligner`: to be read or copied, never changed."""
    import colour_world
    from calmrl import Index

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
