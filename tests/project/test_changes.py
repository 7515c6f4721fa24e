"""The table of changes in CONTRIBUTING.md is true: each is made in a copy of the package, in the files that it names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calmrl.data import write_features
from tests.support.train_data import WIDTHS, config_file

ROOT = Path(__file__).resolve().parents[2]


def line_of(registry: str, line: str) -> tuple[str, str]:
    """An edit: a line at the beginning of a table that is written `NAME... = Registry(` or `NAME... = {`."""
    return rf"(\n{registry}\b[^\n]*(?:Registry\(\s*\"[^\"]*\",\s*)?\{{\n?)", f"{line}\n"


# what is added -> {file below src/calmrl: the text of a new file, or (a pattern, what follows it)}
CHANGES: dict[str, dict[str, str | tuple[str, str]]] = {
    "a loss": {
        "losses/near.py": """
            from calmrl.losses.contrastive import ContrastiveLoss


            class NearLoss(ContrastiveLoss):
                \"\"\"Pairs that should be near.\"\"\"

                def __init__(self, temperature: float = 0.3, *, sharp: bool = False) -> None:
                    super().__init__(None, temperature / 2 if sharp else temperature, learn_temperature=False)
        """,
        "losses/registry.py": line_of("LOSSES", '        "near": "calmrl.losses.near:NearLoss",'),
    },
    "an imputer": {
        "imputers/middle.py": """
            from calmrl.imputers.simple import MeanImputer


            class MiddleImputer(MeanImputer):
                \"\"\"The middle of everything.\"\"\"
        """,
        "imputers/registry.py": line_of("IMPUTERS", '        "middle": "calmrl.imputers.middle:MiddleImputer",'),
    },
    "a data set": {
        "datasets/tiny.py": """
            import numpy as np

            from calmrl.data.features.feature_set import FeatureSet
            from calmrl.datasets.registry import Indexing

            INDEXING = Indexing(word_vector=lambda modality, word: np.full(3, len(word), np.float32))


            def tiny() -> FeatureSet:
                \"\"\"Four rows of two modalities.\"\"\"
                return FeatureSet({"a": np.eye(4, 3, dtype=np.float32), "b": np.eye(4, 2, dtype=np.float32)})
        """,
        "datasets/registry.py": line_of("DATASETS", '        "tiny": "calmrl.datasets.tiny:tiny",'),
    },
    "a public collection": {
        "paper/collections/bells.py": """
            from calmrl.paper.collections.audio import Esc50


            class Bells(Esc50):
                \"\"\"Bells of all kinds, in the layout of ESC-50.\"\"\"
        """,
        "data/media/public_collections.py": line_of("COLLECTIONS", '        "bells": f"{READERS}.bells:Bells",'),
    },
    "an encoder": {
        "encoders/counting.py": """
            import numpy as np

            from calmrl.encoders.base import Encoder, same


            def counting() -> Encoder:
                return Encoder("text", 2, same, lambda texts: np.array([[len(t), t.count(" ")] for t in texts], np.float32))
        """,
        "encoders/registry.py": line_of(
            "ENCODERS",
            '        "counting": EncoderSpec("text", 2, "letters and gaps", "none", "none", "nothing",\n'
            '                                "calmrl.encoders.counting:counting"),',
        ),
    },
    "a command": {
        "cli/greet.py": """
            from calmrl.cli.printing import note


            def greet() -> None:
                \"\"\"Say hello.

                Example:
                  calmrl greet
                \"\"\"
                note("hello")
        """,
        "cli/registry.py": (r"(\nCOMMANDS = \{\n)", '    "greet": "greet:greet",\n'),
    },
    "a measure": {
        "metrics/measures.py": (
            r"\Z",
            "\n\ndef sizes(z, present):\n    return [row(name, 'size', float(z[name].norm()), len(z[name])) for name in z]\n",
        ),
        "metrics/registry.py": line_of(
            "METRICS",
            '        "size": Metric("size", "", "neither", "length", "calmrl.metrics.measures:sizes", "of vectors"),',
        ),
    },
    "a method": {
        "training/methods.py": line_of(
            "METHODS",
            '        "near": Method("pairs that should be near", "near", {"objective": {"name": "near"}}, ({},)),',
        ),
    },
    "a model kind": {
        "models/plain.py": """
            from typing import Any, Literal

            import torch

            from calmrl._support.section import Section
            from calmrl.models.heads import Heads


            class PlainSection(Section):
                kind: Literal["plain"]
                size: int = 4


            class Plain(Heads):
                kind = "plain"


            def build(section: PlainSection, data: Any, names: Any, seed: int, root: str | None = None) -> Plain:
                torch.manual_seed(seed)
                return Plain(data.widths, section.size)
        """,
        "models/registry.py": line_of(
            "MODELS",
            '        "plain": ModelKind("a linear layer per modality", "calmrl.models.plain:PlainSection",\n'
            '                           "calmrl.models.plain:build", "calmrl.models.plain:Plain"),',
        ),
    },
    "a config key": {
        "config/schema/train.py": (r"(class ImputeConfig\(Section\):.*?std: bool = False\n)", "    motto: str = ''\n"),
        "workflows/impute.py": (
            r"(\n    settings = config\.model_dump\(mode=\"json\"\)\n)",
            "    print(config.motto)\n",
        ),
    },
    "a storage format": {
        "data/features/formats.py": (
            r"(?=\nReader = Callable)",
            "\ndef read_columns(path, modalities):\n"
            "    values = np.loadtxt(path, dtype=np.float32, ndmin=2)\n"
            "    return FeatureSet({'left': values[:, :1], 'right': values[:, 1:]}, source=str(path))\n\n",
        ),
    },
    "a distributed engine": {
        "_support/eager.py": """
            from calmrl._support.engine import LocalEngine


            class EagerEngine(LocalEngine):
                name = "eager"

                def map(self, function, items, *shared, device="cpu"):
                    return iter([function(item, *shared) for item in items])
        """,
        "_support/engine.py": (r'(\n    "engine", \{)', '"eager": "calmrl._support.eager:EagerEngine", '),
    },
    "a shipped config": {
        "config/shipped/mine.yaml": """
            # calmrl impute FEATURES --out IMPUTED --config mine
            # The middle of everything.
            kind: impute
            imputer:
              method: middle
        """,
    },
}
SECOND = {  # a file of a change that is edited in two places
    "data/features/formats.py": (r"(\nFORMATS: dict\[str, Reader\] = \{)", '".columns": read_columns, '),
    "datasets/registry.py": (r"(\nINDEXING\b.*?\{)", '"tiny": "calmrl.datasets.tiny:INDEXING", '),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The package with all changes made, and a function that runs Python with it: code -> what it prints."""
    place = tmp_path_factory.mktemp("changed")
    package = place / "src" / "calmrl"
    shutil.copytree(ROOT / "src" / "calmrl", package, ignore=shutil.ignore_patterns("__pycache__"))
    for files in CHANGES.values():
        for name, edit in files.items():
            if isinstance(edit, str):
                assert not (package / name).exists(), f"{name} is there already"
                lines = edit.strip("\n").splitlines()
                indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
                (package / name).write_text("\n".join(line[indent:] for line in lines) + "\n", encoding="utf-8")
            else:
                _insert(package / name, edit)
                if name in SECOND:
                    _insert(package / name, SECOND[name])

    def run(code: str, *arguments: str | os.PathLike[str]) -> str:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(place / "src"), str(ROOT)]), "COLUMNS": "200"}
        line = ["-c", f"import calmrl, sys; assert {str(place)!r} in calmrl.__file__\n{code}", *map(str, arguments)]
        done = subprocess.run([sys.executable, *line], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def _insert(file: Path, edit: tuple[str, str]) -> None:
    pattern, text = edit
    before = file.read_text(encoding="utf-8")
    found = re.search(pattern, before, re.DOTALL)
    assert found, f"{file.name} has no {pattern}"
    file.write_text(before[: found.end()] + text + before[found.end() :], encoding="utf-8")


def test_the_table_names_these_changes_and_the_files_that_they_touch():
    """A new file lies in a folder that the row names; a file that is edited is named itself."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (an? [a-z ]+) \| (.*) \|$", page, re.MULTILINE))
    assert set(rows) == set(CHANGES)
    for change, files in CHANGES.items():
        named = re.findall(r"`([\w/.]+)`", rows[change])
        for file, edit in files.items():
            folders = [name for name in named if name.endswith("/")]
            inside = any(file.startswith(folder) for folder in folders)
            assert file in named or (inside and isinstance(edit, str)) or change == "a config key", (change, file)
            if change == "a config key":  # its section, and the one place that uses it
                assert inside or file == "workflows/impute.py"


COMMAND = """
import sys
from calmrl.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    sys.exit(stop.code or 0)
"""


def test_they_are_listed(copy):
    listed = copy(COMMAND, "ls")
    for name in ("near", "middle", "tiny", "bells", "counting", "plain", "mine"):
        assert re.search(rf"^  {name} ", listed, re.MULTILINE), name
    assert "pairs that should be near" in listed
    assert "hello" in copy(COMMAND, "greet")


def test_imputing_takes_the_imputer_the_format_the_key_the_engine_and_the_config(copy, tmp_path):
    np.savetxt(tmp_path / "x.columns", np.array([[1.0, 2.0], [np.nan, 4.0], [3.0, np.nan]]))
    options = ["--engine", "eager", "--config", "mine", "motto=onwards"]
    said = copy(COMMAND, "impute", tmp_path / "x.columns", "--out", tmp_path / "done", *options)
    assert "onwards" in said
    assert "imputed 2 of 6" in said
    assert (
        json.loads((tmp_path / "done" / "features.json").read_text())["info"]["config"]["imputer"]["method"] == "middle"
    )
    assert np.load(tmp_path / "done" / "left.npy").tolist() == [[1.0], [2.0], [3.0]]


def test_training_takes_the_loss_the_method_the_model_kind_and_the_measure(copy, tmp_path):
    config = config_file(
        tmp_path,
        method="near",
        model={"kind": "plain", "size": 3},
        objective={"name": "near", "sharp": True},
        stages=[{"steps": 2}],
    )
    copy(COMMAND, "train", config, "--out", tmp_path / "run")
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(9, width)).astype(np.float32) for name, width in WIDTHS.items()}
    write_features(tmp_path / "test", z, split=["test"] * 9)
    copy(COMMAND, "evaluate", tmp_path / "run", "--data", tmp_path / "test", "--out", tmp_path / "results.json")
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["task"] for row in rows if row["metric"] == "size"} == set(WIDTHS)


def test_the_data_set_and_the_encoder_are_used(copy):
    said = copy(
        "from calmrl.datasets import load_dataset\nfrom calmrl.datasets.registry import indexing_of\n"
        "from calmrl.encoders import EncoderSet\n"
        "print(load_dataset('tiny').present.shape, indexing_of('tiny').word_vector('a', 'four'))\n"
        "print(EncoderSet({'text': 'counting'}, dtype='float32').encode([{'text': 'two words'}])[0]['text'].tolist())\n"
    )
    assert said.splitlines()[-2:] == ["(4, 2) [4. 4. 4.]", "[[9.0, 1.0]]"]
