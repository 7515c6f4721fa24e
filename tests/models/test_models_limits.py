"""Sizes that are defaults, starting weights, and what models refuse."""

from __future__ import annotations

import inspect
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.models.heads import Heads, _standardized, build_heads, fit_kernels
from calmrl.models.joint import JointModel, check_columns, imagebind_features, length, rows_with, spread, unit
from calmrl.models.saved import Trained, load
from calmrl.models.sections import AlignerSection, HeadsSection
from calmrl.models.vast.beats import CFG_DEFAULTS, Beats, PositionConv
from calmrl.models.vast.build import load_towers
from calmrl.models.vast.checkpoints import Report, _fitted, _grouped, _some, _tensors, _unwrapped
from calmrl.models.vast.eva import EvaVit, freeze_first, resize_positions
from calmrl.models.vast.matching import VastMatching, build_bert, cat_conditions, check_text, frame_embedding
from calmrl.models.vast.model import FusedHeads, VastModel, summed
from calmrl.models.vast.section import VastSection, WeightsSection
from tiny_models import BEATS_CFG, EVA, VAST, tiny_vast
from train_data import WIDTHS, source


def defaults(function) -> dict:
    parameters = inspect.signature(function).parameters.items()
    return {name: one.default for name, one in parameters if one.default is not inspect.Parameter.empty}


# ---- sizes of the published checkpoints


def test_the_sizes_of_the_published_towers():
    assert defaults(EvaVit) == {
        "image_size": 224, "patch_size": 14, "width": 1408, "layers": 40, "heads": 16, "mlp_width": 6144,
        "output_width": 1024, "drop_path": 0.0,
    }  # fmt: skip
    assert defaults(Beats) == {
        "patch_size": 16, "embed_width": 512, "width": 768, "layers": 12, "heads": 12, "mlp_width": 3072, "kernel": 128,
        "groups": 16, "buckets": 320, "max_distance": 800, "patch_bias": False, "drops": (0.0, 0.0, 0.0),
        "input_dropout": 0.0, "layer_drop": 0.0, "gradient_decay": 1.0, "deep_norm": True,
    }  # fmt: skip
    assert defaults(build_bert) == {
        "vocabulary": 30_522, "width": 768, "layers": 12, "heads": 12, "mlp_width": 3072, "positions": 512,
        "dropout": 0.1, "cross_attention": True,
    }  # fmt: skip


def test_the_sizes_of_the_published_model():
    shared = {
        "names": ("vision", "audio", "text", "subtitle"), "width": 512, "frames": 8, "slices": 1, "matching": True,
        "temperature": 0.07, "first_stage": "fused", "negatives": "floored",
    }  # fmt: skip
    assert defaults(VastModel) == {"bert": None, "vision": None, "audio": None, **shared}
    assert defaults(VastModel.from_sizes) == shared | {
        "image_size": 224, "patch_size": 14, "vision_width": 1408, "vision_layers": 40, "vision_heads": 16,
        "vision_mlp": 6144, "vision_drop_path": 0.4, "audio_embed": 512, "audio_width": 768, "audio_layers": 12,
        "audio_heads": 12, "audio_mlp": 3072, "audio_kernel": 128, "audio_groups": 16, "audio_buckets": 320,
        "audio_max_distance": 800, "audio_layer_drop": 0.05, "audio_gradient_decay": 0.6, "vocabulary": 30_522,
        "text_width": 768, "text_layers": 12, "text_heads": 12, "text_mlp": 3072, "positions": 512, "dropout": 0.1,
    }  # fmt: skip
    joint = defaults(JointModel)
    assert joint == {"width": None, "train": "frozen", "lora_rank": 8, "lora_alpha": 16, "lora_dropout": 0.0}
    assert defaults(Heads)["width"] == 512


def test_what_the_cfg_of_beats_leaves_out():
    assert CFG_DEFAULTS == {
        "input_patch_size": -1, "embed_dim": 512, "conv_bias": False, "encoder_layers": 12, "encoder_embed_dim": 768,
        "encoder_ffn_embed_dim": 3072, "encoder_attention_heads": 12, "activation_fn": "gelu",
        "layer_wise_gradient_decay_ratio": 1.0, "layer_norm_first": False, "deep_norm": False, "dropout": 0.1,
        "attention_dropout": 0.1, "activation_dropout": 0.0, "encoder_layerdrop": 0.0, "dropout_input": 0.0,
        "conv_pos": 128, "conv_pos_groups": 16, "relative_position_embedding": False, "num_buckets": 320,
        "max_distance": 1280, "gru_rel_pos": False, "finetuned_model": False,
    }  # fmt: skip


def test_the_keys_of_model_sections():
    heads = HeadsSection(kind="heads").model_dump()
    assert heads == {
        "kind": "heads", "width": 512, "hidden": None, "standardize": "scale", "init": "random", "latent_prior": 100.0,
        "latent_iterations": 10, "latent_rows": "all",
    }  # fmt: skip
    aligner = AlignerSection(kind="aligner")
    assert (aligner.candidates, aligner.folds, aligner.landmarks) == (16, 3, 2000)
    AlignerSection(kind="aligner", folds=2)
    with pytest.raises(ValidationError):
        AlignerSection(kind="aligner", folds=1)
    vast = VastSection(kind="vast", tokenizer="t")
    assert (vast.width, vast.frames, vast.slices, vast.image_size, vast.workers) == (512, 8, 1, 224, 2)
    assert (vast.matching, vast.gradient_checkpointing, vast.weights.tolerant) == (True, False, True)


def test_sections_refuse_what_does_not_fit():
    weights = WeightsSection(checkpoint="c")
    assert weights.files() == {"checkpoint": "c"}
    assert WeightsSection(vision="v", text="t").files() == {"vision": "v", "text": "t"}
    for tower in ("vision", "audio", "text"):
        with pytest.raises(ValidationError, match="a checkpoint holds all encoders; leave out vision, audio and text"):
            WeightsSection(checkpoint="c", **{tower: "x"})
    assert VastSection(kind="vast", tokenizer="t", sizes={"vision_width": 8}).sizes == {"vision_width": 8}
    with pytest.raises(ValidationError, match=r"no size is called vision_widht; did you mean vision_width\?"):
        VastSection(kind="vast", tokenizer="t", sizes={"vision_widht": 8})
    with pytest.raises(ValidationError, match="no size is called frames"):
        VastSection(kind="vast", tokenizer="t", sizes={"frames": 8})


# ---- towers


def test_starting_weights_of_the_vision_tower():
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


def test_starting_weights_of_the_audio_tower():
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
    assert Beats(embed_width=64, width=64, layers=1, heads=4, kernel=8, groups=4, mlp_width=8).post_extract_proj is None
    assert (
        Beats(embed_width=8, width=64, layers=1, heads=4, groups=4, kernel=8, mlp_width=8, deep_norm=False)
        .encoder.layers[0]
        .alpha
        == 1.0
    )
    conv = PositionConv(64, 8, 4)
    assert conv.weight_v.shape == (64, 16, 8)
    assert float(conv.weight_v.detach().std()) == pytest.approx(math.sqrt(4 / (8 * 64)), rel=0.05)
    torch.testing.assert_close(conv.weight_g[0, 0], conv.weight_v.norm(dim=(0, 1)))
    assert conv(torch.randn(1, 5, 64)).shape == (1, 5, 64)


def test_towers_refuse_sizes_that_do_not_divide():
    for sizes in ({"heads": 5}, {"groups": 5}):
        with pytest.raises(InputError, match=r"width 24 must be a multiple of heads [45] and of groups [45]"):
            Beats(**{"width": 24, "heads": 4, "groups": 4, **sizes})
    for sizes in ({"heads": 5}, {"image_size": 30}):
        with pytest.raises(InputError, match=r"width 24 must be a multiple of heads ., image_size .. of patch_size 14"):
            EvaVit(**{**EVA, **sizes})
    vision = EvaVit(**EVA, output_width=None)
    with pytest.raises(InputError, match="built without the layer to the joint space; pass output_width=1024"):
        vision.project(torch.zeros(1, 5, 24))
    joint = EvaVit(**EVA, output_width=7)
    tokens = torch.randn(2, 5, 24)
    torch.testing.assert_close(joint.project(tokens), joint.head(tokens[:, 0]))
    for shape in ((1, 3, 28), (1, 4, 28, 28), (1, 3, 27, 28), (1, 3, 28, 29)):
        with pytest.raises(InputError, match="pictures must have shape"):
            vision(torch.zeros(shape))
    sound = Beats.from_cfg(BEATS_CFG)
    for shape in ((1, 16), (1, 15, 16), (1, 16, 15)):
        with pytest.raises(
            InputError, match=r"filter banks must have shape \(N, frames, bins\), both at least 16 long"
        ):
            sound(torch.zeros(shape))
    assert sound(torch.zeros(1, 16, 16)).shape == (1, 1, 24)
    with pytest.raises(InputError, match="has no input_patch_size; it is not one of BEATs"):
        Beats.from_cfg({**BEATS_CFG, "input_patch_size": 0})


def test_blocks_that_are_frozen():
    def frozen(count):
        blocks, before = nn.ModuleList(nn.Linear(1, 1) for _ in range(3)), nn.Linear(1, 1)
        freeze_first(blocks, count, [before, None])
        return [not part.weight.requires_grad for part in (before, *blocks)]

    assert frozen(0) == [False] * 4
    assert frozen(1) == [True, True, False, False]
    assert frozen(3) == [True] * 4
    for count in (-1, 4):
        with pytest.raises(InputError, match=f"there are 3 blocks; {count} of them cannot be frozen"):
            frozen(count)


def test_positions_of_no_square_are_refused():
    with pytest.raises(InputError, match="5 positions of patches are not those of a square"):
        resize_positions(torch.zeros(1, 6, 2), (2, 2))
    same = torch.randn(1, 5, 2)
    assert resize_positions(same, (2, 2)) is same
    resized = resize_positions(same, (3, 1))
    assert resized.shape == (1, 4, 2)
    assert torch.equal(resized[:, 0], same[:, 0])


def test_texts_must_have_ids_and_mask_of_one_shape():
    good = {"input_ids": torch.zeros(2, 3), "attention_mask": torch.zeros(2, 3)}
    assert check_text("text", good) is good
    for bad in (torch.zeros(2, 3), {"input_ids": torch.zeros(2, 3)}):
        with pytest.raises(InputError, match="must be a dict with input_ids and attention_mask"):
            check_text("text", bad)
    for ids, mask in (((2, 3), (2, 4)), ((2,), (2,))):
        with pytest.raises(InputError, match="must both have shape"):
            check_text("text", {"input_ids": torch.zeros(ids), "attention_mask": torch.zeros(mask)})


# ---- rows


def test_rows_that_are_there():
    check_columns(torch.zeros(3, 2), ("a", "b"))
    for shape in ((3, 3), (3,)):
        with pytest.raises(InputError, match="pass one column for each of a, b"):
            check_columns(torch.zeros(shape), ("a", "b"))
    present = torch.tensor([[True, False], [False, True], [True, True]])
    assert rows_with(present, 1, "b", 2).tolist() == [1, 2]
    with pytest.raises(InputError, match="holds 3 rows but present says that 2 rows have it"):
        rows_with(present, 0, "a", 3)
    assert spread(torch.ones(2, 2), torch.tensor([2, 0]), 3).tolist() == [[1, 1], [0, 0], [1, 1]]
    assert unit(lambda x: 2 * x, torch.tensor([[3.0, 4.0]], dtype=torch.float64)).dtype == torch.float32
    assert (length(torch.zeros(4, 2)), length({"a": torch.zeros(5)})) == (4, 5)


def test_imagebind_rows_of_length_one():
    z = {"a": np.array([[3.0, 4.0], [np.nan, np.nan], [0.0, 2.0]]), "b": np.ones((3, 2))}
    found = imagebind_features(z)
    np.testing.assert_allclose(found["a"][[0, 2]], [[0.6, 0.8], [0, 1]])
    assert np.isnan(found["a"][1]).all()
    z["b"][2] = 0
    with pytest.raises(InputError, match="b of row 2 is all 0, which has no direction; mark it missing"):
        imagebind_features(z)


# ---- heads


def test_heads_that_cannot_start_from_a_latent_model():
    x = {name: torch.randn(30, 4, generator=torch.Generator().manual_seed(i)) for i, name in enumerate("ab")}
    layers = GaussianImputer(2, max_iter=2, tol=1.0, random_state=0).fit(x).as_heads()
    plain = Heads({"a": 4, "b": 4}, 2)
    plain.start_from(layers)
    assert torch.equal(plain.heads["a"].weight, layers["a"].weight)
    assert torch.equal(plain.heads["b"].bias, layers["b"].bias)
    skipping = Heads({"a": 4, "b": 4}, 2, hidden=3, skip=True)
    skipping.start_from(layers)
    assert torch.equal(skipping.heads["a"].linear.weight, layers["a"].weight)
    with torch.no_grad():
        torch.testing.assert_close(skipping.heads["a"](x["a"]), layers["a"](x["a"]))  # the MLP starts at zero
    with pytest.raises(
        InputError, match="an MLP cannot start from a latent model; leave out hidden, or pass skip=True"
    ):
        Heads({"a": 4, "b": 4}, 2, hidden=3).start_from(layers)
    with pytest.raises(InputError, match="the latent model has 2 latents but the heads have width 3; make them equal"):
        Heads({"a": 4, "b": 4}, 3).start_from(layers)


def test_heads_from_the_complete_rows(monkeypatch):
    seen = {}

    class Latent(GaussianImputer):
        def fit(self, z, present=None):
            seen.update(rows=len(present), complete=bool(present.all()), params=self.get_params())
            return super().fit(z, present)

    monkeypatch.setattr("calmrl.models.heads.GaussianImputer", Latent)
    rows = source(60)
    data = SimpleNamespace(train={"s": rows}, widths=dict(WIDTHS))
    for which, count in (("complete", int(rows.present.all(1).sum())), ("all", 60)):
        section = HeadsSection(kind="heads", width=3, init="latent", latent_rows=which)
        build_heads(section, data, tuple(WIDTHS), seed=1)
        assert (seen["rows"], seen["complete"]) == (count, which == "complete")
    assert (seen["params"]["prior"], seen["params"]["max_iter"]) == (100.0, 10)


def test_at_most_so_many_rows_start_heads(monkeypatch):
    heads, rows = Heads(WIDTHS, 3), source(10)
    for most, count in ((10, 10), (9, 5), (4, 4), (100, 10)):
        monkeypatch.setattr("calmrl.models.heads.INIT_ROWS", most)
        x, present = _standardized(heads, [rows])
        assert (len(present), len(x["text"])) == (count, count)


def test_kernel_features_need_rows():
    rows = source(40)
    lifts = fit_kernels([rows], "kernel", 0)
    assert list(lifts) == list(WIDTHS)
    rows.present[:, 1] = False
    with pytest.raises(InputError, match="no training row has text; leave it out of modalities, or add a source"):
        fit_kernels([rows], "kernel", 0)


# ---- saved models


def test_folders_that_hold_no_model(tmp_path):
    with pytest.raises(
        InputError, match=r"holds no trained model \(model/model\.json\); name the folder of a finished"
    ):
        load(tmp_path)
    Trained(Heads({"a": 4, "b": 4}, 3)).save(tmp_path / "m")
    assert load(tmp_path / "m").width == 3
    header = tmp_path / "m" / "model.json"
    content = json.loads(header.read_text())
    for change, got in (
        ({"version": 3}, "calmrl.model 3"),
        ({"format": "other"}, "other 2"),
        ({"version": "2"}, "calmrl.model 2"),
    ):
        header.write_text(json.dumps(content | change))
        with pytest.raises(InputError, match=f"has format {got}; this is calmrl.model 2"):
            load(tmp_path / "m")
    header.write_text(json.dumps(content | {"version": 1, "arguments": {"widths": 5}}))  # older ones had no seal
    with pytest.raises(InputError, match=r"is damaged \(.*export or copy it again"):
        load(tmp_path / "m")
    (tmp_path / "aligner.json").write_text("{}")
    with pytest.raises(InputError, match=r"is a saved aligner; open it with calmrl\.Aligner\.load"):
        load(tmp_path)


def test_many_rows_are_encoded_block_by_block(monkeypatch):
    monkeypatch.setattr("calmrl.models.saved.ROWS", 4)
    torch.manual_seed(0)
    model = Trained(Heads({"a": 4, "b": 3}, 3))
    rng = np.random.default_rng(0)
    for n in (0, 1, 4, 9):
        z = {"a": rng.normal(size=(n, 4)), "b": rng.normal(size=(n, 3))}
        found = model.encode(z)
        expected = model.model({k: torch.tensor(v).float() for k, v in z.items()}, torch.ones(n, 2, dtype=torch.bool))
        np.testing.assert_allclose(found["a"], expected["a"].detach(), rtol=1e-6)
    assert np.isnan(model.encode({"a": z["a"]})["b"]).all()
    assert repr(model) == "Trained(Heads: a, b -> 3)"
    with pytest.raises(
        InputError, match="this model was trained with a method, without a latent model, so it cannot impute"
    ):
        model.transform(z)


# ---- checkpoints


def test_what_became_of_a_checkpoint_in_words():
    report = Report(
        "f", used=["a"] * 3, unused=["x.y.a", "x.y.b", "z"], unfilled=["m.n.o"], unknown=["q"],
        renamed={"old": "new", "b": "c"}, changed=["pos: 4 to 9"],
    )  # fmt: skip
    assert report.lines() == [
        "f: 3 tensors used",
        "pos: 4 to 9",
        "2 keys have old names, such as old for new",
        "1 keys are unknown and left out: q",
        "3 not used: x.y.* (2), z",
        "1 parameters not in the file stay random: m.n",
    ]
    assert Report("f").lines() == ["f: 0 tensors used"]
    assert _grouped(["a.b", "a.c", "d.e.f", "d.e.g"]) == "a.* (2), d.e.* (2)"
    assert _some(list("abcde")) == '"a", "b", "c", "d", "e"'
    assert _some(list("abcdefg")) == '"a", "b", "c", "d", "e" and 2 more'


def test_state_dicts_are_tensors_under_texts():
    value = torch.ones(1)
    assert _tensors({"a": value}, "f") == {"a": value}
    with pytest.raises(InputError, match="f: a key is 3 where texts are needed; this is not a state dict"):
        _tensors({3: value}, "f")
    with pytest.raises(InputError, match='f: "b" is not a tensor; this is not a state dict'):
        _tensors({"a": value, "b": 1}, "f")
    assert _unwrapped({"state_dict": {"a": 1}, "model": {"b": 1}}) == {"a": 1}
    assert _unwrapped({"module": {"c": 1}}) == {"c": 1}
    assert _unwrapped({"model": 3}) == {"model": 3}


def test_positions_and_frames_are_fitted_and_said():
    report = Report("f")
    wide = torch.randn(1, 10, 4)
    found = _fitted("vision.pos_embed", wide, torch.zeros(1, 5, 4), report, "bilinear")
    assert torch.equal(found, resize_positions(wide, (2, 2), "bilinear"))
    frames = torch.randn(1, 8, 4)
    assert _fitted("matching.frame.vision", frames, torch.zeros(1, 2, 4), report, "bilinear").shape == (1, 2, 4)
    assert report.changed == [
        "vision.pos_embed: 9 positions interpolated to 4, bilinear",
        "matching.frame.vision: 8 frames, nearest ones taken for 2",
    ]
    for own, value, wanted in (
        ("other", wide, torch.zeros(1, 5, 4)),
        ("vision.pos_embed", wide, torch.zeros(1, 5, 3)),
        ("vision.pos_embed", wide[0], torch.zeros(5, 4)),
        ("vision.pos_embed", wide, torch.zeros(1, 10, 4)),
    ):
        assert _fitted(own, value, wanted, report, "bilinear") is value
    assert len(report.changed) == 2


def test_files_for_towers_that_are_not_there():
    model = SimpleNamespace(vision=None, audio=None, bert=None)
    for what in ("vision", "audio", "text"):
        with pytest.raises(InputError, match=f"the model has no {what}; leave its file out"):
            load_towers(model, **{what: "file"})
    assert load_towers(model) == []


# ---- matching and the first stage


def matching(names=("vision", "text"), **more) -> VastMatching:
    bert = SimpleNamespace(config=SimpleNamespace(hidden_size=6))
    widths = {name: 4 for name in names if name != "text"}
    return VastMatching(bert, widths, names, **{"frames": 3, "slices": 2, "temperature": 0.5, **more})


def test_what_matching_is_made_of():
    head = matching(("vision", "audio", "text", "subtitle"))
    assert {name: tuple(value.shape) for name, value in head.frame.items()} == {"vision": (1, 3, 6), "audio": (1, 2, 6)}
    assert set(head.kind) == {"vision", "audio", "subtitle"}
    assert float(head.temperature) == 0.5
    assert head.floor == 1e-4
    assert head.head.layernorm.eps == head.project["vision"][1].eps == 1e-12
    assert head.head.linear2.out_features == 2
    wide = torch.cat([value.detach().flatten() for value in [*head.kind.values(), *head.frame.values()]])
    assert float(wide.std()) == pytest.approx(0.02, rel=0.4)
    for names in (("vision", "audio"), ("text",)):
        with pytest.raises(InputError, match="matching needs text and at least one other modality; got"):
            matching(names)


def test_without_fused_vectors_a_text_is_compared_with_the_mean_of_the_others():
    head = matching(("vision", "text", "audio"))
    z = {name: torch.full((3, 2), value) for name, value in (("vision", 1.0), ("text", 9.0), ("audio", 3.0))}
    z["audio"][1] = 0.0
    z["vision"][2] = z["audio"][2] = 0.0
    has = torch.tensor([[True, True], [True, False], [False, False]])
    assert head._others(z, has, None).tolist() == [[2.0, 2.0], [1.0, 1.0], [0.0, 0.0]]
    fused = torch.ones(3, 2, dtype=torch.float64)
    assert head._others(z, has, fused).dtype == torch.float32


def test_nothing_is_ranked_again_where_there_is_nothing():
    head, text = matching(), {"input_ids": torch.zeros(2, 1)}
    conditions = (torch.zeros(3, 1, 6), torch.ones(3, 1, dtype=torch.bool))
    scores = torch.rand(2, 3)
    found = head.rerank(text, conditions, scores, top=0)
    assert torch.equal(found, scores)
    assert found is not scores
    with pytest.raises(InputError, match=r"scores has shape \(3, 2\); pass \(2, 3\): one row per text"):
        head.rerank(text, conditions, scores.T)


def test_frames_and_conditions():
    embedding = torch.arange(4.0).reshape(1, 4, 1)
    assert frame_embedding(embedding, 4) is embedding
    assert frame_embedding(embedding, 2)[0, :, 0].tolist() == [0.0, 2.0]
    short, long = (torch.ones(1, n, 2) for n in (1, 3))
    there = [torch.ones(1, n, dtype=torch.bool) for n in (1, 3)]
    tokens, mask = cat_conditions([(short, there[0]), (long, there[1])])
    assert tokens.sum(2).tolist() == [[2, 0, 0], [2, 2, 2]]
    assert mask.tolist() == [[True, False, False], [True, True, True]]


def test_fused_heads_there_are():
    assert set(FusedHeads({"vision": 2, "audio": 3}, 4)) == {"va"}
    heads = FusedHeads({"vision": 2, "audio": 3, "subtitle": 5}, 4)
    assert {key: (one.in_features, one.out_features) for key, one in heads.items()} == {
        "va": (5, 4), "vs": (7, 4), "vas": (10, 4),
    }  # fmt: skip
    z = {"text": torch.tensor([[5.0, 5.0]]), "vision": torch.tensor([[3.0, 0.0]]), "audio": torch.tensor([[0.0, 4.0]])}
    torch.testing.assert_close(summed(z), torch.tensor([[0.6, 0.8]]))


# ---- the model of the paper


def test_nothing_is_frozen_or_computed_again_unless_said():
    model = tiny_vast()
    assert sorted(model.towers()) == ["audio", "text", "vision"]
    model.freeze()
    assert all(parameter.requires_grad for parameter in model.parameters())
    for tower in ("vision", "audio", "text"):
        model = tiny_vast()
        model.freeze(**{tower: 1})
        still = {name for name, one in model.towers().items() if all(p.requires_grad for p in one.parameters())}
        assert still == {"vision", "audio", "text"} - {tower}
    assert (model.vision.checkpointing, model.audio.checkpointing) == (False, False)
    model.set_checkpointing()
    assert (model.vision.checkpointing, model.audio.checkpointing) == (True, True)
    assert model.bert.is_gradient_checkpointing
    model.set_checkpointing(False)
    assert (model.vision.checkpointing, model.bert.is_gradient_checkpointing) == (False, False)


def test_tokens_of_no_row_and_inputs_of_other_shapes():
    model = tiny_vast()
    assert model._no_tokens("subtitle").shape == (0, 1, 20)
    assert model._no_tokens("vision").shape == (0, 1, 1, 24)
    for name, shape in (("vision", (1, 3, 28, 28)), ("audio", (1, 32, 32))):
        with pytest.raises(InputError, match=rf"inputs\['{name}'\] must have shape \(rows, .*; got "):
            model._tower(name, torch.zeros(shape))
    with pytest.raises(InputError, match="inputs has no 'vision'; pass it with 0 rows if no row has it"):
        model({}, torch.ones(1, 4, dtype=torch.bool))
    assert VastModel.restore(**{**VAST, "names": ["vision", "text"]}).fused is None  # older ones had no fused heads
    assert VastModel.from_sizes(**{**VAST, "names": ["text"]}, matching=False).fused is None
    assert VastModel.from_sizes(**{**VAST, "names": ["vision", "text"]}, negatives="softmax").matching.floor is None


def test_names_and_towers_go_together():
    vision = EvaVit(**EVA)
    for names in (("vision", "smell"), ("vision", "vision"), ()):
        with pytest.raises(InputError, match="names must be some of vision, audio, text, subtitle, each once; got"):
            VastModel(vision=vision, names=names)
    with pytest.raises(InputError, match="audio is among the names: pass its tower"):
        VastModel(vision=vision, names=("vision", "audio"))
    with pytest.raises(InputError, match="vision is not among the names: leave its tower out"):
        VastModel(vision=vision, audio=Beats.from_cfg(BEATS_CFG), names=("audio",))
    with pytest.raises(InputError, match="matching needs text; pass matching=False"):
        VastModel(vision=vision, names=("vision",))
    assert VastModel(vision=vision, names=("vision",), matching=False).matching is None
