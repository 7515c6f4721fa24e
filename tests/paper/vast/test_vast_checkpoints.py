"""Public layouts load strictly; what does not fit is named; what is not used is reported; nothing unsafe is opened."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from calmrl.errors import InputError
from calmrl.paper.vast import checkpoints
from calmrl.paper.vast.build import load_towers
from calmrl.paper.vast.matching import build_bert
from calmrl.paper.vast.towers import Beats, EvaVit
from tests.support.tiny_models import (
    BEATS_CFG,
    EVA,
    VAST,
    VAST_BEATS,
    as_vast,
    mixed,
    official_beats,
    scramble,
    seeded,
    tiny_inputs,
    tiny_vast,
)


def tiny_eva(seed: int = 0, **changes) -> EvaVit:
    return scramble(EvaVit(**{**EVA, "output_width": 8, **changes}), seed).eval()


def eva_file(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    text = {"text.positional_embedding": torch.randn(7, 5), "logit_scale": torch.tensor(4.6)}
    return {f"visual.{name}": value for name, value in state.items()} | text


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(value, b.state_dict()[name]) for name, value in a.state_dict().items())


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "epoch": 3}, lambda s: {"module": s}])
def test_eva(tmp_path, wrap) -> None:
    source, model = tiny_eva(), tiny_eva(1)
    torch.save({f"module.visual.{name}": value for name, value in source.state_dict().items()}, tmp_path / "eva.pt")
    checkpoints.load_eva(tiny_eva(2), tmp_path / "eva.pt")
    torch.save(wrap(eva_file(source.state_dict())), tmp_path / "eva.pt")
    report = checkpoints.load_eva(model, tmp_path / "eva.pt")
    assert same(source, model)
    assert report.unused == ["text.positional_embedding", "logit_scale"]
    assert len(report.used) == len(source.state_dict())
    assert report.lines() == [
        f"{tmp_path / 'eva.pt'}: {len(report.used)} tensors used",
        "2 not used: text, logit_scale",
    ]


def test_eva_alone_in_half_precision_and_without_its_last_layer(tmp_path) -> None:
    source, model = tiny_eva(), tiny_eva(1, output_width=None)
    torch.save({name: value.half() for name, value in source.state_dict().items()}, tmp_path / "eva.pt")
    checkpoints.load_eva(model, tmp_path / "eva.pt")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    save_file(source.state_dict(), tmp_path / "eva.safetensors")
    report = checkpoints.load_eva(model, tmp_path / "eva.safetensors")
    assert sorted(report.unused) == ["head.bias", "head.weight"]
    assert same(model, source)


def test_eva_at_another_resolution(tmp_path) -> None:
    source, model = tiny_eva(), tiny_eva(1, image_size=56)
    torch.save(eva_file(source.state_dict()), tmp_path / "eva.pt")
    report = checkpoints.load_eva(model, tmp_path / "eva.pt")
    assert report.changed == ["pos_embed: 4 positions interpolated to 16, bicubic"]
    pictures = torch.randn(1, 3, 56, 56, generator=seeded())
    torch.testing.assert_close(model(pictures), source(pictures))  # which interpolates as it goes


def test_beats(tmp_path) -> None:
    source = scramble(Beats.from_cfg(BEATS_CFG)).eval()
    state = official_beats(source.state_dict(), BEATS_CFG["encoder_layers"])
    torch.save({"cfg": BEATS_CFG, "model": state}, tmp_path / "beats.pt")
    model, report = checkpoints.load_beats(tmp_path / "beats.pt")
    assert same(source, model)
    assert not report.unused
    state["encoder.layers.1.self_attn.relative_attention_bias.weight"] += 1
    torch.save({"cfg": BEATS_CFG, "model": state}, tmp_path / "beats.pt")
    with pytest.raises(InputError, match=r"layers\.1\.self_attn\.relative_attention_bias"):
        checkpoints.load_beats(tmp_path / "beats.pt")
    torch.save(state, tmp_path / "beats.pt")
    with pytest.raises(InputError, match="no dicts cfg and model"):
        checkpoints.load_beats(tmp_path / "beats.pt")


def test_bert(tmp_path) -> None:
    sizes = {"vocabulary": 30, "width": 8, "layers": 2, "heads": 2, "mlp_width": 16, "positions": 12}
    source = scramble(build_bert(**sizes, cross_attention=False)).eval()
    state = {f"bert.{name}": value for name, value in source.state_dict().items()}
    state = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
        for k, v in state.items()
    }
    state |= {"bert.pooler.dense.weight": torch.zeros(2), "cls.predictions.bias": torch.zeros(2)}
    save_file(state, tmp_path / "model.safetensors")
    model = scramble(build_bert(**sizes), 1)
    before = {name: value.clone() for name, value in model.state_dict().items() if ".crossattention." in name}
    report = checkpoints.load_bert(model, tmp_path)
    assert same(source, model)
    assert report.unused == ["bert.pooler.dense.weight", "cls.predictions.bias"]
    assert report.unfilled == list(before)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert "stay random: encoder.layer.* (20)" in report.lines()[-1]
    with pytest.raises(InputError, match=r"neither model.safetensors nor"):
        checkpoints.load_bert(model, tmp_path.parent)


@pytest.mark.parametrize("old", [False, True])
def test_vast(tmp_path, old: bool) -> None:
    source, model = tiny_vast(), tiny_vast(1)
    state = as_vast(source.state_dict(), VAST["audio_layers"])
    if old:
        state = {f"module.{name.replace('vision_frame', 'video_frame')}": value for name, value in state.items()}
        state = {name.replace("vision_encoder.", "evaclip_model."): value for name, value in state.items()}
    torch.save(state, tmp_path / "model_step_100.pt")
    report = checkpoints.load_vast(model, tmp_path / "model_step_100.pt")
    assert same(source, model)
    assert len(report.unused) == 7
    assert sorted([*report.used, *report.unused]) == sorted(state)
    present = mixed(3)
    inputs = tiny_inputs(present)
    for name, value in source(inputs, present).items():
        assert torch.equal(model(inputs, present)[name], value)


def test_vast_into_a_smaller_model_says_what_is_left_over(tmp_path) -> None:
    source = tiny_vast()
    torch.save(as_vast(source.state_dict(), VAST["audio_layers"]), tmp_path / "model_step_1.pt")
    model = tiny_vast(1, names=("vision", "text"), matching=False)
    report = checkpoints.load_vast(model, tmp_path / "model_step_1.pt")
    assert same(model, source)
    assert all(not name.startswith(("vision_encoder.visual.blocks", "contra_head_t")) for name in report.unused)
    assert {"contra_head_a.linear.weight", "itm_head.linear1.weight", "vision_frame_embedding"} <= set(report.unused)
    assert any(".crossattention." in name for name in report.unused)
    more = tiny_vast(2, frames=4)
    assert checkpoints.load_vast(more, tmp_path / "model_step_1.pt").changed == [
        "matching.frame.vision: 2 frames, nearest ones taken for 4"
    ]


def test_a_model_starts_from_the_files_of_its_encoders(tmp_path) -> None:
    source, model = tiny_vast(), tiny_vast(1)
    torch.save(eva_file(source.vision.state_dict()), tmp_path / "eva.pt")
    cfg = VAST_BEATS | {"encoder_layerdrop": 0.05}
    torch.save({"cfg": cfg, "model": official_beats(source.audio.state_dict(), 2)}, tmp_path / "beats.pt")
    (tmp_path / "bert").mkdir()
    plain = {name: value for name, value in source.bert.state_dict().items() if ".crossattention." not in name}
    save_file(plain, tmp_path / "bert" / "model.safetensors")
    before = model.heads["text"].weight.clone()
    files = {"vision": tmp_path / "eva.pt", "audio": tmp_path / "beats.pt", "text": tmp_path / "bert"}
    reports = load_towers(model, **files)
    assert [len(report.unfilled) for report in reports] == [0, 0, 20]
    assert same(source.vision, model.vision)
    assert same(source.audio, model.audio)
    assert all(torch.equal(model.bert.state_dict()[name], value) for name, value in plain.items())
    assert torch.equal(model.heads["text"].weight, before)
    with pytest.raises(InputError, match="max_distance 12 but the model was built with 99"):
        load_towers(tiny_vast(1, audio_max_distance=99), audio=tmp_path / "beats.pt")


def test_keys_that_do_not_fit_are_named(tmp_path) -> None:
    source, model, file = tiny_vast(), tiny_vast(1), tmp_path / "model_step_1.pt"
    state = as_vast(source.state_dict(), VAST["audio_layers"])
    cases = [
        ('lacks "bert.encoder.layer.1.output.dense.bias"', "multimodal_encoder.bert.encoder.layer.1.output.dense.bias"),
        ('lacks "heads.audio.weight"', "contra_head_a.linear.weight"),
        ('lacks "matching.kind.subtitle"', "subtitle_type_embeddings"),
    ]
    for said, key in cases:
        torch.save({name: value for name, value in state.items() if name != key}, file)
        with pytest.raises(InputError, match=said):
            checkpoints.load_vast(model, file)
    for key in ("vision_encoder.visual.blocks.9.norm1.weight", "audio_encoder.surprise", "itm_head.linear3.weight"):
        torch.save(state | {key: torch.zeros(3)}, file)
        with pytest.raises(InputError, match=f'has "{key}", which the model does not know'):
            checkpoints.load_vast(model, file)
    torch.save(state | {"smell_encoder.weight": torch.zeros(3)}, file)
    with pytest.raises(InputError, match=r'the key "smell_encoder.weight", which is not one of VAST'):
        checkpoints.load_vast(model, file)
    torch.save(state | {"contra_head_t.linear.weight": torch.zeros(3, 3)}, file)
    with pytest.raises(InputError, match=r'"contra_head_t.linear.weight" of .* has shape \(3, 3\) but the model needs'):
        checkpoints.load_vast(model, file)


@pytest.mark.parametrize("layers", [2, 4])
def test_eva_of_another_depth_is_refused(tmp_path, layers: int) -> None:
    torch.save(eva_file(tiny_eva().state_dict()), tmp_path / "eva.pt")
    said = 'has "visual.blocks.2' if layers == 2 else 'lacks "blocks.3'
    with pytest.raises(InputError, match=said):
        checkpoints.load_eva(tiny_eva(1, layers=layers), tmp_path / "eva.pt")


def test_what_became_of_a_checkpoint_in_words() -> None:
    report = checkpoints.Report(
        "f",
        used=["a"] * 3,
        unused=["x.y.a", "x.y.b", "z"],
        unfilled=["m.n.o", "a.b", "a.c"],
        unknown=["q"],
        renamed={"old": "new", "b": "c"},
        changed=["pos: 4 to 9"],
    )
    assert report.lines() == [
        "f: 3 tensors used",
        "pos: 4 to 9",
        "2 keys have old names, such as old for new",
        "1 keys are unknown and left out: q",
        "3 not used: x.y.* (2), z",
        "3 parameters not in the file stay random: m.n, a.* (2)",
    ]
    assert checkpoints.Report("f").lines() == ["f: 0 tensors used"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({3: torch.ones(1)}, "a key is 3 where texts are needed; this is not a state dict"),
        ({"a": torch.ones(1), "b": 1}, '"b" is not a tensor; this is not a state dict'),
        ({"model": 3}, '"model" is not a tensor'),
        ({"state_dict": {"a": 1}, "model": {"b": torch.ones(1)}}, '"a" is not a tensor'),
    ],
)
def test_state_dicts_are_tensors_under_texts(tmp_path, content: dict, message: str) -> None:
    torch.save(content, tmp_path / "eva.pt")
    with pytest.raises(InputError, match=message):
        checkpoints.load_eva(tiny_eva(), tmp_path / "eva.pt")


def test_at_most_five_keys_are_named(tmp_path) -> None:
    state = {f"surprise.{name}": torch.zeros(1) for name in "abcdefg"}
    torch.save(tiny_eva().state_dict() | state, tmp_path / "eva.pt")
    with pytest.raises(
        InputError, match=r'has "surprise\.a", .*"surprise\.e" and 2 more, which the model does not know'
    ):
        checkpoints.load_eva(tiny_eva(), tmp_path / "eva.pt")


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("vision_encoder.visual.pos_embed", (1, 5, 3)),
        ("vision_encoder.visual.pos_embed", (5, 24)),
        ("vision_frame_embedding", (1, 8, 3)),
    ],
)
def test_positions_of_another_width_are_not_interpolated(tmp_path, key: str, shape: tuple[int, ...]) -> None:
    state = as_vast(tiny_vast().state_dict(), VAST["audio_layers"])
    torch.save(state | {key: torch.zeros(shape)}, tmp_path / "model_step_1.pt")
    with pytest.raises(InputError, match=f'"{key}" of .* but the model needs'):
        checkpoints.load_vast(tiny_vast(1), tmp_path / "model_step_1.pt")


@pytest.mark.parametrize(
    ("tower", "names"), [("vision", ("audio", "text")), ("audio", ("vision", "text")), ("text", ("vision",))]
)
def test_files_for_towers_that_are_not_there(tower: str, names: tuple[str, ...]) -> None:
    model = tiny_vast(names=names, matching=False)
    with pytest.raises(InputError, match=f"the model has no {tower}; leave its file out"):
        load_towers(model, **{tower: "file"})
    assert load_towers(model) == []
