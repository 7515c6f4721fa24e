"""Messages between processes, with threads in their place: every function, with unequal shares and an empty one."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from calmrl._support import distributed as messages

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
