"""The towers: official names, the same numbers as the slow twins, other resolutions, checkpointing, freezing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmrl.errors import InputError
from calmrl.models.vast.beats import Beats, relative_buckets
from calmrl.models.vast.eva import EvaVit, resize_positions
from reference import models as twin
from tiny_models import BEATS_CFG, EVA, beats_names, eva_names, official_beats, scramble, seeded


def tiny_eva(**changes) -> EvaVit:
    return scramble(EvaVit(**{**EVA, "output_width": 8, **changes})).eval()


def tiny_beats(**changes) -> Beats:
    return scramble(Beats.from_cfg({**BEATS_CFG, **changes})).eval()


def test_eva_has_the_official_names_and_sizes() -> None:
    assert set(tiny_eva().state_dict()) == eva_names(EVA["layers"])
    with torch.device("meta"):
        real = EvaVit()
    shapes = {name: tuple(value.shape) for name, value in real.state_dict().items()}
    assert set(shapes) == eva_names(40)
    assert shapes["pos_embed"] == (1, 257, 1408)
    assert shapes["patch_embed.proj.weight"] == (1408, 3, 14, 14)
    assert shapes["blocks.39.attn.qkv.weight"] == (4224, 1408)
    assert shapes["blocks.0.mlp.fc1.weight"] == (6144, 1408)
    assert shapes["head.weight"] == (1024, 1408)
    assert 1.01e9 < sum(p.numel() for p in real.parameters()) < 1.02e9


def test_eva_agrees_with_its_twin() -> None:
    model = tiny_eva().double()
    pictures = torch.randn(2, 3, 28, 28, generator=seeded(), dtype=torch.float64)
    slow = torch.stack([twin.eva(picture, dict(model.state_dict()), EVA["heads"]) for picture in pictures])
    torch.testing.assert_close(model(pictures), slow, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(model.float()(pictures.float()), slow.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.project(slow.float()), model.head(slow[:, 0].float()))


def test_beats_has_the_official_names_and_sizes() -> None:
    layers = BEATS_CFG["encoder_layers"]
    state = tiny_beats().state_dict()
    assert set(official_beats(state, layers)) == beats_names(layers)
    with torch.device("meta"):
        real = Beats()
    shapes = {name: tuple(value.shape) for name, value in real.state_dict().items()}
    assert shapes["encoder.pos_conv.0.weight_v"] == (768, 48, 128)
    assert shapes["encoder.pos_conv.0.weight_g"] == (1, 1, 128)
    assert shapes["encoder.layers.0.self_attn.relative_attention_bias.weight"] == (320, 12)
    assert shapes["encoder.layers.5.self_attn.grep_linear.weight"] == (8, 64)
    assert shapes["encoder.layers.5.self_attn.grep_a"] == (1, 12, 1, 1)
    assert shapes["post_extract_proj.weight"] == (768, 512)
    assert 90e6 < sum(p.numel() for p in real.parameters()) < 91e6


def test_beats_agrees_with_its_twin() -> None:
    model = tiny_beats().double()
    sounds = torch.randn(2, 96, 32, generator=seeded(1), dtype=torch.float64)  # 12 tokens: near and far buckets
    arguments = (BEATS_CFG["encoder_attention_heads"], BEATS_CFG["conv_pos_groups"], BEATS_CFG["max_distance"])
    slow = torch.stack([twin.beats(sound, dict(model.state_dict()), *arguments) for sound in sounds])
    torch.testing.assert_close(model(sounds), slow, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(model.float()(sounds.float()), slow.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("part", ["grep_a", "grep_linear.weight", "relative_attention_bias.weight", "weight_g"])
def test_every_part_of_beats_matters(part: str) -> None:
    model, sound = tiny_beats(), torch.randn(1, 64, 32, generator=seeded(2))
    before = model(sound)
    with torch.no_grad():
        next(value for name, value in model.named_parameters() if name.endswith(part)).mul_(1.5)
    assert (model(sound) - before).abs().max() > 1e-4


@given(st.integers(-1500, 1500), st.sampled_from([(16, 12), (320, 800), (32, 128)]))
@settings(deadline=None)
def test_buckets(distance: int, sizes: tuple[int, int]) -> None:
    fast = int(relative_buckets(torch.tensor(distance), *sizes))
    assert 0 <= fast < sizes[0]
    assert abs(fast - twin.bucket(distance, *sizes)) <= (1 if abs(distance) >= sizes[0] // 4 else 0)
    assert fast == int(relative_buckets(torch.tensor([distance, -distance]), *sizes)[0])


def test_the_shared_bias_may_be_repeated_but_not_differ() -> None:
    model, layers = tiny_beats(), BEATS_CFG["encoder_layers"]
    state = official_beats(scramble(tiny_beats(), 3).state_dict(), layers)
    model.load_state_dict(state)
    state["encoder.layers.2.self_attn.relative_attention_bias.weight"] += 1
    with pytest.raises(RuntimeError, match=r"layers\.2\.self_attn\.relative_attention_bias"):
        model.load_state_dict(state)


def test_a_cfg_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match="layer_norm_first=True"):
        tiny_beats(layer_norm_first=True)
    with pytest.raises(InputError, match="has no input_patch_size"):
        Beats.from_cfg({key: value for key, value in BEATS_CFG.items() if key != "input_patch_size"})
    with pytest.raises(InputError, match="gru_rel_pos=False"):  # the public default
        Beats.from_cfg({key: value for key, value in BEATS_CFG.items() if key != "gru_rel_pos"})


def test_what_a_cfg_does_not_say_has_the_public_default() -> None:
    optional = ("encoder_layerdrop", "deep_norm", "layer_wise_gradient_decay_ratio", "dropout")
    model = Beats.from_cfg({key: value for key, value in BEATS_CFG.items() if key not in optional})
    assert (model.layer_drop, model.gradient_decay, model.deep_norm) == (0.0, 1.0, False)
    assert [(layer.alpha, layer.drops[0]) for layer in model.encoder.layers] == [(1.0, 0.1)] * 3
    deep = Beats.from_cfg(BEATS_CFG | {"encoder_layerdrop": 0.05, "layer_wise_gradient_decay_ratio": 0.6})
    assert (deep.layer_drop, deep.gradient_decay) == (0.05, 0.6)
    assert deep.encoder.layers[0].alpha == pytest.approx(6**0.25)


def test_positions_for_other_resolutions() -> None:
    model = tiny_eva()
    assert resize_positions(model.pos_embed, (2, 2)) is model.pos_embed
    flat = torch.ones(1, 17, 3) * torch.arange(3)
    assert torch.allclose(resize_positions(flat, (7, 5)), torch.ones(1, 36, 3) * torch.arange(3), atol=1e-5)
    ramp = torch.cat([torch.zeros(1, 1, 1), torch.arange(4.0).repeat(4)[None, :, None]], dim=1)  # grows to the right
    wide = resize_positions(ramp, (4, 8))[0, 1:, 0].view(4, 8)
    assert (wide.diff(dim=1) > 0).all()
    assert torch.allclose(wide[0], wide[3])
    assert model(torch.randn(1, 3, 42, 56)).shape == (1, 13, EVA["width"])
    with pytest.raises(InputError, match="multiples of 14"):
        model(torch.randn(1, 3, 30, 28))
    with pytest.raises(InputError, match="not those of a square"):
        resize_positions(torch.zeros(1, 8, 2), (2, 2))


@pytest.mark.parametrize(
    ("model", "shape"), [(tiny_eva(), (3, 3, 28, 28)), (tiny_beats(), (3, 64, 32))], ids=["eva", "beats"]
)
def test_checkpointing_changes_no_gradient(model: torch.nn.Module, shape: tuple[int, ...]) -> None:
    inputs = torch.randn(shape, generator=seeded(4))
    gradients = []
    for model.checkpointing in (False, True):
        model.zero_grad()
        model(inputs).square().mean().backward()
        gradients.append([p.grad.clone() for name, p in model.named_parameters() if not name.startswith("head")])
    for plain, again in zip(*gradients, strict=True):
        assert plain.abs().max() > 0
        torch.testing.assert_close(plain, again)


@pytest.mark.parametrize(
    ("model", "shape"), [(tiny_eva(), (2, 3, 28, 28)), (tiny_beats(), (2, 64, 32))], ids=["eva", "beats"]
)
def test_bfloat16_stays_close(model: torch.nn.Module, shape: tuple[int, ...]) -> None:
    inputs = torch.randn(shape, generator=seeded(5))
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(inputs)
    exact = model(inputs)
    assert torch.nn.functional.cosine_similarity(rough.float().flatten(), exact.flatten(), dim=0) > 0.98


def test_freezing_the_first_blocks() -> None:
    for model, last in ((tiny_eva(), "blocks.2."), (tiny_beats(), "encoder.layers.2.")):
        model.freeze(2)
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
        assert all(name.startswith((last, "norm.", "head.")) for name in trained)
        assert any(name.startswith(last) for name in trained)
        with pytest.raises(InputError, match="there are 3 blocks"):
            model.freeze(4)


def test_training_noise_is_off_at_test_and_random_in_training() -> None:
    vision = tiny_eva(drop_path=0.5)
    audio = tiny_beats(dropout=0.2, attention_dropout=0.2, activation_dropout=0.2, encoder_layerdrop=0.5)
    for model, inputs in ((vision, torch.randn(4, 3, 28, 28)), (audio, torch.randn(4, 64, 32))):
        assert torch.equal(model(inputs), model(inputs))
        model.train()
        assert len({round(float(model(inputs).detach().sum()), 3) for _ in range(6)}) > 1


def test_gradient_decay_leaves_values_and_shrinks_gradients() -> None:
    plain, decayed = tiny_beats(), tiny_beats(layer_wise_gradient_decay_ratio=0.5)
    sound = torch.randn(1, 64, 32, generator=seeded(6))
    torch.testing.assert_close(plain(sound), decayed(sound))
    for model in (plain, decayed):
        model(sound).square().sum().backward()
    last, first = "encoder.layers.2.fc1.weight", "patch_embedding.weight"
    torch.testing.assert_close(plain.get_parameter(last).grad, decayed.get_parameter(last).grad)
    torch.testing.assert_close(plain.get_parameter(first).grad / 8, decayed.get_parameter(first).grad)
