"""The trainable towers and what they start from; `docs/how-to/train-from-media.md` says which file goes where."""

from dataclasses import dataclass

from calmrl._support.registry import Registry


@dataclass(frozen=True)
class TowerSpec:
    """An entry for `calmrl ls towers`: what goes in, what comes out, and where the weights come from."""

    kind: str
    width: int
    about: str
    weights: str
    licence: str
    extra: str  # of calmrl; "" if the core is enough

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        needs = f'pip install "calmrl[{self.extra}]"' if self.extra else "nothing more"
        return (
            f"{self.kind}, width {self.width}: {self.about}, trainable; weights: {self.weights} ({self.licence}), to be "
            f"downloaded; needs {needs}"
        )


FRAMES = "image or video frames"
_ENTRIES = {
    "eva01-g14": TowerSpec(
        FRAMES, 1408, "vision tower of EVA01-CLIP ViT-g/14", "EVA01_CLIP_g_14_psz14_s11B.pt", "MIT", "media"
    ),
    "beats-iter3plus": TowerSpec(
        "audio", 768, "BEATs iter3+ trained on AudioSet-2M", "BEATs_iter3_plus_AS2M.pt", "MIT", "media"
    ),
    "bert-base-uncased": TowerSpec(
        "text", 768, "BERT base, also the matching encoder", "folder bert-base-uncased", "Apache-2.0", "encoders"
    ),
    "vast": TowerSpec(
        f"{FRAMES}, audio, text, subtitle",
        512,
        "eva01-g14, beats-iter3plus and bert-base-uncased with heads and a matching encoder",
        "model_step_*.pt of VAST, GRAM or PMRL",
        "MIT",
        "encoders",
    ),
}
TOWERS = Registry[TowerSpec]("tower", _ENTRIES)
