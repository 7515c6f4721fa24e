"""A retrieval task of MTEB whose documents have different modalities, made from a feature set without any download."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np

from calmrl.data.features.feature_set import FeatureSet
from calmrl.datasets.emoji import PICTURES, thumbnail
from calmrl.errors import InputError, need
from calmrl.interop.mteb_model import BETWEEN

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
    >>> task = mixed_pool_task(load_dataset("emoji"))
    >>> task.metadata.name, task.metadata.category, len(task.dataset["default"]["test"]["corpus"])
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
    item = str(data.ids[row])
    text = " ".join(str(words[part][row]) for part in form if part in words)
    pictures = [part for part in form if part in PICTURES] if data.name == "emoji" else []
    return {
        "id": item,
        "text": text,
        "image": _picture(item, pictures[0]) if pictures else None,
        "has": BETWEEN.join(form),
    }


def _picture(item: str, modality: str) -> Any:
    return need("PIL.Image", "media", "pictures of documents").open(BytesIO(thumbnail(item, modality)))


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
    features = {"id": "string", "text": "string", "has": "string"}
    layout = datasets.Features(
        {key: datasets.Value(value) for key, value in features.items()} | {"image": datasets.Image()}
    )
    task.dataset = {
        "default": {
            split: {
                "corpus": datasets.Dataset.from_list(documents, features=layout),
                "queries": datasets.Dataset.from_list(queries, features=layout).remove_columns("image"),
                "relevant_docs": {item: {item: 1} for item in form_of},
                "top_ranked": None,
            }
        }
    }
    task.data_loaded = True
    return task
