"""What is typed finds what is called or says that: names, texts, and the very file."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("lancedb", reason="the extra search is not installed")
pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")

from calmrl import Index
from calmrl.encoders import ENCODERS, Encoder
from calmrl.search.words import MOST, READ, Match, fused, joined, matches, name_words, tokens
from tests.support.colour_world import ENCODED, NAMES, colour, make_folder, settings, write_picture, write_text

SIZE = 40  # items of colours beside those with names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PolarBear_02-dark", ["polar", "bear", "02", "dark"]),
        ("IMG_1234.jpg", ["img", "1234", "jpg"]),
        ("HTMLParser3x", ["html", "parser", "3", "x"]),
        ("dogs/Été à la mer", ["dogs", "été", "à", "la", "mer"]),
        ("e\u0301te\u0301", ["été"]),
        ("金门大桥 dawn", ["金", "门", "大", "桥", "dawn"]),
        ("ΣΊΣΥΦΟΣ", ["σίσυφοσ"]),
        ("काला कुत्ता_2", ["काला", "कुत्ता", "2"]),
        ("Straße", ["strasse"]),
        ("❤\ufe0f dog 1\ufe0f\u20e3", ["dog", "1"]),
        ("__ -- !", []),
    ],
)
def test_words_are_split_at_case_dashes_and_digits(text, expected):
    assert tokens(text) == expected


@given(st.text(st.characters(max_codepoint=127)))
def test_words_of_ascii_are_split_alike_beside_other_letters(text):
    assert tokens(text) == tokens(f"{text} é")[:-1]


@pytest.mark.parametrize(
    ("id", "expected"),
    [
        ("golden_retriever", "golden retriever"),
        ("dogs/GoldenRetriever_02", "golden retriever, dogs"),
        ("DCIM/100APPLE/IMG_0123", None),
        ("DSC00042", None),
        ("2019/rome-4", "rome"),
        ("f3a9bc0d12e4", None),
        ("Screenshot 2024-01-02", None),
        ("犬", "犬"),
        ("a/b", None),
    ],
)
def test_what_names_say(id, expected):
    assert name_words(id) == expected


def found_in(
    items: dict[str, str | None], text: str, without: tuple[str, ...] = (), files: dict[str, str] | None = None
):
    """Matches in a table that gives every row to every condition."""
    rows = [
        {"id": id, "text": said, "label": None, "paths": json.dumps({"image": (files or {}).get(id, f"{id}.png")})}
        for id, said in items.items()
    ]
    return matches(text, lambda condition, most: rows[:most], lambda condition: len(rows), without)


def test_the_item_that_is_called_so_is_first():
    items = {
        "horses": None,
        "jockey": "a rider of a horse in races",
        "x/Horse_1": None,
        "horse race": "jockeys",
        "horse": None,
    }
    first, *others = found_in(items, "horse")
    assert (first.id, first.exact, first.parts) == ("horse", True, ("name",))
    assert [match.id for match in others if match.exact] == ["horses"]  # the plural counts as the same
    assert {match.id for match in others} == {"horses", "jockey", "x/Horse_1", "horse race"}
    assert found_in(items, "Horse_1")[0].id == found_in(items, "x/horse 1.png")[0].id == "x/Horse_1"


def test_the_item_that_says_exactly_that_is_first():
    items = {"1": "a horse and a dog", "2": "Horse!\nsteed", "3": "horse horse horse"}
    assert next((match.id, match.exact) for match in found_in(items, "horse")) == ("2", True)
    assert found_in(items, "a  HORSE and a dog")[0].id == "1"
    assert found_in(items, "horse")[0].parts == ("words",)


def test_an_item_needs_half_of_what_was_typed():
    items = {"1": "sea", "2": "sea and dog", "3": "boat", "4": "boat at sea"}
    assert [match.id for match in found_in(items, "wooden boat in the harbour")] == []
    assert found_in(items, "dog sea")[0].id == "2"
    assert found_in(items, "cat") == found_in(items, "...") == []


def test_articles_of_a_query_are_not_looked_for():
    items = {"dog_06": None, "a_simple_pig": None, "the end": None, "end of a road": None}
    assert [(match.id, match.share) for match in found_in(items, "a dog")] == [("dog_06", 1.0)]
    assert [(match.id, match.exact) for match in found_in(items, "the end")] == [
        ("the end", True),
        ("end of a road", False),
    ]
    assert [match.id for match in found_in(items, "the")] == ["the end"]  # where nothing else was typed, they are


def test_what_is_pushed_away():
    items = {"1": "dog in snow", "2": "dog", "3": "snow"}
    assert [match.id for match in found_in(items, "dog", without=("snow",))] == ["2"]
    assert [match.id for match in found_in(items, "dog", without=("the snow",))] == ["2"]  # articles are not looked for
    assert {match.id for match in found_in(items, "dog", without=("!",))} == {"1", "2"}  # no word pushes nothing away


def test_words_of_too_many_items():
    """Of those that have a common word, only what is called so; a rare word beside it is found, and says nearly all."""
    row = {"label": None, "paths": "{}"}
    dogs = [row | {"id": f"{n}", "text": "a dog at home"} for n in range(99)] + [row | {"id": "x/dog", "text": None}]
    common = [row | {"id": f"c{n}", "text": "a cat"} for n in range(MOST)]
    numbers = {"a": 50_000, "at": 9_000, "home": 8_000, "cat": 30_000, "dog": 100}

    def read(condition, most):
        if "ends_with" in condition:
            return [row | {"id": "x/cat", "text": None}] if "/cat" in condition else []
        if "'home'" in condition:
            return dogs[:3] if " AND " in condition else common[:most]
        return dogs if "'dog'" in condition and "'a'" not in condition else common[:most]

    def count(condition):
        return 100_000 if condition is None else next(n for word, n in numbers.items() if f"'{word}'" in condition)

    assert [(match.id, match.exact) for match in matches("cat", read, count)] == [("x/cat", True)]
    assert [match.id for match in matches("at home", read, count)] == ["0", "1", "2"]  # which have both
    found = {match.id: match.share for match in matches("a dog", read, count)}
    assert len(found) == len(dogs)
    assert found["x/dog"] > 0.85


def test_files_of_a_table_have_names_too():
    found = found_in({"17": None, "18": None}, "golden gate", files={"17": "pics/GoldenGate.jpg", "18": "pics/bay.jpg"})
    assert [(match.id, match.parts, match.exact) for match in found] == [("17", ("name",), True)]


def test_ranks_are_joined():
    def match(id, share=1.0, exact=False):
        return Match(id, 1.0, share, exact, ("name",))

    assert fused(["a", "b", "c"], []) == ["a", "b", "c"]
    assert fused(["a", "b", "c"], [match("c")]) == ["c", "a", "b"]
    assert fused(["a", "b", "c"], [match("b", share=0.05)]) == ["a", "b", "c"]
    assert fused(["a", "b"], [match("b"), match("z", exact=True)]) == ["z", "b", "a"]


# ---- in an index

pytestmark = pytest.mark.usefixtures("colour_encoders")
NAMED = {"PolarBear_02": 900, "brown-bear": 901, "grizzly": 902}


@pytest.fixture
def own(tmp_path):
    """(index, folder): colours, of which three have pictures with names and no text."""
    folder = tmp_path / "colours"
    make_folder(folder, SIZE)
    for name, number in NAMED.items():
        write_picture(folder / f"{name}.png", colour(number))
    return Index.build(folder, tmp_path / "ix", NAMES, model=settings()), folder


def first(index, **query):
    return index.search(**query, k=3)[0]


def test_a_name_finds_its_item(own):
    index, _ = own
    for name in NAMED:
        hit = first(index, text=name)
        assert (hit.id, hit.found[0]) == (name, "name")
    hits = index.search(text="bear", k=SIZE + 3)
    assert {hit.id for hit in hits if "name" in hit.found} == {"PolarBear_02", "brown-bear"}
    assert {hit.id for hit in hits[:2]} == {"PolarBear_02", "brown-bear"}
    assert all("vectors" in hit.found for hit in hits)
    assert len({hit.id for hit in hits}) == len(hits) == SIZE + 3
    assert all(hit.found == ("vectors",) for hit in index.search(text="polar bear", k=5, words=False))


def test_names_in_other_letters(own, tmp_path):
    index, folder = own
    names = {"Straße": "STRASSE", "ΣΚΎΛΟΣ": "σκύλος", "काला-कुत्ता": "कुत्ता", "Собаки_1": "собаки", "Çà": "ÇÀ"}
    for number, name in enumerate(names):
        write_picture(folder / f"{name}.png", colour(950 + number))
    index.add(folder)
    for name, typed in names.items():
        for query in (name, typed):
            assert (first(index, text=query).id, "name" in first(index, text=query).found) == (name, True), query
    rows = [f"{n},ÉtéÀLaMer{n}.png,colour {n} {n} {n}" for n in range(30)]
    for n in range(30):
        write_picture(tmp_path / f"ÉtéÀLaMer{n}.png", colour(n))
    (tmp_path / "items.csv").write_text("\n".join(["id,image,text", *rows]), encoding="utf-8")
    table = Index.build(tmp_path / "items.csv", tmp_path / "iy", {"text": "read", "image": "see"}, model=settings())
    for query in ("été à la mer 7", "ÉTÉ À LA MER 7"):
        assert (first(table, text=query).id, first(table, text=query).found[0]) == ("7", "name")


def test_the_beginning_of_a_long_text_counts(own):
    index, folder = own
    (folder / "early.txt").write_text("zebra " + "1 2 3 " * READ)
    (folder / "late.txt").write_text("1 2 3 " * READ + "zebra")
    index.add(folder)
    assert [hit.id for hit in index.search(text="zebra", k=SIZE) if "words" in hit.found] == ["early"]


def test_conditions_removed_and_added_items(own):
    index, folder = own
    assert first(index, text="polar bear", where="label is null").id == "PolarBear_02"
    assert all(hit.label == "dark" for hit in index.search(text="polar bear", where="label = 'dark'"))
    assert first(index, text="polar bear", lacking="text").id == "PolarBear_02"
    assert all("text" in hit.modalities for hit in index.search(text="polar bear", having="text", k=SIZE))
    assert "PolarBear_02" not in {hit.id for hit in index.search(text=["bear", (-0.5, "polar")], k=1)}
    index.remove("PolarBear_02")
    assert first(index, text="polar bear").id != "PolarBear_02"
    assert index.add(folder, removed=True).added == ["PolarBear_02"]
    assert first(index, text="polar bear").id == "PolarBear_02"
    write_picture(folder / "light" / "SeaOtter.png", colour(903))
    assert Index.open(index.path).add(folder).added == ["light/SeaOtter"]
    assert first(index, text="sea otter").id == "light/SeaOtter"


def test_the_very_text_and_the_very_file_come_first(own):
    index, _ = own
    item = next(item for item in index.items(limit=SIZE) if {"text", "image"} <= set(item.modalities))
    hit = first(index, text=item.text)
    assert (hit.id, "words" in hit.found) == (item.id, True)
    picture = index.file(item.id, "image")
    for query in (picture, str(picture), picture.read_bytes()):
        assert (first(index, image=query).id, first(index, image=query).found[0]) == (item.id, "file")
    assert "file" not in first(index, image=picture, words=False).found
    assert "file" not in first(index, image=[(-1.0, picture)]).found


def test_names_are_texts_that_nobody_observed(own):
    index, folder = own
    assert index.layout["names"]
    assert set(index.features_of("grizzly")) == {"image", "text"}
    assert index.item("grizzly").modalities == ("image",)
    assert index.item("grizzly").text is None
    assert any("names of files stand for texts" in line for line in index.summary())
    ENCODED.clear()
    change = index.add(folder)
    assert (change.added, change.changed, ENCODED) == ([], [], [])
    write_text(folder / "grizzly.txt", colour(902))
    assert index.add(folder).changed == ["grizzly"]
    assert index.item("grizzly").modalities == ("text", "image")
    assert len(index.search(text="1 2 3", k=100)) == SIZE + 3


HUES = {
    "scarlet": (1, 0.1, 0.1),
    "emerald": (0.1, 0.9, 0.3),
    "navy": (0.1, 0.2, 0.8),
    "amber": (1, 0.7, 0.1),
    "teal": (0.1, 0.6, 0.7),
}
SHADES = {"dark": 60, "deep": 90, "dim": 120, "mild": 150, "plain": 180, "light": 210, "bright": 240, "pale": 255}


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """A folder of pictures without texts, called by their colours; one of them wrongly."""
    reader = ENCODERS["read"].load()

    def in_numbers(text):
        words = text.split()
        hue, shade = (
            next((HUES[w] for w in words if w in HUES), None),
            next((SHADES[w] for w in words if w in SHADES), 0),
        )
        return text if hue is None else " ".join(str(round(shade * part)) for part in hue)

    encoder = Encoder("text", reader.width, str, lambda texts: reader.encode([in_numbers(text) for text in texts]))
    monkeypatch.setitem(ENCODERS, "read", replace(ENCODERS["read"], make=lambda: encoder))
    folder = tmp_path / "colours"
    folder.mkdir()
    for (hue, parts), (shade, level) in product(HUES.items(), SHADES.items()):
        shown = HUES["scarlet"] if (hue, shade) == ("navy", "plain") else parts
        write_picture(folder / f"{shade}-{hue}.png", np.round(level * np.array(shown)))
    names = {"text": "read", "image": "see"}
    return Index.build(folder, tmp_path / "ix", names, model=settings(), base=None), folder


def test_where_names_are_all_that_is_written_pictures_and_names_are_ranked_apart(pictures):
    index, folder = pictures
    items = {item.id: index.features_of(item.id) for item in index.items(limit=100)}
    for words in ("160 15 15", "20 40 150"):
        query = index.encoders().encode([{"text": words}])[0]
        place = index.aligner.embed(query)[0]
        shown = {id: float(index.aligner.embed({"image": z["image"][None]})[0] @ place) for id, z in items.items()}
        cosine = {id: float(z["text"] @ query["text"][0] / np.linalg.norm(z["text"])) for id, z in items.items()}
        want = joined(*(sorted(values, key=lambda id: -values[id]) for values in (shown, cosine)))
        assert [hit.id for hit in index.search(text=words, k=10)] == want[:10]
    write_text(folder / "pale-teal.txt", (255, 255, 255))
    index.add(folder)
    similarities = [hit.similarity for hit in index.search(text="160 15 15", k=100)]
    assert similarities == sorted(similarities, reverse=True)  # there is a caption: as ever


def test_names_that_say_nothing_stay_out(tmp_path):
    make_folder(tmp_path / "colours", SIZE)
    index = Index.build(tmp_path / "colours", tmp_path / "ix", NAMES, model=settings())
    assert not index.layout["names"]
    lacking = next(item for item in index.items(limit=SIZE) if "text" not in item.modalities)
    assert "text" not in index.features_of(lacking.id)
    write_picture(tmp_path / "colours" / "grizzly.png", colour(902))
    assert index.add(tmp_path / "colours").added == ["grizzly"]  # as in an index of an earlier version
    assert set(index.features_of("grizzly")) == {"image"}
    assert first(index, text="grizzly").id == "grizzly"
