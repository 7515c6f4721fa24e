"""The command line: what it prints where, exit codes, no traceback for a user's mistake, nothing overwritten."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata

import pytest
import yaml

from calmrl import __version__
from calmrl.cli import COMMANDS, doctor
from calmrl.cli.ls import REGISTRIES, SHELVES, entries
from calmrl.encoders import ENCODERS

BAD = "kind: impute\nimputer:\n  method: gaussian\n  latent_dims: 3\n  noise: isotopic\nsed: 3\n"


def _names():
    return [command.__name__.rpartition(".")[2] for command in COMMANDS]


@pytest.mark.parametrize("name", _names())
def test_help_has_an_example_and_fits_80_columns(calmrl, name):
    code, out, err = calmrl(name, "--help")
    assert (code, err) == (0, "")
    assert f"Example:\n    calmrl {name}" in out
    assert max(map(len, out.splitlines())) <= 80


def test_help_of_the_whole(calmrl):
    code, out, _ = calmrl("--help")
    assert code == 0
    assert all(f"\n  {name} " in out for name in _names())
    assert "Example:" in out


def test_version(calmrl):
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


def test_check_names_three_mistakes(calmrl, tmp_path):
    (tmp_path / "bad.yaml").write_text(BAD)
    code, out, err = calmrl("check", tmp_path / "bad.yaml")
    assert (code, out) == (2, "")
    assert "3 mistakes" in err
    assert 'line 4, imputer.latent_dims: unknown key for method gaussian; did you mean "imputer.latent_dim"?' in err
    assert "line 5, imputer.noise: should be" in err
    assert 'did you mean "isotropic"?' in err
    assert 'line 6, sed: unknown key; did you mean "seed"?' in err


def test_check_as_json(calmrl, tmp_path):
    (tmp_path / "bad.yaml").write_text(BAD)
    code, out, _ = calmrl("check", tmp_path / "bad.yaml", "--json")
    told = json.loads(out)
    assert (code, told["ok"], told["config"]) == (2, False, None)
    assert [(row["key"], row["where"], row["closest"]) for row in told["problems"]] == [
        ("imputer.latent_dims", "line 4", "imputer.latent_dim"),
        ("imputer.noise", "line 5", "isotropic"),
        ("sed", "line 6", "seed"),
    ]
    code, out, _ = calmrl("check", "impute", "imputer.method=gaussian", "imputer.latent_dim=3", "--json")
    assert (code, json.loads(out)["config"]["imputer"]["latent_dim"]) == (0, 3)


def test_check_prints_the_resolved_config(calmrl):
    code, out, err = calmrl("check", "impute", "imputer.method=gaussian", "imputer.latent_dim=3")
    assert code == 0
    assert yaml.safe_load(out)["imputer"]["latent_dim"] == 3
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


def test_ls(calmrl):
    code, out, err = calmrl("ls")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line and not line.startswith(" ")] == list(SHELVES)
    code, out, _ = calmrl("ls", "configs", "--json")
    assert set(json.loads(out)["configs"]) >= {"impute", "demo"}
    code, out, _ = calmrl("ls", "configs")
    assert out.splitlines()[0].split()[0] == "ablation"


@pytest.mark.parametrize("shelf", SHELVES)
def test_everything_listed_is_described(shelf):
    assert entries(shelf)
    assert all(about and not about.endswith("...") for about in entries(shelf).values())


def test_ls_lists_registries_that_exist():
    assert set(REGISTRIES) < set(SHELVES)


def test_doctor(calmrl):
    code, out, _ = calmrl("doctor", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["system"]["calmrl"] == __version__
    assert told["packages"]["torch"]
    assert set(told["extras"]) == set(metadata.metadata("calmrl").get_all("Provides-Extra") or [])
    assert {"media", "ray", "dev"} <= set(told["extras"])
    code, out, _ = calmrl("doctor")
    assert code == 0
    extras = out.partition("\nextras\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in extras if not line.startswith("   ")] == list(told["extras"])
    assert max(map(len, extras)) <= 80


def test_doctor_names_what_an_extra_lacks(calmrl, monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "lancedb" else "1.0")
    _, out, _ = calmrl("doctor")
    assert re.search(r'search +absent: pip install "calmrl\[search\]"\n +lacks lancedb\n', out)
    assert re.search(r"media +installed", out)


def _break(monkeypatch, error):
    def broken():
        raise error

    monkeypatch.setattr(doctor, "examine", broken)


def test_an_unexpected_error_is_one_line_and_code_1(calmrl, monkeypatch):
    _break(monkeypatch, RuntimeError("the disk\nis full"))
    code, out, err = calmrl("doctor")
    assert (code, out) == (1, "")
    assert err == "calmrl: RuntimeError: the disk is full\nadd --debug to see where\n"


@pytest.mark.parametrize("arguments", [["doctor", "--debug"], ["--debug", "doctor"]])
def test_debug_shows_the_traceback(calmrl, monkeypatch, arguments):
    _break(monkeypatch, RuntimeError("the disk is full"))
    code, _, err = calmrl(*arguments)
    assert code == 1
    assert "Traceback" in err
    assert "in broken" in err


def test_debug_keeps_code_2_for_bad_input(calmrl):
    code, _, err = calmrl("check", "nowhere.yaml", "--debug")
    assert code == 2
    assert "Traceback" in err


def test_ctrl_c_is_code_1_without_traceback(calmrl, monkeypatch):
    _break(monkeypatch, KeyboardInterrupt())
    code, _, err = calmrl("doctor")
    assert (code, err) == (1, "calmrl: stopped\n")


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


def test_help_does_not_load_torch():
    code = "import sys; from calmrl.cli import main\ntry: main(['--help'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("False\n")


def test_a_closed_pipe_is_quiet():
    line = f'"{sys.executable}" -m calmrl check impute | head -c 1; echo; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_encoders_are_listed_with_all_that_one_needs_to_know(calmrl):
    listed = json.loads(calmrl("ls", "encoders", "--json")[1])["encoders"]
    assert set(listed) == set(ENCODERS)  # what extract and index take
    towers = json.loads(calmrl("ls", "towers", "--json")[1])["towers"]
    assert set(towers) == {"eva01-g14", "beats-iter3plus", "bert-base-uncased", "vast"}  # what train starts from
    for line in listed.values():
        assert re.search(r", width \d+: .*; weights: .*\(.*\).*; needs (pip install|nothing|the package)", line), line
