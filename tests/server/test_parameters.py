"""Parameters of an address and of a form: what the index is asked, and which sentence a mistake gives."""

from __future__ import annotations

from types import SimpleNamespace
from urllib.parse import quote

import pytest

from calmrl.search.hits import Answer
from calmrl.server import Limits
from tests.support import shapes as data

SEARCH = {"like": None, "k": 24, "hubs": False, "why": True, "having": None, "lacking": None, "where": None}
BROWSE = {"offset": 0, "limit": 51, "having": None, "lacking": None, "where": None}
BALANCED = ["a = 1", "(a = ')' or b = \"(\") and (c = 1)", "((a))", "a = 'it''s'"]


@pytest.fixture
def ask(shapes, client_of, monkeypatch):
    """What the index is asked by an address, or the sentence of the error; limits are small."""
    asked = []
    for name in ("search", "items"):
        monkeypatch.setattr(data.ShapeIndex, name, lambda self, **given: asked.append(given) or Answer())

    def send(path, **limits):
        asked.clear()
        with client_of(shapes, limits=Limits(**limits)) as client:
            answer = client.get(path)
        if answer.status_code == 200:
            return asked[0]
        assert answer.status_code == 400
        return answer.json()["error"]

    return send


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("search?text=a", SEARCH | {"text": [(1.0, "a")]}),
        ("search?text=2:dog+-+fruit", SEARCH | {"text": [(2.0, "dog"), (-1.0, "fruit")]}),
        ("search?like=x&hubs=TRUE&text=%20", SEARCH | {"like": "x", "hubs": True}),
        ("search?like=x&hubs=false&k=+&label=", SEARCH | {"like": "x"}),
        ("search?like=x&k=+7+", SEARCH | {"like": "x", "k": 7}),
        ("search?like=x&k=00000000007", SEARCH | {"like": "x", "k": 7}),
        ("search?like=x&k=50", SEARCH | {"like": "x", "k": 50}),
        ("items", BROWSE),
        ("items?limit=49&offset=1000000000", BROWSE | {"limit": 50, "offset": 10**9}),
        ("items?having=a,%20b&having=c,,&lacking=", BROWSE | {"having": ["a", "b", "c"]}),
        ("items?" + "&".join(["lacking=a"] * 100), BROWSE | {"lacking": ["a"] * 100}),
        ("items?label=it's", BROWSE | {"where": "label = 'it''s'"}),
        *((f"items?where={quote(one)}", BROWSE | {"where": one}) for one in BALANCED),
        *((f"items?label=a&where={quote(one)}", BROWSE | {"where": f"label = 'a' and ({one})"}) for one in BALANCED),
    ],
)
def test_what_the_index_is_asked(ask, path, given):
    assert ask(f"/api/{path}", hits=50) == given


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("search", "the query is empty; give text, like, or the files image and sound"),
        ("search?text=", "the query is empty"),
        *((f"search?text=a&k={k}", "k must be a whole number from 1 to 50; got")
          for k in ("0", "51", "-1", "1.5", "7.0", "1_0", "000000000007", "ten", "NaN", "%D9%A3", "99999999999999999999")),
        ("items?limit=0", "limit must be a whole number from 1 to 50; got '0'"),
        ("items?limit=51", "limit must be a whole number from 1 to 50; got '51'"),
        ("items?offset=-1", "offset must be a whole number from 0 to 1000000000; got '-1'"),
        ("items?offset=1000000001", "offset must be a whole number"),
        ("search?text=a&k=" + "9" * 90, f"got '{'9' * 80}'"),
        ("search?text=a&hubs=perhaps", "hubs must be true or false; got 'perhaps'"),
        ("search?text=a&hubs=" + "y" * 90, f"got '{'y' * 80}'"),
        ("search?" + "z" * 90 + "=1", f'unknown parameter "{"z" * 80}"'),
        ("search?txt=a", 'did you mean "text"?'),
        ("search?txt=", "unknown parameter"),
        ("items?k=1", "unknown parameter"),
        ("about?x=1", "unknown parameter"),
        ("search?text=a&k=1&k=2", "k is given twice; give it once"),
        ("search?text=%ff", "the address cannot be read"),
        ("items?" + "&".join(["having=a"] * 101), "the address cannot be read"),
        ("search?text=a+%2B+b+%2B+c", "the query has 3 terms; at most 2 are allowed"),
        *((f"items?label=red&where={quote(one)}", "balance them")
          for one in ("(a", "a)", "a) or (b", "a = 'b", 'a = "', "((a)", "'(' )")),
    ],
)  # fmt: skip
def test_mistakes_are_400_with_a_sentence(ask, path, sentence):
    assert sentence in ask(f"/api/{path}", hits=50, terms=2)


@pytest.mark.parametrize("text", ["\t\n\r a", "abcde", "\ud7ff\ue000"])
def test_texts_that_are_let_through(ask, text):
    assert ask(f"/api/search?like={quote(text)}", characters=5)["like"] == text


@pytest.mark.parametrize("text", ["abcdef", "a\x1f", "\0", "\x08"])
@pytest.mark.parametrize("path", ["/api/search?text=", "/api/items?having=", "/api/items/", "/api/items/x/files/"])
def test_texts_that_are_refused(ask, path, text):
    sentence = ask(path + quote(text), characters=5)
    assert sentence.endswith(
        ("has 6 characters; at most 5 are allowed", "contains control characters; send plain text")
    )


def test_parts_of_the_path_are_utf_8(ask):
    assert ask("/api/items/%ff") == "the id in the address is not UTF-8"
    assert ask("/api/items/a/files/%ed%a0%80") == "the modality in the address is not UTF-8"


def part(name, content=b"x", file=True):
    more = '; filename="f"' if file else ""
    return f'--xx\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"


PICTURE = data.png("red", "bar")
FILES = [part("image", PICTURE), *(part(f"f{number}") for number in range(8))]
FIELDS = [part("lacking", b"x", file=False)] * 31


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([part("image", PICTURE), *FIELDS[:30]], None),
        ([part("image", PICTURE), part("where", b"y" * 16_384, file=False)], None),
        (FILES[:8], "no modality takes the file 'f0'; name it one of image, sound"),
        (FILES, "Too many files"),
        ([part("image", PICTURE), *FIELDS], "Too many fields"),
        ([part("image", PICTURE), part("where", b"y" * 16_385, file=False)], "exceeded maximum size"),
        ([part("image", PICTURE)] * 2, "the file 'image' is given twice; give it once"),
        ([part("text", b"a", file=False)] * 2, "text is given twice; give it once"),
        ([part("image", b"/etc/passwd", file=False)], 'unknown parameter "image"'),
        ([part("text", PICTURE)], "text takes text, not a file"),
        ([part("having", PICTURE)], "having takes text, not a file"),
        ([part("k", b"0", file=False)], "k must be a whole number from 1 to 200; got '0'"),
        ([part("text", b" ", file=False)], "the query is empty"),
    ],
)
def test_forms(shapes, client_of, monkeypatch, parts, sentence):
    monkeypatch.setattr(data.ShapeIndex, "search", lambda self, **given: Answer())
    with client_of(shapes, limits=Limits(characters=20_000)) as client:
        kind = {"Content-Type": "multipart/form-data; boundary=xx"}
        answer = client.post("/api/search", content=b"".join(parts) + b"--xx--\r\n", headers=kind)
        assert answer.status_code == (400 if sentence else 200)
        assert (sentence or "") in answer.text.replace('\\"', '"')


def test_the_type_of_a_form_may_be_in_capitals(shapes, client_of):
    """Whether the form is then understood is up to the parser; it is not refused for its type."""
    with client_of(shapes) as client:
        kind = {"Content-Type": "Multipart/Form-Data ; boundary=xx"}
        assert client.post("/api/search", content=b"--xx--\r\n", headers=kind).status_code != 415
        kind = {"Content-Type": "text/plain"}
        assert client.post("/api/search", content=b"a", headers=kind).status_code == 415


@pytest.mark.parametrize(("kind", "got"), [("text/plain; a=b", "text/plain"), (None, "no type")])
def test_other_bodies_are_refused(shapes, client_of, kind, got):
    with client_of(shapes) as client:
        answer = client.post("/api/search", content=b"x", headers={"Content-Type": kind} if kind else {})
        assert answer.status_code == 415
        assert answer.json()["error"] == f"send multipart/form-data with the files image and sound; got {got}"
        files = {"image": ("a.png", PICTURE, "image/png")}
        assert client.post("/api/search?k=1", files=files).status_code == 400  # parameters belong into the form


def test_names_stand_for_modalities(tmp_path, client_of):
    asked = []
    kinds = {"photo": "image", "speech": "audio", "sound": "audio", "name": "text"}
    index = SimpleNamespace(
        path=tmp_path,
        modalities=lambda: {name: {"kind": kind} for name, kind in kinds.items()},
        search=lambda **given: asked.append({name for name in given if name not in SEARCH}) or Answer(),
    )
    tone = data.tone(440)
    with client_of(index) as client:
        for files, text in (({"image": PICTURE, "sound": tone}, "a"), ({"photo": PICTURE, "speech": tone}, "")):
            assert client.post("/api/search", files=files, data={"text": text}).status_code == 200
        for name, content in (("smell", PICTURE), ("name", PICTURE), ("x" * 90, PICTURE)):
            answer = client.post("/api/search", files={name: content})
            assert answer.status_code == 400
            known = "image, sound, photo, speech"
            assert answer.json()["error"] == f"no modality takes the file '{name[:80]}'; name it one of {known}"
    assert asked == [{"photo", "sound", "name"}, {"photo", "speech"}]
