"""Parts of the encoders of transformers at their limits, without a model."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calmrl.data.media.images import IMAGENET_MEAN, IMAGENET_STD, ImageTransform
from calmrl.encoders.hf import (
    NaflexTransform,
    _kind,
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

NOTHING = SimpleNamespace()


# ---- pictures


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ({}, (224, 224)),
        ({"size": 100}, (100, 100)),
        ({"size": {"shortest_edge": 50}}, (50, 50)),
        ({"size": {"height": 40, "width": 40}}, (40, (40, 40))),
        ({"size": [40, 40]}, (40, (40, 40))),
        ({"size": 256, "crop_size": 224}, (224, 256)),
        ({"size": 256, "crop_size": {"height": 200, "width": 200}}, (200, 256)),
        ({"size": 256, "crop_size": 224, "do_center_crop": False}, (256, 256)),
        ({"size": [60, 40], "crop_size": 32}, (32, (60, 40))),
        ({"size": 383, "crop_pct": 0.5}, (383, 766)),
        ({"size": 384, "crop_pct": 0.5}, (384, 384)),  # ConvNeXT resizes straight from there on
    ],
)
def test_sizes(notes, expected):
    found = image_transform(notes, NOTHING)
    assert (found.size, found.resize) == expected
    assert (found.resample, found.mean, found.std) == (3, IMAGENET_MEAN, IMAGENET_STD)


def test_the_size_of_the_config_stands_in():
    assert image_transform({}, SimpleNamespace(image_size=30)) == image_transform({"size": 30}, NOTHING)
    assert image_transform({"size": 50}, SimpleNamespace(image_size=30)).size == 50


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ({"size": [40, 30]}, "this model takes images of 40 x 30; only squares are supported"),
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
    assert (naflex_transform({"patch_size": 8, **notes}, NOTHING).mean) == mean


def test_flexible_pictures_without_more_words():
    assert naflex_transform({}, SimpleNamespace(patch_size=14)) == NaflexTransform(14)
    assert NaflexTransform() == NaflexTransform(16, 256, 2, (0.5,) * 3, (0.5,) * 3)
    notes = {"patch_size": 8, "max_num_patches": 9, "resample": 3}
    assert naflex_transform(notes, SimpleNamespace(patch_size=14)) == NaflexTransform(8, 9, 3)
    white = pytest.importorskip("PIL.Image").new("RGB", (48, 24), "white")
    pixels = NaflexTransform(8, 8, mean=(0.5, 0.0, 0.0), std=(0.5, 1.0, 2.0))(white)
    assert (pixels.shape, pixels.dtype) == ((3, 16, 32), np.float32)
    assert [float(channel.max()) for channel in pixels] == [1.0, 1.0, 0.5]


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


@pytest.mark.parametrize(("pooling", "factor"), [(None, 10), ("cls", 1), ("mean", 2)])
def test_pictures_one_by_one_on_a_cpu(pooling, factor):
    model = Seeing()
    encoder = image_encoder(model, {}, pooling, "cpu")
    assert (encoder.kind, encoder.width, encoder.prepare.size) == ("image", 3, 8)
    model.batches.clear()
    vectors = encoder.encode([np.full((1, 3, 8, 8), value, np.float32) for value in (1, 2)])
    np.testing.assert_allclose(vectors, [[factor] * 3, [2 * factor] * 3])
    assert model.batches == [1, 1]


def test_pictures_together_elsewhere():
    model = Seeing()
    encoder = image_encoder(model, {}, None, "cpu:0")
    model.batches.clear()
    encoder.encode([np.zeros((1, 3, 8, 8), np.float32)] * 4)
    assert model.batches == [4]


# ---- pooling


def test_which_of_the_outputs_is_taken():
    states, mask = torch.arange(12.0).reshape(1, 3, 4), torch.tensor([[1, 1, 0]])
    plain = SimpleNamespace(last_hidden_state=states, pooler_output=torch.full((1, 2, 2), 7.0))
    assert pooled(states, None, None, True) is states
    projected = SimpleNamespace(text_embeds=states[:, 0], pooler_output=states[:, 1])
    assert torch.equal(pooled(projected, mask, "cls", True), states[:, 0])
    assert pooled(plain, mask, None, True).tolist() == [[7.0] * 4]
    assert torch.equal(pooled(plain, None, None, False), states.mean(1))
    assert torch.equal(pooled(plain, None, "mean", True), states.mean(1))
    assert torch.equal(pooled(plain, mask, "cls", True), states[:, 0])
    assert torch.equal(pooled(plain, mask, "mean", True), states[:, :2].mean(1))
    without = SimpleNamespace(last_hidden_state=states, pooler_output=None)
    assert torch.equal(pooled(without, None, None, True), states.mean(1))
    maps = SimpleNamespace(last_hidden_state=torch.arange(24.0).reshape(1, 2, 3, 4))
    assert pooled(maps, None, "cls", True).tolist() == [[5.5, 17.5]]  # convolutional: channels first


def test_padding_that_is_no_number_does_not_count():
    states = torch.tensor([[[1.0, 2.0], [torch.nan, torch.inf]]])
    assert pooled(SimpleNamespace(last_hidden_state=states), torch.tensor([[1, 0]]), None, False).tolist() == [
        [1.0, 2.0]
    ]


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


@pytest.mark.parametrize(("samples", "expected"), [(1, 0.0), (2, 0.5), (3, 1.0), (6, 2.5)])
def test_steps_that_begin_after_the_sound_are_left_out(samples, expected):
    found = hear(Hearing(), Extractor(n_samples=6), None, "cpu", [np.arange(samples, dtype=np.float32)])
    assert found.tolist() == [[expected]]


def test_joint_models_and_decoders():
    joint = SimpleNamespace(
        get_audio_features=lambda input_values, attention_mask: SimpleNamespace(pooler_output=torch.ones(1, 2))
    )
    assert hear(joint, Extractor(), "cls", "cpu", [np.zeros(3, np.float32)]).tolist() == [[1.0, 1.0]]
    inner = Hearing()
    outer = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=True), get_encoder=lambda: inner)
    hear(outer, Extractor(), None, "cpu", [np.zeros(3, np.float32)])
    assert inner.heard == [3]


# ---- texts


class Tokens(dict):
    def to(self, device):
        return self


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
            return Tokens(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))

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


def test_texts_one_by_one_or_padded(tmp_path):
    encode, asked = reader(tmp_path)
    np.testing.assert_allclose(encode(["ac", "b"]), [[2, 4], [2, 4]])
    assert [one[:2] for one in asked] == [(1, False), (1, False)]
    encode, asked = reader(tmp_path, batched=True)
    found = encode(["ac", "b"])
    np.testing.assert_allclose(found, [[2, 4], [2, 4]])
    assert found.dtype == np.float32
    assert [one[:2] for one in asked] == [(2, True)]
    encode(["a"])
    assert asked[1][:2] == (1, False)


def test_models_that_were_trained_on_filled_texts(tmp_path):
    encode, asked = reader(tmp_path, model_type="siglip")
    np.testing.assert_allclose(encode(["ac"]), [[2, 4]])
    assert asked[0][1] == "max_length"


def test_the_files_of_sentence_transformers_decide_about_pooling(tmp_path):
    first = {"1_Pooling/config.json": {"pooling_mode_cls_token": True}}
    assert reader(tmp_path, first)[0](["ac"]).tolist() == [[1, 2]]
    assert reader(tmp_path, first, pooling="mean")[0](["ac"]).tolist() == [[2, 4]]
    unit = {"modules.json": [{"type": "x.Normalize"}, {}]}
    np.testing.assert_allclose(reader(tmp_path, unit)[0](["ac"]), [[0.2**0.5, 2 * 0.2**0.5]], rtol=1e-6)
    assert reader(tmp_path, {"modules.json": [{"type": "x.Pooling"}]})[0](["ac"]).tolist() == [[2, 4]]


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


def test_weights_that_are_missing_or_dropped_are_named_up_to_three():
    assert (
        model_with(missing=["masked_spec_embed", "x.position_ids"], unexpected=["cls.bias", "lm_head.weight"])[0]()
        == "plain"
    )
    load, _ = model_with(missing=["b.w", "a.w", "c.w"])
    with pytest.raises(InputError) as wrong:
        load()
    assert str(wrong.value) == (
        'the checkpoint "name" has no "a.w", "b.w", "c.w", which would be random; take one that has it, or allow it by '
        "name: +allow=a.*"
    )
    assert load(unused=["a.*"], allow=["b.*", "c.*"]) == "plain"
    with pytest.raises(InputError, match=r'has no "a.w", "b.w", "c.w" and 2 more, which'):
        model_with(missing=["e.w", "d.w", "c.w", "b.w", "a.w"])[0]()
    with pytest.raises(
        InputError, match=r"take one that has it or a pooling that does without it \(\+cls, \+mean\), or"
    ):
        model_with(missing=["a.w", "pooler.dense.bias"])[0]()
    load, _ = model_with(unexpected=["alone", "x.y.z"])
    with pytest.raises(InputError, match=r'holds "alone", "x.y.z", for which str has no place.*\+allow=alone$'):
        load(unused=["alone", "x.*"])
    assert load(allow=["alone", "x.*"]) == "plain"


def test_parts_that_features_do_without():
    plain, decoder = SimpleNamespace(), SimpleNamespace(is_encoder_decoder=True)
    assert unused_parts(plain, pooler=True) == []
    assert unused_parts(plain, pooler=False) == ["pooler.*", "*.pooler.*"]
    assert unused_parts(decoder, pooler=True) == ["decoder.*"]
    assert unused_parts(decoder, pooler=False) == ["pooler.*", "*.pooler.*", "decoder.*"]


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
    ],
)
def test_what_a_model_reads(config, notes, kind):
    assert _kind(SimpleNamespace(**{"model_type": "x", **config}), notes, "name") == kind


def test_a_model_with_two_sides_says_how_to_name_them():
    with pytest.raises(InputError, match='"name" has several sides; say which: hf:name#image or hf:name#text'):
        _kind(SimpleNamespace(vision_config=1, text_config=1, model_type="clip"), {}, "name")


def test_references():
    assert parse("a#cls") == ("a", None, "cls", ())
    assert parse("a#mean+allow=b") == ("a", None, "mean", ("b",))
    assert parse("a#audio") == ("a", "audio", None, ())
    with pytest.raises(InputError, match=r'unknown pooling "max" in "hf:a#text\+max"; use \+cls or \+mean'):
        parse("a#text+max")
    with pytest.raises(InputError, match='unknown kind "film" in "hf:a#film"; use #image, #text, #audio'):
        parse("a#film")


def test_what_cannot_be_loaded_says_its_first_line(monkeypatch):
    def fails(name):
        raise OSError("no such model\nand much advice")

    library = SimpleNamespace(AutoConfig=SimpleNamespace(from_pretrained=fails))
    monkeypatch.setattr("calmrl.encoders.hf.need", lambda *what: library)
    with pytest.raises(InputError) as wrong:
        load_hf("name")
    assert str(wrong.value) == 'the model "name" cannot be loaded: no such model'


def test_transforms_are_equal_by_value():
    assert image_transform({}, NOTHING) == ImageTransform(
        224, resize=224, resample=3, mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
