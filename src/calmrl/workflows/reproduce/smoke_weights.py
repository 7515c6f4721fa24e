"""A tiny checkpoint with the names of VAST's, and a tiny tokenizer: the same files as the real ones, only smaller."""

from pathlib import Path

import torch

from calmrl.errors import need
from calmrl.models.vast.model import VastModel
from calmrl.models.vast.vast_keys import VAST_KEYS

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
