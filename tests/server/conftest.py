"""Collections to serve: a quick stand-in for an index, and a real one made by the command from real files."""

from __future__ import annotations

import numpy as np
import pytest
from starlette.testclient import TestClient

from calmrl.cli import main
from calmrl.encoders import ENCODERS
from calmrl.encoders.base import same
from calmrl.server import build_app
from tests.support import shapes as data
from tests.support.tiny_encoders import TINY, _spec

WORDS = (*data.COLOURS, *data.SHAPES)
NAMES = {"image": "tiny_image", "text": "shape_words", "sound": "tiny_audio"}
FIXED = {"features": "linear", "unit_rows": False, "whitening": 0.5, "latent_dim": 12, "prior": 1.0, "refine": "never"}


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """A collection with holes that is searched without encoders."""
    return data.ShapeIndex(data.write_shapes(tmp_path_factory.mktemp("shapes") / "items"))


def count_words(texts):
    return np.array([[float(word in text.lower().split()) for word in WORDS] for text in texts], np.float32)


@pytest.fixture(scope="module")
def real_index(tmp_path_factory):
    """The same files in an index that `calmrl index` made."""
    pytest.importorskip("lancedb", reason='lancedb (pip install "calmrl[search]") is not installed')
    from calmrl import Aligner, Index

    with pytest.MonkeyPatch.context() as patch:
        for name, spec in {**TINY, "shape_words": _spec("text", len(WORDS), same, count_words)}.items():
            patch.setitem(ENCODERS, name, spec)
        folder = tmp_path_factory.mktemp("real")
        manifest = data.write_shapes(folder / "items")
        Index.build(manifest, folder / "trial", NAMES, model=Aligner(**FIXED)).aligner.save(folder / "aligner")
        named = [part for name, encoder in NAMES.items() for part in ("--encoder", f"{name}={encoder}")]
        with pytest.raises(SystemExit) as stop:
            main(["index", str(manifest), "--out", str(folder / "index"), "--model", str(folder / "aligner"), *named])
        assert not stop.value.code
        yield Index.open(folder / "index")


@pytest.fixture
def client_of():
    """A client of a collection, without a network: index and options of the application -> client."""

    def make(index, **options):
        return TestClient(build_app(index, **options), base_url="http://127.0.0.1:8000", raise_server_exceptions=False)

    return make
