"""Names come from data: none of them acts on a terminal."""

import io
import sys

import pytest
from rich.console import Console
from rich.text import Text

from calmrl._support.text import to_terminal
from calmrl.cli.evaluate import tables
from calmrl.cli.printing import Progress, data, error, note, stderr_console, visible

HOSTILE = "a\x1b]0;title\x07b\x1b[2J\u202egnp.exe\x9b31m\rover\x00"


def acts(text):
    return [
        sign for sign in text if sign not in "\n\t" and (sign < " " or "\x7f" <= sign <= "\x9f" or sign == "\u202e")
    ]


def test_the_name_would_act():
    assert len(acts(HOSTILE)) == 7


def test_what_acts_is_shown_as_an_escape_and_the_rest_stays():
    assert visible("dog\t\u00e9\n\u72ac \U0001f415") == "dog\t\u00e9\n\u72ac \U0001f415"
    assert visible("a\x1b[2Jb\u202e") == "a\\x1b[2Jb\\u202e"
    assert not acts(visible(HOSTILE))


@pytest.mark.parametrize("show", [note, error])
def test_lines_for_people(show, capsys):
    show(HOSTILE)
    assert not acts(capsys.readouterr().err)


def test_programs_get_text_as_it_is_and_terminals_do_not(capsys, monkeypatch):
    data(HOSTILE)
    assert capsys.readouterr().out == HOSTILE + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    data(HOSTILE)
    assert not acts(capsys.readouterr().out)


def test_tables_and_markup(capsys):
    row = {"task": f"[red]{HOSTILE}", "metric": "R@1", "value": 1.0, "n": 5}
    for _, table in tables([row]):
        stderr_console().print(to_terminal(table))
    shown = capsys.readouterr().err
    assert "[red]" in shown  # not taken as markup
    assert not acts(shown)


def test_progress():
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
