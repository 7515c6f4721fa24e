"""Any model of `transformers` with a joint space (CLIP, SigLIP 2, CLAP, ...) as the encoder of a trainable model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from calmrl.encoders.hf import load_model
from calmrl.errors import InputError, need


def check_columns(present: Tensor, names: Sequence[str]) -> None:
    """Raise InputError unless there is a column for each modality."""
    if present.ndim != 2 or present.shape[1] != len(names):
        raise InputError(f"present has shape {tuple(present.shape)}; pass one column for each of {', '.join(names)}")


def rows_with(present: Tensor, column: int, name: str, given: int) -> Tensor:
    """The numbers of the rows that have a modality; there must be as many as inputs were given."""
    rows = present[:, column].nonzero()[:, 0]
    if len(rows) != given:
        raise InputError(
            f"inputs[{name!r}] holds {given} rows but present says that {len(rows)} rows have it; pass the rows that "
            "are there, in order, and no others"
        )
    return rows


def spread(values: Tensor, rows: Tensor, n: int) -> Tensor:
    """(n, ...) with `values` in the given rows and 0 elsewhere."""
    return values.new_zeros(n, *values.shape[1:]).index_copy(0, rows, values)


def unit(head: Callable[[Tensor], Tensor], pooled: Tensor) -> Tensor:
    """Through the head, then to length 1, in full precision."""
    return normalize(head(pooled).float(), dim=-1)


def length(value: Any) -> int:
    """Rows of a tensor, or of a dict of tensors."""
    return len(value if isinstance(value, Tensor) else next(iter(value.values())))


SIDES = {"image": "pixel_values", "text": "input_ids", "audio": "input_features"}
TRAIN = ("frozen", "all", "lora")


class JointModel(nn.Module):
    """Unit vectors of the joint space, or with `width` of a linear head per modality on top of it.

    - `path`: a local folder, or a name that `transformers` can fetch.
    - `sides`: modality -> "image", "text" or "audio", for instance {"vision": "image", "text": "text"}.
    - `train`: "frozen" (the encoder stays as it is and in eval mode), "all", or "lora" (low-rank updates of all linear
      layers through `peft`; everything else of the encoder stays as it is).

    | side | input, of the rows that have it |
    |---|---|
    | image | (n, 3, H, W), or (n, frames, 3, H, W): the mean over frames is taken before length 1 |
    | text | dict of input_ids and attention_mask |
    | audio | tensor of input features, or the dict that the model's feature extractor gives |

    Only what is present is encoded. It has no matching head of its own.
    """

    matching = None

    def __init__(
        self,
        path: str,
        sides: Mapping[str, str],
        *,
        width: int | None = None,
        train: str = "frozen",
        lora_rank: int = 8,
        lora_alpha: int = 16,
        lora_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if train not in TRAIN:
            raise InputError(f"train must be one of {', '.join(TRAIN)}; got {train!r}")
        for name, side in sides.items():
            if side not in SIDES:
                raise InputError(f'{name} is said to be "{side}"; a side is one of {", ".join(SIDES)}')
        self.names, self.sides, self.mode = tuple(sides), dict(sides), train
        self.arguments: dict[str, Any] = {"path": path, "sides": dict(sides), "width": width, "train": train}
        self.arguments |= {"lora_rank": lora_rank, "lora_alpha": lora_alpha, "lora_dropout": lora_dropout}
        self.encoder: Any = _load(path)
        for side in self.sides.values():
            if not hasattr(self.encoder, f"get_{side}_features"):
                raise InputError(f'"{path}" has no joint space for {side}')
        for name, parameter in self.encoder.named_parameters():
            if train == "frozen" or name.startswith("logit_"):  # the temperature is the loss's
                parameter.requires_grad_(False)
        inner = _width(self.encoder)
        if train == "lora":
            peft = need("peft", "lora", "training with LoRA")
            linear = [name for name, module in self.encoder.named_modules() if type(module) is nn.Linear]
            low_rank = {"r": lora_rank, "lora_alpha": lora_alpha, "lora_dropout": lora_dropout}
            config = peft.LoraConfig(**low_rank, target_modules=linear)
            self.encoder = peft.inject_adapter_in_model(config, self.encoder)
        self.width = inner if width is None else width
        self.heads = nn.ModuleDict()
        if width is not None:
            self.heads.update({name: nn.Linear(inner, width, bias=False) for name in self.names})
        self.train(self.training)

    def train(self, mode: bool = True) -> JointModel:
        super().train(mode)
        if self.mode == "frozen":
            self.encoder.eval()
        return self

    def encoder_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.encoder.parameters()

    def forward(self, inputs: Mapping[str, Any], present: Tensor) -> dict[str, Tensor]:
        check_columns(present, self.names)
        z = {}
        for column, name in enumerate(self.names):
            rows = rows_with(present, column, name, length(inputs[name]))
            if len(rows):
                with torch.no_grad() if self.mode == "frozen" else nullcontext():
                    features = self._features(self.sides[name], inputs[name])
                head = self.heads[name] if len(self.heads) else nn.Identity()
                z[name] = spread(unit(head, features), rows, len(present))
            else:
                z[name] = next(self.encoder.parameters()).new_zeros(len(present), self.width)
        return z

    def encode(self, inputs: Mapping[str, Any], present: Tensor) -> tuple[dict[str, Tensor], None]:
        return self(inputs, present), None

    def _features(self, side: str, value: Any) -> Tensor:
        """(n, width of the joint space)."""
        read = getattr(self.encoder, f"get_{side}_features")
        if isinstance(value, Mapping):
            return _pooled(read(**value))
        if side == "image" and value.ndim == 5:
            flat = _pooled(read(pixel_values=value.flatten(0, 1)))
            return flat.unflatten(0, value.shape[:2]).mean(1)
        return _pooled(read(**{SIDES[side]: value}))


def _load(path: str) -> Any:
    transformers = need("transformers", "encoders", f"the model {path}")
    try:
        return load_model(transformers, path, transformers.AutoConfig.from_pretrained(path))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f'the model "{path}" cannot be loaded: {str(error).splitlines()[0]}') from error


def _pooled(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


@torch.no_grad()
def _width(encoder: Any) -> int:
    """Of the joint space: that of the vector of a text of two tokens."""
    ids = torch.ones(1, 2, dtype=torch.long)
    return _pooled(encoder.get_text_features(input_ids=ids, attention_mask=torch.ones_like(ids))).shape[-1]
