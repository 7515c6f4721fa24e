"""An index of features against slow obvious twins: the aligner's own similarities, masks and sums in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")

import lancedb

from calmrl import Aligner, Index
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.errors import InputError
from calmrl.search import neighbours, store
from tests.support.colour_world import settings

N = 200
WIDTHS = {"image": 24, "te`xt": 16, "sound": 12}
IDS = [f"it'em {i}" for i in range(N)]
LABELS = [["dog", "cat", "bird"][i % 3] for i in range(N)]


def features(rows=slice(None), **more) -> FeatureSet:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(N, 4))
    z = {
        name: (shared @ rng.normal(size=(4, width)) + 0.2 * rng.normal(size=(N, width))).astype(np.float32)
        for name, width in WIDTHS.items()
    }
    present = rng.random((N, 3)) < 0.7
    present[~present.any(axis=1), 0] = True
    z = {name: np.where(present[:, [j]], values, np.nan)[rows] for j, (name, values) in enumerate(z.items())}
    numbers = np.arange(N)[rows]
    meta = meta_table(
        len(numbers),
        ids=[IDS[i] for i in numbers],
        labels=[LABELS[i] for i in numbers],
        text=[f"caption {i}" for i in numbers],
        columns={"size": numbers, "my column": [f"s{i % 2}" for i in numbers]},
    )
    return FeatureSet(z | more, present[rows], meta, name="items")


DATA = features()


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return Index.build(DATA, tmp_path_factory.mktemp("index") / "ix", model=settings())


def twin(index, query, rows=None) -> list[str]:
    """Ids by cosine, from `Aligner.embed`."""
    rows = np.arange(N) if rows is None else np.flatnonzero(rows)
    places = index.aligner.embed({name: values[rows] for name, values in DATA.z.items()}, DATA.present[rows])
    return [IDS[rows[i]] for i in np.argsort(-(places @ query), kind="stable")]


def test_one_and_several_modalities_are_fused_as_the_aligner_does(index) -> None:
    both = np.flatnonzero(DATA.present[:, 0] & DATA.present[:, 2])[:5]
    for i in both:
        one = index.aligner.embed({"image": DATA.z["image"][[i]]})[0]
        assert [hit.id for hit in index.search(image=DATA.z["image"][i], k=7)] == twin(index, one)[:7]
        two = index.aligner.embed({"image": DATA.z["image"][[i]], "sound": DATA.z["sound"][[i]]})[0]
        hits = index.search(image=DATA.z["image"][i], sound=DATA.z["sound"][[i]], k=7)
        assert [hit.id for hit in hits] == twin(index, two)[:7]
        assert hits[0].similarity > 0.9


def test_weights_and_negation(index) -> None:
    a, b = (DATA.z["image"][i].astype(np.float64) for i in np.flatnonzero(DATA.present[:, 0])[:2])
    one, other = (index.aligner.embed({"image": x[None]})[0] for x in (a, b))
    away = one - 0.5 * other
    hits = index.search(image=[a, (-0.5, b)], k=N)
    assert [hit.id for hit in hits] == twin(index, away)
    np.testing.assert_allclose(
        hits[0].similarity, np.sort(-_places(index) @ away / np.linalg.norm(away))[0] * -1, atol=1e-4
    )
    # only ratios of weights matter, and a large weight wins
    assert [hit.id for hit in index.search(image=(7, a), k=5)] == twin(index, one)[:5]
    mixed = [hit.id for hit in index.search(image=[a, (0.5, b)], k=9)]
    assert [hit.id for hit in index.search(image=[(4, a), (2, b)], k=9)] == mixed
    assert mixed != [hit.id for hit in index.search(image=[(0.5, a), b], k=9)]
    assert [hit.id for hit in index.search(image=[(1000, a), b], k=3)] == twin(index, one)[:3]
    with pytest.raises(InputError, match="cancel each other"):
        index.search(image=[a, (-1, a)])


def _places(index):
    return index.aligner.embed(DATA.z, DATA.present)


def test_like_an_item(index) -> None:
    place = _places(index)[7]
    assert [hit.id for hit in index.search(like=IDS[7], k=5)] == twin(index, place)[1:6]
    assert twin(index, place)[0] == IDS[7]
    with pytest.raises(InputError, match="no item 'nothing'"):
        index.search(like="nothing")


def test_filters_are_those_of_numpy(index) -> None:
    query = index.aligner.embed({"te`xt": DATA.z["te`xt"][DATA.present[:, 1]][:1]})[0]
    ask = {"te`xt": DATA.z["te`xt"][DATA.present[:, 1]][0]}
    for kept, filters in [
        (DATA.present[:, 1], {"having": "te`xt"}),
        (DATA.present[:, 0] & DATA.present[:, 2], {"having": ["image", "sound"]}),
        (np.array(LABELS) == "dog", {"where": "label = 'dog'"}),
        (np.arange(N) >= 150, {"where": "size >= 150"}),
        ((np.array(LABELS) != "dog") & (np.arange(N) % 2 == 0), {"where": "label != 'dog' and \"my column\" = 's0'"}),
        (np.array([IDS[i] == "it'em 5" for i in range(N)]), {"where": "id = 'it''em 5'"}),
    ]:
        assert [hit.id for hit in index.search(**ask, k=N, **filters)] == twin(index, query, kept)
        assert {item.id for item in index.items(limit=N, **filters)} == {IDS[i] for i in np.flatnonzero(kept)}


def test_hits_say_what_was_observed_and_how_certain(index) -> None:
    hits = index.search(like=IDS[0], k=N)
    for hit in hits:
        row = DATA.present[IDS.index(hit.id)]
        assert hit.modalities == tuple(name for name, has in zip(WIDTHS, row, strict=True) if has)
        assert 0 < hit.certainty < 1
    more = {count: [h.certainty for h in hits if len(h.modalities) == count] for count in (1, 2, 3)}
    assert np.median(more[1]) < np.median(more[2]) < np.median(more[3])
    item = index.item(IDS[5])
    assert (item.text, item.label, item.columns) == ("caption 5", "bird", {"size": 5.0, "my column": "s1"})


def test_hubs_are_taken_off(index) -> None:
    places = _places(index).astype(np.float64)
    query = index.aligner.embed({"image": DATA.z["image"][DATA.present[:, 0]][:1].astype(np.float64)})[0]
    among = places @ places.T
    np.fill_diagonal(among, -np.inf)
    near = np.sort(among, axis=1)[:, -neighbours.K :].mean(axis=1)
    scores = places @ query
    corrected = 2 * scores - np.sort(scores)[-neighbours.K :].mean() - near
    hits = index.search(image=DATA.z["image"][DATA.present[:, 0]][0], k=5, hubs=True)
    assert [hit.id for hit in hits] == [IDS[i] for i in np.argsort(-corrected)[:5]]
    np.testing.assert_allclose([hit.similarity for hit in hits], np.sort(-corrected)[:5] * -1, atol=1e-3)


def test_looking_at_it(index, monkeypatch) -> None:
    assert len(index) == N
    assert index.labels() == {"dog": 67, "cat": 67, "bird": 66}
    assert [entry["n"] for entry in index.modalities().values()] == DATA.present.sum(axis=0).tolist()
    about = index.about()
    assert sum(about["patterns"].values()) == N
    assert about["patterns"]["image + te`xt + sound"] == int(DATA.present.all(axis=1).sum())
    assert [item.id for item in index.items(offset=10, limit=3)] == IDS[10:13]
    assert set(index.expected) == {f"{a}->{b}" for a in WIDTHS for b in WIDTHS if a != b}
    (line,) = [line for line in index.summary() if "image->sound" in line]
    n = index.expected["image->sound"]["n"]
    assert f"chance {100 / n:4.1f}  R@10" in line
    assert f"chance {1000 / n:4.1f}  n {n}" in line
    assert index.thumbnail(IDS[0]) is None
    assert about["encoders"] == {name: {"name": None} for name in WIDTHS}
    monkeypatch.setattr("calmrl.search.index.SHOWN", 2)
    every = [f"{count} {name}" for name, count in about["patterns"].items()]
    assert index.summary()[0] == f"200 items: {every[0]}, {every[1]}, and {len(every) - 2} more patterns"
    with pytest.raises(
        InputError, match="ix was made from features and knows no encoders; add features to it, not files"
    ):
        index.encoders()


@pytest.mark.parametrize(("k", "most"), [(2, 1000), (101, 1010)])
def test_hubs_are_taken_back_among_many(index, monkeypatch, k, most) -> None:
    asked, plain = [], neighbours.near_query
    monkeypatch.setattr(neighbours, "near_query", lambda *given: asked.append(given[2]) or plain(*given))
    assert len(index.search(image=np.ones(24), k=k, hubs=True)) == k
    assert asked == [most]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"k": 0}, "a whole number from 1 on; got 0"),
        ({"k": -1}, "a whole number from 1 on; got -1"),
        ({"k": True}, "a whole number from 1 on"),
        ({"k": 2.5}, "a whole number from 1 on"),
        ({"image": np.full(24, 1e300)}, "too large values"),
        ({"image": np.full(24, np.nan)}, "NaN"),
        ({"image": np.full(24, np.inf)}, "too large values"),
        ({"image": None}, "the query is empty"),
        ({"image": np.ones(3)}, "no encoder is known for image"),
        ({"image": "x.png"}, "no encoder is known for image"),
        ({"having": "imag"}, 'unknown modality "imag"; did you mean "image"'),
        ({"where": "wide = 3"}, 'unknown column in where "wide"'),
        ({"smell": np.ones(3)}, 'unknown modality "smell"'),
    ],
)
def test_what_a_search_refuses(index, arguments, reason) -> None:
    with pytest.raises(InputError, match=reason):
        index.search(**({"image": np.ones(24)} | arguments))


def test_browsing_refuses_bad_pages(index) -> None:
    for page in ({"offset": -1}, {"limit": 0}, {"limit": 1.5}, {"limit": True}, {"offset": "1"}):
        (value,) = page.values()
        with pytest.raises(InputError, match=f"a whole number from .* on; got {value!r}"):
            index.items(**page)


def test_added_and_removed_in_single_commits(tmp_path) -> None:
    half = features(slice(0, 120))
    index = Index.build(half, tmp_path / "ix", model=settings())
    reader = Index.open(tmp_path / "ix")
    before = index.table.version
    change = index.add(DATA)  # the first half under the same name is unchanged
    assert (len(change.added), change.changed, change.unchanged) == (80, [], 120)
    assert index.table.version == before + 1
    assert len(index) == 200
    reader.table.checkout(before)
    assert len(reader) == 120  # the old state stays whole
    assert [hit.id for hit in index.search(like=IDS[150], k=3)] == twin(index, _places(index)[150])[1:4]
    assert index.add(DATA).lines() == ["0 added, 0 changed, 200 unchanged"]
    assert index.table.version == before + 1
    assert index.remove(IDS[:2]) == 2
    assert len(index) == 198
    with pytest.raises(InputError, match=r"no item \"it'em 0\" .*nothing was removed"):
        index.remove([IDS[5], IDS[0]])
    assert len(index) == 198
    moved = {
        name: np.where(DATA.present[:, [j]], values + 1, np.nan) for j, (name, values) in enumerate(DATA.z.items())
    }
    change = index.add(FeatureSet(moved, DATA.present, DATA.meta, name="items"))
    assert (change.added, len(change.changed)) == (IDS[:2], 198)
    assert [p.name for p in tmp_path.iterdir()] == ["ix"]


def test_many_commits_leave_few_pieces_and_little_in_memory(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(store, "PIECES", 4)
    monkeypatch.setattr(store, "METADATA_BYTES", 5_000)
    sessions = []
    plain = lancedb.Session
    monkeypatch.setattr(lancedb, "Session", lambda **sizes: sessions.append(plain(**sizes)) or sessions[-1])
    index = Index.build(DATA, tmp_path / "ix", model=settings())
    reader, before = Index.open(tmp_path / "ix"), index.table.version
    pieces = []
    for start in range(0, 36, 3):
        index.remove(IDS[start : start + 3])
        index.add(features(slice(start, start + 3)))
        assert len(reader.search(like=IDS[100], k=10)) == 10
        pieces.append(reader.table.stats()["fragment_stats"]["num_fragments"])
    assert max(pieces) == 4  # the fifth joins them all
    assert 1 in pieces
    assert 0 < sessions[-1].size_bytes <= 5_000  # the reader's; it would be twice that
    assert sorted(item.id for item in index.items(limit=N)) == sorted(IDS)
    reader.table.checkout(before)
    assert reader.table.to_arrow()["id"].to_pylist() == IDS  # recent versions can still be read


def test_gone_items_stay_until_pruned(tmp_path) -> None:
    index = Index.build(DATA, tmp_path / "ix", model=settings())
    change = index.add(features(slice(0, 190)))
    assert change.gone == IDS[190:]
    assert "`prune=True`" in change.lines()[-1]
    assert len(index) == 200
    assert index.add(features(slice(0, 190)), prune=True).removed == IDS[190:]
    assert len(index) == 190


def test_items_of_another_source_are_not_replaced(tmp_path) -> None:
    index = Index.build(DATA, tmp_path / "ix", model=settings())
    other = features()
    other.name = "others"
    with pytest.raises(InputError, match="200 ids are in the index already, from items"):
        index.add(other)
    with pytest.raises(InputError, match="no modality 'smell'"):
        index.add(_smelling())
    with pytest.raises(InputError, match="image has width 3 but the index was made with 24"):
        index.add(FeatureSet({"image": np.ones((2, 3))}, None, meta_table(2, ids=["x", "y"]), name="items"))


def _smelling() -> FeatureSet:
    return FeatureSet({"smell": np.ones((2, 2), np.float32)}, None, meta_table(2, ids=["x", "y"]), name="items")


def test_a_modality_with_too_few_pairs_is_searched_by_itself_only(tmp_path) -> None:
    present = DATA.present.copy()
    present[:, 2] = False
    present[:40, 2] = True
    present[:40, :2] = False
    z = {
        name: np.where(present[:, [j]], np.nan_to_num(values), np.nan)
        for j, (name, values) in enumerate(DATA.z.items())
    }
    present[40:45, 2] = True
    z["sound"][:45] = np.random.default_rng(3).normal(size=(45, 12))
    present[45:, 0] |= ~present[45:].any(axis=1)
    z["image"][np.flatnonzero(present[:, 0])] = np.nan_to_num(DATA.z["image"][present[:, 0]])
    index = Index.build(FeatureSet(z, present, DATA.meta), tmp_path / "ix", model=settings())
    entry = index.modalities()["sound"]
    assert not entry["aligned"]
    assert "20 are needed" in entry["why"]
    assert any(line.startswith("sound is found only by sound itself") for line in index.summary())
    query = z["sound"][3] + 0.01
    hits = index.search(sound=query, k=100)
    assert len(hits) == 45  # all that have a sound, and no other
    sounds = z["sound"][:45]
    scores = sounds @ query / np.linalg.norm(sounds, axis=1) / np.linalg.norm(query)
    np.testing.assert_allclose([hit.similarity for hit in hits], np.sort(-scores) * -1, atol=1e-3)
    with pytest.raises(InputError, match="sound cannot be mixed with the other terms"):
        index.search(sound=query, image=np.ones(24))
    assert index.item(IDS[3]).certainty == 0
    assert IDS[3] not in {hit.id for hit in index.search(image=np.ones(24), k=N)}


def test_one_modality_alone(tmp_path) -> None:
    values = np.random.default_rng(0).normal(size=(30, 5))
    index = Index.build({"image": values}, tmp_path / "ix")
    assert [hit.id for hit in index.search(image=values[4], k=1)] == ["4"]
    assert index.expected == {}
    assert "4" not in [hit.id for hit in index.search(like="4", k=30)]
    with pytest.raises(InputError, match="is zero, so nothing is near"):
        index.search(image=np.zeros(5))


def test_items_with_the_same_value_count_in_what_is_expected(tmp_path) -> None:
    plain = Index.build(DATA, tmp_path / "plain", model=settings())
    index = Index.build(DATA, tmp_path / "ix", model=settings(), relevant="my column")
    again = Index.build(DATA, tmp_path / "values", model=settings(), relevant=[f"s{i % 2}" for i in range(N)])
    labels = Index.build(DATA, tmp_path / "labels", model=settings(), relevant="labels")
    assert index.expected == again.expected == settings().fit(DATA, relevant="my column").expected_
    assert labels.expected == settings().fit(DATA, relevant="labels").expected_
    assert all("own" not in row for row in plain.expected.values())
    (line,) = [line for line in index.summary() if "image->sound" in line]
    row = index.expected["image->sound"]
    assert f"chance {100 * row['own'] / row['n']:4.1f}  R@10" in line  # about half of the items count
    with pytest.raises(InputError, match='no column "colour"; there are text, labels, size, my column'):
        Index.build(DATA, tmp_path / "no", model=settings(), relevant="colour")
    with pytest.raises(InputError, match="relevant has 3 values but there are 200 items; pass one per item"):
        Index.build(DATA, tmp_path / "no", model=settings(), relevant=["a", "b", "c"])
    with pytest.raises(InputError, match="relevant says how an aligner is chosen, but model is fitted already"):
        Index.build(DATA, tmp_path / "no", model=settings().fit(DATA), relevant="labels")


def test_a_fitted_aligner_can_be_given(tmp_path) -> None:
    aligner = settings().fit(DATA)
    aligner.save(tmp_path / "aligner")
    index = Index.build(DATA, tmp_path / "ix", model=tmp_path / "aligner")
    np.testing.assert_array_equal(index.aligner.embed(DATA.z, DATA.present), aligner.embed(DATA.z, DATA.present))
    with pytest.raises(InputError, match="width 5 but the model was fitted on width 24"):
        Index.build({"image": np.ones((3, 5))}, tmp_path / "no", model=aligner)
    with pytest.raises(InputError, match="the model knows"):
        Index.build({"smell": np.ones((3, 5))}, tmp_path / "no", model=aligner)
    assert not (tmp_path / "no").exists()
    assert isinstance(index.aligner, Aligner)


def test_what_cannot_be_indexed(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    big = np.ones((30, 4))
    big[3] = 1e300
    for source, reason in [
        (tmp_path / "empty", "holds no file that can be part of an item"),
        ("no_such_thing", "neither a file or folder nor a bundled data set"),
        (tmp_path / "file", "ends in ''; give a folder"),
        ({"a": np.zeros((0, 3))}, "no rows"),
        ({"a": big}, r"has a value of size 1e\+300 in row 3, too large"),
        ({"a": np.where(big > 1, 1e50, big)}, "row 3 is marked as present but has NaN or values too large"),
        (FeatureSet({"a": np.ones((2, 2))}, np.array([[True], [False]])), "has no modality at all"),
    ]:
        with pytest.raises(InputError, match=reason):
            Index.build(source, tmp_path / "ix")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]
    for path, reason in [("empty", "is not a calmrl index"), ("nothing", "no index at"), ("file", "no index at")]:
        with pytest.raises(InputError, match=reason):
            Index.open(tmp_path / path)


def test_an_index_is_not_replaced(tmp_path) -> None:
    Index.build(DATA, tmp_path / "ix", model=settings())
    assert len(Index.build(DATA, tmp_path / "ix", model=settings())) == N  # whole already
    with pytest.raises(InputError, match="is an index already, made otherwise"):
        Index.build({"image": np.ones((3, 5))}, tmp_path / "ix")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    with pytest.raises(InputError, match="exists and is not a calmrl index"):
        Index.build(DATA, tmp_path / "full", model=settings())


def test_large_tables_are_searched_in_clusters(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(neighbours, "EXACT_ROWS", 1000)
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(1600, 4))
    z = {name: (shared @ rng.normal(size=(4, 8)) + 0.1 * rng.normal(size=(1600, 8))) for name in ("a", "b")}
    index = Index.build({name: v[:1500] for name, v in z.items()}, tmp_path / "ix", model=settings())
    how = index.layout["search"]
    asked = index.aligner.embed({"a": z["a"][:20]})
    assert [(each.index_type, each.columns) for each in index.table.list_indices()] == [("IvfSq", ["vector"])]
    assert "ANNSubIndex" in neighbours.near_query(index.table, asked[0], 10, how).explain_plan()
    assert "ANNSubIndex" not in neighbours.near_query(index.table, asked[0], 10, None).explain_plan()

    assert index.about()["search"]["exact"] is False
    assert how["recall@10"] >= 0.95
    assert f"it finds {100 * how['recall@10']:.1f} % of the true ten nearest" in index.summary()[-1]
    places = index.aligner.embed({name: v[:1500] for name, v in z.items()})
    nearest = np.argsort(-(asked @ places.T), axis=1)[:, :10]
    shares = [
        len({str(i) for i in nearest[q]} & {hit.id for hit in index.search(a=z["a"][q], k=10)}) / 10 for q in range(20)
    ]
    assert np.mean(shares) >= 0.95
    kept = [f"{i}" for i in range(7, 1500, 100)]  # few items: a filter must not make hits vanish
    listed = ", ".join(f"'{id}'" for id in kept)
    assert {hit.id for hit in index.search(a=z["a"][0], k=15, where=f"id in ({listed})")} == set(kept)

    more = FeatureSet({name: v for name, v in z.items()}, None, name="features")
    assert len(index.add(more).added) == 100
    assert "1550" in [hit.id for hit in index.search(a=z["a"][1550], k=3)]


def test_a_damaged_note_of_a_stopped_run_is_named(tmp_path) -> None:
    """`fitted.json` says what the aligner beside it was fitted on."""
    part = tmp_path / "ix.part"
    part.mkdir()
    (part / "fitted.json").write_text('"half of a ha')
    with pytest.raises(InputError, match=r"fitted\.json cannot be read as JSON.*remove its folder"):
        Index.build(DATA, tmp_path / "ix", model=settings())
    (part / "fitted.json").write_text('"of other items"')
    assert len(Index.build(DATA, tmp_path / "ix", model=settings())) == N
    assert not part.exists()
