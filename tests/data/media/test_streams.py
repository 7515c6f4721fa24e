"""Numbers of films and sounds at their limits; nothing is decoded here."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

from calmrl.data.media import streams
from calmrl.data.media.problems import Problems, Unreadable, count_skipped, counts_of_test, skipped_words
from calmrl.data.media.streams import segment_frames
from calmrl.errors import InputError


@pytest.mark.parametrize(
    ("total", "n", "rule", "frames"),
    [
        (1, 1, "equal", [0]),
        (2, 1, "equal", [0]),
        (3, 1, "equal", [1]),
        (7, 2, "equal", [1, 4]),
        (7, 2, "split", [1, 5]),
        (2, 4, "equal", [0, 0, 1, 1]),
        (2, 4, "split", [0, 1, 1, 1]),
        (11, 4, "split", [1, 4, 7, 9]),
        (8, 4, "split", [0, 2, 4, 6]),
    ],
)
def test_the_middles_of_segments(total, n, rule, frames):
    assert segment_frames(total, n, rule=rule) == frames


@pytest.mark.parametrize(("total", "n"), [(0, 1), (1, 0)])
def test_no_frame_or_no_segment(total, n):
    with pytest.raises(InputError, match=f"got {total} frames, {n} segments"):
        segment_frames(total, n)


def test_how_much_is_decoded():
    streams._check_length(7200, "a.wav")
    for seconds in (7200.5, float("nan"), float("inf")):
        with pytest.raises(Unreadable, match=r"a\.wav lasts .* at most 7,200 s are decoded") as caught:
            streams._check_length(seconds, "a.wav")
        assert caught.value.kind == "huge sound"
    streams._check_frame_size(8000, 5000, "a.mp4")
    with pytest.raises(Unreadable, match="frames of 8000 x 5001; at most 40,000,000 are decoded") as caught:
        streams._check_frame_size(8000, 5001, "a.mp4")
    assert caught.value.kind == "huge video"
    assert (streams.RATE, streams.BACK) == (16_000, 60)


def test_what_a_file_says_of_its_length():
    container = SimpleNamespace(duration=2_500_000, start_time=1_500_000, format=SimpleNamespace(name="mov,mp4,m4a"))
    stream = SimpleNamespace(duration=30, time_base=Fraction(1, 10), frames=5)
    assert streams._declared_seconds(container, stream) == 3.0
    stream.duration = None
    assert streams._declared_seconds(container, stream) == 2.5
    assert streams._start(container) == 1.5
    container.duration = container.start_time = None
    assert streams._declared_seconds(container, stream) == 0
    assert streams._start(container) == 0.0
    streams._check_complete(container, stream, 5, "a.mp4")
    with pytest.raises(Unreadable, match=r"a\.mp4 has 4 of 5 packets"):
        streams._check_complete(container, stream, 4, "a.mp4")
    container.format.name = "matroska"
    streams._check_complete(container, stream, 4, "a.mkv")


def packet(pts, size=1, *, dts=None, key=False, discard=False):
    return SimpleNamespace(pts=pts, dts=dts, size=size, is_keyframe=key, is_discard=discard)


def test_times_of_packets():
    many = [packet(3, key=True), packet(1), packet(None, dts=2, key=True), packet(0, discard=True), packet(9, size=0)]
    container = SimpleNamespace(demux=lambda stream: iter(many), format=SimpleNamespace(name="mp4"))
    stream = SimpleNamespace(frames=4)
    assert streams._packet_times(container, stream, "a.mp4") == ([1, 2, 3], [2, 3])
    stream.frames = 5
    with pytest.raises(Unreadable, match="4 of 5 packets"):
        streams._packet_times(container, stream, "a.mp4")
    stream.frames = 0
    for wrong, said in (
        ([packet(None)], "without time stamps"),
        ([packet(1, discard=True)], "without frames"),
        ([], "without frames"),
    ):
        many[:] = wrong
        with pytest.raises(Unreadable, match=said):
            streams._packet_times(container, stream, "a.mp4")


def test_the_next_frame_at_a_time():
    frames = [SimpleNamespace(pts=pts, width=2, height=2) for pts in (None, 1, 3, 5)]
    assert streams._next_at(iter(frames), 3, "a").pts == 3
    assert streams._next_at(iter(frames), 4, "a").pts == 5
    assert streams._next_at(iter(frames), 6, "a") is None
    frames[1].width = 40_000_001
    with pytest.raises(Unreadable, match="huge video"):
        streams._next_at(iter(frames), 3, "a")


def test_what_was_left_out_is_counted():
    problems = Problems()
    problems.add("file not found", "cell", id="a", column="vision")
    problems.add("no modality at all", "row", id="b")
    problems.add("wrong number of fields", "row", line=3)
    problems.add("stranger", "file")
    counts = count_skipped({"a": "test", "b": "test", "c": "train"}, problems)
    assert counts == {
        "test": {"listed": 2, "vision": 1, "items": 1},
        "train": {"listed": 1},
        "": {"items": 1, "listed": 1},
    }
    assert counts_of_test(counts) == {"listed": 2, "vision": 1, "items": 1}
    assert counts_of_test(counts, whole=True) == {"listed": 4, "vision": 1, "items": 2}
    assert skipped_words({"listed": 2000, "items": 1, "vision": 1500, "audio": 0}) == (
        "1 item, vision of 1,500 (of 2,000 listed items)"
    )
    assert skipped_words({"listed": 2000, "items": 0}) == ""
    assert count_skipped({"a": "test"}, [problem for problem in problems if problem.scope == "file"]) == {}
    assert [problem.kind for problem in problems.blocking()] == [
        "file not found",
        "no modality at all",
        "wrong number of fields",
    ]


def test_problems_as_lines():
    problems = Problems()
    for number in range(1, 5):
        problems.add("gone", "cell", line=number, id=f"i{number}", column="vision", detail="x.mp4")
    for number in range(3):
        problems.add("strange", "file", detail=f"f{number}")
    assert len(problems) == 7
    many = "line 1, id i1, vision: x.mp4; line 2, id i2, vision: x.mp4; line 3, id i3, vision: x.mp4; and 1 more"
    assert problems.lines(allowed=False) == [f"4 x gone: {many}", "3 x strange -> left aside: f0; f1; f2"]
    assert problems.lines(allowed=True)[0] == f"4 x gone -> this modality counts as missing: {many}"
