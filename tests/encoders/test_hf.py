"""Models of transformers: no weight is random or dropped, projections are kept, videos are seen at once.

Tiny checkpoints first; then what takes a stand-in for the library, or no model at all.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calmrl.encoders import hf, load_encoder
from calmrl.encoders.hf import (
    NaflexTransform,
    hear,
    image_encoder,
    image_transform,
    load_hf,
    load_model,
    naflex_size,
    naflex_transform,
    parse,
    pooled,
    preprocessor,
    text_encoder,
    unused_parts,
)
from calmrl.errors import InputError
from tests.support import tiny_checkpoints as tiny

image_module = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
VIDEO = ("videomae", "timesformer", "vivit", "vjepa2", "xclip")


def item(encoder, seed: int = 0, height: int = 40):
    """Something that the encoder can read."""
    generator = np.random.default_rng(seed)
    if encoder.kind == "text":
        return encoder.prepare("a red boat on a lake")
    if encoder.kind == "audio":
        return encoder.prepare(generator.normal(size=encoder.rate // 2).astype(np.float32))
    pixels = generator.integers(0, 255, (height, 48, 3)).astype(np.uint8)
    return encoder.prepare(image_module.fromarray(pixels))[None]


def test_a_missing_pooler_is_refused_by_name(tmp_path) -> None:
    torch.manual_seed(0)
    folder = tiny.vit(tmp_path / "classifier", pooler=False)
    with pytest.raises(InputError, match=r'has no "pooler.dense.bias", "pooler.dense.weight", which would be random'):
        load_encoder(f"hf:{folder}")
    cls, mean = (load_encoder(f"hf:{folder}#image+{pooling}") for pooling in ("cls", "mean"))
    assert not np.allclose(cls.encode([item(cls)]), mean.encode([item(mean)]))
    assert load_encoder(f"hf:{folder}#image+allow=pooler.*").width == 32  # the user asked for it


@torch.inference_mode()
def test_projections_are_kept(references) -> None:
    lib = tiny.library()
    vision = load_encoder(references["clip_vision"])
    model = lib.CLIPVisionModelWithProjection.from_pretrained(tiny.path_of(references["clip_vision"])).eval()
    expected = model(pixel_values=torch.from_numpy(item(vision))).image_embeds
    np.testing.assert_allclose(vision.encode([item(vision)]), expected, atol=1e-6)
    text = load_encoder(references["clip_text"])
    model = lib.CLIPTextModelWithProjection.from_pretrained(tiny.path_of(references["clip_text"])).eval()
    tokenizer = lib.AutoTokenizer.from_pretrained(tiny.path_of(references["clip_text"]))
    expected = model(**tokenizer([item(text)], return_tensors="pt")).text_embeds
    np.testing.assert_allclose(text.encode([item(text)]), expected, atol=1e-6)


@torch.inference_mode()
def test_whisper_leaves_out_what_it_padded(references) -> None:
    lib, folder = tiny.library(), tiny.path_of(references["whisper"])
    encoder = load_encoder(references["whisper"])
    sound = np.random.default_rng(0).normal(size=9_000).astype(np.float32)
    extractor = lib.WhisperFeatureExtractor.from_pretrained(folder)
    features = extractor(sound, sampling_rate=16_000, return_tensors="pt")
    states = lib.WhisperModel.from_pretrained(folder).eval().get_encoder()(**features).last_hidden_state[0]
    assert len(states) == 100  # two seconds
    kept = math.ceil(9_000 / 320)
    np.testing.assert_allclose(encoder.encode([sound])[0], states[:kept].mean(0), atol=1e-5)
    assert not np.allclose(encoder.encode([sound])[0], states.mean(0), atol=1e-3)


@pytest.mark.parametrize("name", VIDEO)
@torch.inference_mode()
def test_videos_are_seen_at_once(references, name: str) -> None:
    lib = tiny.library()
    encoder = load_encoder(references[name])
    assert (encoder.kind, encoder.frames) == ("image", 4)
    frames = np.concatenate([item(encoder, seed) for seed in range(4)])  # (4, 3, 32, 32)
    model = lib.AutoModel.from_pretrained(tiny.path_of(references[name])).eval()
    pixels = torch.from_numpy(frames)[None]
    if name == "xclip":
        output = model.get_video_features(pixel_values=pixels)
        expected = output if isinstance(output, torch.Tensor) else output.pooler_output
    elif name == "vjepa2":
        expected = model(pixel_values_videos=pixels).last_hidden_state.mean(1)
    elif name == "vivit":
        expected = model(pixel_values=pixels).pooler_output
    else:
        expected = model(pixel_values=pixels).last_hidden_state.mean(1)
    np.testing.assert_allclose(encoder.encode([frames]), expected, atol=1e-5)
    order = encoder.encode([frames[::-1].copy()])
    assert not np.allclose(order, expected, atol=1e-6)  # time matters
    np.testing.assert_array_equal(encoder.encode([frames[:1]]), encoder.encode([frames[[0, 0, 0, 0]]]))  # a picture
    with pytest.raises(InputError, match="sees 4 frames at once; got 3"):
        encoder.encode([frames[:3]])


@torch.inference_mode()
def test_flexible_pictures_equal_the_padded_ones(references) -> None:
    lib = tiny.library()
    encoder = load_encoder(references["naflex"])
    picture = item(encoder, height=20)  # 20 x 48 in at most 16 patches: 3 x 5
    assert picture.shape == (1, 3, 48, 80)
    model = lib.AutoModel.from_pretrained(tiny.path_of(references["naflex"])).eval()
    patches = [
        picture[0, :, 16 * i : 16 * i + 16, 16 * j : 16 * j + 16].transpose(1, 2, 0).reshape(-1)
        for i in range(3)
        for j in range(5)
    ]
    pixels = torch.zeros(1, 16, 16 * 16 * 3)
    pixels[0, :15] = torch.from_numpy(np.stack(patches))
    mask = (torch.arange(16) < 15).int()[None]
    output = model.get_image_features(
        pixel_values=pixels, pixel_attention_mask=mask, spatial_shapes=torch.tensor([[3, 5]])
    )
    expected = output if isinstance(output, torch.Tensor) else output.pooler_output
    np.testing.assert_allclose(encoder.encode([picture]), expected, atol=1e-5)


# ---- pictures, without a model

NOTHING = SimpleNamespace()


@pytest.mark.parametrize(
    ("notes", "config", "expected"),
    [
        ({}, {}, (224, 224)),
        ({}, {"image_size": 30}, (30, 30)),
        ({"size": 50}, {"image_size": 30}, (50, 50)),
        ({"size": {"shortest_edge": 50}}, {}, (50, 50)),
        ({"size": {"height": 40, "width": 40}}, {}, (40, (40, 40))),
        ({"size": [40, 40]}, {}, (40, (40, 40))),
        ({"size": 256, "crop_size": 224}, {}, (224, 256)),
        ({"size": 256, "crop_size": {"height": 200, "width": 200}}, {}, (200, 256)),
        ({"size": 256, "crop_size": 224, "do_center_crop": False}, {}, (256, 256)),
        ({"size": [60, 40], "crop_size": 32}, {}, (32, (60, 40))),
        ({"size": 383, "crop_pct": 0.5}, {}, (383, 766)),
        ({"size": 384, "crop_pct": 0.5}, {}, (384, 384)),  # ConvNeXT resizes straight from there on
    ],
)
def test_sizes(notes, config, expected):
    found = image_transform(notes, SimpleNamespace(**config))
    assert (found.size, found.resize) == expected


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ({"size": [40, 30]}, "this model takes images of 40 x 30; only squares are supported"),
        ({"size": {"height": 40, "width": 30}}, "this model takes images of 40 x 30; only squares are supported"),
        ({"crop_size": {"height": 2, "width": 3}}, "this model crops images to .*only squares are supported"),
    ],
)
def test_other_shapes_are_refused(notes, said):
    with pytest.raises(InputError, match=said):
        image_transform(notes, NOTHING)


@pytest.mark.parametrize(
    ("notes", "mean", "std"),
    [
        ({"do_normalize": False, "image_mean": [9.0] * 3}, (0.0,) * 3, (1.0,) * 3),
        ({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4] * 3}, (0.1, 0.2, 0.3), (0.4,) * 3),
        ({"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "offset": True}, (0.75,) * 3, (0.125,) * 3),
    ],
)
def test_means_and_deviations(notes, mean, std):
    found = image_transform(notes, NOTHING)
    assert (found.mean, found.std) == (mean, std)
    flexible = naflex_transform({"max_num_patches": 9, "resample": 3, **notes}, SimpleNamespace(patch_size=14))
    assert flexible == NaflexTransform(14, 9, 3, mean, std)
    assert naflex_transform({"patch_size": 8}, NOTHING) == NaflexTransform(8, 256, 2, (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize(
    ("picture", "patch", "patches", "expected"),
    [
        ((100, 100), 16, 256, (256, 256)),
        ((10, 10), 1, 1, (1, 1)),
        ((2, 4), 1, 8, (2, 4)),
        ((2, 4), 1, 7, (2, 3)),
        ((1, 1000), 4, 16, (4, 64)),  # a side has one patch at least
        ((3, 5), 10, 15, (30, 50)),
    ],
)
def test_sizes_of_flexible_pictures(picture, patch, patches, expected):
    assert naflex_size(*picture, patch, patches) == expected


class Seeing:
    """A model of pictures: the mean of the pixels, three times; with a pooled output of its own."""

    def __init__(self, model_type="vit", **config) -> None:
        self.config = SimpleNamespace(model_type=model_type, image_size=8, **config)
        self.batches: list[int] = []

    def __call__(self, pixel_values):
        self.batches.append(len(pixel_values))
        mean = pixel_values.flatten(1).mean(1, keepdim=True)
        states = torch.stack([mean.expand(-1, 3), 3 * mean.expand(-1, 3)], dim=1)
        return SimpleNamespace(last_hidden_state=states, pooler_output=10 * mean.expand(-1, 3))


@pytest.mark.parametrize(
    ("pooling", "factor", "device", "batches"),
    [(None, 10, "cpu", [1, 1]), ("cls", 1, "cpu", [1, 1]), ("mean", 2, "cpu", [1, 1]), (None, 10, "cpu:0", [2])],
)
def test_pictures_go_one_by_one_on_a_cpu_only(pooling, factor, device, batches):
    model = Seeing()
    encoder = image_encoder(model, {}, pooling, device)
    assert (encoder.kind, encoder.width, encoder.prepare.size) == ("image", 3, 8)
    model.batches.clear()
    vectors = encoder.encode([np.full((1, 3, 8, 8), value, np.float32) for value in (1, 2)])
    np.testing.assert_allclose(vectors, [[factor] * 3, [2 * factor] * 3])
    assert model.batches == batches


# ---- pooling

STATES, MASK = torch.arange(12.0).reshape(1, 3, 4), torch.tensor([[1, 1, 0]])
PLAIN = SimpleNamespace(last_hidden_state=STATES, pooler_output=torch.full((1, 2, 2), 7.0))
WITHOUT = SimpleNamespace(last_hidden_state=STATES, pooler_output=None)
PROJECTED = SimpleNamespace(text_embeds=STATES[:, 0], pooler_output=STATES[:, 1])
MAPS = SimpleNamespace(last_hidden_state=torch.arange(24.0).reshape(1, 2, 3, 4))  # convolutional: channels first
PADDED = SimpleNamespace(last_hidden_state=torch.tensor([[[1.0, 2.0], [torch.nan, torch.inf]]]))


@pytest.mark.parametrize(
    ("output", "mask", "pooling", "use_pooler", "expected"),
    [
        (STATES[0], None, None, True, STATES[0]),
        (PROJECTED, MASK, "cls", True, STATES[:, 0]),
        (PLAIN, MASK, None, True, torch.full((1, 4), 7.0)),
        (PLAIN, None, None, False, STATES.mean(1)),
        (PLAIN, None, "mean", True, STATES.mean(1)),
        (PLAIN, MASK, "cls", True, STATES[:, 0]),
        (PLAIN, MASK, "mean", True, STATES[:, :2].mean(1)),
        (WITHOUT, None, None, True, STATES.mean(1)),
        (MAPS, None, "cls", True, torch.tensor([[5.5, 17.5]])),
        (PADDED, torch.tensor([[1, 0]]), None, False, torch.tensor([[1.0, 2.0]])),
    ],
)
def test_which_of_the_outputs_is_taken(output, mask, pooling, use_pooler, expected):
    assert torch.equal(pooled(output, mask, pooling, use_pooler), expected)


# ---- sounds


class Hearing:
    """A model of sounds that gives what it got: steps of one number."""

    def __init__(self, **more) -> None:
        self.config = SimpleNamespace(**more)
        self.heard: list[int] = []

    def __call__(self, input_values):
        self.heard.append(input_values.shape[1])
        return SimpleNamespace(last_hidden_state=input_values[:, :, None])


class Inputs(dict):
    def to(self, device):
        return self


class Extractor:
    def __init__(self, **more) -> None:
        self.sampling_rate = 100
        vars(self).update(more)

    def __call__(self, samples, sampling_rate, return_tensors):
        assert (sampling_rate, return_tensors) == (100, "pt")
        values = torch.from_numpy(samples)[None]
        whole = getattr(self, "n_samples", len(samples))
        values = torch.nn.functional.pad(values, (0, whole - len(samples)), value=50.0)
        return Inputs(input_values=values, attention_mask=torch.ones(1))


@pytest.mark.parametrize(
    ("extractor", "windows"),
    [
        (Extractor(), [10]),
        (Extractor(nb_max_samples=4), [4, 4, 2]),
        (Extractor(max_length=3, num_mel_bins=8), [3, 3, 3, 1]),  # frames of 10 ms
        (Extractor(max_length=3), [10]),
        (Extractor(num_mel_bins=8), [10]),
    ],
)
def test_long_sounds_are_cut_and_weighted_by_length(extractor, windows):
    model, sound = Hearing(), np.arange(10, dtype=np.float32)
    found = hear(model, extractor, None, "cpu", [sound, sound[:2]])
    np.testing.assert_allclose(found, [[4.5], [0.5]], rtol=1e-6)
    assert model.heard == [*windows, 2]


# ---- texts


def reader(tmp_path, files=(), longest=10**30, batched=False, pooling=None, **config):
    """(encode, what the tokenizer was asked)."""
    asked = []

    class Tokenizer:
        model_max_length = longest

        def __call__(self, group, padding, return_tensors, truncation, max_length):
            asked.append((len(group), padding, truncation, max_length))
            width = max(len(text) for text in group)
            ids = [[ord(letter) - 96 for letter in text.ljust(width, "`")] for text in group]
            mask = [[1] * len(text) + [0] * (width - len(text)) for text in group]
            return Inputs(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))

    paths = {}
    for name, content in dict(files).items():
        paths[name] = tmp_path / name.replace("/", "-")
        paths[name].write_text(json.dumps(content))
    library = SimpleNamespace(
        AutoTokenizer=SimpleNamespace(from_pretrained=lambda name: Tokenizer()),
        utils=SimpleNamespace(cached_file=lambda name, file, **more: paths.get(file)),
    )

    class Model:
        def __init__(self) -> None:
            self.config = SimpleNamespace(**{"model_type": "bert", **config})

        def __call__(self, input_ids, attention_mask=None):
            states = torch.stack([input_ids, 2 * input_ids], dim=2).double()
            return SimpleNamespace(last_hidden_state=states, pooler_output=states[:, 0] * 0)

    return text_encoder(library, Model(), "name", pooling, "cpu", batched), asked


@pytest.mark.parametrize(
    ("how", "limit"),
    [
        ({}, None),
        ({"longest": 20}, 20),
        ({"longest": 10**9 - 1}, 10**9 - 1),
        ({"longest": 10**9}, None),
        ({"max_position_embeddings": 40}, 40),
        ({"max_position_embeddings": 4000}, 512),
        ({"max_position_embeddings": 4000, "longest": 30}, 30),
        ({"files": {"sentence_bert_config.json": {"max_seq_length": 7}}, "longest": 30}, 7),
        ({"files": {"sentence_bert_config.json": {}}, "longest": 30}, 30),
    ],
)
def test_texts_are_cut_at_the_least_of_the_limits(how, limit, tmp_path):
    encode, asked = reader(tmp_path, **how)
    encode(["ab"])
    assert asked == [(1, False, limit is not None, limit)]


@pytest.mark.parametrize(
    ("how", "texts", "padded"),
    [
        ({}, ["ac", "b"], [(1, False), (1, False)]),
        ({"batched": True}, ["ac", "b"], [(2, True)]),
        ({"batched": True}, ["ac"], [(1, False)]),
        ({"model_type": "siglip"}, ["ac"], [(1, "max_length")]),  # trained on texts of the full length
    ],
)
def test_texts_one_by_one_or_padded(how, texts, padded, tmp_path):
    encode, asked = reader(tmp_path, **how)
    found = encode(texts)
    np.testing.assert_allclose(found, [[2, 4]] * len(texts))
    assert found.dtype == np.float32
    assert [one[:2] for one in asked] == padded


CLS_FILE = {"1_Pooling/config.json": {"pooling_mode_cls_token": True}}


@pytest.mark.parametrize(
    ("files", "pooling", "vector"),
    [
        (CLS_FILE, None, [1, 2]),
        (CLS_FILE, "mean", [2, 4]),
        ({"modules.json": [{"type": "x.Normalize"}, {}]}, None, [0.2**0.5, 2 * 0.2**0.5]),
        ({"modules.json": [{"type": "x.Pooling"}]}, None, [2, 4]),
    ],
)
def test_the_files_of_sentence_transformers_decide_about_pooling(files, pooling, vector, tmp_path):
    np.testing.assert_allclose(reader(tmp_path, files, pooling=pooling)[0](["ac"]), [vector], rtol=1e-6)


# ---- files and weights


def library_of(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))

    def cached(name, file, _raise_exceptions_for_missing_entries):
        assert not _raise_exceptions_for_missing_entries
        return tmp_path / file if file in files else None

    return SimpleNamespace(utils=SimpleNamespace(cached_file=cached))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {}),
        ({"preprocessor_config.json": {"a": 1}, "video_preprocessor_config.json": {"a": 2}}, {"a": 1}),
        ({"video_preprocessor_config.json": {"a": 2}, "processor_config.json": {}}, {"a": 2}),
        ({"processor_config.json": {"image_processor": {"a": 3}, "video_processor": {"a": 4}}}, {"a": 3}),
        ({"processor_config.json": {"video_processor": {"a": 4}, "feature_extractor": {"a": 5}}}, {"a": 4}),
        ({"processor_config.json": {"feature_extractor": {"a": 5}}}, {"a": 5}),
    ],
)
def test_where_the_preparation_is_described(files, expected, tmp_path):
    assert preprocessor(library_of(tmp_path, files), "name") == expected


def model_with(missing=(), unexpected=(), architectures=None, bars=True):
    """load_model with a library that reports these keys; what it did to the library."""
    did = []
    logging = SimpleNamespace(
        is_progress_bar_enabled=lambda: bars,
        get_verbosity=lambda: 30,
        disable_progress_bar=lambda: did.append("off"),
        enable_progress_bar=lambda: did.append("on"),
        set_verbosity_error=lambda: did.append("quiet"),
        set_verbosity=lambda level: did.append(level),
    )

    def maker(label):
        def from_pretrained(name, dtype, output_loading_info):
            assert (dtype, output_loading_info) == (torch.float32, True)
            return label, {"missing_keys": list(missing), "unexpected_keys": list(unexpected)}

        return SimpleNamespace(from_pretrained=from_pretrained)

    library = SimpleNamespace(
        utils=SimpleNamespace(logging=logging),
        AutoModel=maker("plain"),
        CLIPModel=maker("both"),
        TextWithProjection=maker("text"),
        VisionWithProjection=maker("vision"),
    )
    config = SimpleNamespace() if architectures is None else SimpleNamespace(architectures=architectures)
    return lambda **more: load_model(library, "name", config, **more), did


@pytest.mark.parametrize(
    ("architectures", "made"),
    [
        (None, "plain"),
        (["CLIPModel"], "plain"),
        (["OtherWithProjection"], "plain"),
        (["TextWithProjection", "VisionWithProjection"], "text"),
    ],
)
def test_the_class_that_keeps_a_projection(architectures, made):
    load, did = model_with(architectures=architectures)
    assert load() == made
    assert did == ["off", "quiet", 30, "on"]
    load, did = model_with(bars=False)
    load()
    assert did == ["off", "quiet", 30]  # bars that were off stay off


ADVICE = "which would be random; take one that has it"
POOLER = r"or a pooling that does without it \(\+cls, \+mean\), or"


@pytest.mark.parametrize(
    ("missing", "unexpected", "more", "reason"),
    [
        (["masked_spec_embed", "x.position_ids"], ["cls.bias", "lm_head.weight"], {}, None),
        (
            ["b.w", "a.w", "c.w"],
            [],
            {},
            rf'"name" has no "a.w", "b.w", "c.w", {ADVICE}, or allow it by name: \+allow=a\.\*$',
        ),
        (["b.w", "a.w", "c.w"], [], {"unused": ["a.*"], "allow": ["b.*", "c.*"]}, None),
        (["e.w", "d.w", "c.w", "b.w", "a.w"], [], {}, r'has no "a.w", "b.w", "c.w" and 2 more, which'),
        (["a.w", "pooler.dense.bias"], [], {}, f"take one that has it {POOLER}"),
        (
            [],
            ["alone", "x.y.z"],
            {"unused": ["alone"]},
            r'holds "alone", "x.y.z", for which str has no place.*\+allow=alone$',
        ),
        ([], ["alone", "x.y.z"], {"allow": ["alone", "x.*"]}, None),
    ],
)
def test_weights_that_are_missing_or_dropped_are_named_up_to_three(missing, unexpected, more, reason):
    load, _ = model_with(missing=missing, unexpected=unexpected)
    if reason is None:
        assert load(**more) == "plain"
    else:
        with pytest.raises(InputError, match=reason):
            load(**more)


@pytest.mark.parametrize(
    ("config", "pooler", "unused"),
    [
        ({}, True, []),
        ({}, False, ["pooler.*", "*.pooler.*"]),
        ({"is_encoder_decoder": True}, True, ["decoder.*"]),
        ({"is_encoder_decoder": True}, False, ["pooler.*", "*.pooler.*", "decoder.*"]),
    ],
)
def test_parts_that_features_do_without(config, pooler, unused):
    assert unused_parts(SimpleNamespace(**config), pooler=pooler) == unused


# ---- references


@pytest.mark.parametrize(
    ("config", "notes", "kind"),
    [
        ({"vision_config": 1}, {}, "image"),
        ({"audio_config": 1}, {}, "audio"),
        ({"text_config": 1}, {"image_mean": 1}, "text"),
        ({"model_type": "vivit"}, {"sampling_rate": 1}, "image"),
        ({}, {"image_mean": 1}, "image"),
        ({}, {"image_processor_type": 1}, "image"),
        ({"image_size": 3}, {}, "image"),
        ({}, {"sampling_rate": 1}, "audio"),
        ({}, {}, "text"),
        (
            {"vision_config": 1, "text_config": 1},
            {},
            '"name" has several sides; say which: hf:name#image or hf:name#text',
        ),
    ],
)
def test_what_a_model_reads(config, notes, kind, tmp_path, monkeypatch):
    def refuse(kind):
        def fails(*given):
            raise InputError(kind)

        return fails

    library = library_of(tmp_path, {"preprocessor_config.json": notes})
    library.AutoConfig = SimpleNamespace(from_pretrained=lambda name: SimpleNamespace(**{"model_type": "x", **config}))
    library.AutoFeatureExtractor = SimpleNamespace(from_pretrained=refuse("audio"))
    monkeypatch.setattr(hf, "need", lambda *what: library)
    monkeypatch.setattr(hf, "load_model", lambda *given, **more: torch.nn.Identity())
    monkeypatch.setattr(hf, "image_encoder", refuse("image"))
    monkeypatch.setattr(hf, "text_encoder", refuse("text"))
    with pytest.raises(InputError, match=f"^{kind}$"):
        load_hf("name")


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("a/b", ("a/b", None, None, ())),
        ("a#audio", ("a", "audio", None, ())),
        ("a#cls", ("a", None, "cls", ())),
        ("a/b#text+cls", ("a/b", "text", "cls", ())),
        ("a#mean+allow=b", ("a", None, "mean", ("b",))),
        ("a/b#allow=pooler.*", ("a/b", None, None, ("pooler.*",))),
        ("a/b#image+mean+allow=pooler.*+allow=x.y", ("a/b", "image", "mean", ("pooler.*", "x.y"))),
        ("", 'an encoder "hf:" needs a local path or a name after the colon'),
        ("a#text+max", r'unknown pooling "max" in "hf:a#text\+max"; use \+cls or \+mean'),
        ("a#film", 'unknown kind "film" in "hf:a#film"; use #image, #text, #audio'),
        ("/nowhere", '^the model "/nowhere" cannot be loaded: '),
    ],
)
def test_references(reference, parts):
    if isinstance(parts, str):
        with pytest.raises(InputError, match=parts):
            load_encoder(f"hf:{reference}")
    else:
        assert parse(reference) == parts
