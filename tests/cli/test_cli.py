"""The command line: what it prints where, exit codes, no traceback for a user's mistake, nothing overwritten, completion."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings

import pytest
import yaml

from calmrl import __version__
from calmrl.cli import info
from calmrl.cli import shared_options as completion
from calmrl.cli.info import SHELVES, entries
from calmrl.cli.registry import COMMANDS
from calmrl.data.media.public_collections import COLLECTIONS
from calmrl.encoders import ENCODERS
from calmrl.errors import InputError, JobError, MissingExtraError, ProcessLost

BAD = "kind: impute\nimputer:\n  method: gaussian\n  latent_dims: 3\n  noise: isotopic\nsed: 3\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_and_fits_80_columns(calmrl, name):
    code, out, err = calmrl(name, "--help")
    assert (code, err) == (0, "")
    assert f"Example:\n    calmrl {name}" in out
    assert max(map(len, out.splitlines())) <= 80
    assert " <" not in out.partition("\nOptions:")[2]  # a value is called FILE or N, not <list[str]>


def test_help_of_the_whole_and_version(calmrl):
    code, out, _ = calmrl("--help")
    assert code == 0
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert "Example:" in out
    assert "--install-completion" in out
    assert calmrl("-h")[1] == out
    code, out, err = calmrl()
    assert code == 2
    assert "Usage: calmrl" in out + err
    assert calmrl("--version") == (0, f"calmrl {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chek"], "No such command 'chek'. Did you mean 'check'?"),
        (["cp"], "Missing argument"),
        (["ls", "--nope"], "No such option: --nope"),
        (["ls", "config"], 'unknown list "config"; did you mean "configs"?'),
        (["cp", "imput", "x.yaml"], 'unknown config "imput"; did you mean "impute"?'),
        (["check", "nowhere.yaml"], "nowhere.yaml does not exist"),
        (["check", "impute", "seed=x"], "override 1, seed: should be a valid integer; got 'x'"),
    ],
)
def test_wrong_usage_is_code_2_on_stderr_without_traceback(calmrl, arguments, said):
    code, out, err = calmrl(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_check_of_a_config(calmrl, tmp_path):
    (tmp_path / "bad.yaml").write_text(BAD)
    code, out, _ = calmrl("check", tmp_path / "bad.yaml", "--json")
    told = json.loads(out)
    assert (code, told["ok"], told["config"]) == (2, False, None)
    assert [(row["key"], row["where"], row["closest"]) for row in told["problems"]] == [
        ("imputer.latent_dims", "line 4", "imputer.latent_dim"),
        ("imputer.noise", "line 5", "isotropic"),
        ("sed", "line 6", "seed"),
    ]
    words = ("check", "impute", "imputer.method=gaussian", "imputer.latent_dim=3")
    code, out, _ = calmrl(*words, "--json")
    assert (code, json.loads(out)["config"]["imputer"]["latent_dim"]) == (0, 3)
    code, out, err = calmrl(*words)
    assert (code, yaml.safe_load(out)["imputer"]["latent_dim"]) == (0, 3)
    assert "impute is a valid impute config" in err


def test_cp_refuses_to_overwrite(calmrl, tmp_path):
    file = tmp_path / "my.yaml"
    assert calmrl("cp", "impute", file)[0] == 0
    assert file.read_text().startswith("# calmrl impute ")
    file.write_text("mine")
    code, _, err = calmrl("cp", "impute", file)
    assert (code, file.read_text()) == (2, "mine")
    assert "exists; choose another name, or pass --force" in err
    assert calmrl("cp", "impute", file, "--force")[0] == 0
    assert calmrl("check", file)[0] == 0


# ---- lists


def test_ls(calmrl):
    code, out, err = calmrl("ls")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line and not line.startswith(" ")] == list(SHELVES)
    assert set(json.loads(calmrl("ls", "configs", "--json")[1])["configs"]) >= {"impute", "demo"}
    assert calmrl("ls", "configs")[1].splitlines()[0].split()[0] == "ablation"  # one list alone has no heading


@pytest.mark.parametrize("shelf", SHELVES)
def test_everything_listed_is_described(shelf):
    assert entries(shelf)
    assert all(about and not about.endswith("...") for about in entries(shelf).values())


def test_encoders_are_listed_with_all_that_one_needs_to_know():
    assert set(entries("encoders")) == set(ENCODERS)  # what extract and index take
    assert set(entries("towers")) == {"eva01-g14", "beats-iter3plus", "bert-base-uncased", "vast"}  # what train takes
    for line in entries("encoders").values():
        assert re.search(r", width \d+: .*; weights: .*\(.*\).*; needs (pip install|nothing|the package)", line), line


def test_long_lines_are_folded_on_a_terminal_only(calmrl, monkeypatch):
    monkeypatch.setattr(info, "entries", lambda shelf: {"a": "words " * 20, "long": "short"})
    assert calmrl("ls", "losses")[1].splitlines() == [f"a     {'words ' * 20}", "long  short"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for width, longest in ((40, 35), (10, 23)):  # never narrower than twenty beside the name
        monkeypatch.setattr("shutil.get_terminal_size", lambda *a, width=width, **b: os.terminal_size((width, 20)))
        lines = calmrl("ls", "losses")[1].splitlines()
        assert max(map(len, lines)) == longest
        assert lines[1].startswith("      words")
        assert lines[-1] == "long  short"


@pytest.mark.parametrize(
    ("function", "typed", "found"),
    [
        (completion.config_names, "stam", ["stamps"]),
        (completion.shelf_names, "enc", ["encoders"]),
        (completion.base_names, "named", ["named-things"]),
        (completion.table_names, "table1", ["table1"]),
        (completion.encoder_pairs, "image", []),
        (completion.encoder_pairs, "image=eff", ["image=efficientnet_lite0"]),
        (completion.collection_names, "msrv", ["msrvtt"]),
        (completion.collection_names, "msrvtt:", [f"msrvtt:{split}" for split in COLLECTIONS["msrvtt"].splits]),
        (completion.collection_names, "msrvtt:7", ["msrvtt:7k"]),
        (completion.collection_names, "nothing:", []),
        (completion.method_list, "pmrl,gram", ["pmrl,gram"]),
        (completion.method_list, "gra", ["gram"]),
    ],
)
def test_completion(function, typed, found):
    assert function(typed) == found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("calmrl chec", {"check"}),
        ("calmrl train stam", {"stamps"}),
        ("calmrl extract c --encoder image=eff", {"image=efficientnet_lite0"}),
    ],
)
def test_the_shell_completes(words, expected):
    asked = {"_CALMRL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    assert set(_process(**asked).stdout.split()) == expected


# ---- errors


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("no such thing"), 2, "calmrl: no such thing\n"),
        (MissingExtraError("pip install it"), 2, "calmrl: pip install it\n"),
        (JobError("a job failed"), 1, "calmrl: a job failed\n"),
        (ProcessLost("another process"), 1, "calmrl: another process\n"),
        (PermissionError(13, "Permission denied", "x"), 2,
         "calmrl: x cannot be written or read: permission denied; choose another place\n"),
        (OSError("odd"), 1, "calmrl: OSError: odd\nadd --debug to see where\n"),
        (RuntimeError("the disk\nis full"), 1, "calmrl: RuntimeError: the disk is full\nadd --debug to see where\n"),
        (KeyboardInterrupt(), 1, "calmrl: stopped\n"),
        (SystemExit(0), 0, ""),
        (SystemExit(1), 1, ""),
        (SystemExit(3), 1, "calmrl: stopped\n"),
    ],
)  # fmt: skip
def test_exit_codes(error, code, said, calmrl, monkeypatch):
    def broken():
        raise error

    monkeypatch.setattr(info, "examine", broken)
    assert calmrl("doctor") == (code, "", said)
    if isinstance(error, (RuntimeError, InputError)):
        for arguments in (["doctor", "--debug"], ["--debug", "doctor"]):
            again, _, err = calmrl(*arguments)
            assert again == code
            assert "Traceback" in err
            assert "in broken" in err


def test_warnings_are_lines_for_people(calmrl, monkeypatch):
    def warning():
        warnings.warn("take care", stacklevel=1)
        raise InputError("stop")

    monkeypatch.setattr(info, "examine", warning)
    shown = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert calmrl("doctor")[2] == "calmrl: warning: take care\ncalmrl: stop\n"
    assert warnings.showwarning is shown


def _process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "calmrl", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_as_a_process_without_a_terminal(tmp_path):
    done = _process("check", "impute", NO_COLOR="1", TERM="dumb")
    assert done.returncode == 0
    assert yaml.safe_load(done.stdout)["kind"] == "impute"
    (tmp_path / "bad.yaml").write_text(BAD)
    done = _process("check", str(tmp_path / "bad.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "\x1b" not in done.stderr


def test_a_closed_pipe_is_quiet():
    line = f'"{sys.executable}" -m calmrl check impute | head -c 1; echo; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
