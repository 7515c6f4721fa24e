"""Parts of sentences, and the one table in its forms."""

import pytest

from calmrl._support.text import (
    Cell,
    Heading,
    Number,
    Picture,
    Sound,
    Table,
    capital,
    escaped,
    fixed,
    listed,
    plural,
    sentence,
    to_markdown,
    to_terminal,
    to_text,
)
from calmrl.cli.printing import stderr_console


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        *((fixed(value, 1), text) for value, text in ((-0.04, "0.0"), (0.04, "0.0"), (-1234.56, "−1,234.6"), (-0.06, "−0.1"))),
        *((capital(text), said) for text, said in (("", ""), ("a", "A"), ("abc", "Abc"))),
        *((plural(n, "seed"), said) for n, said in ((0, "0 seeds"), (1, "1 seed"), (1234, "1,234 seeds"))),
        (plural(1, "modality", "modalities"), "1 modality"), (plural(2, "modality", "modalities"), "2 modalities"),
        *((listed(names), said) for names, said in (([], ""), (["a"], "a"), (["a", "b"], "a and b"), ("abc", "a, b and c"))),
        *((sentence(text), "It is so.") for text in ("it is so", "it is so.", "It is so..")),
        (escaped("a|b\n<c> _d_"), r"a\|b \<c\> \_d\_"),
    ],
)  # fmt: skip
def test_wording(made, expected):
    assert made == expected


CELL = Cell("a|b", Picture("p.jpg", b"", "a dog"), Sound("s.mp3", b"", "audio/mpeg", "a bark"))
TABLE = Table(
    "caption", ["name", Heading("R@1", "n = 5")], [["x", Number("2.0", 2.0, best=True, note="one")]], [[CELL, "–"]]
)


def test_markdown():
    assert to_markdown(TABLE).splitlines() == [
        "| name | R@1 (n = 5) |",
        "| --- | ---: |",
        "| x | **2.0** (one) |",
        r"| ![a dog](figures/p.jpg) a\|b [listen](figures/s.mp3) | – |",
    ]
    assert [part.name for part in TABLE.media()] == ["p.jpg", "s.mp3"]


def test_text():
    assert to_text(TABLE).splitlines() == ["name  R@1", "x     2.0"]


@pytest.mark.parametrize(("options", "empty"), [({}, 0), ({"edge": True, "name_width": 20, "width": 11}, 2)])
def test_a_terminal_has_what_is_apart_below_a_rule(options, empty, capsys):
    stderr_console().print(to_terminal(TABLE, **options))
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    shown = [line.split() for line in lines if line and not set(line) <= {"─", " "}]
    assert shown == [["R@1"], ["name", "n", "=", "5"], ["x", "2.0"], ["a|b", "–"]]
    assert lines.count("") == empty
    assert sum(bool(line) and set(line) <= {"─", " "} for line in lines) == 2
