"""Rules of the public code around the model: fused heads, negatives, temperature, loading; numbers by hand or slow code."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.functional import normalize

from calmrl.config import TrainConfig, load
from calmrl.errors import InputError
from calmrl.losses import PMRLLoss
from calmrl.losses.matching import draw
from calmrl.paper.vast.build import load_towers
from calmrl.paper.vast.checkpoints import load_vast
from calmrl.paper.vast.model import NAMES, VastModel
from calmrl.paper.vast.towers import resize_positions
from calmrl.training.plan import TrainerOptions
from calmrl.training.step import Step, freeze, make_optimiser
from calmrl.workflows.from_config import Data, build_step
from tests.support.tiny_models import (
    VAST,
    VAST_BEATS,
    as_vast,
    mixed,
    official_beats,
    seeded,
    tiny_inputs,
    tiny_vast,
)

PATTERNS = torch.tensor(
    [[v, a, True, s] for v in (True, False) for a in (True, False) for s in (True, False)], dtype=torch.bool
)


def pooled_one_by_one(model: VastModel, inputs: dict, row: int, present: torch.Tensor) -> dict[str, torch.Tensor]:
    """The pooled vectors of one row, each tower asked for that row alone."""
    vectors = {}
    for column, name in enumerate(NAMES):
        if present[row, column] and name != "text":
            at = int(present[:row, column].sum())
            value = inputs[name]
            own = {key: v[at : at + 1] for key, v in value.items()} if name == "subtitle" else value[at : at + 1]
            vectors[name] = model._tower(name, own)[1][0]
    return vectors


def test_the_first_stage_is_a_biased_layer_on_the_pooled_vectors_side_by_side() -> None:
    model, present = tiny_vast(), PATTERNS
    inputs = tiny_inputs(present, seed=3)
    z, tokens = model.encode(inputs, present)
    layers = {("vision", "audio"): "va", ("vision", "subtitle"): "vs", ("vision", "audio", "subtitle"): "vas"}
    used = set()
    for row in range(len(present)):
        pooled = pooled_one_by_one(model, inputs, row, present)
        key = layers.get(tuple(pooled))
        if key is None:
            wanted = normalize(sum((z[name][row] for name in pooled), torch.zeros(8)), dim=0)
        else:
            layer = model.fused[key]
            used.add(key)
            wanted = normalize(layer.weight @ torch.cat(list(pooled.values())) + layer.bias, dim=0)
        torch.testing.assert_close(tokens["fused"][row], wanted, atol=1e-5, rtol=1e-5)
    assert used == {"va", "vs", "vas"}
    assert not tokens["fused"][7].any()  # nothing but text


def test_without_fused_heads_it_is_the_sum() -> None:
    model = tiny_vast(first_stage="sum")
    assert model.fused is None
    assert "fused" not in model.encode(tiny_inputs(PATTERNS), PATTERNS)[1]
    assert VastModel.restore(**{**VAST, "names": ("vision", "text")}).fused is None  # saved before there were any


def test_fused_heads_and_temperature_come_from_the_checkpoint(tmp_path) -> None:
    source, model = tiny_vast(), tiny_vast(1)
    source.matching.temperature.fill_(0.031)
    torch.save(as_vast(source.state_dict(), VAST["audio_layers"]), tmp_path / "model_step_1.pt")
    report = load_vast(model, tmp_path / "model_step_1.pt")
    assert {"contra_head_vas.bias", "contra_head_va.weight", "contra_temp"} <= set(report.used)
    assert float(model.matching.temperature) == pytest.approx(0.031)
    present = mixed(4)
    inputs = tiny_inputs(present)
    torch.testing.assert_close(model.encode(inputs, present)[1]["fused"], source.encode(inputs, present)[1]["fused"])
    values = {"kind": "train", "method": "contrastive", "sources": {"a": {"features": "x"}}}
    values["objective"] = {"name": "contrastive", "learn_temperature": True}
    loss = build_step(TrainConfig.model_validate(values), Data({}, [], {}, []), model).objective
    assert float(loss.temperature(torch.zeros(()))) == pytest.approx(0.031)


def test_a_model_saved_without_a_temperature_keeps_the_one_it_was_built_with() -> None:
    model, state = tiny_vast(temperature=0.5), tiny_vast(1).state_dict()
    del state["matching.temperature"]
    model.load_state_dict(state)
    assert float(model.matching.temperature) == 0.5


def test_fused_heads_learn_from_their_own_term_only() -> None:
    present = PATTERNS.repeat(2, 1)[:15]
    inputs = tiny_inputs(present)
    for weight in (0.0, 1.0):
        model = tiny_vast(dropout=0.0).train()
        step = Step(model, PMRLLoss(), model.matching, 0.1, weight)
        step(inputs, present, seeded()).backward()
        learns = [p.grad is not None and bool(p.grad.any()) for p in model.fused.parameters()]
        assert learns == [bool(weight)] * 6
        assert ("fused" in step.last) == bool(weight)
    z, tokens = model.encode(inputs, present)
    has = present[:, [0, 1, 3]].any(1)
    scores = z["text"][:, None] * tokens["fused"][None]
    odds = (scores.sum(2)[has][:, has] / 0.07).double()
    alone = (z["text"][~has] @ tokens["fused"][has].T / 0.07).double()  # texts of rows with nothing else
    n = int(has.sum())
    there = 0.9 * odds.log_softmax(1).diag() + 0.1 * odds.log_softmax(1).mean(1)
    back = torch.cat([odds, alone]).T.log_softmax(1)
    back = 0.9 * back[:, :n].diag() + 0.1 * back.mean(1)
    assert step.last["fused"] == pytest.approx(float(-(there + back).mean() / 2), rel=1e-4)


def test_negatives_have_a_floor_and_the_own_row_counts_in_the_softmax() -> None:
    """Scores 9, 0, 1 of the own row and two others: weights e^0 / Z + 1e-4 and e^1 / Z + 1e-4, Z = e^9 + e^0 + e^1."""
    scores = torch.tensor([[9.0, 0.0, 1.0]])
    total = torch.tensor([9.0, 0.0, 1.0]).exp().sum()
    weights = torch.tensor([1.0, torch.e]) / total + 1e-4
    allowed = torch.ones(3, dtype=torch.bool)
    many, generator = 20_000, seeded()
    for floor, share in ((1e-4, weights[1] / weights.sum()), (None, torch.e / (1 + torch.e))):
        drawn = [draw(scores, allowed, slice(0, 1), generator, floor)[0].tolist() for _ in range(many // 10)]
        columns = torch.tensor(drawn)[:, 0]
        assert not (columns == 0).any()
        assert float((columns == 2).float().mean()) == pytest.approx(float(share), abs=0.04)
    nobody = draw(scores, torch.tensor([True, False, False]), slice(0, 1), generator, 1e-4)
    assert nobody[0, 1] == 0
    only = {int(draw(scores, torch.tensor([True, True, False]), slice(0, 1), generator, 1e-4)[0, 0]) for _ in range(50)}
    assert only == {1}


@pytest.mark.parametrize("first_stage", ["fused", "sum"])
def test_negatives_are_weighed_by_the_score_of_the_first_stage(monkeypatch, first_stage: str) -> None:
    """Without fused heads a text is compared with the mean of the others that the row has."""
    model, present = tiny_vast(first_stage=first_stage), PATTERNS[:6]
    z, tokens = model.encode(tiny_inputs(present), present)
    others = sum(z[name] for name in NAMES if name != "text") / present[:, [0, 1, 3]].sum(1, keepdim=True)
    items = tokens["fused"] if first_stage == "fused" else others
    seen = []

    def watch(scores, allowed, own, generator, floor):
        seen.append((scores, floor))
        return draw(scores, allowed, own, generator, floor)

    monkeypatch.setattr("calmrl.losses.matching.draw", watch)
    model.matching.temperature.fill_(0.2)
    model.matching(z, present, tokens=tokens, generator=seeded())
    torch.testing.assert_close(seen[0][0], z["text"] @ items.T / 0.2)
    torch.testing.assert_close(seen[1][0], items @ z["text"].T / 0.2)
    assert [floor for _, floor in seen] == [1e-4, 1e-4]


def test_tolerant_loading_reports_what_is_missing_unknown_and_renamed(tmp_path) -> None:
    source, model, file = tiny_vast(), tiny_vast(1), tmp_path / "model_step_1.pt"
    state = as_vast(source.state_dict(), VAST["audio_layers"])
    del state["audio_frame_embedding"]
    before = model.matching.frame["audio"].clone()
    state["video_frame_embedding"] = state.pop("vision_frame_embedding")
    state |= {"smell_encoder.weight": torch.zeros(3), "vision_encoder.visual.blocks.9.norm1.weight": torch.zeros(3)}
    torch.save(state, file)
    with pytest.raises(InputError, match="smell_encoder"):
        load_vast(model, file)
    report = load_vast(model, file, tolerant=True)
    assert report.unfilled == ["matching.frame.audio"]
    assert report.unknown == ["smell_encoder.weight", "vision_encoder.visual.blocks.9.norm1.weight"]
    assert report.renamed == {"video_frame_embedding": "vision_frame_embedding"}
    assert sorted([*report.used, *report.unused, *report.unknown]) == sorted(state)
    text = "\n".join(report.lines())
    assert all(word in text for word in ("stay random: matching", "smell_encoder", "video_frame_embedding for vision"))
    assert torch.equal(model.matching.frame["audio"], before)
    assert torch.equal(model.vision.norm.weight, source.vision.norm.weight)
    torch.save({name: value for name, value in state.items() if not name.startswith("audio_encoder")}, file)
    with pytest.raises(InputError, match="holds nothing for audio"):
        load_vast(model, file, tolerant=True)
    torch.save(state | {"contra_head_t.linear.weight": torch.zeros(3, 3)}, file)
    with pytest.raises(InputError, match=r"has shape \(3, 3\)"):
        load_vast(model, file, tolerant=True)


def test_positions_are_bilinear_in_a_checkpoint_of_vast_and_bicubic_in_a_vision_file(tmp_path) -> None:
    """2 x 2 places to 4 x 4 along a line: 0, 1 -> 0, 1/4, 3/4, 1 bilinear; bicubic overshoots."""
    line = torch.tensor([7.0, 0.0, 1.0, 0.0, 1.0]).view(1, 5, 1)
    assert resize_positions(line, (4, 4), "bilinear")[0, :5, 0].tolist() == [7.0, 0.0, 0.25, 0.75, 1.0]
    assert float(resize_positions(line, (4, 4))[0, 1, 0]) < 0
    source, model = tiny_vast(), tiny_vast(1, image_size=56)
    torch.save(as_vast(source.state_dict(), VAST["audio_layers"]), tmp_path / "model_step_1.pt")
    report = load_vast(model, tmp_path / "model_step_1.pt")
    assert report.changed == ["vision.pos_embed: 4 positions interpolated to 16, bilinear"]
    torch.testing.assert_close(model.vision.pos_embed, resize_positions(source.vision.pos_embed, (4, 4), "bilinear"))
    torch.save({f"visual.{name}": value for name, value in source.vision.state_dict().items()}, tmp_path / "eva.pt")
    (vision,) = load_towers(model, vision=tmp_path / "eva.pt")
    assert vision.changed == ["pos_embed: 4 positions interpolated to 16, bicubic"]


def test_layer_drop_and_gradient_decay_are_those_of_the_cfg(tmp_path) -> None:
    source = tiny_vast()
    cfg = VAST_BEATS | {"encoder_layerdrop": 0.05, "layer_wise_gradient_decay_ratio": 0.6}
    torch.save({"cfg": cfg, "model": official_beats(source.audio.state_dict(), 2)}, tmp_path / "beats.pt")
    model = tiny_vast(1)
    (report,) = load_towers(model, audio=tmp_path / "beats.pt")
    assert (model.audio.layer_drop, model.audio.gradient_decay) == (0.05, 0.6)
    assert report.changed == ["layer drop 0.05, as its cfg says", "gradient decay 0.6, as its cfg says"]
    assert VastModel.restore(**json.loads(json.dumps(model.arguments))).audio.layer_drop == 0.05
    own = tiny_vast(vision_drop_path=0.4, audio_gradient_decay=0.5)
    assert ([block.drop_path for block in own.vision.blocks], own.audio.gradient_decay) == ([0.0, 0.4], 0.5)
    kept = tiny_vast(1, audio_layer_drop=0.2)
    load_towers(kept, audio=tmp_path / "beats.pt", keep=["audio_layer_drop"])
    assert (kept.audio.layer_drop, kept.audio.gradient_decay) == (0.2, 0.6)


def test_rates_and_decay_are_those_of_the_public_code() -> None:
    model = tiny_vast()
    step = Step(model, PMRLLoss())
    names = {id(p): name for name, p in step.named_parameters()}
    rates = {"vision": 5e-7}
    optimiser = make_optimiser(step, TrainerOptions(learning_rate=1e-5, rates=rates, epsilon=1e-6, decay="names"))
    of = {
        names[id(p)]: (group["lr"], group["weight_decay"]) for group in optimiser.param_groups for p in group["params"]
    }
    assert {rate for name, (rate, _) in of.items() if name.startswith("model.vision.")} == {5e-7}
    assert {rate for name, (rate, _) in of.items() if not name.startswith("model.vision.")} == {1e-5}
    assert of["model.vision.blocks.0.norm1.weight"][1] == 0.01  # not called LayerNorm
    assert of["model.bert.embeddings.LayerNorm.weight"][1] == 0.0
    assert of["model.audio.encoder.layers.0.self_attn.relative_attention_bias.weight"][1] == 0.0
    assert of["model.heads.text.weight"][1] == 0.01
    assert optimiser.defaults["eps"] == 1e-6
    with pytest.raises(InputError, match=r'names "smell", but the towers of the model are: vision, audio, text'):
        make_optimiser(step, TrainerOptions(learning_rate=1e-5, rates={"smell": 1.0}))


def test_the_shipped_config_has_the_public_rules() -> None:
    config = load("paper-vast")
    model, optimiser = config.model, config.optimiser
    assert (model.first_stage, model.negatives, model.frames) == ("fused", "floored", 8)
    assert model.sizes == {"vision_drop_path": 0.4, "audio_layer_drop": 0.05, "audio_gradient_decay": 0.6}
    assert model.decoding.model_dump() == {
        **{"resize": "crop", "interpolation": "bilinear", "rounding": "nearest", "segments": "split"},
        **{"channel": "left", "resampling": "sinc", "padding": "zeros"},
    }
    assert (optimiser.rates, optimiser.epsilon) == ({"vision": 5e-7}, 1e-6)
    assert (optimiser.decay, optimiser.clip) == ("names", None)
    assert (optimiser.learning_rate, optimiser.betas, optimiser.warmup_ratio) == (1e-5, [0.9, 0.98], 0.1)
    assert (config.objective.temperature, config.objective.anchor_temperature) == (0.05, 0.1)
    assert (config.matching_weight, config.batch_size, config.fused_weight) == (0.1, 64, 0.0)


def test_the_configs_for_cards_differ_from_the_recipe_in_nothing_else() -> None:
    recipe, two, one = (load(name).model_dump() for name in ("paper-vast", "paper-vast-2x80gb", "paper-vast-24gb"))
    assert two == recipe
    assert (one.pop("batch_size"), recipe.pop("batch_size")) == (16, 64)
    own = {key: one["optimiser"].pop(key) for key in ("accumulate", "freeze")}
    assert {key: recipe["optimiser"].pop(key) for key in ("accumulate", "freeze")} == {"accumulate": 1, "freeze": []}
    assert one == recipe
    assert own["accumulate"] * 16 == 64
    assert one["model"]["gradient_checkpointing"]
    assert one["precision"] == "bf16"


def test_the_config_for_24_gb_freezes_36_of_40_vision_blocks() -> None:
    with torch.device("meta"):
        model, other = VastModel.from_sizes(), VastModel.from_sizes()
    whole = sum(parameter.numel() for parameter in model.parameters())
    freeze(model, load("paper-vast-24gb").optimiser.freeze)
    other.freeze(vision=36)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, parameter in other.named_parameters() if parameter.requires_grad}
    assert {int(name.split(".")[2]) for name in trained if name.startswith("vision.blocks.")} == {36, 37, 38, 39}
    frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    assert 0.7 < frozen / whole < 0.75
