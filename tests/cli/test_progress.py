"""Estimates that settle at once, and lines for a log."""

from __future__ import annotations

import time

from calmrl.cli.progress import SURE, WINDOW, Pace, Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def paced(clock: Clock, seconds: float, pieces: int, pace: Pace, total: int) -> None:
    for _ in range(pieces):
        clock.now += seconds
        pace.update(pace.done + 1, total)


def test_a_slow_start_does_not_count() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.update(0, 600)
    paced(clock, 12.0, 1, pace, 600)  # the encoder is loaded
    assert pace.speed() is None
    assert pace.text() == "1 of 600"
    paced(clock, 0.025, int(SURE / 0.025), pace, 600)
    assert abs(pace.speed() - 40) < 1e-6
    assert pace.text().endswith("40.0 / s, 0:00:13 left")


def test_only_the_last_seconds_count() -> None:
    clock = Clock()
    pace = Pace(clock)
    paced(clock, 1.0, 50, pace, 1000)
    paced(clock, 0.1, int(WINDOW / 0.1) + 20, pace, 1000)
    assert abs(pace.speed() - 10) < 0.6


def test_a_pace_is_that_of_the_whole_window() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.update(0, 100)
    paced(clock, 4.0, 2, pace, 100)
    paced(clock, 1.0, 4, pace, 100)
    assert abs(pace.speed() - 5 / 8) < 1e-6  # from the first piece on, not from the second


def test_a_run_that_goes_on_and_one_that_begins_anew() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.update(500, 600)
    paced(clock, 1.0, 5, pace, 600)
    assert abs(pace.speed() - 1) < 1e-6
    pace.update(0, 600)
    assert pace.speed() is None
    paced(clock, 4.0, 3, pace, 600)
    assert pace.text() == "3 of 600, 0.2 / s, 0:39:48 left"
    pace.update(0, 0)
    assert pace.text() == ""


def test_slow_pieces_are_given_in_seconds_each() -> None:
    clock = Clock()
    pace = Pace(clock)
    paced(clock, 20.0, 4, pace, 10)
    assert pace.text() == "4 of 10, 20 s each, 0:02:00 left"


def test_a_line_per_minute_without_a_terminal(capsys) -> None:
    with Progress(every=0.02) as progress:
        progress("encode text", 3, 9)
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(line.endswith(" encode text: 3 of 9") for line in lines[1:])
    with Progress() as progress:
        progress("quick", 1, 1)
    assert capsys.readouterr().err == ""


def test_without_a_total_the_time_is_shown(monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr("calmrl.cli.progress.time.monotonic", clock)
    progress = Progress()
    clock.now = 5.0
    progress("align image, text")
    clock.now = 12.0
    progress("align image, text")  # still the same
    assert progress.line() == "align image, text: 0:00:07"
    progress("write items", 3, 9)
    assert progress.line() == "write items: 3 of 9"
