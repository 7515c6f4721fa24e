"""Small parts of a run: records, what is due, the flag that stops, trackers, a loss that is no number."""

from __future__ import annotations

import json
import os
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calmrl.data import Batches
from calmrl.errors import InputError, MissingExtraError
from calmrl.losses import PMRLLoss
from calmrl.models.heads import Heads
from calmrl.training import checkpoints as snapshot
from calmrl.training.checkpoints import Checkpoint
from calmrl.training.optimise import make_optimiser
from calmrl.training.plan import Outcome, Position, Stage, StopFlag, TrainerOptions, due, listening
from calmrl.training.records import Records, close_trackers, flat, open_trackers, read_records
from calmrl.training.step import NotFinite, Step, must_be_finite
from train_data import source

# ---- plan


def test_a_stage_and_a_run_begin_plain():
    stage = Stage("one", ())
    assert (stage.epochs, stage.steps, stage.composition, stage.rate) == (None, None, "mixed", 1.0)
    assert not any((stage.hide_one, stage.complete_only, stage.incomplete_only, stage.fresh_best))
    assert vars(Position()) == {
        "stage": 0, "step": 0, "stage_step": 0, "best": None, "best_step": 0, "since_best": 0, "seconds": 0.0,
        "latent_seconds": 0.0, "batches": {},
    }  # fmt: skip
    assert Outcome(1, 2.0, 1, 0.5, 0.1, False).steps == 1


@pytest.mark.parametrize(
    ("every", "at"), [(None, [3, 6]), (0, []), (1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (4, [4]), (7, [])]
)
def test_what_is_due_at_which_step(every, at):
    assert [step for step in range(1, 7) if due(step, every, epoch=3, last=False)] == at
    assert all(due(step, every, epoch=3, last=True) for step in range(1, 7))


# ---- records


def test_records_are_lines_of_json_without_numbers_that_are_none(tmp_path):
    records = Records(tmp_path / "m.jsonl")
    records.write("train", 1, loss=float("nan"), rate=float("inf"), note="x", rows=3)
    written = (tmp_path / "m.jsonl").read_text()  # before it is closed
    assert json.loads(written) == {"kind": "train", "step": 1, "loss": None, "rate": None, "note": "x", "rows": 3}
    assert written.endswith("\n")
    records.close()
    assert records.file.closed


def test_a_resumed_run_keeps_what_was_before_its_checkpoint(tmp_path):
    path = tmp_path / "m.jsonl"
    records = Records(path)
    for kind, step in (("start", 0), ("train", 1), ("train", 2), ("validation", 2), ("end", 2), ("train", 3)):
        records.write(kind, step)
    records.close()
    with path.open("a") as file:
        file.write('{"kind": "tra')  # a kill
    assert len(read_records(path)) == 6
    assert [record["step"] for record in read_records(path, "train")] == [1, 2, 3]
    Records(path, upto=2).close()
    assert [(record["kind"], record["step"]) for record in read_records(path)] == [
        ("start", 0),
        ("train", 1),
        ("train", 2),
        ("validation", 2),
    ]
    more = Records(path)
    more.write("end", 2)
    more.close()
    assert len(read_records(path)) == 5  # without `upto` it appends


@pytest.mark.parametrize("line", ['{"kind": "train", "step": "1"}', '{"kind": 1, "step": 1}'])
def test_a_record_with_a_wrong_field_is_named_by_its_line(line, tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n' + line + "\n")
    with pytest.raises(InputError, match=r"m\.jsonl line 2 .*kind is a text and step a number"):
        read_records(path)


def test_records_on_a_full_disk(tmp_path):
    records = Records(tmp_path / "m.jsonl")
    records.file.close()
    records.file = open("/dev/full", "w")  # noqa: SIM115
    with pytest.raises(
        InputError, match=r"m\.jsonl cannot be written \(.*No space.*make room, then continue with --resume"
    ):
        records.write("train", 1)
    records.close()


# ---- stop


def test_a_first_signal_asks_and_a_second_ctrl_c_stops():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with listening() as flag:
        assert not flag.raised
        os.kill(os.getpid(), signal.SIGTERM)
        assert flag.raised
        os.kill(os.getpid(), signal.SIGTERM)  # the scheduler may say it twice
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert {number: signal.getsignal(number) for number in before} == before
    with listening() as flag:
        os.kill(os.getpid(), signal.SIGINT)
        assert flag.raised


def test_in_another_thread_nothing_is_caught():
    found = []

    def look():
        with listening() as flag:
            found.append((isinstance(flag, StopFlag), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [(True, signal.getsignal(signal.SIGTERM))]


# ---- trackers


def test_trackers_get_the_settings_flat():
    started = []
    accelerator = SimpleNamespace(init_trackers=lambda name, config: started.append((name, config)), trackers=[])
    assert open_trackers(accelerator, [], {"a": 1}) is False
    assert started == []
    assert open_trackers(accelerator, ["tensorboard"], {"a": {"b": 1, "c": {}}, "d": [2], "e": None}) is True
    assert started == [("calmrl", {"a.b": 1, "a.c": "{}", "d": "[2]", "e": "None"})]
    assert flat({"x": True, "y": 0.5, "z": "t"}) == {"x": True, "y": 0.5, "z": "t"}
    with pytest.raises(MissingExtraError, match="the tracker nosuchtracker"):
        open_trackers(accelerator, ["nosuchtracker"], {})
    ended = []
    accelerator.trackers = [SimpleNamespace(finish=lambda: ended.append(1))] * 2
    close_trackers(accelerator)
    assert ended == [1, 1]


# ---- a loss that is no number


@pytest.mark.parametrize(("count", "more"), [(8, ""), (9, ", ... (9 rows; all of them are in metrics.jsonl)")])
def test_at_most_eight_rows_are_named(count, more):
    batches = Batches(source(20), batch_size=20)
    batch = {"index": np.arange(count)}
    assert must_be_finite(torch.tensor(1.0), "loss", 4, batches, batch) is None
    with pytest.raises(NotFinite) as wrong:
        must_be_finite(torch.tensor(torch.inf), "loss", 4, batches, batch)
    assert wrong.value.rows == batches.describe(np.arange(count))
    named = ", ".join(wrong.value.rows[:8])
    assert str(wrong.value) == (
        f"the loss of step 4 is not finite. The rows of its batch: {named}{more}. "
        "Look at their values, or lower the learning rate; the last checkpoint is whole"
    )


# ---- snapshots


class Scaler:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale = state["scale"]


def test_a_snapshot_holds_copies_and_puts_them_back():
    step = Step(Heads({"a": 2, "b": 2}, 2), PMRLLoss())
    optimiser, at, random = (
        make_optimiser(step, TrainerOptions(learning_rate=1.0)),
        Position(step=4, best=3.0),
        torch.get_rng_state(),
    )
    held = snapshot.take(step, optimiser, Scaler(8.0), None, at, [random])
    before = step.model.heads["a"].weight.detach().clone()
    with torch.no_grad():
        step.model.heads["a"].weight.zero_()
    optimiser.param_groups[0]["lr"] = 5.0
    at.step = 9
    drawn = torch.rand(3)
    scaler = Scaler(1.0)
    found = snapshot.put_back(held, step, optimiser, scaler, None)
    assert torch.equal(step.model.heads["a"].weight, before)
    assert (found.step, found.best, scaler.scale) == (4, 3.0, 8.0)
    assert optimiser.param_groups[0]["lr"] == 1.0
    assert torch.equal(torch.rand(3), drawn)
    none = snapshot.take(step, optimiser, None, None, at, [random])
    assert none.training["scaler"] is None
    assert (none.latent, none.ema) == (None, {})
    snapshot.put_back(none, step, optimiser, scaler, None)
    assert scaler.scale == 8.0  # a run in full precision has nothing to put back


def test_random_states_of_another_number_of_processes_are_left():
    step = Step(Heads({"a": 2, "b": 2}, 2), PMRLLoss())
    optimiser, state = make_optimiser(step, TrainerOptions(learning_rate=1.0)), torch.get_rng_state()
    held = snapshot.take(step, optimiser, None, None, Position(), [state, state])
    torch.rand(1)
    now = torch.get_rng_state()
    snapshot.put_back(held, step, optimiser, None, None)
    assert torch.equal(torch.get_rng_state(), now)
    assert isinstance(held, Checkpoint)
