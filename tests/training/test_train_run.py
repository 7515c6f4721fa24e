"""Training runs: they learn, every shipped config takes a step, options do what they say, the result loads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import calmrl as package
from calmrl.config import load, shipped, shipped_text
from calmrl.data.features.writer import write_features
from calmrl.errors import InputError
from calmrl.losses import ConfuLoss
from calmrl.metrics import retrieval
from calmrl.models.saved import Trained
from calmrl.training import checkpoints as checkpoint
from calmrl.training.methods import METHODS
from calmrl.training.step import Step
from calmrl.workflows.from_config import build_step, build_trainer, open_data
from calmrl.workflows.train import fixed_calibration, train
from tests.support.train_data import WIDTHS, calmrl, config, config_file, records, rows

TRAINED = [name for name in shipped() if "kind: train" in shipped_text(name) and "kind: vast" not in shipped_text(name)]


def in_memory(cfg, **more):
    data = open_data(cfg)
    step = build_step(cfg, data)
    trainer = build_trainer(cfg, data, step, None, **more)
    return data, step, trainer


def volume(t, image, audio):
    """Of the parallelotope of three unit vectors."""
    vectors = torch.stack([t, image, audio])
    return torch.linalg.det(vectors @ vectors.T).abs().sqrt()


def area(t, image, audio):
    """Of the triangle of three points."""
    a, b = image - t, audio - t
    return ((a @ a) * (b @ b) - (a @ b) ** 2).clamp(min=0).sqrt() / 2


def product(t, image, audio):
    """The multilinear inner product, the larger the closer."""
    return -(t * image * audio).sum()


def own_recall(z, present, distance=None):
    """R@1 in percent: by cosine in all directions; with a distance, of text among complete rows, and in pairs by cosine."""
    scores = []
    for a, b in itertools.permutations(range(3), 2):
        both = (
            present[:, a]
            & present[:, b]
            & (torch.ones(len(present), dtype=torch.bool) if distance is None else ~present.all(1))
        )
        if distance is None or 1 in (a, b):
            scores.append(retrieval(list(z.values())[a][both], list(z.values())[b][both])["R@1"])
    if distance is not None:
        rows = present.all(1).nonzero()[:, 0].tolist()
        table = torch.tensor([[distance(z["text"][i], z["image"][j], z["audio"][j]) for j in rows] for i in rows])
        scores.append(100 * float((table.argmin(1) == torch.arange(len(rows))).double().mean()))
    return scores


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.steps and not method.ideal])
def test_overfits_64_rows(method, tmp_path):
    """Train R@1 by the method's own score: volume and area do not order pairs by cosine."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(84, 8))
    z = {
        name: (shared @ rng.normal(size=(8, 64)) + 4 * rng.normal(size=(84, 64))).astype(np.float32) for name in WIDTHS
    }
    present = np.ones((84, 3), dtype=bool)
    present[np.arange(20, 62), np.arange(42) % 3] = False
    write_features(tmp_path / "a", z, present, split=["val"] * 20 + ["train"] * 64)
    objective = {"name": "pmrl", "temperature": 0.5} if METHODS[method].objective == "pmrl" else None
    cfg = config(
        tmp_path, method=method, sources={"a": {"features": "a"}}, objective=objective, batch_size=64,
        model={"kind": "heads", "width": 16, "init": "latent", "standardize": "scale"},
        stages=[{"steps": 250}], validation={"every": 0},
        optimiser={"learning_rate": 1e-2, "weight_decay": 0.0},
        **({"calibration": {"imputer": {"method": "gaussian", "latent_dim": 8}}} if METHODS[method].calibrated else {}),
    )  # fmt: skip
    data, step, trainer = in_memory(cfg)
    trainer.run()
    home = data.train["a"]
    assert len(home) == 64
    seen = torch.from_numpy(home.present)
    with torch.no_grad():
        found = step.model(home.fetch(np.arange(64), home.present, 0), seen)
    if method == "vast":  # text with each other modality, and nothing else
        found, seen = {name: found[name] for name in ("text", "image", "audio")}, seen[:, [1, 0, 2]]
        scores = []
        for j, name in ((1, "image"), (2, "audio")):
            both = seen[:, 0] & seen[:, j]
            scores += [retrieval(found["text"][both], found[name][both])["R@1"]]
    else:
        scores = own_recall(found, seen, {"gram": volume, "triangle": area, "symile": product}.get(method))
    assert np.mean(scores) > 98, scores


def stand_in(cfg, folder):
    """Directories with the names, and of the shape, that the config asks for."""
    rng = np.random.default_rng(0)
    has = {"vast150k": cfg.modalities, "msrvtt": ["vision", "text"], "audiocaps": ["audio", "text"]}
    has |= {"vggsound": cfg.modalities, "ucf101": ["vision", "text"]}
    for section in cfg.sources.values():
        if section.features is not None:
            z = {name: rng.normal(size=(80, 12)).astype(np.float32) for name in has[section.features]}
            write_features(folder / section.features, z, split=["val"] * 8 + ["train"] * 72)


@pytest.mark.parametrize("name", TRAINED)
def test_every_shipped_config_parses_and_takes_a_step_in_every_stage(name, tmp_path):
    cfg = load(name, [f"root={tmp_path}"], kind="train")
    stand_in(cfg, tmp_path)
    changes = [f"stages.{i}.{key}" for i in range(len(cfg.stages)) for key in ("epochs=null", "steps=1")]
    if cfg.method == "aligner":
        changes.append("model.candidates=2")  # what is chosen is not the question here
    cfg = load(name, [f"root={tmp_path}", *changes], kind="train")
    train(cfg, tmp_path / "out")
    assert records(tmp_path / "out", "end")[0]["step"] == len(cfg.stages)
    assert package.load(tmp_path / "out").names == tuple(cfg.modalities)


@pytest.mark.parametrize("name", ["paper-retrieval", "paper-classification"])
def test_the_paper_configs_list_all_that_is_missing(name, tmp_path):
    cfg = load(name, [f"root={tmp_path}"], kind="train")
    with pytest.raises(InputError) as caught:
        train(cfg, tmp_path / "out")
    for section in cfg.sources.values():
        assert f"no features at {tmp_path / section.features}\n" in str(caught.value)
        assert section.needs in str(caught.value)
    assert f"{len(cfg.sources)} of {len(cfg.sources)} sources cannot be opened" in str(caught.value)
    assert not (tmp_path / "out").exists()


GAUSSIAN = {"imputer": {"method": "gaussian", "latent_dim": 4}}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "calibration",
    [
        GAUSSIAN,
        {**GAUSSIAN, "update": "gradient"},
        {**GAUSSIAN, "certainty": True},
        {"imputer": {"method": "knn"}},
        None,
    ],
    ids=["stepwise", "gradient", "certainty", "knn", "none"],
)
def test_the_export_equals_the_step_for_any_subset(calibration, tmp_path):
    more = {"method": "pmrl"} if calibration is None else {"calibration": calibration}
    cfg = config(tmp_path, stages=[{"steps": 6}], matching={"hidden": 8, "layers": 1, "heads": 2}, **more)
    data = open_data(cfg)
    step = build_step(cfg, data)
    trainer = build_trainer(cfg, data, step, tmp_path / "run")
    (tmp_path / "run").mkdir()
    outcome = trainer.run()
    trainer.take_best()
    from calmrl.workflows.train import export

    export(step, cfg, outcome, tmp_path / "run" / "model")
    held = Trained(step.model, fixed_calibration(step), step.matching)
    loaded = package.load(tmp_path / "run")
    z, _ = rows(9, seed=5)
    for size in (1, 2, 3):
        for names in itertools.combinations(WIDTHS, size):
            part = {name: z[name] for name in names}
            for kind in (lambda a: a, torch.from_numpy):
                given = {name: kind(array) for name, array in part.items()}
                for call in ("encode", "embed") if calibration is None else ("encode", "transform", "embed"):
                    a, b = getattr(loaded, call)(given), getattr(held, call)(given)
                    a, b = (a, b) if isinstance(a, dict) else ({"u": a}, {"u": b})
                    for name in a:
                        assert type(a[name]) is type(next(iter(given.values())))
                        np.testing.assert_array_equal(np.asarray(a[name]), np.asarray(b[name]))
                    if call != "encode":
                        assert all(np.isfinite(np.asarray(v)).all() and len(v) == 9 for v in a.values())
            encoded, present = loaded.encode(part), np.array([[name in names for name in WIDTHS]] * 9)
            inputs = {name: torch.from_numpy(np.where(name in names, z[name], 0)) for name in WIDTHS}
            with torch.no_grad():
                direct = step.model(inputs, torch.from_numpy(present))
            for name in names:
                np.testing.assert_array_equal(encoded[name], direct[name].numpy())
                np.testing.assert_allclose(np.linalg.norm(encoded[name], axis=1), 1, atol=1e-5)
            assert all(np.isnan(encoded[name]).all() for name in set(WIDTHS) - set(names))
    t = torch.nn.functional.normalize(torch.randn(4, 8), dim=1)
    others, has = {"image": t, "audio": t}, torch.ones(4, 2, dtype=torch.bool)
    assert torch.equal(loaded.matching.logits(t, others, has), step.matching.logits(t, others, has))
    if calibration is None:
        with pytest.raises(InputError, match="cannot impute"):
            loaded.transform({"text": z["text"]})


def test_frozen_parameters_stay(tmp_path):
    cfg = config(tmp_path, stages=[{"steps": 3}], optimiser={"learning_rate": 1e-2, "freeze": ["heads.text.*"]})
    data, step, trainer = in_memory(cfg)
    before = {name: tensor.clone() for name, tensor in step.model.named_parameters()}
    trainer.run()
    for name, tensor in step.model.named_parameters():
        assert torch.equal(tensor, before[name]) == name.startswith("heads.text."), name
    with pytest.raises(InputError, match=r'no parameter is named "heads\.txt'):
        build_step(config(tmp_path, optimiser={"freeze": ["heads.txt.*"]}), data)
    with pytest.raises(InputError, match="every parameter is frozen"):
        in_memory(config(tmp_path, method="pmrl", optimiser={"freeze": ["*"]}))
    with pytest.raises(InputError, match="has no encoders"):
        in_memory(config(tmp_path, optimiser={"encoder_learning_rate": 1e-5}))


def test_a_latent_module_is_neither_decayed_nor_clipped_with_the_rest(tmp_path):
    _, step, trainer = in_memory(config(tmp_path, calibration={**GAUSSIAN, "update": "gradient"}))
    latent = {id(p) for p in step.latent_parameters()}
    assert latent
    for group in trainer.optimiser.param_groups:
        for p in group["params"]:
            assert id(p) not in latent or group["weight_decay"] == 0
    assert {id(p) for p in trainer.clipped[1]} == latent


def test_accumulation_steps_once_for_two_batches(tmp_path):
    cfg = config(tmp_path, batch_size=32, optimiser={"learning_rate": 1e-2, "accumulate": 2})
    train(cfg, tmp_path / "out")
    start = records(tmp_path / "out", "start")[0]
    assert (start["per_epoch"], start["updates"]) == (3, 9)  # 144 rows are 5 batches
    assert records(tmp_path / "out", "end")[0]["step"] == 9


def test_the_average_of_weights_is_kept_and_exported(tmp_path):
    cfg = config(
        tmp_path, stages=[{"steps": 4}], optimiser={"learning_rate": 1e-2, "ema": 0.5}, validation={"every": 0}
    )
    train(cfg, tmp_path / "out")
    saved = checkpoint.read(checkpoint.newest(tmp_path / "out" / "checkpoints"))
    model = package.load(tmp_path / "out").model.state_dict()
    for name, tensor in model.items():
        assert torch.equal(tensor, saved.ema[f"model.{name}"])
    assert not torch.equal(saved.ema["model.heads.text.weight"], saved.weights["model.heads.text.weight"])


def test_records_hold_what_they_promise(tmp_path):
    cfg = config(tmp_path, matching={"hidden": 8, "layers": 1, "heads": 2})
    train(cfg, tmp_path / "out")
    from calmrl.training.checkpoints import read_records

    kinds = {record["kind"]: record for record in read_records(tmp_path / "out" / "metrics.jsonl")}
    assert {"loss", "align", "instance", "matching", "gradient_norm", "learning_rate", "saturation", "rows_per_s",
            "latent_share", "missing", "epoch", "waited_s"} <= set(kinds["train"])  # fmt: skip
    assert {"R@1", "recall", "latent_log_likelihood", "imputation_nmse", "shift_observed", "shift_calibrated"} <= set(
        kinds["validation"]
    )
    assert sum(part["rows"] for part in kinds["start"]["patterns"]) == 144
    assert kinds["end"]["seconds"] > kinds["end"]["latent_seconds"] > 0


def test_bf16_and_tensorboard_on_the_command_line(tmp_path):
    path = config_file(tmp_path, stages=[{"steps": 12}], precision="bf16", trackers=["tensorboard"])
    done = calmrl("train", path, "--out", tmp_path / "out")
    assert "the latent model took" in done.stderr
    assert done.stdout.strip() == str(tmp_path / "out" / "model")
    losses = [record["loss"] for record in records(tmp_path / "out", "train")]
    assert len(losses) == 12
    assert all(np.isfinite(losses))
    events = list((tmp_path / "out").rglob("events.out.tfevents*"))
    assert events
    assert max(file.stat().st_size for file in events) > 500
    assert all(t.dtype != torch.bfloat16 for t in package.load(tmp_path / "out").model.state_dict().values())


def test_a_step_with_broken_representations_is_nan_and_teaches_nothing(tmp_path):
    data, step, _ = in_memory(config(tmp_path))
    home = data.train["a"]
    inputs, present = home.fetch(np.arange(8), home.present[:8], 0), torch.from_numpy(home.present[:8])
    step.train()
    step(inputs, present)
    before = step.calibration.imputer.n_iter_
    with torch.no_grad():
        step.model.heads["text"].weight[0, 0] = torch.nan
    assert torch.isnan(step(inputs, present))
    assert step.calibration.imputer.n_iter_ == before
    assert isinstance(step, Step)


# ---- published objectives


def test_what_an_objective_says_of_itself_is_recorded(tmp_path):
    train(config(tmp_path, method="structure", stages=[{"steps": 4}]), tmp_path / "structure")
    rows = records(tmp_path / "structure", "train")
    assert [row["weight"] for row in rows] == [0.0, 0.5, 1.0, 1.5]
    assert all(row["structure"] > 0 for row in rows)
    train(config(tmp_path, method="confu", stages=[{"steps": 2}]), tmp_path / "confu")
    assert all(row["pairs"] > 0 and row["fused"] > 0 for row in records(tmp_path / "confu", "train"))


def test_the_same_seed_mixes_the_same_and_another_does_not(tmp_path):
    for name, seed in (("one", 0), ("two", 0), ("other", 3)):
        train(config(tmp_path, method="fusemix", stages=[{"steps": 4}], seed=seed), tmp_path / name)
    one, two, other = (records(tmp_path / name, "train") for name in ("one", "two", "other"))
    assert one == two
    assert [row["loss"] for row in one] != [row["loss"] for row in other]


def test_confu_has_weights_for_the_pairs_of_the_model_and_trains_them(tmp_path):
    cfg = config(tmp_path, method="confu", stages=[{"steps": 3}])
    data = open_data(cfg)
    step = build_step(cfg, data)
    assert isinstance(step.objective, ConfuLoss)
    assert step.objective.names == ("image", "text", "audio")
    before = [parameter.detach().clone() for parameter in step.objective.parameters()]
    assert len(before) == 12
    build_trainer(cfg, data, step).run()
    assert all(not torch.equal(a, b) for a, b in zip(before, step.objective.parameters(), strict=True))
    plain = config(tmp_path, method="confu", objective={"name": "confu", "fusion": "mean"})
    assert not list(build_step(plain, open_data(plain)).objective.parameters())
