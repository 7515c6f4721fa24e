"""Messages between processes, with threads in their place; what is said when one is lost; how processes join."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import accelerate
import pytest
import torch
import torch.distributed as dist

from calmrl._support import distributed as messages
from calmrl._support.distributed import explain_lost_process
from calmrl.errors import InputError, ProcessLost

CPU = torch.device("cpu")


class Threads:
    """What `messages` uses of torch.distributed, for threads of this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.own = threading.local()
        self.box: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=600)

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return self.size

    def get_rank(self) -> int:
        return self.own.rank

    def _exchange(self, mine: Any) -> list[Any]:
        self.box[self.own.rank] = mine
        self.barrier.wait()
        every = list(self.box)
        self.barrier.wait()
        return every

    def all_gather_object(self, every: list[Any], mine: Any) -> None:
        every[:] = self._exchange(mine)

    def all_gather(self, every: list[torch.Tensor], mine: torch.Tensor) -> None:
        for own, of_one in zip(every, self._exchange(mine.clone()), strict=True):
            own.copy_(of_one)

    def all_reduce(self, mine: torch.Tensor) -> None:
        mine.copy_(torch.stack(self._exchange(mine.clone())).sum(0))

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        found: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            self.own.rank = rank
            try:
                found[rank] = work(rank)
            except BaseException as error:
                found[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in found:
            if isinstance(result, BaseException) and not isinstance(result, threading.BrokenBarrierError):
                raise result
        return found


@pytest.fixture
def three(monkeypatch) -> Threads:
    threads = Threads(3)
    monkeypatch.setattr(messages, "dist", threads)
    return threads


def test_one_process_gets_back_what_it_gave():
    a = torch.ones(2)
    assert messages.world() == (1, 0)
    assert messages.gather_objects("mine") == ["mine"]
    assert messages.gather_headers((4, 5), CPU) == [[4, 5]]
    assert messages.gather_rows(a, [2]) is a
    assert messages.all_sum([a])[0] is a
    assert messages.all_sum([]) == []
    assert messages.mean_over_processes({"x": 3.0, "y": 5.0}, 0, ["y"], CPU) == {"x": 3.0, "y": 5.0}
    rows, present = messages.own_rows({"a": a}, a > 0)
    assert rows["a"].tolist() == [1, 1]
    assert present.tolist() == [True, True]


def test_objects_and_headers_come_in_the_order_of_the_ranks(three):
    assert three.run(lambda rank: messages.world()) == [(3, 0), (3, 1), (3, 2)]
    assert three.run(lambda rank: messages.gather_objects(f"of {rank}")) == [["of 0", "of 1", "of 2"]] * 3
    assert three.run(lambda rank: messages.gather_headers((rank, 7), CPU)) == [[[0, 7], [1, 7], [2, 7]]] * 3


def test_sums_keep_the_shapes_and_no_tensors_need_no_message(three):
    def work(rank: int) -> list[torch.Tensor]:
        assert messages.all_sum([]) == []
        return messages.all_sum([torch.full((2, 2), 10.0**rank), torch.tensor(float(rank))])

    for square, number in three.run(work):
        assert square.tolist() == [[111.0, 111.0], [111.0, 111.0]]
        assert number.shape == ()
        assert number == 3


def test_means_over_rows_weigh_the_processes_and_others_do_not(three):
    rows = (1, 0, 3)  # a process without rows has no mean of them
    values = ({"loss": 1.0, "error": 4.0}, {"loss": 2.0, "error": math.nan}, {"loss": 6.0, "error": 8.0})
    found = three.run(lambda rank: messages.mean_over_processes(values[rank], rows[rank], ["error"], CPU))
    assert found == [{"loss": 3.0, "error": 7.0}] * 3


def test_shares_of_rows_that_all_hold(three):
    z, present = torch.arange(7), torch.arange(7) % 2 == 0
    found = three.run(lambda rank: messages.own_rows({"a": z}, present))
    assert [rows["a"].tolist() for rows, _ in found] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [mask.tolist() for _, mask in found] == [[True, False, True], [False, True], [True, False]]


def test_gathered_rows_get_the_gradients_that_all_processes_want(three):
    counts = (2, 0, 3)

    def work(rank: int) -> tuple[list[float], list[float] | None]:
        mine = (10.0 * rank + torch.arange(counts[rank])).reshape(-1, 1)
        if rank != 0:
            mine.requires_grad_()  # rank 0 needs no gradient, but takes part in the backward pass
        rows = messages.gather_rows(mine, counts)
        (rows[:, 0] * torch.arange(5.0) * (rank + 1)).sum().backward()
        return rows[:, 0].tolist(), None if mine.grad is None else mine.grad[:, 0].tolist()

    found = three.run(work)
    assert [rows for rows, _ in found] == [[0.0, 1.0, 20.0, 21.0, 22.0]] * 3
    assert [gradient for _, gradient in found] == [None, [], [12.0, 18.0, 24.0]]  # weights 1 + 2 + 3


def test_gathered_numbers_that_have_no_gradient(three):
    def work(rank: int) -> tuple[bool, list[int]]:
        with torch.no_grad():
            assert not messages.gather_rows(torch.ones(1), (1, 1, 1)).requires_grad
        whole = messages.gather_rows(torch.tensor([rank]), (1, 1, 1))
        return whole.requires_grad, whole.tolist()

    assert three.run(work) == [(False, [0, 1, 2])] * 3


# ---- processes that are lost, and how they join


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


@pytest.mark.parametrize(("size", "reason"), [(3, "mat1 and mat2"), (1, "gloo"), (None, "gloo")])
def test_other_errors_stay_as_they_are(size, reason):
    with pytest.raises(RuntimeError, match=reason) as caught, explain_lost_process("start again", size):
        raise RuntimeError(reason)
    assert type(caught.value) is RuntimeError  # one process, which is also the default here, loses no other


@pytest.mark.parametrize(
    ("said", "what"),
    [("lost", "has ended"), ("something timed out", "did not answer in time"), ("a timeout of 5 s", "did not")],
)
def test_every_error_of_the_messages_is_a_lost_process(said, what):
    with pytest.raises(ProcessLost, match=f"processes {what}") as caught, explain_lost_process("start again", 2):
        raise dist.DistError(said)
    assert isinstance(caught.value.__cause__, dist.DistError)


def test_a_long_reason_is_cut():
    with pytest.raises(ProcessLost) as caught, explain_lost_process("again", 2):
        raise RuntimeError("gloo\n " + "x" * 200)
    assert str(caught.value).endswith(f"again (gloo {'x' * 155})")


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
    assert messages.join() == (4, 2)
    assert messages.join(5) == (4, 2)
    assert state.asked == [{"cpu": True, "timeout": timedelta(seconds=seconds)} for seconds in (600, 5)]
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError, match="3 processes were started, but this one counts 4; start them with torchrun"):
        messages.join()


def test_waiting_and_leaving(state, monkeypatch):
    messages.wait_for_all()
    assert state.asked == [{}, "wait"]
    left = []
    monkeypatch.setattr(dist, "destroy_process_group", lambda: left.append("left"))
    messages.leave()
    assert left == []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    messages.leave()
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
    assert messages._on_cpu(started) is on_cpu


def test_no_more_processes_than_gpus(state, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    messages._check_launcher(3)  # on the CPU: there are no GPUs
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(InputError, match="3 processes were started, but there are 2 GPUs"):
        messages._check_launcher(3)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    messages._check_launcher(3)  # on two machines
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    messages._check_launcher(1)


def test_accelerate_that_started_only_one_process(state, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    messages._check_launcher(1)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    messages._check_launcher(2)
    with pytest.raises(InputError, match="accelerate launch was asked for several processes but started only one"):
        messages._check_launcher(1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    messages._check_launcher(1)
