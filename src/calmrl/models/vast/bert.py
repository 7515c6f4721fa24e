"""BERT of `transformers`, both ways: text alone, and text with cross-attention to the tokens of other modalities."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from calmrl.errors import InputError, need


def build_bert(
    *,
    vocabulary: int = 30_522,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    mlp_width: int = 3072,
    positions: int = 512,
    dropout: float = 0.1,
    cross_attention: bool = True,
) -> Any:
    """A BertModel with random weights, without pooling layer; the defaults are the sizes of bert-base-uncased."""
    transformers = need("transformers", "encoders", "BERT")
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=mlp_width,
        max_position_embeddings=positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        is_decoder=cross_attention,  # transformers builds cross-attention for decoders only
        add_cross_attention=cross_attention,
        use_cache=False,  # no text is generated
    )
    bert = transformers.BertModel(config, add_pooling_layer=False)
    config.is_decoder = False  # ... but every token sees every other
    for layer in bert.encoder.layer:
        layer.attention.self.is_causal = False
    return bert


def bert_tokens(
    bert: Any, text: Mapping[str, Tensor], conditions: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Hidden states (N, L, width) of `input_ids` and `attention_mask`, perhaps with cross-attention to `conditions`."""
    tokens = {"input_ids": text["input_ids"], "attention_mask": text["attention_mask"]}
    return bert(**tokens, encoder_hidden_states=conditions, encoder_attention_mask=mask).last_hidden_state


def check_text(name: str, value: Any) -> Mapping[str, Tensor]:
    """Token ids and mask of the rows that have a text, of one shape (n, L)."""
    if not isinstance(value, Mapping) or not {"input_ids", "attention_mask"} <= set(value):
        raise InputError(f"inputs[{name!r}] must be a dict with input_ids and attention_mask, both (rows, tokens)")
    if value["input_ids"].ndim != 2 or value["input_ids"].shape != value["attention_mask"].shape:
        raise InputError(
            f"input_ids and attention_mask of {name!r} must both have shape (rows, tokens); got "
            f"{tuple(value['input_ids'].shape)} and {tuple(value['attention_mask'].shape)}"
        )
    return value


def set_checkpointing(bert: Any, on: bool) -> None:
    """Compute layers again in the backward pass instead of keeping their values."""
    if on:
        bert.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        bert.gradient_checkpointing_disable()
