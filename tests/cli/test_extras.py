"""A missing extra is named, with the line that installs it; everything else works without it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest

from calmrl.errors import MissingExtraError, need


def test_what_is_there_is_imported():
    assert need("json", "media", "This").dumps([1]) == "[1]"


def test_a_missing_extra_is_named_with_its_install_line():
    said = 'Reading films needs the package "no_such_package", which is not installed; '
    said += 'install it with: pip install "calmrl[media]"'
    with pytest.raises(MissingExtraError, match=f"^{re.escape(said)}$"):
        need("no_such_package.inner", "media", "Reading films")


@pytest.mark.parametrize("line", ["import no_such_dependency", "raise ModuleNotFoundError('no_such_dependency')"])
def test_a_broken_package_is_not_called_missing(tmp_path, monkeypatch, line):
    (tmp_path / "broken_package.py").write_text(f"{line}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
        need("broken_package", "media", "This")
    assert not isinstance(caught.value, MissingExtraError)


def test_search_names_its_extra(monkeypatch, tmp_path):
    from calmrl.search import Index

    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(MissingExtraError, match=r'pip install "calmrl\[search\]"'):
        Index.build({"a": np.ones((1, 3))}, tmp_path / "ix")


def test_the_extras():
    extras = set(metadata.metadata("calmrl").get_all("Provides-Extra") or [])
    offered = {"media", "encoders", "files", "lora", "search", "serve", "mcp", "ocr", "ray", "track"}
    offered |= {"interop", "hub", "mteb", "sentence-transformers"}
    assert extras == offered | {"bench", "docs", "dev", "release"}


def test_the_core_runs_without_any_extra():
    """Every package of an extra that the core does not depend on is hidden; the embedding level still works."""
    code = """
import sys
for name in ("av", "PIL.Image", "lancedb", "mofapy2", "mkdocs", "hypothesis", "pytest", "transformers", "pandas", "ray"):
    sys.modules[name] = None
import numpy as np
import calmrl
rng = np.random.default_rng(0)
z = {"a": rng.normal(size=(40, 4)), "b": rng.normal(size=(40, 3))}
z["b"][::3] = np.nan
filled = calmrl.GaussianImputer(latent_dim=2, max_iter=5, random_state=0).fit(z).transform(z)
assert np.isfinite(filled["b"]).all()
from calmrl.cli import main
main(["ls", "--json"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
