"""Texts through any model of sentence-transformers, by local path or name: "st:PATH", or "st:PATH#query" with a prompt of it.

The model runs in its own code, so that dense layers, prompts and every pooling work. `hf:PATH` reads the same files without
that package where a model is a transformer, pooled by mean or first token, perhaps to unit length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calmrl.encoders.base import Encoder, same
from calmrl.errors import InputError, need

EXTRA = "sentence-transformers"


def load_st(reference: str, device: str = "cpu") -> Encoder:
    """A model of sentence-transformers as an encoder of texts.

    Parameters
    ----------
    reference : str
        Local path or name; after "#" the name of one of the model's prompts, which is put before every text.
    device : str
    """
    name, _, prompt = reference.partition("#")
    if not name:
        raise InputError('an encoder "st:" needs a local path or a name after the colon')
    library = need("sentence_transformers", EXTRA, f"the encoder st:{name}")
    try:
        model = library.SentenceTransformer(name, device=device)
    except (OSError, ValueError) as error:
        raise InputError(f'the model "{name}" cannot be loaded: {str(error).splitlines()[0]}') from error
    if prompt and prompt not in model.prompts:
        prompts = ", ".join(f"#{one}" for one in model.prompts) or "none"
        raise InputError(f'the model "{name}" has no prompt "{prompt}"; it has {prompts}')
    return Encoder("text", _encode(model, prompt, ["a"]).shape[1], same, _Reader(model, prompt, device != "cpu"))


class _Reader:
    """The `encode` of the encoder. On a CPU texts go one by one, so that a vector does not depend on other texts."""

    def __init__(self, model: Any, prompt: str, batched: bool) -> None:
        self.model, self.prompt, self.batched = model, prompt, batched

    def __call__(self, texts: list[str]) -> np.ndarray:
        groups = [texts] if self.batched else [[text] for text in texts]
        return np.concatenate([_encode(self.model, self.prompt, group) for group in groups])


def _encode(model: Any, prompt: str, texts: list[str]) -> np.ndarray:
    vectors = model.encode(texts, prompt_name=prompt or None, show_progress_bar=False, convert_to_numpy=True)
    return np.asarray(vectors, dtype=np.float32)
