"""`calmrl align`: features become a saved aligner, which an index or another aligner takes as its base."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl import Aligner
from calmrl.aligner import load_base
from calmrl.data import write_features
from calmrl.errors import InputError
from calmrl.workflows import align

rng = np.random.default_rng(0)
MIXING = {"image": rng.normal(size=(4, 8)), "text": rng.normal(size=(4, 6))}


def rows(n, seed):
    random = np.random.default_rng(seed)
    beta = random.normal(size=(n, 4))
    return {name: beta @ mixing + 0.4 * random.normal(size=(n, mixing.shape[1])) for name, mixing in MIXING.items()}


def unpaired(n, seed):
    z = rows(n, seed)
    z["text"][::2], z["image"][1::2] = np.nan, np.nan
    return z


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "features"
    columns = {"album": [f"album {i // 2}" for i in range(80)], "name": [f"name {i // 4}" for i in range(80)]}
    write_features(path, rows(80, 1), columns=columns)
    return path


@pytest.fixture(scope="module")
def saved(features, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "base"
    align(features, path)
    return path


def test_at_the_shell(features, tmp_path, calmrl):
    code, out, err = calmrl("align", features, "--out", tmp_path / "base")
    assert (code, out) == (0, "")
    lines = err.splitlines()
    assert lines[0] == f"80 rows of {features}"
    assert lines[1].startswith("one space: image, text -> ")
    assert lines[2].startswith("expected on new items, by cross-validation (R@1 with its 90 % interval")
    assert [line.split()[0] for line in lines[3:5]] == ["image->text", "text->image"]
    assert lines[5].startswith(f"wrote {tmp_path / 'base'}: index other items beside it with: calmrl index SOURCE")
    assert load_base(tmp_path / "base").modalities_ == ("image", "text")
    code, _, err = calmrl("align", features, "--out", tmp_path / "base")
    assert (code, err) == (2, f"calmrl: {tmp_path / 'base'} exists; choose another name\n")


def test_a_base_is_quoted_where_there_are_no_pairs(saved, tmp_path):
    quoting = load_base(saved)
    quoting.elsewhere_ = {"other rows": quoting.evidence_}
    lines = []
    with pytest.warns(UserWarning, match="no two modalities are linked"):
        align(unpaired(60, 2), tmp_path / "alone", base=quoting, report=lines.append)
    assert lines[1].startswith("one space: image, text -> base (weight 1.00), alone, for too few rows")
    assert lines[2].startswith("no pairs show these; what the base reached, on average, on collections that it had not")
    assert lines[3].startswith("  image->text  R@1 ")
    assert lines[3].endswith("  collections 1")


def test_beside_a_saved_base(saved, features, tmp_path):
    made = align(rows(60, 3), tmp_path / "beside", base=saved)
    assert [base.name for base in made.base_] == [str(saved)]
    again, new = Aligner.load(tmp_path / "beside"), rows(9, 4)
    np.testing.assert_allclose(again.embed(new), made.embed(new), atol=1e-12)
    with pytest.raises(InputError, match="no row links text with image, not even through a third modality"):
        align(unpaired(60, 2), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_columns_say_what_belongs_together_and_compact_is_smaller(features, saved, tmp_path, monkeypatch):
    given = {}
    fit = Aligner.fit
    monkeypatch.setattr(Aligner, "fit", lambda self, z, **more: given.update(more) or fit(self, z, **more))
    made = align(features, tmp_path / "base", groups="album", relevant="name", compact=True)
    assert given["groups"][:3] == ["album 0", "album 0", "album 1"]
    assert made.expected_["text->image"]["own"] > 1
    sizes = [(path / "aligner.safetensors").stat().st_size for path in (saved, tmp_path / "base")]
    assert sizes[1] < sizes[0]
    with pytest.raises(InputError, match='no column "genre"; there are id, album, name'):
        align(features, tmp_path / "other", groups="genre")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("photos", "photos holds files, not features; encode them first: calmrl extract photos"),
        ("nothing", "nothing is neither a file or folder nor a bundled data set (stamps, "),
        ("world --base nosuch", "there is no base 'nosuch': neither a folder of that name nor one of those that"),
        ("world --base photos", "photos has no aligner.json; it is not a saved aligner, or it is"),
    ],
)
def test_what_cannot_be_aligned(line, said, tmp_path, calmrl, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("a dog")
    code, _, err = calmrl("align", *line.split(), "--out", "out")
    assert code == 2
    assert said in err
    assert not (tmp_path / "out").exists()


def test_an_index_says_that_a_base_is_none_before_it_encodes(tmp_path, calmrl):
    pytest.importorskip("lancedb")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("a dog")
    code, _, err = calmrl("index", tmp_path / "photos", "--out", tmp_path / "i", "--base", "named-thing")
    assert code == 2
    assert err == (
        "calmrl: there is no base 'named-thing': neither a folder of that name nor one of those that come with calmrl "
        "(named-things)\n"
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "photos"]
