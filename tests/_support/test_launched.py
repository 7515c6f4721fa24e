"""What is said when another process is lost, and what is not taken for that."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

import accelerate
import pytest
import torch
import torch.distributed as dist

from calmrl._support import distributed as launched
from calmrl._support.distributed import explain_lost_process
from calmrl.errors import InputError, ProcessLost


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("[gloo/transport/pair.cc] Connection closed by peer", "another of the 3 processes has ended"),
        ("Timed out waiting 5000ms for recv", "another of the 3 processes did not answer in time"),
        ("Application timeout caused pair closure", "another of the 3 processes did not answer in time"),
    ],
)
def test_a_lost_process_is_a_sentence(reason, sentence):
    with (
        pytest.raises(ProcessLost, match=f"{sentence}, so this one ends too; start again"),
        explain_lost_process("start again", 3),
    ):
        raise RuntimeError(reason)


@pytest.mark.parametrize(("size", "reason"), [(3, "mat1 and mat2 cannot be multiplied"), (1, "gloo is not there")])
def test_other_errors_stay_as_they_are(size, reason):
    with pytest.raises(RuntimeError, match=reason) as caught, explain_lost_process("start again", size):
        raise RuntimeError(reason)
    assert type(caught.value) is RuntimeError


@pytest.mark.parametrize("reason", ["something timed out", "a timeout of 5 s"])
def test_every_error_of_the_messages_is_a_lost_process(reason):
    for said, what in (("lost", "has ended"), (reason, "did not answer in time")):
        with pytest.raises(ProcessLost, match=f"processes {what}") as caught, explain_lost_process("start again", 2):
            raise dist.DistError(said)
        assert isinstance(caught.value.__cause__, dist.DistError)


def test_a_long_reason_is_cut():
    with pytest.raises(ProcessLost) as caught, explain_lost_process("again", 2):
        raise RuntimeError("gloo\n " + "x" * 200)
    assert str(caught.value).endswith(f"again (gloo {'x' * 155})")


def test_one_process_loses_no_other():
    with pytest.raises(RuntimeError, match="gloo") as caught, explain_lost_process("start again"):
        raise RuntimeError("gloo")
    assert type(caught.value) is RuntimeError


class State:
    """What accelerate knows of the processes; keeps what it was asked for."""

    num_processes, process_index = 4, 2
    asked: ClassVar[list[object]] = []

    def __init__(self, **options: object) -> None:
        self.asked.append(options)

    def wait_for_everyone(self) -> None:
        self.asked.append("wait")


@pytest.fixture
def state(monkeypatch):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ACCELERATE_USE_CPU", "MASTER_ADDR", "LOCAL_RANK",
                 "ACCELERATE_MIXED_PRECISION"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setattr(accelerate, "PartialState", State)
    monkeypatch.setattr(State, "asked", [])
    return State


def test_joining_waits_ten_minutes_and_counts_the_processes(state, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launched.join() == (4, 2)
    assert launched.join(5) == (4, 2)
    assert state.asked == [{"cpu": True, "timeout": timedelta(seconds=seconds)} for seconds in (600, 5)]
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError, match="3 processes were started, but this one counts 4; start them with torchrun"):
        launched.join()


def test_waiting_and_leaving(state, monkeypatch):
    launched.wait_for_all()
    assert state.asked == [{}, "wait"]
    left = []
    monkeypatch.setattr(dist, "destroy_process_group", lambda: left.append("left"))
    launched.leave()
    assert left == []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    launched.leave()
    assert left == ["left"]


@pytest.mark.parametrize(
    ("asked", "started", "cuda", "xpu", "on_cpu"),
    [
        ("true", 1, True, False, True),
        ("no", 1, False, False, False),
        ("", 1, False, False, False),
        ("", 2, False, False, True),
        ("", 2, True, False, False),
        ("", 2, False, True, False),
    ],
)
def test_several_processes_without_gpus_train_on_the_cpu(asked, started, cuda, xpu, on_cpu, state, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", asked)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: xpu)
    assert launched._on_cpu(started) is on_cpu


def test_no_more_processes_than_gpus(state, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    launched._check_launcher(3)  # on the CPU: there are no GPUs
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(InputError, match="3 processes were started, but there are 2 GPUs"):
        launched._check_launcher(3)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    launched._check_launcher(3)  # on two machines
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    launched._check_launcher(1)


def test_accelerate_that_started_only_one_process(state, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    launched._check_launcher(1)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    launched._check_launcher(2)
    with pytest.raises(InputError, match="accelerate launch was asked for several processes but started only one"):
        launched._check_launcher(1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    launched._check_launcher(1)
