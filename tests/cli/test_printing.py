"""What is printed: names from data do not act on a terminal, estimates settle at once, a log gets a line per minute."""

from __future__ import annotations

import io
import sys
import time

import pytest
from rich.console import Console
from rich.text import Text

from calmrl._support.text import to_terminal
from calmrl.cli.printing import SURE, WINDOW, Pace, Progress, data, error, note, stderr_console, visible
from calmrl.cli.runs import tables

HOSTILE = "a\x1b]0;title\x07b\x1b[2J\u202egnp.exe\x9b31m\rover\x00"


def acts(text):
    return [
        sign for sign in text if sign not in "\n\t" and (sign < " " or "\x7f" <= sign <= "\x9f" or sign == "\u202e")
    ]


def test_what_acts_is_shown_as_an_escape_and_the_rest_stays():
    assert len(acts(HOSTILE)) == 7  # the premise
    assert visible("dog\t\u00e9\n\u72ac \U0001f415") == "dog\t\u00e9\n\u72ac \U0001f415"
    assert visible("a\x1b[2Jb\u202e") == "a\\x1b[2Jb\\u202e"
    assert not acts(visible(HOSTILE))


def test_people_see_escapes_and_programs_text_as_it_is(capsys, monkeypatch):
    for show in (note, error):
        show(HOSTILE)
        assert not acts(capsys.readouterr().err)
    data(HOSTILE)
    assert capsys.readouterr().out == HOSTILE + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    data(HOSTILE)
    assert not acts(capsys.readouterr().out)
    for _, table in tables([{"task": f"[red]{HOSTILE}", "metric": "R@1", "value": 1.0, "n": 5}]):
        stderr_console().print(to_terminal(table))
    shown = capsys.readouterr().err
    assert "[red]" in shown  # not taken as markup
    assert not acts(shown)
    progress = Progress(shown=False)
    progress.what = f"[red]{HOSTILE}"
    assert not acts(progress.line())
    console = Console(file=io.StringIO(), width=200)
    console.print(Text(progress.line()))
    assert "[red]" in console.file.getvalue()


@pytest.mark.parametrize(
    ("library", "command"),
    [
        ("a.txt exists; pass `force=True` to replace it", "a.txt exists; pass --force to replace it"),
        ("`media` goes with `layout`", "--media goes with --layout"),
        ("`encoders={'image': 'efficientnet_lite0'}`", "--encoder image=efficientnet_lite0"),
        ("ignore it (`ignore=['x y']`)", "ignore it (--ignore x y)"),
        ("add `engine='ray'`, or", "add --engine ray, or"),
        ("with `relevant_by` text", "with --relevant-by text"),
        ("whose `unusable` counts them; `calmrl ls` lists", "whose `unusable` counts them; `calmrl ls` lists"),
        ("force=True", "force=True"),
    ],
)
def test_arguments_of_the_library_are_options_of_the_command_line(library, command, capsys):
    note(library)
    error(library)
    assert capsys.readouterr().err == f"{command}\ncalmrl: {command}\n"


# ---- progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock):
    """A pace, and a function that does some more pieces, each in so many seconds."""
    made = Pace(clock)

    def work(seconds: float, pieces: int, total: int) -> None:
        for _ in range(pieces):
            clock.now += seconds
            made.update(made.done + 1, total)

    return made, work


def test_a_slow_start_does_not_count(pace) -> None:
    pace, work = pace
    pace.update(0, 600)
    work(12.0, 1, 600)  # the encoder is loaded
    assert pace.speed() is None
    assert pace.text() == "1 of 600"
    work(0.025, int(SURE / 0.025), 600)
    assert abs(pace.speed() - 40) < 1e-6
    assert pace.text().endswith("40.0 / s, 0:00:13 left")


def test_long_pieces_that_differ_do_not_make_the_estimate_jump(pace) -> None:
    pace, work = pace
    pace.update(0, 100)
    estimates = []
    for seconds in [60.0, 25.0, 5.0, 5.0] * 6:
        work(seconds, 1, 100)
        estimates.append(pace.speed())
    assert all(abs(speed - 4 / 95) < 0.01 for speed in estimates[10:])  # a piece alone would say 1 / 60 or 1 / 25


def test_a_pace_is_that_of_the_last_seconds(pace) -> None:
    pace, work = pace
    pace.update(0, 1000)
    work(4.0, 2, 1000)
    work(1.0, 4, 1000)
    assert abs(pace.speed() - 5 / 8) < 1e-6  # from the first piece on, not from the second
    work(1.0, 44, 1000)
    work(0.1, int(WINDOW / 0.1) + 20, 1000)
    assert abs(pace.speed() - 10) < 0.6


def test_a_run_that_goes_on_and_one_that_begins_anew(pace) -> None:
    pace, work = pace
    assert pace.text() == ""
    pace.update(500, 600)
    work(1.0, 5, 600)
    assert abs(pace.speed() - 1) < 1e-6
    pace.update(0, 600)
    assert pace.speed() is None
    work(4.0, 3, 600)
    assert pace.text() == "3 of 600, 0.2 / s, 0:39:48 left"
    pace.update(0, 0)
    assert pace.text() == ""
    work(10.0, 3, 3)
    assert pace.text() == "3 of 3, 0.1 / s"  # nothing is left
    pace.update(2, 3)  # less than before begins anew
    assert pace.text() == "2 of 3"
    pace.update(0, 10)
    work(20.0, 4, 10)
    assert pace.text() == "4 of 10, 20 s each, 0:02:00 left"


def test_limits_of_the_window_and_of_an_estimate(pace, clock) -> None:
    pace, _ = pace
    pace.update(0, 100)
    for moment, done, speed in (
        (10.0, 1, None),
        (11.9, 2, None),
        (12.0, 3, 1.0),  # two seconds are enough
        *((12.0 + 0.5 * n, 3 + n, (2 + n) / (2.0 + 0.5 * n)) for n in range(1, 6)),
        (29.5, 9, 8 / 19.5),  # from the first piece on
        (31.8, 10, 9 / 21.8),  # ten reports, however long ago the first was
        (32.0, 11, 9 / 20.1),  # what is within twenty seconds of the second is enough without the first
        (37.0, 11, 8 / 25.0),  # nothing was done since
    ):
        clock.now = moment
        pace.update(done, 100)
        assert pace.speed() == speed, moment


def test_a_line_per_minute_without_a_terminal(capsys, clock, monkeypatch) -> None:
    clock.now = 5.0  # what it shows is the time since it began
    monkeypatch.setattr("calmrl.cli.printing.time.monotonic", clock)
    with Progress(every=0.02) as progress:
        progress(3, 9, "encode text")
        told = ""
        while told.count("\n") < 3:
            time.sleep(0.01)
            told += capsys.readouterr().err
    lines = told[: told.rindex("\n")].splitlines()  # the next one may have been read in the middle
    assert len(lines) >= 3
    assert all(line == "0:00:00 encode text: 3 of 9" for line in lines[1:])
    with Progress() as progress:
        progress(1, 1, "quick")
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_a_line_that_is_redrawn(monkeypatch, clock) -> None:
    """Without a total, with the time since this was begun."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr("calmrl.cli.printing.stderr_console", lambda: console)
    monkeypatch.setattr("calmrl.cli.printing.time.monotonic", clock)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress() as progress:
        for step, line in (((0, 0, "align"), "align: 0:00:00"), ((1, 5, "encode"), "encode: 1 of 5")):
            progress(*step)
            while line not in screen.getvalue():
                pass
        clock.now = 3.0
        progress(0, 0, "write items")
        clock.now = 10.0
        while "write items: 0:00:07" not in screen.getvalue():  # although nothing was reported
            pass
        progress(0, 0, "write items")  # still the same
        assert progress.line() == "write items: 0:00:07"
    drawn = len(screen.getvalue())
    with Progress(shown=False) as silent:
        silent(1, 2, "x")
    assert len(screen.getvalue()) == drawn
