"""Videos of several scenes: which part of a film a query is nearest to, and that the whole stays what it was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")
pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")

import av

from calmrl import Aligner, Index
from calmrl.data.media import streams
from calmrl.data.media.problems import Unreadable
from calmrl.data.media.streams import MOST_SEGMENTS, read_frames, read_segments, segment_spans
from calmrl.encoders import ENCODERS, EncoderSet
from calmrl.errors import InputError
from calmrl.workflows.check import check_source
from tests.support.colour_world import COLOUR_ENCODERS, ENCODED, FIXED, colour, write_picture, write_text
from tests.support.make_media import SIZE, make_video, read_number

ENCODERS_OF = {"video": "see", "text": "read"}
SCENES = [np.array(rgb) for rgb in ((250, 20, 20), (20, 250, 20), (20, 20, 250))]  # ten seconds each
FPS = 2


def film(path: Path, scenes, seconds: float = 10.0) -> Path:
    """A video of plain colours, each for so many seconds."""
    each = round(seconds * FPS)
    return make_video(
        path, each * len(scenes), FPS, draw=lambda i: np.full((SIZE, SIZE, 3), scenes[i // each], np.uint8)
    )


@pytest.fixture
def folder(tmp_path, colour_encoders) -> Path:
    """Short videos with their colour as text, and a film of three scenes."""
    home = tmp_path / "films"
    home.mkdir()
    for number in range(30):
        film(home / f"c{number}.mp4", [colour(number)], 1.0)
        write_text(home / f"c{number}.txt", colour(number))
    film(home / "scenes.mp4", SCENES)
    write_text(home / "scenes.txt", np.mean(SCENES, axis=0).astype(int))
    return home


def build(folder: Path, name: str = "ix", **options) -> Index:
    return Index.build(folder, folder.with_name(name), ENCODERS_OF, model=Aligner(**FIXED), **options)


def told(index: Index, **query) -> tuple[float, float] | None:
    return {hit.id: hit.segment for hit in index.search(**query, k=50)}["scenes"]


def words(rgb) -> str:
    return f"the colour {' '.join(map(str, rgb))}"


@pytest.mark.parametrize(
    ("length", "seconds", "spans"),
    [
        (14.9, 10, []),
        (15.1, 10, [(0, 10), (10, 15.1)]),
        (24, 10, [(0, 10), (10, 24)]),
        (30, 10, [(0, 10), (10, 20), (20, 30)]),
        (3, 0.5, [(i / 2, i / 2 + 0.5) for i in range(6)]),
        (1200, 10, [(20 * i, 20 * i + 20) for i in range(MOST_SEGMENTS)]),
    ],
)
def test_spans(length, seconds, spans):
    np.testing.assert_allclose(segment_spans(length, seconds) or np.zeros((0, 2)), np.reshape(spans, (-1, 2)))


@pytest.mark.parametrize("each", [None, 3])
def test_frames_of_segments_are_theirs_and_each_is_decoded_once(tmp_path, monkeypatch, each):
    path, decoded = make_video(tmp_path / "a.mp4", frames=96, fps=4), []
    with av.open(str(path)) as container:
        keys = {number for number, frame in enumerate(container.decode(video=0)) if frame.key_frame}
    assert keys < set(range(96))
    monkeypatch.setattr(streams, "PER_SEGMENT", 2)
    whole, spans, parts = read_segments(
        path, 8, 6.0, lambda frame: decoded.append(read_number(frame)) or decoded[-1], each
    )
    assert whole == [read_number(frame) for frame in read_frames(path, 8)[0]]
    assert spans == [(0, 6), (6, 12), (12, 18), (18, 24)]
    for (begin, end), numbers in zip(spans, parts, strict=True):
        assert len(numbers) == (each or 2)
        assert all(4 * begin <= number < 4 * end for number in numbers)
        assert each or keys.issuperset(numbers)
    assert len(decoded) == len(set(decoded))


def test_damage_between_the_frames_of_the_whole_costs_the_segments_only(tmp_path, colour_encoders, monkeypatch):
    def damaged(*given):
        raise Unreadable("damaged video", "a.mp4")

    job = EncoderSet({"video": "see"}).job_of("video", film(tmp_path / "a.mp4", SCENES), 10.0)
    whole = job.run().whole
    monkeypatch.setattr("calmrl.data.media.jobs.read_segments", damaged)
    np.testing.assert_array_equal(job.run(), whole)


def test_words_and_pictures_find_the_scene(folder, tmp_path):
    index = build(folder)
    for number, rgb in enumerate(SCENES):
        span = (10.0 * number, 10.0 * number + 10)
        picture = write_picture(tmp_path / "q.png", rgb)
        assert told(index, text=words(rgb)) == told(index, video=picture) == span
        assert told(index, text=words(rgb), video=picture, words=False) == span
    hits = index.search(text=words(SCENES[0]), k=50)
    assert [hit.id for hit in hits if hit.segment] == ["scenes"]  # the others are short
    assert all(hit.segment is None for hit in index.search(text="red", lacking="video"))
    assert check_source(str(index.path)) == []


def test_all_else_is_as_without_segments(folder):
    index, plain = build(folder), build(folder, "plain", segments=0)
    assert "segments" not in plain.layout
    assert "segments" not in plain.table.schema.names
    columns = ["id", "vector", "certainty", "nearness", "f_0", "f_1", "stamps"]
    assert index.rows(columns) == plain.rows(columns)
    assert index.expected == plain.expected
    assert {**index.layout, "made": 0, "segments": 0} == {**plain.layout, "made": 0, "segments": 0}
    query = words(SCENES[1])
    as_found = [[(hit.id, hit.similarity, hit.close) for hit in one.search(text=query)] for one in (index, plain)]
    assert as_found[0] == as_found[1]
    assert told(plain, text=query) is None
    pictures = folder.with_name("pictures")
    pictures.mkdir()
    for number in range(3):
        write_picture(pictures / f"c{number}.png", colour(number))
    assert "segments" not in Index.build(pictures, folder.with_name("iy"), {"image": "see"}).layout


def test_videos_that_are_added_moved_or_placed_anew_have_theirs(folder):
    index = build(folder)
    film(folder / "late.mp4", SCENES[::-1])
    assert index.add(folder).added == ["late"]
    index.encoders().encoder("video")
    ENCODED.clear()
    (folder / "scenes.mp4").rename(folder / "moved.mp4")
    index.add(folder, prune=True)
    assert "see" not in ENCODED  # its content is known
    index.add(folder, refit=True)
    again = {hit.id: hit.segment for hit in Index.open(index.path).search(text=words(SCENES[0]), k=50)}
    assert (again["moved"], again["late"]) == ((0.0, 10.0), (20.0, 30.0))
    assert again["scenes"] is None  # only its text is left
    assert check_source(str(index.path)) == []


def test_another_encoder_makes_its_own(folder, monkeypatch):
    monkeypatch.setitem(ENCODERS, "look", COLOUR_ENCODERS["see"])
    index = build(folder)
    limit, left = 25, 1
    while left:
        left = index.upgrade(folder, {"video": "look"}, limit=limit).left["video"]
        for number, rgb in enumerate(SCENES):
            assert told(Index.open(index.path), text=words(rgb)) == (10.0 * number, 10.0 * number + 10)
    (held,) = index.rows(["segments"], "id = 'scenes'")
    assert b"video=look" in held["segments"]
    assert b"video=see" not in held["segments"]


def test_a_run_that_was_stopped_keeps_what_it_encoded(folder):
    def stop(done, total, what):
        if what == "encode video" and done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(folder, progress=stop)
    ENCODED.clear()
    index = build(folder)
    assert ENCODED.count("see") <= 1  # the fixed item of its description
    assert told(index, text=words(SCENES[2])) == (20.0, 30.0)


def test_the_server_tells_it(folder):
    index = build(folder)
    assert "hits say where in a video they are, by segments of 10 s or more" in index.summary()
    client = pytest.importorskip("starlette.testclient").TestClient(
        pytest.importorskip("calmrl.server").build_app(index), base_url="http://127.0.0.1:8000"
    )
    found = client.get("/api/search", params={"text": words(SCENES[2]), "k": 40}).json()["hits"]
    assert {hit["id"]: hit["segment"] for hit in found} == {f"c{n}": None for n in range(30)} | {"scenes": [20.0, 30.0]}


def test_the_commands(folder, calmrl):
    place, named = folder.with_name("ix"), [f"--encoder={name}={encoder}" for name, encoder in ENCODERS_OF.items()]
    code, _, err = calmrl("index", str(folder), "--out", str(place), "--segments", "5", *named)
    assert code == 0, err
    out = calmrl("search", str(place), words(SCENES[1]), "-k", "31")[1]
    (line,) = [line for line in out.splitlines() if "scenes.mp4" in line]
    assert line.rpartition("  ")[2] in ("at 0:10 to 0:15", "at 0:15 to 0:20")
    hits = json.loads(calmrl("search", str(place), words(SCENES[1]), "-k", "31", "--json")[1])["hits"]
    assert {hit["id"]: hit["segment"] for hit in hits}["scenes"] in ([10.0, 15.0], [15.0, 20.0])
    with pytest.raises(InputError, match="segments is the seconds of a segment of a video, 0 for none; got -1"):
        build(folder, "no", segments=-1)
