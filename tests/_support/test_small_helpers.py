"""Small helpers: parsing, moments, negatives, engines, workers, files of tensors."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calmrl._support import ray_engine, workers
from calmrl._support.checkpoint_files import read_checkpoint
from calmrl._support.engine import LocalEngine, opened
from calmrl._support.moments import add_rows, add_summary
from calmrl._support.negatives import draw, floored, promote
from calmrl._support.parsing import naming, parsing, read_json, read_json_object, reason_of
from calmrl._support.sealed import read_sealed
from calmrl._support.tensor_files import load_state, load_tensors, packed, plain, save_state, unpacked
from calmrl.errors import InputError, MissingExtraError, ProcessLost

# ---- parsing


def test_whatever_a_parser_raises_names_the_file(tmp_path):
    for error, said in (
        (KeyError("a\n b"), r"f cannot be read as X \('a\\n b'\); again$"),
        (ValueError(), r"f cannot be read as X \(ValueError\); again$"),
        (FileNotFoundError("x"), "f is missing; again$"),
    ):
        with pytest.raises(InputError, match=said), parsing("f", "X", "again"):
            raise error
    for error in (InputError("own"), MissingExtraError("own")):
        with pytest.raises(type(error), match=r"^own$"), parsing("f", "X"):
            raise error
    with pytest.raises(InputError, match=r"; copy or write it again$"), parsing("f", "X"):
        raise KeyError
    assert reason_of(ValueError("x\n  y" + "z" * 200)) == "x y" + "z" * 157
    assert reason_of(ValueError(" ")) == "ValueError"


def test_errors_get_the_name_of_a_file_once():
    with pytest.raises(InputError, match=r"^f: wrong$"), naming("f"):
        raise InputError("wrong")
    with pytest.raises(InputError, match=r"^wrong in f$"), naming("f"):
        raise InputError("wrong in f")


def test_json_files(tmp_path):
    (tmp_path / "a").write_text("[1]")
    assert read_json(tmp_path / "a") == [1]
    with pytest.raises(InputError, match=r"a holds a list where an object \{...\} is needed; again"):
        read_json_object(tmp_path / "a", "again")
    (tmp_path / "a").write_text('{"b": "ä"}', encoding="utf-8")
    assert read_json_object(tmp_path / "a") == {"b": "ä"}
    with pytest.raises(InputError, match=r"nowhere is missing: .* is incomplete, or of a version without checksums"):
        read_sealed(tmp_path / "nowhere")


# ---- moments


@pytest.mark.parametrize("cuts", [(0, 9), (0, 4, 4, 9), (0, 1, 8, 9)])
def test_running_moments_are_those_of_all_rows(cuts):
    rows = torch.arange(18, dtype=torch.float64).reshape(9, 2).square()
    count, mean, square = torch.zeros((), dtype=torch.float64), torch.zeros(2).double(), torch.zeros(2).double()
    for start, stop in pairwise(cuts):
        add_rows(rows[start:stop], count, mean, square)
    assert count == 9
    torch.testing.assert_close(mean, rows.mean(0))
    torch.testing.assert_close(square, (rows - rows.mean(0)).square().sum(0))
    add_summary(torch.tensor(0.0), torch.tensor([9.0, 9.0]), torch.ones(2), count, mean, square)
    assert count == 9
    torch.testing.assert_close(mean, rows.mean(0))
    add_summary(torch.tensor(1.0).double(), rows[0], torch.zeros(2).double(), count, mean, square)  # one row is enough
    assert count == 10


# ---- negatives


def test_a_negative_is_allowed_and_not_the_own_one():
    scores = torch.zeros(3, 5)
    scores[:, 4] = 50.0
    allowed = torch.tensor([True, True, True, False, True])
    drawn = draw(scores, allowed, slice(1, 4), torch.Generator().manual_seed(0))
    assert drawn.tolist() == [[4, 1]] * 3  # by far the most likely
    alone = torch.tensor([False, True, False, False, False])
    drawn = draw(scores, alone, slice(1, 4), torch.Generator().manual_seed(0))
    assert drawn[:, 1].tolist() == [0, 1, 1]  # the first has none but its own
    assert drawn[1:, 0].tolist() == [1, 1]
    assert draw(scores[:0], allowed, slice(0, 0), None).shape == (0, 2)
    assert draw(scores[:0], allowed, slice(0, 0), None).dtype == torch.long


def test_a_floor_makes_the_others_nearly_equal():
    scores = torch.tensor([[100.0, 1.0, 0.0]])
    out = torch.tensor([[False, False, True]])
    torch.testing.assert_close(floored(scores, out, 0.25), torch.tensor([[1.25, 0.25, 0.25]]))
    torch.testing.assert_close(floored(scores, torch.ones(1, 3, dtype=torch.bool), 0.25), torch.full((1, 3), 0.25))
    many = torch.tensor([[100.0, 5.0, 0.0]]).expand(400, 3)
    own = torch.zeros(400, 400 + 2)
    own[:, 400:] = many[:, 1:]
    own.fill_diagonal_(100.0)
    allowed = torch.zeros(402, dtype=torch.bool)
    allowed[[0, 400, 401]] = True
    generator = torch.Generator().manual_seed(0)
    plain_rows = draw(own[:1].expand(400, -1)[:1], allowed, slice(0, 400), generator)
    assert plain_rows[0, 1] == 1
    one = own[:1]
    free = [int(draw(one, allowed, slice(0, 400), generator)[0, 0]) for _ in range(60)]
    floor = [int(draw(one, allowed, slice(0, 400), generator, floor=1.0)[0, 0]) for _ in range(60)]
    assert free.count(400) > 55  # softmax of 5 and 0
    assert 15 < floor.count(400) < 45
    assert set(floor) == {400, 401}


def test_the_best_items_are_put_in_a_new_order():
    scores = torch.tensor([5.0, 1.0, 4.0, 3.0])
    promote(scores, torch.tensor([0, 2, 3]), torch.tensor([0.1, 0.9, 0.9]))
    assert scores.tolist() == [6.0, 1.0, 8.0, 7.0]


# ---- engines


def test_engines_by_name_and_open_ones():
    with opened("local") as engine:
        assert list(engine.map(pow, [2, 3], 2)) == [4, 9]
        assert (engine.name, engine.workers, engine.describe()) == ("local", 1, ["this process"])
        with opened(engine) as same:
            assert same is engine
        with pytest.raises(InputError, match="an address goes with the name of an engine"), opened(engine, "x"):
            pass
    with pytest.raises(InputError, match="x is the address of a Ray cluster; add --engine ray"):
        LocalEngine("x")
    with pytest.raises(InputError, match="unknown engine"), opened("spark"):
        pass


class Errors:
    RayTaskError = type("RayTaskError", (Exception,), {"cause": InputError("of the task")})
    WorkerCrashedError = type("WorkerCrashedError", (Exception,), {})
    NodeDiedError, ObjectLostError, OutOfMemoryError = KeyError, IndexError, MemoryError


class Ray:
    """What the engine uses of ray, in this process."""

    __version__, exceptions = "2.0", Errors

    def __init__(self, running=False, resources=None) -> None:
        self.running, self.resources = running, {"CPU": 2.0} if resources is None else resources
        self.inits, self.options_given, self.got, self.cancelled, self.down = [], [], [], [], 0
        self.fail = []

    def is_initialized(self):
        return self.running

    def init(self, **options):
        self.inits.append(options)
        if self.fail:
            raise self.fail.pop(0)

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address="here:1")

    def remote(self, function):
        def options(**given):
            self.options_given.append(given)
            return SimpleNamespace(remote=lambda job, item: (function, job, item))

        return SimpleNamespace(options=options)

    def put(self, job):
        return job

    def get(self, task):
        self.got.append(task[2])
        function, job, item = task
        return function(job, item)

    def cancel(self, task):
        self.cancelled.append(task[2])

    def cluster_resources(self):
        return self.resources

    def nodes(self):
        return [
            {"Alive": True, "NodeManagerAddress": "a", "Resources": {"CPU": 4.0, "GPU": 2.0, "memory": 2.5e9}},
            {"Alive": False, "NodeManagerAddress": "b", "Resources": {}},
            {"Alive": True, "NodeManagerAddress": "c", "Resources": {"GPU": 0.0}},
        ]

    def shutdown(self):
        self.down += 1


@pytest.fixture
def ray(monkeypatch):
    def use(**given):
        made = Ray(**given)
        monkeypatch.setattr(ray_engine, "need", lambda *names: made)
        return made

    return use


def test_ray_starts_or_joins_a_cluster(ray):
    fake = ray()
    engine = ray_engine.RayEngine()
    quiet = {"log_to_driver": False, "logging_level": "error"}
    assert fake.inits == [{"address": None, "include_dashboard": False, **quiet}]
    engine.close()
    assert fake.down == 1
    fake = ray()
    fake.fail = [ValueError("options")]
    ray_engine.RayEngine("x:1")
    assert fake.inits == [{"address": "x:1", "include_dashboard": False, **quiet}, {"address": "x:1", **quiet}]
    fake = ray()
    fake.fail = [ConnectionError()]
    with pytest.raises(InputError, match="no Ray cluster answers at x:1; start one with: ray start --head"):
        ray_engine.RayEngine("x:1")
    with pytest.raises(InputError, match="ray://x: workers and this process share files"):
        ray_engine.RayEngine("ray://x")
    fake = ray(running=True)
    for address in (None, "auto", "here:1"):
        ray_engine.RayEngine(address).close()
    assert (fake.inits, fake.down) == ([], 0)  # it was not ours to end
    with pytest.raises(InputError, match="this process is connected to here:1 already, not to there:2"):
        ray_engine.RayEngine("there:2")


def test_so_many_tasks_are_under_way(ray):
    fake = ray()
    engine = ray_engine.RayEngine()
    assert engine.workers == 2
    taken = []

    def items():
        for number in range(6):
            taken.append(number)
            yield number

    results = engine.map(lambda item, add: item + add, items(), 10)
    assert next(results) == 10
    assert taken == [0, 1, 2, 3, 4]  # two per core under way, and one more was asked for
    assert fake.got == [0]
    results.close()
    assert fake.cancelled == [1, 2, 3]
    assert list(engine.map(pow, [2, 3], 2)) == [4, 9]
    assert fake.options_given == [{"num_cpus": 1, "num_gpus": 0, "max_retries": 8}] * 2
    with pytest.raises(InputError, match="the Ray cluster has no GPU; add a node that has one"):
        list(engine.map(pow, [2], 2, device="cuda"))
    fake.resources["GPU"] = 1.0
    assert list(engine.map(pow, [2], 2, device="cuda")) == [4]
    assert fake.options_given[-1] == {"num_cpus": 1, "num_gpus": 1, "max_retries": 8}


def test_tasks_that_fail_and_workers_that_are_lost(ray):
    ray()
    engine = ray_engine.RayEngine()

    def failing(item):
        raise item

    with pytest.raises(InputError, match="of the task"):
        list(engine.map(failing, [Errors.RayTaskError()]))
    for lost in (Errors.WorkerCrashedError("gone " * 99), KeyError("x"), IndexError("x"), MemoryError("x")):
        with pytest.raises(ProcessLost, match="its worker was lost 9 times; see the logs") as caught:
            list(engine.map(failing, [lost]))
        assert len(str(caught.value)) < 400
    with pytest.raises(ProcessLost, match=rf"\({'gone ' * 40}\)$"):
        list(engine.map(failing, [Errors.WorkerCrashedError("gone " * 99)]))


def test_what_ray_would_use(ray):
    ray()
    assert ray_engine.RayEngine().describe() == [
        "node a: 4 cores, 2 GPUs, 2.5 GB",
        "node c: 0 cores, 0.0 GB",
        "ray 2.0, 2 tasks per core under way at most",
    ]


def test_memory_is_given_back_now_and_then(monkeypatch):
    from itertools import count

    trimmed = []
    monkeypatch.setattr(ray_engine, "_trim", lambda: trimmed.append(1))
    monkeypatch.setattr(ray_engine, "_tasks", count(1))
    for _ in range(15):
        ray_engine._apply((pow, (2,)), 3)
    assert trimmed == []
    with pytest.raises(ZeroDivisionError):
        ray_engine._apply((divmod, (0,)), 3)
    assert trimmed == [1]  # also after a task that failed
    calls = []
    monkeypatch.undo()
    monkeypatch.setattr(ray_engine.ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=calls.append))
    ray_engine._trim()
    assert calls == [0]
    monkeypatch.setattr(ray_engine.ctypes, "CDLL", lambda name: object())
    ray_engine._trim()


# ---- workers


class Pool:
    def __init__(self, count, context, initializer):
        self.given = (count, context.get_start_method(), initializer)
        self.ended, self.closed = [], []
        self._processes = {1: SimpleNamespace(terminate=lambda: self.ended.append(1))}

    def shutdown(self, **how):
        self.closed.append(how)


def test_processes_are_ended_only_after_an_error(monkeypatch):
    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    with workers.worker_pool(0) as pool:
        assert pool is None
    with workers.worker_pool(3) as pool:
        assert pool.given == (3, "spawn", workers._end_with_parent)
    assert (pool.ended, pool.closed) == ([], [{"wait": True, "cancel_futures": True}])
    with pytest.raises(KeyboardInterrupt), workers.worker_pool(1) as pool:
        raise KeyboardInterrupt
    assert (pool.ended, pool.closed) == ([1], [{"wait": True, "cancel_futures": True}])


def test_a_worker_ends_with_its_parent_and_leaves_ctrl_c_to_it(monkeypatch):
    handled, started, exits = [], [], []
    monkeypatch.setattr(signal, "signal", lambda *given: handled.append(given))
    monkeypatch.setattr(
        workers.threading, "Thread", lambda **given: SimpleNamespace(start=lambda: started.append(given))
    )
    parent = SimpleNamespace(join=lambda: exits.append("joined"))
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: None)
    workers._end_with_parent()
    assert (handled, started) == ([(signal.SIGINT, signal.SIG_IGN)], [])
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    workers._end_with_parent()
    assert started == [{"target": workers._exit_after, "args": (parent,), "daemon": True}]
    monkeypatch.setattr(os, "_exit", exits.append)
    workers._exit_after(parent)
    assert exits == ["joined", 1]


# ---- files of tensors


def test_a_saved_state(tmp_path):
    state = {"meta": {"x": 1}, "tensors": {"w": torch.arange(3.0)}}
    save_state(state, tmp_path / "a", overwrite=False)
    header = json.loads((tmp_path / "a" / "imputer.json").read_text())
    assert (header["format"], header["version"]) == ("calmrl.imputer", 2)
    loaded = load_state(tmp_path / "a")
    assert loaded["meta"]["x"] == 1
    assert loaded["tensors"]["w"].tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="exists already; choose another path, or pass overwrite=True"):
        save_state(state, tmp_path / "a", overwrite=False)
    save_state(state | {"meta": {"x": 2}}, tmp_path / "a", overwrite=True)
    assert load_state(tmp_path / "a")["meta"]["x"] == 2
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="exists and is not a saved model; it will not be replaced"):
        save_state(state, tmp_path / "b", overwrite=True, name="model")
    with pytest.raises(InputError, match=r"is not a folder; a saved model is a folder with model\.json"):
        load_state(tmp_path / "nowhere", "model")
    with pytest.raises(InputError, match=r"has no model\.json; it is not a saved model, or it is incomplete"):
        load_state(tmp_path / "a", "model")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 3}, "was written in format version 3, but this calmrl reads up to 2; update calmrl"),
        ({"version": "2"}, "was written in format version 2, but"),
        ({"format": "calmrl.other"}, "format 'calmrl.imputer' expected, got 'calmrl.other'"),
        ({"x": 5}, "is damaged: it is not what was written"),
        (None, "format 'calmrl.imputer' expected, got 'list'"),
    ],
)
def test_headers_of_another_kind(change, said, tmp_path):
    save_state({"meta": {"x": 1}, "tensors": {}}, tmp_path / "a", overwrite=False)
    header = tmp_path / "a" / "imputer.json"
    content = json.loads(header.read_text())
    header.write_text(json.dumps([] if change is None else content | change))
    with pytest.raises(InputError) as caught:
        load_state(tmp_path / "a")
    assert said in str(caught.value)
    header.write_text(json.dumps({"format": "calmrl.imputer", "version": 1, "x": 7}))  # without checksums
    assert load_state(tmp_path / "a")["meta"]["x"] == 7


def test_states_inside_other_states():
    assert unpacked(packed(None)) is None
    assert packed(None).shape == (0,)
    state = {"meta": {"x": "ä" * 300}, "tensors": {"w": torch.arange(4).reshape(2, 2).T}}
    content = packed(state)
    assert content.dtype == torch.uint8
    again = unpacked(content)
    assert again["meta"] == state["meta"]
    assert again["tensors"]["w"].tolist() == [[0, 2], [1, 3]]
    length = int.from_bytes(bytes(content[:8].tolist()), "little")
    assert json.loads(bytes(content[8 : 8 + length].tolist())) == state["meta"]
    shared = plain({"w": state["tensors"]["w"].requires_grad_(False)})["w"]
    assert shared.is_contiguous()
    with pytest.raises(InputError, match="it is damaged or cut short: save or copy it again"):
        load_tensors(__import__("pathlib").Path(__file__))


def test_checkpoints_of_others(tmp_path):
    with pytest.raises(InputError, match="no checkpoint at"):
        read_checkpoint(tmp_path / "nowhere.pt")
    torch.save({"w": torch.ones(2), "n": 3}, tmp_path / "a.pt")
    assert read_checkpoint(tmp_path / "a.pt")["n"] == 3
    torch.save([1, 2], tmp_path / "list.bin")
    with pytest.raises(InputError, match=r"list\.bin holds a list; a dict of tensors is needed"):
        read_checkpoint(tmp_path / "list.bin")
    torch.save({"w": np.random.default_rng}, tmp_path / "code.pth")
    with pytest.raises(InputError, match=r"cannot be read as tensors alone \(.*\); files that run code") as caught:
        read_checkpoint(tmp_path / "code.pth")
    assert "\n" not in str(caught.value)
    (tmp_path / "empty.pt").touch()
    with pytest.raises(InputError, match="cannot be read as tensors alone"):
        read_checkpoint(tmp_path / "empty.pt")
    from safetensors.torch import save_file

    save_file({"w": torch.ones(1)}, tmp_path / "a.safetensors")
    assert list(read_checkpoint(tmp_path / "a.safetensors")) == ["w"]
