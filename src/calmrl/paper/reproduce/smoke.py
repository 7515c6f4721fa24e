"""Tiny collections in the layouts of their publishers: real video and audio of half a second, tiny features and weights."""

import json
import math
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calmrl._support.output import new_directory
from calmrl.data.features.writer import write_features
from calmrl.errors import need
from calmrl.paper.reproduce.needs import CHECKPOINT, TOKENIZER, features_of_others
from calmrl.paper.reproduce.tables import CLASSIFICATION, Run
from calmrl.paper.vast.checkpoints import VAST_KEYS
from calmrl.paper.vast.model import VastModel

WIDTH, FRAMES, IMAGE = 8, 2, 28
SIZES: dict[str, int | float] = {
    **{"patch_size": 14, "vision_width": 16, "vision_layers": 1, "vision_heads": 2, "vision_mlp": 16},
    **{"audio_embed": 8, "audio_width": 16, "audio_layers": 1, "audio_heads": 2, "audio_mlp": 16},
    **{"audio_kernel": 6, "audio_groups": 4, "audio_buckets": 16, "audio_max_distance": 12},
    **{"vocabulary": 64, "text_width": 16, "text_layers": 1, "text_heads": 2, "text_mlp": 16, "positions": 80},
}
CHARACTERS = "abcdefghijklmnopqrstuvwxyz .,0123456789"
SHARED_BIAS = "audio_encoder.encoder.layers.{}.self_attn.relative_attention_bias.weight"


def write_checkpoint(path: Path) -> None:
    """Random weights under the names of a published model_step_*.pt."""
    torch.manual_seed(0)
    model = VastModel.from_sizes(width=WIDTH, frames=FRAMES, image_size=IMAGE, **SIZES)  # type: ignore[arg-type]
    with torch.no_grad():
        for matrix in (parameter for parameter in model.parameters() if parameter.ndim > 1):
            matrix.normal_(0.0, 0.3)  # so that items differ
    state = {official_name(name): value for name, value in model.state_dict().items()}
    state |= {SHARED_BIAS.format(i): state[SHARED_BIAS.format(0)].clone() for i in range(int(SIZES["audio_layers"]))}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)


def official_name(name: str) -> str:
    """A parameter of the model as the published files call it."""
    theirs, ours = max(
        ((a, b) for a, b in VAST_KEYS if b and name.startswith(b)), key=lambda pair: len(pair[1])
    )  # the longest prefix
    return theirs + name.removeprefix(ours)


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of single characters."""
    tokenizers = need("tokenizers", "encoders", "a tokenizer")
    transformers = need("transformers", "encoders", "a tokenizer")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *CHARACTERS]
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    folder.mkdir(parents=True, exist_ok=True)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


TRAIN, TEST = 6, 4  # items of each part
RATE = 16_000
SECONDS = 0.5
SIDE = 32  # pixels
FEATURES = 12  # width
CAPTIONS = "file_name,caption_1,caption_2,caption_3,caption_4,caption_5\n"


def smoke_changes(run: Run) -> list[str]:
    """What makes a run tiny: sizes, and one step per stage."""
    stages = 0 if run.pairs is None else 2 if run.pairs else 1
    changes = [f"stages.{stage}.{key}" for stage in range(stages) for key in ("epochs=null", "steps=1")]
    changes += ["batch_size=4", "log_every=1", f"model.width={WIDTH}", "precision=fp32"]
    if run.method == "calmrl" and not any(change.startswith("calibration.imputer=") for change in run.changes):
        changes.append("calibration.imputer.latent_dim=4")
    if run.config == CLASSIFICATION:
        return changes
    changes += [f"model.sizes={json.dumps(SIZES)}", f"model.image_size={IMAGE}", f"model.frames={FRAMES}"]
    return [*changes, "model.workers=1"]


def write_smoke_data(root: Path) -> None:
    """Everything that the tables need, tiny, in one folder; nothing happens if it is there."""
    if root.is_dir():
        return
    with new_directory(root) as draft:
        write_checkpoint(draft / CHECKPOINT)
        write_tokenizer(draft / TOKENIZER)
        media = draft / "media"
        for item in range(TRAIN + TEST):
            _write_media(media / f"{item}.mp4", item, video=True)
            _write_media(media / f"{item}.wav", item, video=False)
        _write_video_collections(draft, media)
        _write_audio_collections(draft, media)
        shutil.rmtree(media)
        _write_features(draft)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _write_video_collections(root: Path, media: Path) -> None:
    """MSR-VTT, DiDeMo, ActivityNet, VATEX and VAST-150K."""
    train, test = range(TRAIN), range(TRAIN, TRAIN + TEST)
    sentences = [
        {"video_id": f"video{i}", "caption": f"{words} {i}"} for i in train for words in ("a film", "the film")
    ]
    _write(root / "msrvtt/MSRVTT_data.json", {"videos": [], "sentences": sentences})
    _write(root / "msrvtt/MSRVTT_train.9k.csv", "\n".join(["video_id", *(f"video{i}" for i in train)]))
    lines = [f"ret{i},msr{i},video{i},a film {i}" for i in test]
    _write(root / "msrvtt/MSRVTT_JSFUSION_test.csv", "\n".join(["key,vid_key,video_id,sentence", *lines]))
    moments = [{"video": f"film{i}.mp4", "description": f"{words} {i}"} for i in test for words in ("first", "then")]
    _write(root / "didemo/test_data.json", moments)
    _write(root / "activitynet/val_1.json", {f"v_film{i}": {"sentences": [f"start {i}.", "end."]} for i in test})
    clips = [{"videoID": f"film{i}_000000_000010", "enCap": [f"a clip {i}", f"clip {i}"]} for i in test]
    _write(root / "vatex/vatex_public_test_english_v1.1.json", clips)
    whole = [{"clip_id": f"clip{i}", "vast_cap": f"all of {i}", "subtitle": f"words {i}"} for i in train]
    _write(root / "vast150k/vast150k.json", whole)
    for i in train:
        _copy(media / f"{i}.mp4", root / f"vast150k/videos/clip{i}.mp4")
        _copy(media / f"{i}.mp4", root / f"msrvtt/videos/video{i}.mp4")
    for i in test:
        for name in (f"msrvtt/videos/video{i}", f"didemo/videos/film{i}", f"activitynet/videos/v_film{i}"):
            _copy(media / f"{i}.mp4", root / f"{name}.mp4")
        _copy(media / f"{i}.mp4", root / f"vatex/videos/film{i}_000000_000010.mp4")


def _write_audio_collections(root: Path, media: Path) -> None:
    """AudioCaps and Clotho."""
    head = "audiocap_id,youtube_id,start_time,caption"
    for part, items in (("train", range(TRAIN)), ("test", range(TRAIN, TRAIN + TEST))):
        lines = [f"{100 + i},sound{i},0,a sound {i}" for i in items]
        _write(root / f"audiocaps/dataset/{part}.csv", "\n".join([head, *lines]))
        for i in items:
            _copy(media / f"{i}.wav", root / f"audiocaps/{part}/sound{i}_0.wav")
    rows = [f"sound{i}.wav,{','.join(f'caption {n} of {i}' for n in range(5))}\n" for i in range(TRAIN, TRAIN + TEST)]
    _write(root / "clotho/clotho_captions_evaluation.csv", CAPTIONS + "".join(rows))
    for i in range(TRAIN, TRAIN + TEST):
        _copy(media / f"{i}.wav", root / f"clotho/evaluation/sound{i}.wav")


def _write_features(root: Path) -> None:
    """Features of ImageBind for classification, and of its test items of MSR-VTT, AudioCaps and Clotho."""
    generator = np.random.default_rng(0)
    parts = ["train"] * 8 + ["val"] * 2 + ["test"] * 4
    labels = [f"class {i % 2}" for i in range(len(parts))]
    media = {
        "vggsound": ("vision", "audio"),
        "ucf101": ("vision",),
        "audioset": ("vision", "audio"),
        "esc50": ("audio",),
    }
    texts = {label: generator.normal(size=FEATURES).astype("f4") for label in ("class 0", "class 1")}
    for name, modalities in media.items():
        z = {key: generator.normal(size=(len(parts), FEATURES)).astype("f4") for key in modalities}
        z["text"] = np.stack([texts[label] for label in labels])
        several: list[Any] = [[label, "class 0"] if label == "class 1" else [label] for label in labels]
        path = features_of_others(root, "imagebind", name)
        write_features(path, z, split=parts, labels=several if name == "audioset" else labels)
    write_features(
        features_of_others(root, "imagebind", "audioset-classes"),
        {"text": np.stack(list(texts.values()))},
        labels=list(texts),
    )
    for name, modality in (("msrvtt", "vision"), ("audiocaps", "audio"), ("clotho", "audio")):
        z = {key: generator.normal(size=(TEST, FEATURES)).astype("f4") for key in (modality, "text")}
        write_features(features_of_others(root, "imagebind", name), z, split=["test"] * TEST)


def _write_media(path: Path, item: int, *, video: bool) -> None:
    """A grey level and a tone that are those of the item."""
    av = need("av", "media", "writing videos")
    path.parent.mkdir(parents=True, exist_ok=True)
    times = np.arange(int(SECONDS * RATE)) / RATE
    tone = (0.3 * np.sin(2 * math.pi * (200 + 40 * item) * times)).astype(np.float32)[None]
    with av.open(str(path), "w") as container:
        images = container.add_stream("mpeg4", rate=10) if video else None
        audio = container.add_stream("aac" if video else "pcm_s16le", rate=RATE)
        audio.layout = "mono"
        if images is not None:
            images.width = images.height = SIDE
            images.pix_fmt = "yuv420p"
            for number in range(4):
                pixels = np.full((SIDE, SIDE, 3), 20 * item + 5 * number, np.uint8)
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, 10)
                container.mux(images.encode(frame))
            container.mux(images.encode())
        step = audio.codec_context.frame_size or 1024
        for start in range(0, tone.shape[1], step):
            frame = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(tone[:, start : start + step]), format="fltp", layout="mono"
            )
            frame.sample_rate, frame.pts, frame.time_base = RATE, start, Fraction(1, RATE)
            container.mux(audio.encode(frame))
        container.mux(audio.encode())
