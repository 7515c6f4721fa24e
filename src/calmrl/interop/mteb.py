"""MTEB: a task of pools with missing modalities, and models of calmrl as what `mteb.evaluate` calls."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from calmrl.data.features.feature_set import FeatureSet
from calmrl.datasets.emoji import PICTURES, thumbnail
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
        return _unit(np.concatenate([np.asarray(self._embed(batch), dtype=np.float32) for batch in inputs]))

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
        self.columns = _columns(self.encoders, columns)
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


def _columns(encoders: EncoderSet, chosen: Mapping[str, str] | None) -> dict[str, str]:
    """Column of MTEB -> modality, by what the encoders take, or as chosen."""
    kinds = {modality: encoders.kind(modality) for modality in encoders.modalities}
    columns = dict(chosen or {})
    for column, modality in columns.items():
        if column not in MEDIA:
            raise InputError(f'columns are read from {", ".join(MEDIA)}; got "{column}"')
        if kinds.get(modality) != column:
            there = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
            raise InputError(f'no encoder reads {column} as "{modality}"; there are {there}')
    for kind in MEDIA if chosen is None else ():
        fitting = [modality for modality in kinds if kinds[modality] == kind]
        if len(fitting) > 1 and kind not in fitting:
            raise InputError(
                f"{', '.join(fitting)} are all of kind {kind}; say which one reads the column of MTEB: "
                f'columns={{"{kind}": "{fitting[0]}"}}'
            )
        if fitting:
            columns[kind] = kind if kind in fitting else fitting[0]
    return columns


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


Form = tuple[str, ...]
KINDS = {  # what MTEB calls the modalities of the bundled collections; others count as text
    **dict.fromkeys(("image", "drawing"), "image"),
    **dict.fromkeys(("speech", "sound", "audio"), "audio"),
}
CATEGORIES = {
    ("text",): "t2t",
    ("image",): "t2i",
    ("image", "text"): "t2it",
    ("audio",): "t2a",
    ("audio", "text"): "t2at",
}


def mixed_pool_task(
    data: FeatureSet,
    forms: Sequence[Form] = (("image",), ("french",), ("image", "french")),
    *,
    query: str = "text",
    split: str = "test",
    seed: int = 0,
    name: str | None = None,
) -> Any:
    """Find each item by one modality in a pool in which some items are pictures, some texts, some both.

    Every item of the split is one query, its modality `query`, and one document, one of `forms` drawn at random. The
    one relevant document is the item itself. Beside MTEB's scores there is `hit_at_1_FORM` for each form: the share of
    queries whose first document is the right one, over the queries whose document has that form. A model with a
    modality gap finds the documents of one form only.

    Parameters
    ----------
    data : FeatureSet
        For instance `load_dataset("emoji")`, whose documents hold real pictures and texts and so suit `MTEBModel` and
        every other model of MTEB. Documents of other feature sets hold what their table of rows has (`text`, and
        columns called like a modality); `MTEBFeatures` looks the rest up.
    forms : sequence of tuples of str
        The modalities that a document may have.
    query : str
    split : str
    seed : int
        Of the forms.
    name : str, optional
        By default made from `data`, "EmojiMixedPool" for instance.

    Returns
    -------
    mteb.abstasks.AbsTaskRetrieval
        Its data are loaded. Main score: ndcg_at_10.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> task = mixed_pool_task(load_dataset("emoji"))  # doctest: +SKIP
    >>> task.metadata.name, task.metadata.category, len(task.dataset["default"]["test"]["corpus"])  # doctest: +SKIP
    ('EmojiMixedPool', 't2it', 314)
    """
    need("mteb", "mteb", "a task of MTEB")
    forms = [tuple(form) for form in forms]
    _check(data, forms, query)
    rows = data.row_numbers(split)
    columns = [data.names.index(part) for part in {query, *(part for form in forms for part in form)}]
    rows = rows[data.present[rows][:, columns].all(axis=1)]
    if not len(rows):
        raise InputError(f'no row of split "{split}" has {query} and all modalities of the forms')
    drawn = np.random.default_rng(seed).integers(len(forms), size=len(rows))
    words = {part: data.column(part) for part in data.names if part in data.meta.column_names}
    documents = [_document(data, words, row, forms[form]) for row, form in zip(rows, drawn, strict=True)]
    queries = [_document(data, words, row, (query,)) for row in rows]
    kinds = tuple(sorted({KINDS.get(part, "text") for form in forms for part in form}))
    title = name or f"{(data.name or 'features').capitalize()}MixedPool"
    return _task(title, kinds, KINDS.get(query, "text"), documents, queries, split, data)


def _check(data: FeatureSet, forms: Sequence[Form], query: str) -> None:
    if not forms or not all(forms):
        raise InputError("forms must hold at least one tuple of modalities, none of them empty")
    for part in (query, *(part for form in forms for part in form)):
        if part not in data.names:
            raise InputError(f'there is no modality "{part}"; there are {", ".join(data.names)}')
    if any(query in form for form in forms):
        raise InputError(
            f'"{query}" is the query and a part of a document, so that it would find itself; leave one out'
        )


def _document(data: FeatureSet, words: dict[str, np.ndarray], row: int, form: Form) -> dict[str, Any]:
    """What MTEB sees of a document: its words, its picture if there is one, and which modalities it has."""
    item, picture = str(data.ids[row]), None
    text = " ".join(str(words[part][row]) for part in form if part in words)
    if drawn := [part for part in form if part in PICTURES and data.name == "emoji"]:
        picture = need("PIL.Image", "media", "pictures of documents").open(io.BytesIO(thumbnail(item, drawn[0])))
    return {"id": item, "text": text, "image": picture, "has": BETWEEN.join(form)}


def _task(
    name: str,
    kinds: tuple[str, ...],
    asked: str,
    documents: list[dict[str, Any]],
    queries: list[dict[str, Any]],
    split: str,
    data: FeatureSet,
) -> Any:
    datasets = need("datasets", "mteb", "a task of MTEB")
    retrieval = need("mteb.abstasks.retrieval", "mteb", "a task of MTEB").AbsTaskRetrieval
    description = need("mteb.abstasks.task_metadata", "mteb", "a task of MTEB").TaskMetadata(
        name=name,
        description=f"Find an item by its {asked} among documents that have different modalities; {data.source}",
        dataset={"path": f"calmrl/{data.name}", "revision": "1"},
        type="Any2AnyRetrieval",
        modalities=sorted({asked, *kinds}),
        category=CATEGORIES.get(kinds) if asked == "text" else None,
        eval_splits=[split],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )
    form_of = {document["id"]: document["has"] for document in documents}

    class MixedPool(retrieval):  # type: ignore[misc, valid-type]
        metadata = description

        def load_data(self, *arguments: Any, **named: Any) -> None:
            """Everything is in memory already."""

        def task_specific_scores(
            self, scores: Any, qrels: Any, results: dict[str, dict[str, float]], hf_split: str, hf_subset: str
        ) -> dict[str, float]:
            hits: dict[str, list[bool]] = {}
            for item, ranked in results.items():
                hits.setdefault(form_of[item], []).append(max(ranked, key=lambda other: ranked[other]) == item)
            return {f"hit_at_1_{form}": float(np.mean(hit)) for form, hit in sorted(hits.items())}

    task = MixedPool()
    texts = dict.fromkeys(("id", "text", "has"), datasets.Value("string"))
    layout = datasets.Features(texts | {"image": datasets.Image()})
    parts = {
        "corpus": datasets.Dataset.from_list(documents, features=layout),
        "queries": datasets.Dataset.from_list(queries, features=layout).remove_columns("image"),
        "relevant_docs": {item: {item: 1} for item in form_of},
        "top_ranked": None,
    }
    task.dataset = {"default": {split: parts}}
    task.data_loaded = True
    return task
