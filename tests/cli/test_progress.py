"""Estimates that settle at once, and lines for a log."""

from __future__ import annotations

import io
import sys
import time

from rich.console import Console

from calmrl.cli.printing import SURE, WINDOW, Pace, Progress


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
        progress(3, 9, "encode text")
        told = ""
        while told.count("\n") < 3:
            time.sleep(0.01)
            told += capsys.readouterr().err
    lines = told[: told.rindex("\n")].splitlines()  # the next one may have been read in the middle
    assert len(lines) >= 3
    assert all(line.endswith(" encode text: 3 of 9") for line in lines[1:])
    with Progress() as progress:
        progress(1, 1, "quick")
    assert capsys.readouterr().err == ""


def test_without_a_total_the_time_is_shown(monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr("calmrl.cli.printing.time.monotonic", clock)
    progress = Progress()
    clock.now = 5.0
    progress(0, 0, "align image, text")
    clock.now = 12.0
    progress(0, 0, "align image, text")  # still the same
    assert progress.line() == "align image, text: 0:00:07"
    progress(3, 9, "write items")
    assert progress.line() == "write items: 3 of 9"


def test_limits_of_the_window_and_of_an_estimate() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.update(0, 100)
    for moment, done in ((10.0, 1), (12.0, 3)):
        clock.now = moment
        pace.update(done, 100)
    assert pace.speed() == 1.0  # two seconds are enough
    clock.now = 29.5
    pace.update(5, 100)
    assert pace.speed() == 4 / 19.5  # from the first piece on
    clock.now = 32.0
    pace.update(6, 100)
    assert pace.speed() == 3 / 20  # what is within twenty seconds of the second is enough without the first
    clock = Clock()
    pace = Pace(clock)
    pace.update(0, 100)
    for moment, done in ((10.0, 1), (11.9, 3)):
        clock.now = moment
        pace.update(done, 100)
    assert pace.speed() is None


def test_a_pace_in_words() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.text() == ""
    paced(clock, 10.0, 3, pace, 3)
    assert pace.text() == "3 of 3, 0.1 / s"  # nothing is left
    pace.update(2, 3)  # less than before begins anew
    assert pace.text() == "2 of 3"
    clock.now += 5
    pace.update(2, 3)
    assert pace.speed() is None  # nothing was done since


def test_a_terminal_shows_a_line_that_is_redrawn(monkeypatch) -> None:
    screen, clock = io.StringIO(), Clock()
    console = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr("calmrl.cli.printing.stderr_console", lambda: console)
    monkeypatch.setattr("calmrl.cli.printing.time.monotonic", clock)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress() as progress:
        for step, line in (((0, 0, "align"), "align: 0:00:00"), ((1, 5, "encode"), "encode: 1 of 5")):
            progress(*step)
            while line not in screen.getvalue():
                pass
        progress(0, 0, "write items")
        clock.now = 7.0
        while "write items: 0:00:07" not in screen.getvalue():  # although nothing was reported
            pass
    drawn = len(screen.getvalue())
    with Progress(shown=False) as silent:
        silent(1, 2, "x")
    assert len(screen.getvalue()) == drawn
