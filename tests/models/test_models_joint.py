"""Joint models of transformers as encoders: frozen, trained, LoRA."""

from __future__ import annotations

import pytest
import torch

from calmrl.errors import InputError
from calmrl.models.joint import JointModel, check_columns, length, rows_with, spread, unit
from tests.support.tiny_models import seeded

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
TEXT = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION |= {"image_size": 16, "patch_size": 8}
SIDES = {"vision": "image", "text": "text"}


@pytest.fixture(scope="module", params=["clip", "siglip"])
def folder(request, tmp_path_factory) -> str:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp(request.param)
    text = TEXT | {"max_position_embeddings": 12}
    if request.param == "clip":
        config = transformers.CLIPConfig(text_config=text | {"eos_token_id": 3}, vision_config=VISION, projection_dim=8)
        transformers.CLIPModel(config).save_pretrained(path)
    else:
        config = transformers.SiglipConfig(text_config=text, vision_config=VISION)
        transformers.SiglipModel(config).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def clap(tmp_path_factory) -> str:
    torch.manual_seed(0)
    audio = {"patch_embeds_hidden_size": 16, "depths": [1, 1], "num_attention_heads": [2, 2], "hidden_size": 32}
    audio |= {"num_mel_bins": 16, "spec_size": 64, "window_size": 4, "projection_dim": 8, "patch_stride": [4, 4]}
    text = TEXT | {"max_position_embeddings": 20, "projection_dim": 8}
    path = tmp_path_factory.mktemp("clap")
    config = transformers.ClapConfig(audio_config=audio, text_config=text, projection_dim=8)
    transformers.ClapModel(config).save_pretrained(path)
    return str(path)


def inputs(present: torch.Tensor, frames: int | None = None) -> dict:
    v, t = present.sum(0).tolist()
    shape = (v, 3, 16, 16) if frames is None else (v, frames, 3, 16, 16)
    ids = torch.randint(4, 60, (t, 5), generator=seeded(1))
    ids[:, -1] = 3
    tokens = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return {"vision": torch.randn(shape, generator=seeded()), "text": tokens}


MASK = torch.tensor([[True, True], [True, False], [False, True], [True, True]])


def test_vectors_are_those_of_the_model_and_missing_ones_cost_nothing(folder) -> None:
    model = JointModel(folder, SIDES)
    seen = []
    model.encoder.vision_model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len(args[0] if args else kwargs["pixel_values"])), with_kwargs=True
    )
    given = inputs(MASK)
    z, tokens = model.encode(given, MASK)
    assert tokens is None
    assert seen == [3]
    plain = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        exact = plain.get_image_features(pixel_values=given["vision"])
    exact = exact if isinstance(exact, torch.Tensor) else exact.pooler_output
    torch.testing.assert_close(z["vision"][MASK[:, 0]], torch.nn.functional.normalize(exact, dim=1))
    assert not z["vision"][2].any()
    assert not z["text"][1].any()
    assert z["text"].shape == (4, model.width)
    nothing = MASK & torch.tensor([False, True])
    assert not model(inputs(nothing), nothing)["vision"].any()
    assert seen == [3]


def test_frames_are_averaged(folder) -> None:
    model = JointModel(folder, SIDES)
    given = inputs(MASK)
    many = given | {"vision": given["vision"][:, None].expand(-1, 3, -1, -1, -1)}
    torch.testing.assert_close(model(many, MASK)["vision"], model(given, MASK)["vision"])


@pytest.mark.parametrize("mode", ["frozen", "all", "lora"])
def test_what_is_trained(folder, mode: str) -> None:
    if mode == "lora":
        pytest.importorskip("peft", reason="peft (calmrl[lora]) is not installed")
    model = JointModel(folder, SIDES, width=6, train=mode)
    assert model.width == 6
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.train()
    assert model.encoder.training == (mode != "frozen")
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1.0)
    for _ in range(2):  # the second half of a LoRA pair starts at 0
        z = model(inputs(MASK), MASK)
        optimiser.zero_grad()
        sum((value[:, 0] * value[:, 1]).sum() for value in z.values()).backward()
        optimiser.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    inner = {name for name in moved if name.startswith("encoder.")}
    assert {"heads.vision.weight", "heads.text.weight"} <= moved
    assert not any("logit_" in name for name in moved)
    if mode == "frozen":
        assert not inner
    elif mode == "lora":
        assert inner
        assert all("lora_" in name for name in inner)
    else:
        assert len(inner) > 20


def test_sound_and_text(clap) -> None:
    model = JointModel(clap, {"audio": "audio", "text": "text"})
    tokens = inputs(MASK)["text"]
    sound = {"input_features": torch.randn(3, 1, 60, 16, generator=seeded()), "is_longer": torch.zeros(3, 1).bool()}
    z = model({"audio": sound, "text": tokens}, MASK)
    torch.testing.assert_close(z["audio"].norm(dim=1), torch.tensor([1.0, 1.0, 0.0, 1.0]))


def test_errors_say_what_to_do(folder, clap, tmp_path, monkeypatch) -> None:
    import sys

    with pytest.raises(InputError, match="no joint space for audio"):
        JointModel(folder, {"sound": "audio", "text": "text"})
    with pytest.raises(InputError, match="one of image, text, audio"):
        JointModel(folder, {"x": "smell"})
    with pytest.raises(InputError, match="one of frozen, all, lora"):
        JointModel(folder, SIDES, train="half")
    with pytest.raises(InputError, match="cannot be loaded"):
        JointModel(str(tmp_path / "nowhere"), SIDES)
    with pytest.raises(InputError, match="one column for each of vision, text"):
        JointModel(folder, SIDES)(inputs(MASK), MASK[:, :1])
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r'pip install "calmrl\[lora\]"'):
        JointModel(folder, SIDES, train="lora")


def test_rows_that_are_there() -> None:
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
