"""The journey on the command line: index, search by words, picture, sound and a mix, add, remove."""

from __future__ import annotations

import gc
import json
import shlex
import shutil

import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")
pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")

from calmrl._support.places import index_of
from calmrl.cli.printing import Progress
from calmrl.search import Index
from tests.support.colour_world import (
    ITEMS,
    NAMES,
    colour,
    has,
    write_item,
    write_picture,
    write_sound,
)


@pytest.fixture
def place(tmp_path, monkeypatch, calmrl, colour_encoders, colour_index):
    """A folder with an index beside it, and the command line in it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(colour_index / "colours", "colours")
    shutil.copytree(colour_index / "aligner", "aligner")
    named = [part for name, encoder in NAMES.items() for part in ("--encoder", f"{name}={encoder}")]
    code, out, err = calmrl("index", "colours", "--out", "ix", "--model", "aligner", *named)
    assert (code, out) == (0, "")
    assert f"{ITEMS} items: " in err
    assert "text->image" in err
    assert "search is exact" in err
    return tmp_path


def found(out: str) -> list[str]:
    return [hit["id"] for hit in json.loads(out)["hits"]]


def test_an_index_is_checked(place, calmrl) -> None:
    code, out, err = calmrl("check", "ix")
    assert (code, out) == (0, "")
    assert f"{ITEMS} items, all checksums right\n" in err
    assert "ix: nothing is wrong" in err
    data = min((place / "ix" / "items.lance" / "data").iterdir())
    data.write_bytes(data.read_bytes()[:-9] + b"?" + data.read_bytes()[-8:])
    code, out, err = calmrl("check", "ix", "--json")
    assert code == 2
    problem = json.loads(out)["problems"][0]
    assert problem.startswith(f"1 file of ix is not what was written (items.lance/data/{data.name}); copy the index")
    assert "panicked" not in err
    assert "Traceback" not in err


def test_the_journey(place, calmrl) -> None:
    rgb = colour(8)
    words = " ".join(map(str, rgb))
    write_picture(place / "q.png", rgb)
    write_sound(place / "q.wav", rgb)
    for query in [
        [words],
        ["--image", "q.png"],
        ["--sound", "q.wav"],
        ["--with", "sound=q.wav"],
        [f"2:colour {words} + ./q.png"],
        [f"colour {words} + q.wav - .1:colour 255 255 255"],
        [f"colour {words}", "--image", "q.png", "--sound", "q.wav"],
    ]:
        code, out, err = calmrl("search", "ix", *query, "--json", "-k", "3")
        assert code == 0, err
        assert found(out)[0] == "dark/c8", query
    code, out, _ = calmrl("search", "ix", words, "--lacking", "text,sound", "--json", "-k", "90")
    assert {int(id.rpartition("c")[2]) for id in found(out)} == {n for n in range(ITEMS) if has(n) == {"image"}}
    code, out, _ = calmrl("search", "ix", "--like", "dark/c8", "--json")
    assert len(found(out)) == 10
    assert "dark/c8" not in found(out)


def test_what_is_printed(place, calmrl) -> None:
    code, out, err = calmrl("search", "ix", "10 20 30", "-k", "2", "--having", "text,image")
    assert "similarity, certainty, id" in err
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 2
    assert "[text, image" in lines[0]
    assert "the colour" in lines[0]
    code, out, err = calmrl("search", "ix", "10 20 30", "-k", "3", "--having", "image", "--paths")
    assert [path.endswith(".png") and (place / path).is_file() for path in out.splitlines()] == [True] * 3
    code, out, err = calmrl("search", "ix", "10 20 30", "--where", "label = 'light'", "-k", "90", "--json")
    assert {id.split("/")[0] for id in found(out)} == {"light"}
    code, out, err = calmrl("search", "ix", "10 20 30", "--hubs")
    assert "CSLS" in err
    assert json.loads(calmrl("search", "ix", "10 20 30", "--hubs", "--json")[1])["hubs"] == "csls"
    code, out, err = calmrl("search", "ix", "10 20 30", "--where", "label = 'nothing'")
    assert (code, out) == (0, "")
    assert "nothing was found" in err


def test_a_grown_folder_is_noticed(place, calmrl) -> None:
    assert "since the index was made" not in calmrl("search", "ix", "1 2 3")[2]
    write_item(place / "colours", 1000, {"image", "text"})
    number = next(n for n in range(0, ITEMS, 2) if has(n) == {"image"})
    (place / "colours" / "dark" / f"c{number}.png").unlink()
    err = calmrl("search", "ix", "1 2 3")[2]
    assert "2 not in the index" in err
    assert "1 gone" in err
    assert f"calmrl add ix {shlex.quote(str(place / 'colours'))} --prune" in err
    code, out, err = calmrl("add", "ix", "colours", "--json")
    assert code == 0
    assert "1 added, 0 changed" in err
    assert "--prune removes what is gone" in err
    assert json.loads(out)["gone"] == [f"dark/c{number}"]
    assert "1 removed" in calmrl("add", "ix", "colours", "--prune")[2]
    assert "since the index was made" not in calmrl("search", "ix", "1 2 3")[2]
    assert calmrl("remove", "ix", "dark/c1000")[0] == 0
    assert len(Index.open("ix")) == ITEMS - 1


def test_index_shows_what_it_is_doing(place, calmrl, monkeypatch) -> None:
    """Inside a progress that is shown, fitting included."""
    steps = []

    class Recorder(Progress):
        def __call__(self, done: int, total: int, what: str) -> None:
            steps.append((what, self._over.is_set(), self.entered))

        def __enter__(self) -> Progress:
            self.entered = True
            return super().__enter__()

        entered = False

    monkeypatch.setattr("calmrl.cli.indexes.Progress", Recorder)
    named = [part for name, encoder in NAMES.items() for part in ("--encoder", f"{name}={encoder}")]
    assert calmrl("index", "colours", "--out", "fitted", *named)[0] == 0
    assert any(what.startswith("align ") and f"({ITEMS} items)" in what for what, _, _ in steps)
    assert all(entered and not over for _, over, entered in steps)


def test_removed_on_purpose_is_not_new(place, calmrl) -> None:
    """Neither to search nor to add, until a file of it is named or --removed is given."""
    gone = ["dark/c2", "dark/c4"]
    for id in gone:
        assert Index.open("ix").item(id).paths  # the premise: files that stay
    assert calmrl("remove", "ix", *gone)[0] == 0
    assert "since the index was made" not in calmrl("search", "ix", "1 2 3")[2]
    write_item(place / "colours", 1000, {"image", "text"})
    assert "files since the index was made: 2 not in the index" in calmrl("search", "ix", "1 2 3")[2]
    code, out, err = calmrl("add", "ix", "colours", "--json")
    assert code == 0
    assert json.loads(out)["added"] == ["dark/c1000"]
    assert json.loads(out)["left_out"] == gone
    assert "2 items that were removed from the index stay out" in err
    file = next(iter((place / "colours" / "dark").glob("c2.*")))
    assert json.loads(calmrl("add", "ix", str(file), "--json")[1])["added"] == gone[:1]
    assert "1 item that was removed from the index stays out" in calmrl("add", "ix", "colours")[2]
    assert "since the index was made" not in calmrl("search", "ix", "1 2 3")[2]
    assert json.loads(calmrl("add", "ix", "colours", "--removed", "--json")[1])["added"] == gone[1:]
    assert "stay out" not in calmrl("add", "ix", "colours")[2]
    (place / "else.txt").write_text("1 2 3")
    code, _, err = calmrl("add", "ix", "else.txt")
    assert code == 2
    assert "lies in no folder of ix" in err


ERRORS = [
    (["search", "ix"], "the query is empty"),
    (["search", "ix", "dog", "-k", "0"], "a whole number from 1 on; got 0"),
    (["search", "ix", "dog", "-k", "-1"], "a whole number from 1 on; got -1"),
    (["search", "ix", "dog", "--having", "imag"], 'did you mean "image"'),
    (["search", "ix", "dog", "--where", "x = 1"], "unknown column"),
    (["search", "ix", "dog + ./no.png"], "there is no file ./no.png"),
    (["search", "ix", "--image", "no.png"], "there is no file no.png"),
    (["search", "ix", "--with", "smell"], "is not MODALITY=VALUE"),
    (["search", "ix", "--like", "c8"], "no item 'c8' in ix; did you mean 'dark/c8'?"),
    (["search", "nothing", "dog"], "no index at nothing"),
    (["remove", "colours", "dog"], "is not a calmrl index"),
    (["remove", "ix", "nobody"], "nothing was removed\n"),
    (["remove", "ix", "c8"], "nothing was removed; did you mean 'dark/c8'?"),
    (["check", "wrongfolder"], 'there is no file or folder "wrongfolder", and no config of that name. Configs: '),
    (["add", "ix", "nowhere"], "neither a file or folder"),
    (["index", "colours", "--out", "colours"], "exists and is not a calmrl index"),
    (["index", "stamps", "--out", "ix"], "is an index already, made otherwise"),
]


def test_a_search_seldom_looks_for_garbage(place, calmrl, monkeypatch) -> None:
    before, during = gc.get_threshold(), []
    real = Index.search
    monkeypatch.setattr(Index, "search", lambda *a, **k: during.append(gc.get_threshold()[0]) or real(*a, **k))
    assert calmrl("search", "ix", "1 2 3")[0] == 0
    assert during[0] >= 100 * before[0]
    assert gc.get_threshold() == before


def test_a_folder_says_where_its_index_is(place, calmrl) -> None:
    code, _, err = calmrl("search", "colours")
    assert (code, "the query is empty" in err, index_of("colours").exists()) == (2, True, False)  # nothing was made
    shutil.copytree("ix", index_of("colours"))
    for line in (["remove", "colours", "dark/c8"], ["serve", "colours"]):
        code, _, err = calmrl(*line)
        assert (code, f"colours is not a calmrl index; its index is {index_of('colours')}\n" in err) == (2, True)


def test_errors_end_with_code_2(place, calmrl) -> None:
    for line, reason in ERRORS:
        code, out, err = calmrl(*line)
        assert (code, out) == (2, ""), line
        assert reason in err
        assert "Traceback" not in err
