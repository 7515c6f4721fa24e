"""Models of calmrl as models of MTEB: what `mteb.evaluate` calls, without inheriting from it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from calmrl.data.features.feature_set import FeatureSet
from calmrl.encoders.base import MEDIA
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.errors import InputError, need

BETWEEN = "+"  # "image+french": the modalities of a document of `mixed_pool_task`
Batch = Mapping[str, Any]


class _CosineModel:
    """The part of MTEB's interface that does not depend on where vectors come from. They are compared by cosine."""

    def __init__(self, modalities: Iterable[str], name: str, revision: str) -> None:
        self.modalities = [kind for kind in MEDIA if kind in set(modalities)]
        self.name, self.revision = name, revision

    @property
    def mteb_model_meta(self) -> Any:
        """What MTEB writes beside the results."""
        meta = need("mteb.models.model_meta", "mteb", "running MTEB").ModelMeta
        fields = {"name": self.name, "revision": self.revision, "modalities": self.modalities, "framework": ["PyTorch"]}
        return meta.create_empty(overwrites=fields)

    def encode(self, inputs: Iterable[Batch], **context: Any) -> np.ndarray:
        """Unit vectors (N, width) float32 of all batches; MTEB's description of the task changes nothing here."""
        vectors = np.concatenate([np.asarray(self._embed(batch), dtype=np.float32) for batch in inputs])
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Cosines (Q, G)."""
        return _unit(embeddings1) @ _unit(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Cosines (N,) of rows with the same number."""
        return (_unit(embeddings1) * _unit(embeddings2)).sum(axis=1)

    def _embed(self, batch: Batch) -> np.ndarray:
        raise NotImplementedError


class MTEBModel(_CosineModel):
    """A model of calmrl that reads the texts, pictures and sounds of MTEB's tasks.

    vector of a document = embed(features of whatever it has). An empty text and a picture or sound that is None are
    missing, so a pool may mix documents with different modalities.

    Parameters
    ----------
    model : Aligner, Trained or EncoderSet
        What embeds. An encoder set alone gives the mean of the unit vectors of its encoders, which must be of one width
        where several are used, such as the two sides of CLIP.
    encoders : EncoderSet, optional
        What turns raw items into the features of the model; by default what the model records (`encoder_set()`).
    columns : mapping of str to str, optional
        Column of MTEB ("text", "image", "audio") -> modality of the model. By default the modality whose encoder takes
        that kind; if there are several, the one that is called like the column.
    name, revision : str
        Under which MTEB files the results; a name has the form "organisation/model".

    Examples
    --------
    >>> import mteb  # doctest: +SKIP
    >>> model = MTEBModel(calmrl.load("run"), name="me/my-model")  # doctest: +SKIP
    >>> mteb.evaluate(model, mteb.get_task("Flickr30kT2IRetrieval"))  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        encoders: EncoderSet | None = None,
        *,
        columns: Mapping[str, str] | None = None,
        name: str = "calmrl/model",
        revision: str = "1",
    ) -> None:
        self.model = model
        if isinstance(model, EncoderSet):
            self.encoders = model
        else:
            self.encoders = model.encoder_set() if encoders is None else encoders
        self.columns = _columns(self.encoders) if columns is None else _checked(columns, self.encoders)
        super().__init__(self.columns, name, revision)

    def _embed(self, batch: Batch) -> np.ndarray:
        given = {column: modality for column, modality in self.columns.items() if column in batch}
        if not given:
            raise InputError(
                f"these documents have the columns {', '.join(batch)}; the model reads {', '.join(self.columns)}"
            )
        rows = len(batch[next(iter(given))])
        cells = [{given[column]: _cell(column, batch[column][row]) for column in given} for row in range(rows)]
        z, present = self.encoders.encode(cells)
        empty = np.flatnonzero(~present.any(axis=1))
        if len(empty):
            raise InputError(
                f"document {empty[0]} of a batch has none of {', '.join(given)}; the model reads no others"
            )
        return _joint(z, present) if isinstance(self.model, EncoderSet) else self.model.embed(z, present)


class MTEBFeatures(_CosineModel):
    """A model for tasks of `mixed_pool_task` that looks features up by id instead of encoding files.

    Parameters
    ----------
    model : Aligner or Trained
        What embeds: `embed(z, present)`.
    data : FeatureSet
        The features of all queries and documents.
    name, revision : str
        Under which MTEB files the results.

    Examples
    --------
    >>> from calmrl import Aligner
    >>> from calmrl.datasets import load_dataset
    >>> emoji = load_dataset("emoji")
    >>> aligner = Aligner(latent_dim=32, prior=100.0, whitening=0.5, features="linear", unit_rows=True, refine="never")
    >>> model = MTEBFeatures(aligner.fit(emoji.select("train")), emoji)
    >>> model.encode([{"id": ["dog-face", "dog-face"], "has": ["text", "image+speech"]}]).shape
    (2, 32)
    """

    def __init__(self, model: Any, data: FeatureSet, *, name: str = "calmrl/features", revision: str = "1") -> None:
        self.model, self.data = model, data
        self._row = {str(item): row for row, item in enumerate(data.ids)}
        super().__init__(MEDIA, name, revision)

    def _embed(self, batch: Batch) -> np.ndarray:
        if "has" not in batch:
            raise InputError("features are looked up for tasks of mixed_pool_task only; use MTEBModel for this task")
        unknown = [item for item in batch["id"] if item not in self._row]
        if unknown:
            raise InputError(f'there is no item "{unknown[0]}" in {self.data!r}; pass the features that the task is of')
        rows = [self._row[item] for item in batch["id"]]
        has = [set(names.split(BETWEEN)) for names in batch["has"]]
        used = [name for name in self.data.names if any(name in names for names in has)]
        present = np.array([[name in names for name in used] for names in has])
        return self.model.embed({name: self.data.z[name][rows] for name in used}, present)


def _columns(encoders: EncoderSet) -> dict[str, str]:
    """Column of MTEB -> modality, by what the encoders take."""
    columns = {}
    for kind in MEDIA:
        fitting = [modality for modality in encoders.modalities if encoders.kind(modality) == kind]
        if len(fitting) > 1 and kind not in fitting:
            raise InputError(
                f"{', '.join(fitting)} are all of kind {kind}; say which one reads the column of MTEB: "
                f'columns={{"{kind}": "{fitting[0]}"}}'
            )
        if fitting:
            columns[kind] = kind if kind in fitting else fitting[0]
    return columns


def _checked(columns: Mapping[str, str], encoders: EncoderSet) -> dict[str, str]:
    for column, modality in columns.items():
        if column not in MEDIA:
            raise InputError(f'columns are read from {", ".join(MEDIA)}; got "{column}"')
        if modality not in encoders.modalities or encoders.kind(modality) != column:
            kinds = ", ".join(f"{name} ({encoders.kind(name)})" for name in encoders.modalities)
            raise InputError(f'no encoder reads {column} as "{modality}"; there are {kinds}')
    return dict(columns)


def _cell(column: str, value: Any) -> Any:
    """What an EncoderSet takes. Sounds are samples and a rate in MTEB, the bytes of a file here."""
    if column != "audio" or value is None:
        return value or None if column == "text" else value
    from scipy.io import wavfile

    samples = np.asarray(value["array"], dtype=np.float32)
    file = io.BytesIO()
    wavfile.write(file, int(value["sampling_rate"]), samples if samples.ndim == 1 else samples.T)
    return file.getvalue()


def _joint(z: Mapping[str, np.ndarray], present: np.ndarray) -> np.ndarray:
    """Mean of the unit vectors of what each row has."""
    used = [(array, present[:, m]) for m, array in enumerate(z.values()) if present[:, m].any()]
    widths = {array.shape[1] for array, _ in used}
    if len(widths) > 1:
        raise InputError(
            f"the encoders give vectors of widths {', '.join(map(str, sorted(widths)))}, which cannot be compared; fit a "
            "calmrl.Aligner on their features and pass it as model"
        )
    total = np.zeros((len(present), widths.pop()), dtype=np.float32)
    for array, has in used:
        total[has] += _unit(array[has])
    return total


def _unit(vectors: Any) -> np.ndarray:
    rows = np.asarray(vectors, dtype=np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-30)
