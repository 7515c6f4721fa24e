"""The model of the paper: vision, audio, text and subtitle towers, one linear head each, and a matching encoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from calmrl.errors import InputError
from calmrl.models.joint import check_columns, length, rows_with, spread, unit
from calmrl.paper.vast import matching as berts
from calmrl.paper.vast.matching import FLOOR, VastMatching
from calmrl.paper.vast.towers import Beats, EvaVit, freeze_first

SETS = {"va": ("vision", "audio"), "vs": ("vision", "subtitle"), "vas": ("vision", "audio", "subtitle")}


class FusedHeads(nn.ModuleDict):
    """A linear layer with bias for each set of modalities that VAST has one for, on their pooled vectors side by side.

        f_i = normalize(W_S [pooled_m]_{m in S} + b_S),   S = what row i has of vision, audio and subtitle

    Where there is no layer for S (one modality, or audio with subtitle) it is the normalised sum of the unit vectors.
    The score of text i with row j is t_i . f_j: it ranks, gives the candidates of re-ranking, and weighs negatives.
    """

    def __init__(self, widths: Mapping[str, int], width: int) -> None:
        sets = {key: names for key, names in SETS.items() if all(name in widths for name in names)}
        super().__init__({key: nn.Linear(sum(widths[name] for name in sets[key]), width) for key in sets})
        self.sets = sets

    def forward(
        self, z: Mapping[str, Tensor], pooled: Mapping[str, Tensor], present: Tensor, names: Sequence[str]
    ) -> Tensor:
        """(N, width): `z` holds unit vectors of all rows, 0 where missing, `pooled` those of the rows that are there."""
        others = [name for name in names if name != "text"]
        column = {name: present[:, names.index(name)] for name in others}
        fused = summed(z)
        for key, parts in self.sets.items():
            has = torch.stack([column[name] == (name in parts) for name in others]).all(0)  # these and no others
            rows = has.nonzero()[:, 0]
            if len(rows):
                place = {name: column[name].cumsum(0)[rows] - 1 for name in parts}  # of each row in `pooled`
                side_by_side = torch.cat([pooled[name][place[name]] for name in parts], dim=1)
                vectors = normalize(self[key](side_by_side).float(), dim=1).to(fused.dtype)
                fused = fused.index_copy(0, rows, vectors)
        return fused


def summed(z: Mapping[str, Tensor]) -> Tensor:
    """(N, width) normalised sum of the unit vectors of each row beside its text; 0 where it has none."""
    return normalize(torch.stack([rows for name, rows in z.items() if name != "text"]).sum(0), dim=1)


KINDS = {"vision": "image", "audio": "audio", "text": "text", "subtitle": "text"}  # modality -> what its files are
NAMES = tuple(KINDS)
TEXTS = ("text", "subtitle")


class VastModel(nn.Module):
    """Raw media -> unit vectors in one space, and the tokens that the matching encoder looks at.

    | modality | input (rows that have it only) | pooling before the bias-free linear head |
    |---|---|---|
    | vision | (n, frames, 3, H, W) | summary token of each frame, mean over frames |
    | audio | (n, slices, 1024, 64) filter banks | mean over tokens, mean over slices |
    | text, subtitle | dict of input_ids and attention_mask, (n, L) | first token; both go through one BERT |

    `forward(inputs, present)` gives {name: (N, width)} with zeros for what is missing; `encode` also gives the tokens.
    `present` is (N, k) bool with a column per name. An encoder never sees a row that lacks its modality. `matching` is
    a VastMatching, or None. With `first_stage="fused"`, `encode` also gives one vector of `FusedHeads` per row, under
    the name "fused" among the tokens; "sum" is the normalised sum of the unit vectors instead.
    """

    kind = "vast"  # its name in MODELS
    matching: VastMatching | None
    arguments: dict[str, Any]  # of `from_sizes`, to build one of the same shape

    def __init__(
        self,
        bert: Any = None,
        vision: EvaVit | None = None,
        audio: Beats | None = None,
        *,
        names: Sequence[str] = NAMES,
        width: int = 512,
        frames: int = 8,
        slices: int = 1,
        matching: bool = True,
        temperature: float = 0.07,
        first_stage: Literal["fused", "sum"] = "fused",
        negatives: Literal["floored", "softmax"] = "floored",
    ) -> None:
        super().__init__()
        unknown = [name for name in names if name not in NAMES]
        if unknown or len(set(names)) != len(names) or not names:
            raise InputError(f"names must be some of {', '.join(NAMES)}, each once; got {', '.join(names) or 'none'}")
        for kinds, tower in ((("vision",), vision), (("audio",), audio), (TEXTS, bert)):
            wanted = any(name in names for name in kinds)
            if wanted != (tower is not None):
                what = "pass its tower" if wanted else "leave its tower out"
                raise InputError(f"{' or '.join(kinds)} is {'' if wanted else 'not '}among the names: {what}")
        self.names, self.width = tuple(names), width
        self.vision, self.audio, self.bert = vision, audio, bert
        towers: dict[str, Any] = {"vision": vision, "audio": audio}
        widths = {name: bert.config.hidden_size if name in TEXTS else towers[name].width for name in self.names}
        self.heads = nn.ModuleDict({name: nn.Linear(d, width, bias=False) for name, d in widths.items()})
        others = {name: d for name, d in widths.items() if name != "text"}
        if matching and "text" not in names:
            raise InputError("matching needs text; pass matching=False")
        self.matching = None
        if matching:
            self.matching = VastMatching(
                bert,
                others,
                self.names,
                frames=frames,
                slices=slices,
                temperature=temperature,
                floor=FLOOR if negatives == "floored" else None,
            )
        self.fused = FusedHeads(others, width) if first_stage == "fused" and "text" in names and others else None

    @classmethod
    def from_sizes(
        cls,
        *,
        names: Sequence[str] = NAMES,
        width: int = 512,
        frames: int = 8,
        slices: int = 1,
        matching: bool = True,
        temperature: float = 0.07,
        first_stage: Literal["fused", "sum"] = "fused",
        negatives: Literal["floored", "softmax"] = "floored",
        image_size: int = 224,
        patch_size: int = 14,
        vision_width: int = 1408,
        vision_layers: int = 40,
        vision_heads: int = 16,
        vision_mlp: int = 6144,
        vision_drop_path: float = 0.4,
        audio_embed: int = 512,
        audio_width: int = 768,
        audio_layers: int = 12,
        audio_heads: int = 12,
        audio_mlp: int = 3072,
        audio_kernel: int = 128,
        audio_groups: int = 16,
        audio_buckets: int = 320,
        audio_max_distance: int = 800,
        audio_layer_drop: float = 0.05,
        audio_gradient_decay: float = 0.6,
        vocabulary: int = 30_522,
        text_width: int = 768,
        text_layers: int = 12,
        text_heads: int = 12,
        text_mlp: int = 3072,
        positions: int = 512,
        dropout: float = 0.1,
    ) -> VastModel:
        """The model with random weights; the defaults are sizes and training rules of the published checkpoints."""
        arguments: dict[str, Any] = {key: v for key, v in locals().items() if key not in ("cls", "__class__")}

        def sizes(tower: str) -> dict[str, Any]:
            """vision_mlp -> mlp_width, and so on: the arguments of a tower by its own names."""
            own = {key.removeprefix(f"{tower}_"): v for key, v in arguments.items() if key.startswith(f"{tower}_")}
            return {f"{key}_width" if key in ("mlp", "embed") else key: value for key, value in own.items()}

        vision = audio = bert = None
        if "vision" in names:
            vision = EvaVit(image_size=image_size, patch_size=patch_size, output_width=None, **sizes("vision"))
        if "audio" in names:
            audio = Beats(**sizes("audio"))
        if any(name in TEXTS for name in names):
            shape = {"vocabulary": vocabulary, "positions": positions, "dropout": dropout, **sizes("text")}
            bert = berts.build_bert(**shape, cross_attention=matching)
        shared = ("names", "width", "frames", "slices", "matching", "temperature", "first_stage", "negatives")
        model = cls(bert, vision, audio, **{key: arguments[key] for key in shared})
        model.arguments = arguments | {"names": list(names)}
        return model

    @classmethod
    def restore(cls, **arguments: Any) -> VastModel:
        """The model of saved `arguments`; those of models older than the fused heads do not name them."""
        return cls.from_sizes(**{"first_stage": "sum", **arguments})

    def towers(self) -> dict[str, nn.Module]:
        """The encoders, which were trained before, by name: vision, audio and text (BERT, for both kinds of text)."""
        all_three = {"vision": self.vision, "audio": self.audio, "text": self.bert}
        return {name: tower for name, tower in all_three.items() if tower is not None}

    def encoder_parameters(self) -> Iterator[nn.Parameter]:
        """Those of the towers; the heads and the matching head are the rest."""
        for tower in self.towers().values():
            yield from tower.parameters()

    def forward(self, inputs: Mapping[str, Any], present: Tensor) -> dict[str, Tensor]:
        return self.encode(inputs, present)[0]

    def encode(self, inputs: Mapping[str, Any], present: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Unit vectors, and the tokens for `matching`: hidden states of the rows that are there; for text the ids of
        all rows, 0 where there is none; "fused", the vector of all but the text."""
        check_columns(present, self.names)
        z: dict[str, Tensor] = {}
        tokens: dict[str, Any] = {}
        pooled: dict[str, Tensor] = {}
        for column, name in enumerate(self.names):
            if name not in inputs:
                raise InputError(f"inputs has no {name!r}; pass it with 0 rows if no row has it")
            rows = rows_with(present, column, name, length(inputs[name]))
            if len(rows):
                tokens[name], pooled[name] = self._tower(name, inputs[name])
                z[name] = spread(unit(self.heads[name], pooled[name]), rows, len(present))
            else:
                tokens[name] = self._no_tokens(name)
                z[name] = tokens[name].new_zeros(len(present), self.width)
            if name == "text":
                tokens[name] = {key: spread(value, rows, len(present)) for key, value in inputs[name].items()}
        if self.fused is not None:
            tokens["fused"] = self.fused(z, pooled, present, self.names)
        return z, tokens

    def freeze(self, *, vision: int = 0, audio: int = 0, text: int = 0) -> None:
        """Stop training the first blocks of each tower, and what comes before them."""
        if self.vision is not None:
            self.vision.freeze(vision)
        if self.audio is not None:
            self.audio.freeze(audio)
        if self.bert is not None:
            freeze_first(self.bert.encoder.layer, text, [self.bert.embeddings])

    def set_checkpointing(self, on: bool = True) -> None:
        """Save memory: compute blocks again in the backward pass instead of keeping their values."""
        for tower in (self.vision, self.audio):
            if tower is not None:
                tower.checkpointing = on
        if self.bert is not None:
            berts.set_checkpointing(self.bert, on)

    def _tower(self, name: str, value: Any) -> tuple[Tensor, Tensor]:
        """Tokens and the pooled vector of the rows that have a modality."""
        if name in TEXTS:
            states = berts.bert_tokens(self.bert, berts.check_text(name, value))
            return states, states[:, 0]
        if value.ndim != (5 if name == "vision" else 4):
            wanted = "(rows, frames, 3, H, W)" if name == "vision" else "(rows, slices, frames, bins)"
            raise InputError(f"inputs[{name!r}] must have shape {wanted}; got {tuple(value.shape)}")
        tower = self.vision if name == "vision" else self.audio
        assert tower is not None
        states = tower(value.flatten(0, 1)).unflatten(0, value.shape[:2])  # (n, frames, T, d)
        return states, (states[:, :, 0] if name == "vision" else states.mean(2)).mean(1)

    def _no_tokens(self, name: str) -> Tensor:
        """Tokens of no row, with the right number of dimensions."""
        weight = self.heads.get_parameter(f"{name}.weight")
        return weight.new_zeros((0, 1, weight.shape[1]) if name == "subtitle" else (0, 1, 1, weight.shape[1]))
