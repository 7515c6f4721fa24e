"""What the commands that use an index pass on, and how hits are shown."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import calmrl.search
import calmrl.server
from calmrl.search import Contribution

HIT = {"id": "a", "similarity": 0.5, "certainty": 0.25, "text": "two\n words", "paths": {"image": "a.png"}}


class Index:
    """Keeps what it is asked."""

    def __init__(self, hits=(), since=None) -> None:
        self.hits, self.since, self.asked = calmrl.search.Answer(hits), since, []

    def __len__(self):
        return 7

    def folder_changes(self):
        return self.since

    def search(self, **given):
        self.asked.append({name: value for name, value in given.items() if value is not None})
        return self.hits

    def add(self, source, **options):
        self.asked.append((source, {name: value for name, value in options.items() if name != "progress"}))
        return calmrl.search.update.Change(added=["x"])

    def remove(self, ids):
        self.asked.append(ids)
        return len(ids)

    def file(self, id, modality):
        return Path("/photos") / f"{id}.{modality}"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """What the commands find where they look: an index by its tables, and a folder of files."""
    (tmp_path / "ix" / "items.lance").mkdir(parents=True)
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def index(monkeypatch):
    def use(*hits, since=None):
        opened = Index(hits, since)
        monkeypatch.setattr(calmrl.search.Index, "open", lambda path: opened)
        return opened

    return use


def hit(**changes):
    return calmrl.search.Hit(**(HIT | changes))


def test_add(calmrl, index):
    opened = index()
    code, out, err = calmrl("add", "ix", "photos")
    assert (code, out) == (0, "")
    assert "1 added, 0 changed, 0 unchanged" in err
    _, out, _ = calmrl("add", "ix", "photos", "--prune", "--removed", "--json")
    assert json.loads(out)["added"] == ["x"]
    assert opened.asked == [
        ("photos", {"prune": False, "removed": False, "refit": None}),
        ("photos", {"prune": True, "removed": True, "refit": None}),
    ]


def test_remove(calmrl, index):
    opened = index()
    assert calmrl("remove", "ix", "a", "b") == (0, "", "removed 2 items; 7 are left\n")
    assert opened.asked == [["a", "b"]]


def test_serve(calmrl, index, passed):
    index()
    calls = passed("calmrl.server.run_server")
    assert calmrl("serve", "ix")[0] == 0
    assert calmrl("serve", "ix", "--host", "::", "--port", "0", "--allow-add")[0] == 0
    assert calmrl("serve", "ix", "--port", "65535")[0] == 0
    assert [options for _, options in calls] == [
        {"host": "127.0.0.1", "port": 8000, "allow_add": False},
        {"host": "::", "port": 0, "allow_add": True},
        {"host": "127.0.0.1", "port": 65535, "allow_add": False},
    ]
    for port in ("-1", "65536"):
        assert calmrl("serve", "ix", "--port", port)[0] == 2


def test_search_by_default(calmrl, index):
    opened = index(hit())
    code, out, err = calmrl("search", "ix", "2:dog - fruit")
    assert (code, out) == (0, " 0.500  0.25  a  []  two words  a.png\n")
    assert err == "similarity, certainty, id, [what was observed], (what found it besides vectors), caption, file:\n"
    assert opened.asked == [{"text": [(2.0, "dog"), (-1.0, "fruit")], "k": 10, "hubs": False, "why": False}]
    index(hit(text="x" * 90, paths={}, modalities=("a", "b")))  # a long caption is cut
    assert calmrl("search", "ix", "dog")[1] == f" 0.500  0.25  a  [a, b]  {'x' * 80}\n"


@pytest.mark.parametrize(
    ("weak", "said", "marks"),
    [
        ((True, True), "nothing close", [1, 1]),
        ((True, False), "perhaps", [1, 0]),
        ((True, None), "", [1, 0]),
    ],
)
def test_weak_hits_and_reasons(calmrl, index, weak, said, marks):
    why = (Contribution("text", "image", 0.6), Contribution(None, None, -0.1))
    index(*(hit(weak=one, why=why) for one in weak))
    _, out, err = calmrl("search", "ix", "dog", "--why")
    lines = out.splitlines()
    assert [line.count("(weak)") for line in lines[::2]] == marks
    assert lines[1::2] == ["        text met image +0.600, hubs -0.100"] * 2
    assert [one for one in ("nothing close: ", "perhaps: ") if one in err] == ([f"{said}: "] if said else [])
    assert max(map(len, err.splitlines()[1:]), default=0) <= 80


def test_search_with_everything(calmrl, index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pool.jpg").touch()
    opened = index(hit())
    code, out, err = calmrl(
        "search", "ix", "dog - ./pool.jpg", "--image", "i.png", "--sound", "s.wav", "--with", "speech=v=w.wav", "--like", "b",
        "--having", "image, text", "--lacking", "sound", "--where", "w", "-k", "3", "--hubs", "--json",
    )  # fmt: skip
    assert code == 0
    assert err == ""
    assert opened.asked == [
        {
            "text": [(1.0, "dog")], "image": [(1.0, "i.png"), (-1.0, "pool.jpg")], "sound": [(1.0, "s.wav")],
            "speech": [(1.0, "v=w.wav")], "like": [(1.0, "b")], "having": ["image", "text"], "lacking": ["sound"], "where": "w",
            "k": 3, "hubs": True, "why": True,
        }
    ]  # fmt: skip
    shown = HIT | {"label": None, "modalities": [], "found": ["vectors"], "weak": None, "close": None, "why": []}
    shown["segment"] = None
    assert json.loads(out) == {"hubs": "csls", "verdict": None, "nothing_close": None, "hits": [shown]}
    _, out, _ = calmrl("search", "ix", "dog", "--json")
    assert json.loads(out)["hubs"] is None


@pytest.mark.parametrize(
    ("segment", "said"), [((40.0, 50.4), "at 0:40 to 0:50"), ((3545.0, 3604.6), "at 59:05 to 1:00:05")]
)
def test_search_says_where_in_a_video(calmrl, index, segment, said):
    index(hit(segment=segment))
    assert calmrl("search", "ix", "dog")[1].endswith(f"  {said}\n")


def test_search_says_what_is_new_and_what_a_score_is(calmrl, index):
    index(hit(text=None, paths={}, certainty=None), since=SimpleNamespace(sentence=lambda path: f"more in {path}"))
    _, out, err = calmrl("search", "ix", "dog", "--hubs")
    assert out == " 0.500  0.00  a  []\n"
    assert err.splitlines()[:2] == ["more in ix", "similarity is corrected for hubs (CSLS): 2 cos - r(query) - r(item)"]
    index()
    nothing = "nothing was found: no item matches --having, --lacking and --where\n"
    assert calmrl("search", "ix", "dog") == (0, "", nothing)


def test_paths_of_hits(calmrl, index):
    index(hit(paths={"image": "i", "text": "t"}), hit(id="b", paths={"image": "i"}), hit(id="c", paths={}))
    code, out, err = calmrl("search", "ix", "dog", "--paths", "--having", "text")
    assert (code, out) == (0, "/photos/a.text\n/photos/b.image\n")
    assert err == "1 of 3 hits without a file\n"
    index(hit())
    assert calmrl("search", "ix", "dog", "--paths") == (0, "/photos/a.image\n", "")


def test_what_is_no_modality_with_a_value(calmrl, index):
    index()
    said = "is not MODALITY=VALUE; for instance --with speech=voice.wav"
    for words, what in (
        *((["--with", given], f"--with {given} {said}") for given in ("speech", "=a", "speech=")),
        *(([f"./{name}"], "is no picture, video or sound by its name; ask with --with") for name in ("a.pdf", "a.txt")),
    ):
        Path(words[0]).touch()
        code, _, err = calmrl("search", "ix", *words)
        assert code == 2
        assert what in err
