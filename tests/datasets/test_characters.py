"""Chinese characters: what the page says about them is true, and their features are those of their texts and pictures."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.patterns import completeness, patterns
from calmrl.datasets import load_dataset
from calmrl.datasets.characters import BUNDLE, MODALITIES, NOTICE, READINGS, glyph, strokes
from calmrl.errors import InputError

COUNTS = {
    "definition": 23259,
    "mandarin": 20992,
    "cantonese": 20555,
    "japanese": 18450,
    "korean": 8804,
    "vietnamese": 3823,
    "strokes": 9405,
    "glyph": 21347,
}
KNOWN = {  # definition, then the readings; None where there is none
    "水": ("water, liquid, lotion, juice", "shuǐ", "seoi2", "スイ みず かわ", "수", "héo thuỷ"),
    "火": ("fire, flame; burn; anger, rage", "huǒ", "fo2", "カ コ ひ ほ やく", "화", "hoả"),
    "山": ("mountain, hill, peak", "shān", "saan1", "サン セン やま", "산", "sơn"),
    "人": ("man; people; mankind; someone else", "rén", "jan4", "ジン ニン ひと", "인", "nhân"),
    "木": ("tree; wood, lumber; wooden", "mù", "muk6", "ボク モク き こ", "목", "mộc"),
    "手": ("hand", "shǒu", "sau2", "シュ シュウ て た", "수", "thủ"),
    "马": ("horse; surname; Kangxi radical 187", "mǎ", "maa5", None, None, None),
    "雨": ("rain; rainy; Kangxi radical 173", "yǔ", "jyu5", "ウ あめ あま", "우", None),
    "粵": ("Guangdong and Guangxi provinces; initial particle", "yuè", "jyut6", None, "월", None),  # kKorean alone
    "乭": ("rock; used in Korean names", "shí", "sek6", None, "돌", None),
}


@pytest.fixture(scope="module")
def characters() -> FeatureSet:
    return load_dataset("characters")


def row(data: FeatureSet, character: str) -> int:
    return data.ids.tolist().index(character)


def test_counts(characters) -> None:
    assert len(characters) == 23259
    assert dict(zip(characters.names, characters.present.sum(axis=0).tolist(), strict=True)) == COUNTS
    assert [characters.z[name].shape[1] for name in MODALITIES] == [256, *[128] * 7]
    assert BUNDLE.stat().st_size < 2_500_000
    assert len(set(characters.labels)) == 214


def test_patterns(characters) -> None:
    found = patterns(characters.present, characters.names)
    assert len(found) == 49
    assert found[0].modalities == ("definition", "mandarin", "cantonese", "japanese", "glyph")
    whole = completeness(characters.present)
    assert (round(whole.missing, 3), round(whole.complete, 3), round(whole.pairs, 3)) == (0.319, 0.13, 0.479)


@pytest.mark.parametrize("character", KNOWN)
def test_what_a_person_can_check(characters, character) -> None:
    here = row(characters, character)
    found = (characters.text[here], *(characters.column(name)[here] for name in READINGS))
    assert found == KNOWN[character]
    assert characters.present[here, 1:6].tolist() == [reading is not None for reading in KNOWN[character][1:]]


@pytest.mark.parametrize(
    ("character", "number", "radical"), [("水", 4, "水"), ("龍", 16, "龍"), ("川", 3, "巛"), ("魚", 11, "魚")]
)
def test_strokes_and_radical(characters, character, number, radical) -> None:
    lines = strokes(character)
    assert len(lines) == number
    assert all(line.ndim == 2 and len(line) >= 2 and line.min() >= 0 and line.max() < 64 for line in lines)
    assert characters.labels[row(characters, character)] == radical


def test_a_horizontal_stroke_goes_from_left_to_right_in_both_forms() -> None:
    (line,) = strokes("一")
    assert line[-1][0] - line[0][0] > 40
    assert abs(line[-1][1] - line[0][1]) < 8
    ink = glyph("一")
    assert ink.shape == (24, 24)
    assert ink.any(axis=0).sum() > 18 > 4 > ink.any(axis=1).sum()
    assert 8 < np.flatnonzero(ink.any(axis=1)).mean() < 16


def test_what_is_missing_is_none(characters) -> None:
    lacking = {name: characters.ids[~characters.present[:, MODALITIES.index(name)]][0] for name in ("strokes", "glyph")}
    assert strokes(lacking["strokes"]) is None
    assert glyph(lacking["glyph"]) is None
    with pytest.raises(InputError, match='"Q" is none of the 23,259 characters'):
        glyph("Q")


def test_variants_are_in_one_split(characters) -> None:
    for one, other in (("马", "馬"), ("龙", "龍"), ("㒖", "藕"), ("爱", "愛")):  # "same as 藕" is a definition
        a, b = row(characters, one), row(characters, other)
        assert characters.column("group")[a] == characters.column("group")[b]
    homes: dict[str, set[str]] = {}
    for group, home in zip(characters.column("group"), characters.split, strict=True):
        homes.setdefault(group, set()).add(home)
    assert all(len(home) == 1 for home in homes.values())
    share = {name: (characters.split == name).mean() for name in ("train", "val", "test")}
    assert share == pytest.approx({"train": 0.7, "val": 0.1, "test": 0.2}, abs=0.01)


def test_fewer_rows_are_a_part_of_more(characters) -> None:
    whole, drawn = load_dataset("characters", standardize=False), load_dataset("characters", rows=50, standardize=False)
    here = [row(whole, character) for character in drawn.ids]
    for name in MODALITIES:
        np.testing.assert_array_equal(drawn.z[name], whole.z[name][here])  # features do not depend on the draw
    few, more = load_dataset("characters", rows=500), load_dataset("characters", rows=2000)
    assert (len(few), len(more)) == (500, 2000)
    assert set(few.ids) < set(more.ids) < set(characters.ids)
    other = load_dataset("characters", rows=500, seed=1)
    assert set(other.ids) != set(few.ids)
    share = more.present.mean(axis=0)
    np.testing.assert_allclose(share, characters.present.mean(axis=0), atol=0.04)


def test_a_gallery_stays_while_rows_change() -> None:
    few, more = (load_dataset("characters", rows=n, gallery=100, standardize=False) for n in (300, 900))
    for part in ("val", "test"):
        assert few.select(part).ids.tolist() == more.select(part).ids.tolist()
        assert len(few.select(part)) == 100
    assert (len(few.select("train")), len(more.select("train"))) == (100, 700)
    assert set(few.select("train").ids) < set(more.select("train").ids)


def test_equal_texts_have_equal_features_and_similar_ones_are_near() -> None:
    raw = load_dataset("characters", standardize=False)

    def cosine(name: str, a: str, b: str) -> float:
        x, y = raw.z[name][row(raw, a)], raw.z[name][row(raw, b)]
        return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))

    assert cosine("definition", "马", "馬") == pytest.approx(1, abs=1e-4)  # both are "horse; surname; ..."
    assert cosine("cantonese", "粵", "月") == pytest.approx(1, abs=1e-4)  # both are jyut6
    assert cosine("definition", "川", "河") > cosine("definition", "川", "手") + 0.2  # a river is near a stream
    assert cosine("glyph", "日", "曰") > cosine("glyph", "日", "龍") + 0.3  # look-alikes
    assert cosine("strokes", "土", "士") > cosine("strokes", "土", "龍") + 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows must be at least 1; got 0"),
        ({"rows": 30000}, "there are 23,259 characters; got rows=30,000"),
        ({"gallery": 0}, "gallery must be at least 1; got 0"),
        ({"gallery": 5000}, "gallery must be at most 2,3.., the number of validation rows; got 5,000"),
        ({"rows": 100, "gallery": 50}, "rows=100 leaves none to train on"),
        ({"size": 3}, 'data set "characters" has no option "size"; it has rows, gallery, seed, standardize'),
    ],
)
def test_wrong_options_are_errors(options, message) -> None:
    with pytest.raises(InputError, match=message):
        load_dataset("characters", **options)


def test_licences_are_in_the_package() -> None:
    assert files("calmrl.datasets") / "characters_NOTICE.txt" == NOTICE
    text = NOTICE.read_text(encoding="utf-8")
    for licence in ("ARPHIC PUBLIC LICENSE", "SIL OPEN FONT LICENSE Version 1.1", "UNICODE INC.'S"):
        assert licence in text
    assert text.count("Changed") == 3
    with np.load(BUNDLE) as saved:  # the Arphic licence wants it in every changed file
        assert "changed in November 2026" in str(saved["notice"])
