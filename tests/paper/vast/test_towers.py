"""The towers: official names, the same numbers as the slow twins, other resolutions, checkpointing, freezing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from calmrl.errors import InputError
from calmrl.paper.vast.towers import Beats, EvaVit, PositionConv, relative_buckets, resize_positions
from tests.reference import models as twin
from tests.support.tiny_models import BEATS_CFG, EVA, beats_names, eva_names, official_beats, scramble, seeded


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


@pytest.mark.parametrize(("model", "blocks"), [(tiny_eva, "blocks"), (tiny_beats, "encoder.layers")])
@pytest.mark.parametrize("count", [-1, 0, 2, 3, 4])
def test_freezing_the_first_blocks(model, blocks: str, count: int) -> None:
    tower = model()
    if not 0 <= count <= 3:
        with pytest.raises(InputError, match=f"there are 3 blocks; {count} of them cannot be frozen"):
            tower.freeze(count)
        return
    tower.freeze(count)
    trained = {name for name, p in tower.named_parameters() if p.requires_grad}
    if count == 0:
        assert trained == {name for name, _ in tower.named_parameters()}
    else:
        kept = tuple(f"{blocks}.{number}." for number in range(count, 3))
        assert all(name.startswith((*kept, "norm.", "head.")) for name in trained)
        assert all(any(name.startswith(block) for name in trained) for block in kept)


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


def test_starting_weights_of_the_vision_tower() -> None:
    torch.manual_seed(0)
    model = EvaVit(image_size=28, width=64, layers=3, heads=4, mlp_width=128, output_width=32, drop_path=0.3)
    assert model.checkpointing is False
    assert model.pos_embed.shape == (1, 5, 64)
    for tensor in (model.cls_token, model.pos_embed, model.blocks[0].attn.qkv.weight, model.blocks[2].mlp.fc1.weight):
        assert float(tensor.detach().std()) == pytest.approx(0.02, rel=0.25)
    for depth, block in enumerate(model.blocks, start=1):
        for weight in (block.attn.proj.weight, block.mlp.fc2.weight):
            assert float(weight.detach().std()) == pytest.approx(0.02 / math.sqrt(2 * depth), rel=0.1)
    biases = [module.bias for module in model.modules() if isinstance(module, nn.Linear) and module.bias is not None]
    assert all(float(bias.detach().abs().max()) == 0 for bias in biases)
    assert [round(block.drop_path, 6) for block in model.blocks] == [0.0, 0.15, 0.3]
    assert EvaVit(**{**EVA, "layers": 1}, drop_path=0.3).blocks[0].drop_path == 0.0
    assert {norm.eps for norm in model.modules() if isinstance(norm, nn.LayerNorm)} == {1e-6}


def test_starting_weights_of_the_audio_tower() -> None:
    torch.manual_seed(0)
    model = Beats(embed_width=32, width=64, layers=4, heads=4, mlp_width=128, kernel=8, groups=4, buckets=40)
    assert model.checkpointing is False
    assert float(model.post_extract_proj.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert float(model.encoder.bias_of_distances().weight.detach().std()) == pytest.approx(0.02, rel=0.2)
    beta = (8 * 4) ** -0.25
    for layer in model.encoder.layers:
        assert layer.alpha == pytest.approx(8**0.25)
        attention = layer.self_attn
        assert float(attention.q_proj.weight.detach().std()) == pytest.approx((2 / 128) ** 0.5, rel=0.05)
        for linear in (attention.v_proj, attention.out_proj):
            assert float(linear.weight.detach().std()) == pytest.approx(beta * (2 / 128) ** 0.5, rel=0.05)
        assert float(layer.fc1.weight.detach().std()) == pytest.approx(beta * (2 / 192) ** 0.5, rel=0.05)
        assert float(layer.fc1.bias.detach().abs().max()) == 0
        assert attention.grep_a.shape == (1, 4, 1, 1)
        assert attention.grep_linear.out_features == 8
    holders = [hasattr(layer.self_attn, "relative_attention_bias") for layer in model.encoder.layers]
    assert holders == [True, False, False, False]
    small = {"width": 64, "layers": 1, "heads": 4, "groups": 4, "kernel": 8, "mlp_width": 8}
    assert Beats(embed_width=64, **small).post_extract_proj is None
    assert Beats(embed_width=8, **small, deep_norm=False).encoder.layers[0].alpha == 1.0
    conv = PositionConv(64, 8, 4)
    assert conv.weight_v.shape == (64, 16, 8)
    assert float(conv.weight_v.detach().std()) == pytest.approx(math.sqrt(4 / (8 * 64)), rel=0.05)
    torch.testing.assert_close(conv.weight_g[0, 0], conv.weight_v.norm(dim=(0, 1)))
    assert conv(torch.randn(1, 5, 64)).shape == (1, 5, 64)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        *((lambda changes=changes: Beats(**{"width": 24, "heads": 4, "groups": 4, **changes}),
           "width 24 must be a multiple of heads [45] and of groups [45]") for changes in ({"heads": 5}, {"groups": 5})),
        *((lambda changes=changes: tiny_eva(**changes), "24 must be a multiple of heads ., image_size .. of patch_size 14")
          for changes in ({"heads": 5}, {"image_size": 30})),
        *((lambda shape=shape: tiny_eva()(torch.zeros(shape)), "images must have shape")
          for shape in ((1, 3, 28), (1, 4, 28, 28), (1, 3, 27, 28), (1, 3, 28, 29))),
        *((lambda shape=shape: tiny_beats()(torch.zeros(shape)), r"must have shape \(N, frames, bins\), both at least 16 long")
          for shape in ((1, 16), (1, 15, 16), (1, 16, 15))),
        (lambda: tiny_eva(output_width=None).project(torch.zeros(1, 5, 24)), "pass output_width=1024"),
    ],
)  # fmt: skip
def test_sizes_and_shapes_that_do_not_fit(call, said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()


def test_the_smallest_filter_banks() -> None:
    assert tiny_beats()(torch.zeros(1, 16, 16)).shape == (1, 1, 24)
