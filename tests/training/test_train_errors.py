"""Bad data, full disks, wrong configs: a clear error, and nothing lost."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from calmrl.cli import main
from calmrl.errors import InputError
from calmrl.training import checkpoints as checkpoint
from calmrl.training.loop import Trainer
from calmrl.training.step import NotFinite
from calmrl.workflows.from_config import open_data
from calmrl.workflows.train import train
from tests.support.train_data import assert_same_run, config, config_file, python, records, step_of


def test_all_problems_of_all_sources_in_one_error(tmp_path):
    cfg = config(tmp_path, sources={name: {"features": name} for name in ("a", "b", "c")})
    (tmp_path / "a" / "text.npy").write_bytes(b"no numbers")
    (tmp_path / "b" / "image.npy").unlink()
    with pytest.raises(InputError) as caught:
        open_data(cfg)
    said = str(caught.value)
    assert "3 of 3 sources cannot be opened" in said
    assert f"source a: {tmp_path / 'a' / 'text.npy'} has 10 bytes but" in said
    assert f"source b: {tmp_path / 'b' / 'image.npy'} is missing" in said
    assert f"source c: no features at {tmp_path / 'c'}" in said


def test_on_the_command_line_it_is_exit_code_2(tmp_path, capsys):
    path = config_file(tmp_path)
    (tmp_path / "b" / "meta.parquet").write_bytes(b"nothing")
    with pytest.raises(SystemExit) as stop:
        main(["train", str(path), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert f"source b: {tmp_path / 'b' / 'meta.parquet'} cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("row", "model"), [(70, {"standardize": "scale"}), (5, {"standardize": None})])
def test_nan_in_an_observed_row_is_found_before_training(row, model, tmp_path):
    cfg = config(tmp_path, model={"kind": "heads", "width": 8, **model})
    present = np.load(tmp_path / "a" / "present.npy")
    values = np.load(tmp_path / "a" / "text.npy", mmap_mode="r+")
    row = row if row < 24 else 24 + int(np.flatnonzero(present[24:, 1])[-1])  # a validation row, or a training row
    values[row, 3] = np.nan
    values.flush()
    with pytest.raises(InputError, match=f"source a: text of row 'r{row}' is marked present but holds NaN or infinity"):
        train(cfg, tmp_path / "out")
    assert not checkpoint.newest(tmp_path / "out" / "checkpoints")


def test_a_row_that_goes_bad_during_training_stops_it_and_nothing_is_lost(tmp_path):
    cfg = config(tmp_path, model={"kind": "heads", "width": 8, "standardize": None}, checkpoint={"every": 1})
    train(cfg, tmp_path / "whole")
    values = np.load(tmp_path / "a" / "text.npy", mmap_mode="r+")
    good = values.copy()

    def spoil(done, total, text):
        if done == 3:
            values[24:] = np.inf

    with pytest.raises(InputError, match="source a: text of row 'r"):
        train(cfg, tmp_path / "out", progress=spoil)
    assert step_of(checkpoint.newest(tmp_path / "out" / "checkpoints")) >= 3
    values[:] = good
    train(cfg, tmp_path / "out", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "out")


def test_a_loss_that_is_not_finite_names_the_rows(tmp_path):
    cfg = config(tmp_path, method="pmrl", checkpoint={"every": 2}, batch_size=10)
    from calmrl.workflows.from_config import build_step, build_trainer

    data = open_data(cfg)
    step = build_step(cfg, data)
    (tmp_path / "out").mkdir()

    def spoil(done, total, text):
        if done == 3:
            step.model.heads["text"].bias.data[0] = torch.nan

    trainer = build_trainer(cfg, data, step, tmp_path / "out", progress=spoil)
    with pytest.raises(
        NotFinite, match=r"the loss of step 4 is not finite\. The rows of its batch: [ab]:r\d+, "
    ) as caught:
        trainer.run()
    failed = records(tmp_path / "out", "failed")
    assert len(failed) == 1
    assert failed[0]["rows"] == caught.value.rows
    assert 9 <= len(caught.value.rows) <= 10
    newest = checkpoint.read(checkpoint.newest(tmp_path / "out" / "checkpoints"))
    assert newest.training["position"]["step"] == 2
    assert all(torch.isfinite(tensor).all() for tensor in newest.weights.values())


FULL = """
import json, pathlib, resource, sys
from calmrl.config import load
from calmrl.cli import main
from calmrl.errors import InputError
from calmrl.training import checkpoints as checkpoint
from calmrl.workflows.train import train
config, out = load(sys.argv[1], kind="train"), pathlib.Path(sys.argv[2])
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
said = {}
for name in ("training.pt", "weights.safetensors"):
    def shrink(done, total, text):
        newest = checkpoint.newest(out / name[:7] / "checkpoints")
        if newest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(0.9 * (newest / name).stat().st_size), hard))
    try:
        train(config, out / name[:7], progress=shrink)
    except InputError as error:
        said[name] = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    train(config, out / name[:7], resume=True)
print(json.dumps(said))
"""


def test_a_file_system_that_refuses_to_write_more(tmp_path):
    """The real thing, as far as a process can have it: files may not grow beyond a limit."""
    changes = {
        "checkpoint": {"every": 2},
        "model": {"kind": "heads", "width": 64},
        "log_every": 1000,
        "stages": [{"steps": 5}],
    }
    path = config_file(tmp_path, **changes)
    done = python(FULL, path, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.strip().splitlines()[-1])
    train(config(tmp_path, **changes), tmp_path / "whole")
    for name in ("training.pt", "weights.safetensors"):
        assert "could not be written to" in said[name]
        assert "earlier checkpoints are intact" in said[name]
        assert_same_run(tmp_path / "whole", tmp_path / "out" / name[:7])


def test_resuming_with_another_config_names_the_keys(tmp_path):
    cfg = config(tmp_path, stages=[{"steps": 2}])
    train(cfg, tmp_path / "out")
    other = config(tmp_path, stages=[{"steps": 2}], batch_size=12, optimiser={"learning_rate": 1e-3})
    with pytest.raises(InputError) as caught:
        train(other, tmp_path / "out", resume=True)
    assert "batch_size (24 there, 12 here), optimiser.learning_rate (0.01 there, 0.001 here);" in str(caught.value)
    with pytest.raises(InputError, match="exists and is not empty; choose another name, or pass `resume=True`"):
        train(cfg, tmp_path / "out")


def test_a_damaged_checkpoint_is_named(tmp_path):
    cfg = config(tmp_path, checkpoint={"every": 2, "keep": 3})
    train(cfg, tmp_path / "out")
    newest = checkpoint.newest(tmp_path / "out" / "checkpoints")
    for file in ("weights.safetensors", "training.pt", "latent/imputer.safetensors", "latent/imputer.json"):
        whole = (newest / file).read_bytes()
        for damaged in (whole[: len(whole) // 2], b"garbage", b""):
            (newest / file).write_bytes(damaged)
            with pytest.raises(
                InputError, match=f"{newest}/{file} (is damaged|cannot be read).* remove {newest} to continue"
            ):
                train(cfg, tmp_path / "out", resume=True)
        (newest / file).write_bytes(whole)
    (newest / "training.pt").unlink()
    with pytest.raises(InputError, match=r"training\.pt is missing"):
        train(cfg, tmp_path / "out", resume=True)


def test_two_runs_do_not_write_into_one_folder(tmp_path):
    cfg, out = config(tmp_path, stages=[{"steps": 4}]), tmp_path / "out"
    refused = []

    def second(done, total, text):
        if not refused:
            for resume in (False, True):
                with pytest.raises(InputError) as caught:
                    train(cfg, out, resume=resume)
                refused.append(str(caught.value))

    assert train(cfg, out, progress=second).steps == 4
    assert refused == [f"another run is writing {out}; wait until it has ended"] * 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert train(cfg, out, resume=True).steps == 4


def test_resuming_where_nothing_was_begins_and_says_so(tmp_path):
    said: list[str] = []
    cfg = config(tmp_path, stages=[{"steps": 2}])
    train(cfg, tmp_path / "out", resume=True, report=said.append)
    assert any("holds no checkpoint yet; starting from the beginning" in text for text in said)


def test_imputers_and_updates_that_do_not_fit(tmp_path):
    with pytest.raises(InputError, match=r"calibration\.update=gradient needs the imputer gaussian; got knn"):
        train(config(tmp_path, calibration={"imputer": {"method": "knn"}, "update": "gradient"}), tmp_path / "out")


def test_a_gradient_that_is_not_finite_stops_although_the_loss_is(tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "_clip", lambda self: torch.tensor(torch.nan))
    with pytest.raises(NotFinite, match=r"the gradient of step 1 is not finite"):
        train(config(tmp_path, stages=[{"steps": 2}]), tmp_path / "out")
