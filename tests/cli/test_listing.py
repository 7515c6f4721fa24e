"""Lists on a terminal and elsewhere, warnings, exit codes, and what the shell completes, in this process."""

from __future__ import annotations

import os
import sys
import warnings
from types import SimpleNamespace

import pytest

from calmrl.cli import doctor, evaluate, ls, reproduce
from calmrl.cli import shared_options as completion
from calmrl.errors import InputError, JobError, MissingExtraError, ProcessLost


def test_long_lines_are_folded_on_a_terminal_only(monkeypatch):
    names = {"a": "words " * 20, "long": "short"}
    assert ls._lines(names) == [f"a     {'words ' * 20}", "long  short"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *given, **more: os.terminal_size((40, 20)))
    lines = ls._lines(names)
    assert max(map(len, lines)) == 6 + 5 * 6 - 1  # five words fit into 38 columns beside the name
    assert lines[0] == "a     " + " ".join(["words"] * 5)
    assert lines[1].startswith("      words")
    assert lines[-1] == "long  short"
    monkeypatch.setattr("shutil.get_terminal_size", lambda *given, **more: os.terminal_size((10, 20)))
    assert max(map(len, ls._lines(names))) <= 26  # never narrower than twenty beside the name
    assert max(map(len, ls._lines(names))) > 20


def test_all_lists_are_headed_and_one_is_not(calmrl):
    _, out, _ = calmrl("ls")
    assert "\nlosses\n  " in out
    assert calmrl("ls", "losses")[1].splitlines()[0][0] != " "


@pytest.mark.parametrize(
    ("function", "typed", "found"),
    [
        (completion.config_names, "stam", ["stamps"]),
        (completion.shelf_names, "enc", ["encoders"]),
        (completion.base_names, "named", ["named-things"]),
        (completion.table_names, "table1", ["table1", "table10"]),
        (completion.encoder_pairs, "image", []),
        (completion.encoder_pairs, "image=eff", ["image=efficientnet_lite0"]),
        (completion.collection_names, "msrv", ["msrvtt"]),
        (completion.collection_names, "nothing:", []),
        (completion.method_list, "pmrl,gram", ["pmrl,gram"]),
        (completion.method_list, "gra", ["gram"]),
    ],
)
def test_completion(function, typed, found):
    got = function(typed)
    assert got == found if typed != "table1" else "table1" in got
    assert all(name.startswith(typed.partition("=")[0].partition(",")[0]) for name in got)


def test_splits_of_a_collection_are_completed():
    from calmrl.data.media.public_collections import COLLECTIONS

    splits = [f"msrvtt:{split}" for split in COLLECTIONS["msrvtt"].splits]
    assert completion.collection_names("msrvtt:") == splits
    assert completion.collection_names(splits[0]) == [split for split in splits if split.startswith(splits[0])]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("no such thing"), 2, "calmrl: no such thing\n"),
        (MissingExtraError("pip install it"), 2, "calmrl: pip install it\n"),
        (JobError("a job failed"), 1, "calmrl: a job failed\n"),
        (ProcessLost("another process"), 1, "calmrl: another process\n"),
        (PermissionError(13, "Permission denied", "x"), 2, "calmrl: x cannot be written or read: permission denied; "),
        (OSError("odd"), 1, "calmrl: OSError: odd\nadd --debug to see where\n"),
        (SystemExit(0), 0, ""),
        (SystemExit(1), 1, ""),
        (SystemExit(3), 1, "calmrl: stopped\n"),
    ],
)
def test_exit_codes(error, code, said, calmrl, monkeypatch):
    def broken():
        raise error

    monkeypatch.setattr(doctor, "examine", broken)
    got, out, err = calmrl("doctor")
    assert (got, out) == (code, "")
    assert err.startswith(said) if said.endswith("; ") else err == said


def test_warnings_are_lines_for_people(calmrl, monkeypatch):
    def warning():
        warnings.warn("take care", stacklevel=1)
        raise InputError("stop")

    monkeypatch.setattr(doctor, "examine", warning)
    shown = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert calmrl("doctor")[2] == "calmrl: warning: take care\ncalmrl: stop\n"
    assert warnings.showwarning is shown


def test_no_command_shows_the_help(calmrl):
    code, out, err = calmrl()
    assert code == 2
    assert "Usage: calmrl" in out + err
    assert calmrl("-h")[1] == calmrl("--help")[1]
    assert "--install-completion" in calmrl("--help")[1]


def test_the_columns_of_the_doctor(calmrl, monkeypatch):
    report = {
        "system": {"python": "3"}, "packages": {"numpy": "2", "torch": None},
        "extras": {"a": {"x": "1"}, "b": dict.fromkeys([f"package-{j}" for j in range(9)])},
    }  # fmt: skip
    monkeypatch.setattr(doctor, "examine", lambda: report)
    _, out, _ = calmrl("doctor")
    lines = out.splitlines()
    assert lines[0] == "python     3"
    assert f"  {'torch':<24} missing" in lines
    assert f"  {'a':<24} installed" in lines
    lacks = [line for line in lines if "package-" in line]
    assert lacks[0].startswith(" " * 27 + "lacks package-0")
    assert lacks[1].startswith(" " * 33 + "package-")
    assert max(map(len, lacks)) <= 79
    assert lines[-2:] == ["engine local", "  this process"]


def test_devices_and_versions(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"GPU {number}")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    system = doctor.examine()["system"]
    assert system["devices"] == "cpu, cuda:0 GPU 0, cuda:1 GPU 1, mps"
    assert system["cores"] == str(len(os.sched_getaffinity(0)))
    assert doctor._version("no such package") is None


def test_tables_of_an_evaluation():
    rows = [
        {"task": "imputation a", "metric": "nmse", "value": 0.5, "n": 7},
        {"task": "a->b", "metric": "mine", "value": 2.0, "n": 3},
        {"task": "a->b", "metric": "R@1", "value": 12.34, "n": 1200},
        {"task": "a->b", "metric": "R@5", "value": 1.0, "n": 1300},
        {"task": "b->a", "metric": "R@1", "value": 5.0, "n": 4, "dataset": "e"},
    ]
    made = evaluate.tables(rows)
    assert made[0][1].lines == [["a->b", "12.3", "1.0", "1,300"], ["b->a", "5.0", "", "4"]]
    assert made[-1][0] == "other"
    assert made[0][0].partition(":")[0] == "retrieval"


@pytest.mark.parametrize(
    ("columns", "kinds", "heads"),
    [
        (("msr t2v", "msr v2t", "didemo t2v"), ("ours", "paper"),
         ["", "msr\nt2v\nours", "\n\npaper", "\nv2t\nours", "\n\npaper", "didemo\nt2v\nours", "\n\npaper"]),
        (("t2v", "v2t"), ("",), ["", "t2v", "v2t"]),
    ],
)  # fmt: skip
def test_columns_of_a_table_of_the_paper(columns, kinds, heads):
    part = SimpleNamespace(columns=columns, kinds=kinds, lines=[("pmrl", ["1"] * (len(heads) - 1))])
    table = reproduce._table(part)
    assert table.head == heads
    assert table.lines[0][0] == "pmrl"


def test_a_table_of_the_paper_is_shown(calmrl, monkeypatch):
    from calmrl.paper.reproduce import run as page

    part = SimpleNamespace(columns=("t2v",), kinds=("ours",), lines=[("pmrl", ["12.3"])])
    monkeypatch.setattr(page, "parts_of", lambda made: [part])
    import importlib

    made = SimpleNamespace(table=SimpleNamespace(name="table1", title="T"), notes=["note " * 30], files=["o/t.md"])
    monkeypatch.setattr(importlib.import_module("calmrl.paper.reproduce.run"), "reproduce", lambda *a, **k: made)
    code, out, err = calmrl("reproduce", "table1", "--out", "o")
    assert (code, out) == (0, "o/t.md\n")
    assert err.startswith("table1: T\n\n")
    assert "12.3" in err
    assert max(map(len, err.splitlines())) <= 80
