"""The text side of an aligner as a model of sentence-transformers, from modules that this library has itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from calmrl.errors import InputError, need

if TYPE_CHECKING:
    from calmrl.aligner.estimator import Aligner


def to_sentence_transformer(aligner: Aligner, model: Any, modality: str = "text") -> Any:
    """A `SentenceTransformer` whose vectors are `aligner.embed({modality: vectors of the model})`.

    With linear features the way from a vector x to the shared space is x - c, perhaps of unit length, then an affine map, then
    unit length: the modules Dense and Normalize of sentence-transformers. So what its `save` writes loads with
    `SentenceTransformer(path)`, and calmrl need not be installed there. Kernel features compare with landmarks, for which that
    library has no module; they are refused.

    Parameters
    ----------
    aligner : Aligner
        Fitted with features="linear" on vectors of `model` as the modality.
    model : SentenceTransformer or str
        The model that made these vectors, or its path or name.
    modality : str
        Which modality of the aligner the texts are.

    Returns
    -------
    SentenceTransformer
        A new model that shares the modules of `model`.

    Examples
    --------
    >>> from calmrl.aligner import to_sentence_transformer
    >>> to_sentence_transformer(aligner, "models/e5").save("shared-text")  # doctest: +SKIP
    """
    check_is_fitted(aligner)
    library = need("sentence_transformers", "sentence-transformers", "a text side for sentence-transformers")
    modules = need("sentence_transformers.sentence_transformer.modules", "sentence-transformers", "its modules")
    if aligner.base_ or aligner.space_ is None:
        raise InputError(
            "an aligner with a base is several spaces side by side; sentence-transformers has no module for that"
        )
    if modality not in aligner.names_:
        raise InputError(f'the aligner has no modality "{modality}"; it has {", ".join(aligner.modalities_)}')
    m = aligner.names_.index(modality)
    feature_map = aligner.feature_maps_[m]
    if len(feature_map.landmarks) or feature_map.relative is not None:
        raise InputError(
            f'"{modality}" has kernel features, which sentence-transformers has no module for; '
            'fit Aligner(features="linear"), or use aligner.embed'
        )
    base = library.SentenceTransformer(model) if isinstance(model, str) else model
    width = base.get_embedding_dimension()
    if width != len(feature_map.centre):
        raise InputError(
            f'the model gives {width} numbers per text, but "{modality}" of the aligner has {len(feature_map.centre)}; '
            "pass the model that made its vectors"
        )
    weight = aligner.head_maps_[m]  # (d, L)
    bias = aligner.space_.bias[m].to(weight) - feature_map.offset @ weight
    if feature_map.unit:
        centring = [_dense(modules, torch.eye(len(weight)).to(weight), -feature_map.centre), modules.Normalize()]
    else:
        centring, bias = [], bias - feature_map.centre @ weight
    made = library.SentenceTransformer(modules=[*base, *centring, _dense(modules, weight, bias), modules.Normalize()])
    made.prompts, made.default_prompt_name = base.prompts, base.default_prompt_name
    return made.to(base.device)


def _dense(modules: Any, weight: Tensor, bias: Tensor) -> Any:
    """x -> x @ weight + bias."""
    inputs, outputs = weight.shape
    layer = modules.Dense(inputs, outputs, activation_function=torch.nn.Identity())
    layer.linear.weight.data.copy_(weight.T)
    layer.linear.bias.data.copy_(bias)
    return layer
