"""The loop of training beside a slow, obvious twin, and what it says, saves and takes back."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from calmrl import CalibratedAlignment, GaussianImputer
from calmrl.data import Batches
from calmrl.errors import InputError
from calmrl.losses import ContrastiveLoss
from calmrl.models.heads import Heads
from calmrl.training import checkpoints as checkpoint
from calmrl.training import loop
from calmrl.training.checkpoints import read_records
from calmrl.training.loop import Trainer
from calmrl.training.plan import Stage, StopFlag, TrainerOptions, due, listening
from calmrl.training.step import Step, make_optimiser, schedule
from tests.support.train_data import WIDTHS, source


def small_step(objective=None) -> Step:
    torch.manual_seed(0)
    return Step(Heads(WIDTHS, 4), objective or ContrastiveLoss())


def trained(stages, step=None, run=(), **how) -> SimpleNamespace:
    """A run with everything that it said."""
    said, heard = [], []
    step = step or small_step()
    data = {name: how.pop(name) for name in ("out", "validation") if name in how}
    options = TrainerOptions(cpu=True, **{"batch_size": 16, **how})
    trainer = Trainer(step, stages, options, progress=lambda *what: said.append(what), listen=heard.append, **data)
    outcome = trainer.run(*run)
    by_kind = {
        kind: [record for record in heard if record["kind"] == kind] for kind in ("start", "train", "validation", "end")
    }
    return SimpleNamespace(trainer=trainer, step=step, outcome=outcome, said=said, heard=heard, **by_kind)  # fmt: skip


def one(**more) -> list[Stage]:
    return [Stage("one", [source(40)], **more)]


def test_a_trainer_without_more_words():
    trainer = Trainer(small_step(), one(steps=1))
    assert trainer.options == TrainerOptions()
    assert (trainer.average, trainer.records, trainer.tracking) == (None, None, False)
    group = trainer.optimiser.param_groups[0]
    assert (group["base"], group["betas"], group["eps"], group["weight_decay"]) == (1e-3, (0.9, 0.98), 1e-8, 0.01)
    run = trained(one(steps=2), validation=[source(12, seed=5)], validate_every=1, metric="R@5")
    assert run.outcome.best == max(record["R@5"] for record in run.validation)


def test_two_stages_are_what_a_plain_loop_does():
    """Batches, rates, accumulation, clipping and a fresh optimiser per stage, written out."""
    stages = [
        Stage("one", [source(40)], steps=3),
        Stage("two", [source(40, seed=3)], steps=2, rate=0.5, hide_one=True, composition="pattern"),
    ]
    how = {"learning_rate": 1e-2, "warmup_ratio": 0.5, "clip": 0.05, "weight_decay": 0.1}
    run = trained(stages, seed=7, accumulate=2, log_every=1, **how)

    twin, losses, norms, rates = small_step(), [], [], []
    twin.train()
    for number, stage in enumerate(stages):
        optimiser = make_optimiser(twin, TrainerOptions(learning_rate=1e-2, weight_decay=0.1))
        batches = Batches(
            stage.sources, 16, seed=7 + 1000 * number, hide_one=stage.hide_one, composition=stage.composition
        )
        stream = loop._endless(batches)
        for at in range(stage.steps):
            optimiser.zero_grad()
            for group in optimiser.param_groups:
                group["lr"] = 1e-2 * stage.rate * schedule(at, stage.steps, 0.5)
            parts = []
            for _ in range(2):
                batch = next(stream)
                parts.append(twin(batch["z"], batch["present"]))
                (parts[-1] / 2).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.05)))
            rates.append(optimiser.param_groups[0]["lr"])
            losses.append(float(torch.stack(parts).detach().mean()))
            optimiser.step()
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(run.step.state_dict()[name], tensor, msg=name)
    assert [record["loss"] for record in run.train] == pytest.approx(losses, rel=1e-5)
    assert [record["gradient_norm"] for record in run.train] == pytest.approx(norms, rel=1e-5)
    assert [record["learning_rate"] for record in run.train] == pytest.approx(rates)
    assert min(norms[:4]) > 0.05  # the premise: it was clipped
    assert [record["step"] for record in run.train] == [1, 2, 3, 4, 5]
    assert [(record["stage"], record["step"]) for record in run.start] == [("one", 0), ("two", 3)]
    assert run.outcome.steps == 5
    assert not run.outcome.stopped_early


def test_no_clipping_leaves_the_gradient(monkeypatch):
    asked = []
    trainer = Trainer(small_step(), one(steps=1), TrainerOptions(clip=None, batch_size=16, cpu=True))
    real = trainer.accelerator.clip_grad_norm_
    trainer.accelerator.clip_grad_norm_ = lambda part, most: asked.append(most) or real(part, most)
    trainer.run()
    assert asked == [float("inf")]


@pytest.mark.parametrize(
    ("length", "steps"),
    [({"epochs": 2.0}, 6), ({"epochs": 0.5}, 2), ({"epochs": 0.1}, 1), ({}, 3), ({"steps": 4, "epochs": 9.0}, 4)],
)
def test_how_many_steps_a_stage_has(length, steps):
    run = trained(one(**length), log_every=2)
    assert run.outcome.steps == steps
    assert (run.start[0]["updates"], run.start[0]["per_epoch"], run.start[0]["processes"]) == (steps, 3, 1)
    assert run.start[0]["left_out"] == 0
    assert sum(pattern["rows"] for pattern in run.start[0]["patterns"]) == 40
    assert [record["step"] for record in run.train] == sorted({*range(2, steps + 1, 2), steps})
    assert [(done, total) for done, total, _ in run.said] == [(step, steps) for step in range(1, steps + 1)]


def test_progress_says_the_loss_and_the_best_so_far():
    run = trained(one(steps=2), validation=[source(12, seed=5)], validate_every=1, log_every=1, learning_rate=0.0)
    first, second = (record["loss"] for record in run.train)
    assert run.said[0][2] == f"one  loss {first:.3f}"
    assert run.said[1][2] == f"one  loss {second:.3f}  best MRR {run.validation[0]['MRR']:.1f}"
    assert [record["rows"] for record in run.validation] == [12, 12]


@pytest.mark.parametrize(("fresh", "steps"), [(False, 5), (True, 6)])
def test_patience_counts_validations_and_begins_anew_in_every_stage(fresh, steps):
    """Nothing changes at rate 0, so only the first validation of a stage can be a better one."""
    stages = [Stage("one", [source(40)], steps=9), Stage("two", [source(40)], steps=9, fresh_best=fresh)]
    how = {"validation": [source(12, seed=5)], "validate_every": 1, "patience": 2, "learning_rate": 0.0}
    run = trained(stages, **how)
    assert run.outcome.steps == steps
    assert run.outcome.stopped_early
    assert run.outcome.best_step == (4 if fresh else 1)
    assert run.outcome.best == run.validation[0]["MRR"]
    (end,) = run.end
    assert (end["best_step"], end["stopped_early"], end["best"]) == (
        run.outcome.best_step,
        True,
        run.validation[0]["MRR"],
    )


def test_a_pause_goes_on_where_it_was():
    stages = [Stage("one", [source(40)], steps=3), Stage("two", [source(40, seed=3)], steps=3)]
    whole = trained(stages)
    for pause in (1, 3, 5):
        part = trained(stages, run=(False, pause))
        assert (part.outcome.steps, part.end) == (pause, [])
        assert part.trainer.run(until=pause).steps == pause  # nothing more
        assert part.trainer.run().steps == 6
        for name, tensor in whole.step.state_dict().items():
            assert torch.equal(part.step.state_dict()[name], tensor)


def test_draws_depend_on_the_seed_the_step_and_the_part():
    class Listening(Step):
        seeds: tuple[int, ...] = ()

        def forward(self, inputs, present, generator=None):
            self.seeds = (*self.seeds, generator.initial_seed())
            return super().forward(inputs, present, generator)

    step = Listening(Heads(WIDTHS, 4), ContrastiveLoss())
    trained(one(steps=4), step, seed=5, accumulate=2)
    expected = [hash((5, at, micro, 0)) for at in range(4) for micro in range(2)]
    assert min(expected) < 0  # the premise: some are negative
    assert list(step.seeds) == [seed % 2**63 for seed in expected]


def test_gradients_are_joined_with_the_last_part_only():
    trainer = Trainer(small_step(), one(steps=2), TrainerOptions(accumulate=3, batch_size=8, cpu=True))
    waits = []
    trainer.accelerator.no_sync = lambda module: waits.append(module) or nullcontext()
    trainer.run()
    assert waits == [trainer.module] * 4


def test_speed_and_shares_by_a_clock_that_ticks(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: 0.5 * next(ticks)))
    latent = iter(range(1000))
    monkeypatch.setattr(Step, "latent_seconds", property(lambda self: 0.125 * next(latent)))
    run = trained(one(steps=2), accumulate=2, log_every=1)
    counts = [len(batch["index"]) for batch in loop_batches(4)]
    assert [record["rows_per_s"] for record in run.train] == [sum(counts[:2]) / 0.5, sum(counts[2:]) / 0.5]
    assert [record["latent_share"] for record in run.train] == [0.25, 0.25]
    assert (run.outcome.seconds, run.outcome.latent_seconds) == (1.0, 0.25)
    assert (run.end[0]["seconds"], run.end[0]["latent_seconds"]) == (1.0, 0.25)
    assert run.trainer.rows == counts[3]


def loop_batches(count):
    stream = loop._endless(Batches([source(40)], 16))
    return [next(stream) for _ in range(count)]


# ---- imputers that are fitted now and then


class Counting(GaussianImputer):
    fits = 0

    def fit(self, z, present=None):
        type(self).fits += 1
        warnings.warn("not yet", ConvergenceWarning, stacklevel=2)
        return super().fit(z, present)


@pytest.mark.parametrize(("refit", "fits"), [(1, 3), (2, 2), (3, 1)])
def test_a_frozen_imputer_is_fitted_every_so_many_epochs(refit, fits, monkeypatch):
    monkeypatch.setattr(Counting, "fits", 0)
    most = []
    real = loop.encode_all
    monkeypatch.setattr(loop, "encode_all", lambda *a, **k: most.append(k.get("most")) or real(*a, **k))
    align = CalibratedAlignment(
        ContrastiveLoss(), imputer=Counting(2, max_iter=2, random_state=0), update="frozen", weight=0.5
    )
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        run = trained(one(steps=9), small_step(align), refit=refit)  # three epochs of three steps
        assert Counting.fits == fits
        run.trainer.take_best()
    assert Counting.fits == fits + 1
    assert not [one for one in heard if one.category is ConvergenceWarning]
    assert set(most) == {20_000}


# ---- what is held and written


def test_in_memory_the_best_weights_are_held():
    weights = {}
    step = small_step()

    def look(done, total, text):
        if done > 4:  # it goes wrong
            with torch.no_grad():
                step.model.heads["text"].weight.normal_()
        weights[done] = copy_of(step)

    options = TrainerOptions(validate_every=1, learning_rate=0.1, batch_size=16, cpu=True)
    trainer = Trainer(step, one(steps=6), options, validation=[source(30, seed=5)], progress=look)
    outcome = trainer.run(resume=True)  # there is nothing to resume from
    assert outcome.best_step < 5  # the premise: the last is not the best
    same(trainer.held.weights, weights[outcome.best_step])
    trainer.take_best()
    same(copy_of(step), weights[outcome.best_step])


def copy_of(step: Step) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in step.tensors().items()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_checkpoints_come_as_asked_and_the_best_or_the_last_is_taken(tmp_path):
    run = trained(one(steps=5), out=tmp_path, checkpoint_every=2, keep=9, ema=0.5)
    folder = tmp_path / "checkpoints"
    assert sorted(path.name[-1] for path in folder.iterdir()) == ["2", "4", "5"]
    assert run.trainer.records.file.closed
    waited = []
    run.trainer.accelerator.wait_for_everyone = lambda: waited.append(True)
    run.trainer.take_best()
    assert waited == [True]
    last = checkpoint.read(folder / "step-00000005")
    same(copy_of(run.step), last.ema)
    assert any(not torch.equal(last.ema[name], last.weights[name]) for name in last.weights)
    checkpoint.mark_best(folder, 2)
    run.trainer.take_best()
    same(copy_of(run.step), checkpoint.read(folder / "step-00000002").ema)


def test_without_resume_a_run_begins_again_and_with_it_nothing_is_left_to_do(tmp_path):
    how = {"out": tmp_path, "validation": [source(12, seed=5)], "validate_every": 1, "learning_rate": 0.0}
    trained(one(steps=3), **how)
    folder = tmp_path / "checkpoints"
    assert checkpoint.best(folder).name == "step-00000001"
    assert trained(one(steps=3), run=(False,), **how).train[-1]["step"] == 3
    assert [record["step"] for record in read_records(tmp_path / "metrics.jsonl", "train")] == [3, 3]
    again = trained(one(steps=3), run=(True,), **how)
    assert again.train == []
    assert again.outcome.steps == 3
    assert checkpoint.best(folder).name == "step-00000001"  # the newest is not the best


class Scaler:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale = state["scale"]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_scaler_and_the_random_state_of_as_many_processes_are_put_back(processes, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "gather_objects", lambda state: [state] * processes)
    options, accelerators = TrainerOptions(batch_size=16, cpu=True), []

    def trainer(**how):
        made = Trainer(small_step(), one(steps=1), options, out=tmp_path, **how)
        accelerators.append(made.accelerator)
        return made

    trainer(progress=lambda *_: setattr(accelerators[0], "scaler", Scaler(8.0))).run()  # from the last step on
    drawn = torch.rand(3)
    again = trainer()
    accelerators[1].scaler = Scaler(1.0)
    torch.manual_seed(5)
    again.run(resume=True)
    assert accelerators[1].scaler.scale == 8.0
    assert torch.equal(torch.rand(3), drawn) == (processes == 1)


def test_trackers_get_the_numbers_of_training_and_validation_and_are_closed():
    options = TrainerOptions(batch_size=16, log_every=1, cpu=True)
    trainer = Trainer(small_step(), one(steps=2), options, validation=[source(12, seed=5)])
    logged, ended = [], []
    trainer.tracking = True
    trainer.accelerator.log = lambda numbers, step: logged.append((step, numbers))
    trainer.accelerator.trackers = [SimpleNamespace(finish=lambda: ended.append(True))]
    trainer.run()
    assert [step for step, _ in logged] == [1, 2, 2]
    assert {name.split("/")[0] for _, numbers in logged for name in numbers} == {"train", "validation"}
    assert {"train/loss", "train/epoch"} <= logged[0][1].keys()
    assert not any(name.endswith("/stage") for _, numbers in logged for name in numbers)
    assert ended == [True]


def test_validation_rows_without_pairs_are_refused_before_the_first_step():
    with pytest.raises(InputError, match="no two modalities meet in two of the 1 validation rows"):
        Trainer(small_step(), one(steps=1), validation=[source(1)])


# ---- when something is due, and who asks to stop


@pytest.mark.parametrize(
    ("every", "at"), [(None, [3, 6]), (0, []), (1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (4, [4]), (7, [])]
)
def test_what_is_due_at_which_step(every, at):
    assert [step for step in range(1, 7) if due(step, every, epoch=3, last=False)] == at
    assert all(due(step, every, epoch=3, last=True) for step in range(1, 7))


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
