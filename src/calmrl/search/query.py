"""A query: terms, each one value of one modality (or one item of the collection) with a weight.

In Python a modality takes one value, a list of values, or (weight, value) pairs; a negative weight pushes away. On the command
line one text says the same (`calmrl.search.syntax`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import wavfile

from calmrl._support.output import checksum
from calmrl._support.registry import lookup
from calmrl.aligner.estimator import Aligner
from calmrl.aligner.posterior import fuse
from calmrl.arrays import to_tensor
from calmrl.datasets.registry import Indexing, indexing_of
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.errors import InputError, MissingExtraError, need
from calmrl.search.collection import REPLACED, sha256
from calmrl.search.syntax import EMPTY, check_weight
from calmrl.sources import DATASET

LIKE = "like"  # the name under which items of the collection are terms


@dataclass(frozen=True)
class Term:
    """A value of a modality (or, under the name "like", the id of an item) and its weight."""

    modality: str
    value: Any
    weight: float = 1.0


def terms_of(given: Mapping[str, Any]) -> list[Term]:
    """Modality -> value, list of values, or list of (weight, value) pairs, as terms; None is left out."""
    terms = []
    for name, values in given.items():
        if values is None:
            continue
        for value in values if isinstance(values, list) else [values]:
            weight: Any = 1.0
            if isinstance(value, tuple):
                if len(value) != 2:
                    raise InputError(f"a weighted value of {name} is a pair (weight, value); got {len(value)} entries")
                weight, value = value
            terms.append(Term(name, value, check_weight(weight)))
    if not terms:
        raise InputError(EMPTY)
    return terms


GIVE = {"text": "a text", "image": "a picture", "audio": "a sound"}  # by the kind of an encoder
KIND_OF = {
    "text": "text",
    "image": "image",
    "sound": "audio",
}  # arguments that also stand for the only modality of a kind
SMALLEST = 1e-6  # length of a sum of unit vectors below which they cancel
Features = dict[str, np.ndarray]  # modality -> vector


@dataclass(frozen=True)
class PreparedQuery:
    """A query as a vector, and how it is asked.

    What its modalities give to its vector, the column of the table that this is compared with, whether CSLS corrects it, how
    many hits, its modalities, and the features of a query of one value; there are none for a mixture.
    """

    parts: list[tuple[str, np.ndarray]]
    column: str
    hubs: bool
    k: int
    modalities: list[str]
    alone: Features

    @property
    def vector(self) -> np.ndarray:
        """Of unit length."""
        return np.sum([part for _, part in self.parts], axis=0)

    @property
    def groups(self) -> tuple[str, ...]:
        """What of a hit is verified."""
        return ("description", "vector" if self.column == "vector" else "features")


class QueryVectors:
    """Turns terms into vectors.

    Parameters
    ----------
    layout : dict
        Of the index.
    aligner : Aligner or None
    encoders : function
        Returns the encoders; they are loaded when a term needs them.
    features_of : function
        Id of an item -> features of all that was observed of it.
    """

    def __init__(
        self,
        layout: Mapping[str, Any],
        aligner: Aligner | None,
        encoders: Callable[[], EncoderSet],
        features_of: Callable[[str], Features],
    ) -> None:
        self.layout, self.aligner = layout, aligner
        self.encoders, self.features_of = encoders, features_of

    def prepared(self, terms: list[Term], hubs: bool, k: int) -> PreparedQuery:
        """Terms as one query; `hubs` and `k` are those of `Index.search`."""
        asked = [self.name_of(term.modality) for term in terms if term.modality != LIKE and term.weight > 0]
        names = list(dict.fromkeys(asked)) or list(
            self.layout["modalities"]
        )  # an item of the collection stands for all
        parts = [(self._features(term), term.weight) for term in terms]
        alone = {asked[0]: parts[0][0][asked[0]]} if len(terms) == len(asked) == 1 else {}
        used = list(dict.fromkeys(name for features, _ in parts for name in features))
        aligned = [name for name in used if self.layout["modalities"][name]["aligned"]]
        if aligned:
            parts = [({name: x for name, x in f.items() if name in aligned}, weight) for f, weight in parts]
            self._check_aligned(terms, parts)
            return PreparedQuery(_scaled(self._fused(parts)), "vector", hubs, k, names, alone)
        if len(used) > 1:
            reasons = "; ".join(f"{name}: {self.layout['modalities'][name]['why']}" for name in used)
            raise InputError(f"{' and '.join(used)} are not in one space ({reasons}); ask with one of them")
        name = used[0]
        vectors = _scaled([(name, weight * _unit(features[name], name)) for features, weight in parts])
        if hubs:
            raise InputError("hubs=True needs aligned modalities; this query is compared within one modality")
        return PreparedQuery(vectors, f"f_{list(self.layout['modalities']).index(name)}", hubs, k, names, alone)

    def words(self, terms: list[Term]) -> tuple[str, list[str]] | None:
        """(what is asked for, what is pushed away) where all terms are texts; None for other queries."""
        modalities = self.layout["modalities"]
        if any(term.modality == LIKE or not isinstance(term.value, str) for term in terms):
            return None
        if any(modalities[self.name_of(term.modality)]["kind"] != "text" for term in terms):
            return None
        towards = [term.value for term in terms if term.weight > 0]
        return (" ".join(towards), [term.value for term in terms if term.weight < 0]) if towards else None

    def file_digest(self, term: Term) -> str | None:
        """The SHA-256 of the file that a term asks with, as items have it; None where it is no file."""
        value = term.value
        if term.modality == LIKE or term.weight < 0:
            return None
        if isinstance(value, bytes):
            return sha256(value)
        if (
            not isinstance(value, (str, Path))
            or self.layout["modalities"][self.name_of(term.modality)]["kind"] == "text"
        ):
            return None
        return checksum(Path(value).expanduser())

    def _check_aligned(self, terms: list[Term], parts: list[tuple[Features, float]]) -> None:
        for term, (features, _) in zip(terms, parts, strict=True):
            if not features:
                name = term.value if term.modality == LIKE else self.name_of(term.modality)
                why = self.layout["modalities"].get(name, {}).get("why") or "nothing of it is aligned"
                raise InputError(f"{name} cannot be mixed with the other terms ({why}); ask with it alone")

    def _fused(self, parts: list[tuple[Features, float]]) -> list[tuple[str, np.ndarray]]:
        assert self.aligner is not None
        towards = [(name, x, weight) for features, weight in parts if weight > 0 for name, x in features.items()]
        heaviest = max((weight for _, _, weight in towards), default=1.0)
        groups = [([(name, x, weight / heaviest) for name, x, weight in towards], 1.0)] if towards else []
        groups += [
            ([(name, x, 1.0) for name, x in features.items()], weight) for features, weight in parts if weight < 0
        ]
        return [
            (name, sign * vector)
            for terms, sign in groups
            for (name, *_), vector in zip(terms, fuse(self.aligner, terms), strict=True)
        ]

    # ---- values as features

    def name_of(self, argument: str) -> str:
        """The modality that an argument means: of that name, or the only one of that kind."""
        modalities = {name: entry for name, entry in self.layout["modalities"].items() if REPLACED not in entry}
        if argument in modalities or argument not in KIND_OF:
            lookup(modalities, argument, "modality")
            return argument
        same = [name for name, entry in modalities.items() if entry["kind"] == KIND_OF[argument]]
        if len(same) == 1:
            return same[0]
        there = f"it has {', '.join(modalities)}"
        if same:
            raise InputError(
                f"the index has several modalities of that kind ({', '.join(same)}); name the one you mean"
            )
        raise InputError(f'the index has no modality "{argument}", nor any of that kind; {there}')

    def kind_of(self, argument: str) -> str:
        """What the modality that an argument means holds."""
        return str(self.layout["modalities"][self.name_of(argument)]["kind"])

    def _features(self, term: Term) -> Features:
        if term.modality == LIKE:
            return self.features_of(str(term.value))
        name = self.name_of(term.modality)
        entry = self.layout["modalities"][name]
        value = _array(term.value)
        if isinstance(value, np.ndarray) and value.shape in ((entry["width"],), (1, entry["width"])):
            return {name: check_values(value.reshape(-1), name)}
        made_from = self.layout["source"]
        indexing = indexing_of(made_from["path"] if made_from["type"] == DATASET else None)
        stored = indexing.word_vector(name, value) if isinstance(value, str) else None
        if stored is not None:
            return {name: stored}
        return {name: self._encode(name, entry, value, indexing), **self._encoded_before(name, value)}

    def _encoded_before(self, name: str, value: Any) -> Features:
        """A value by the encoder that is being replaced as well, where it is still installed."""
        modalities = self.layout["modalities"]
        old = next((one for one, entry in modalities.items() if entry.get(REPLACED) == name), None)
        if old is None:
            return {}
        cell = as_cell(value, modalities[old]["kind"], name, int(modalities[old]["width"]))
        try:
            z, _ = EncoderSet({old: modalities[old]["encoder"]}, dtype="float32").encode([{old: cell}])
        except MissingExtraError:
            return {}  # items that only have its vectors are found by what others have of both
        return {old: check_values(z[old][0], name)}

    def _encode(self, name: str, entry: Mapping[str, Any], value: Any, indexing: Indexing) -> np.ndarray:
        if entry["encoder"] is None:
            raise InputError(
                f"no encoder is known for {name}: the index was made from features. Ask with a vector of width "
                f"{entry['width']} or an item (like), or make the index again with `encoders={{{name!r}: NAME}}`"
            )
        cell = as_cell(value, entry["kind"], name, int(entry["width"]))
        z, present = self.encoders().encode([{name: cell}])
        if not present.any():
            raise InputError(f"the {name} of the query is empty; give {GIVE.get(entry['kind'], 'a vector')}")
        vectors = indexing.reduce(str(entry["encoder"]), np.asarray(z[name], np.float32))
        return check_values(vectors[0], name)


def as_cell(value: Any, kind: str, name: str, width: int) -> Any:
    """A value of a query as encoders take it."""
    if kind == "text":
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{name} is asked with a text that is not empty; got {value!r:.60}")
        return value
    if isinstance(value, (str, Path)):
        path = Path(value).expanduser()
        if not path.is_file():
            raise InputError(f"there is no file {value} to ask {name} with")
        return str(path)
    if isinstance(value, np.ndarray):
        return _picture(value, name, width) if kind == "image" else _sound(value, name, width)
    if value is None or isinstance(value, (int, float)):
        raise InputError(f"{name} is asked with a file, its bytes, or an array; got {value!r:.60}")
    return value


def _picture(pixels: np.ndarray, name: str, width: int) -> Any:
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise InputError(
            f"{name}: got an array {pixels.dtype} of shape {pixels.shape}; a picture is uint8 (height, width, 3), a "
            f"feature vector has length {width}"
        )
    return need("PIL.Image", "media", "asking with a picture").fromarray(pixels)


def _sound(samples: np.ndarray, name: str, width: int) -> bytes:
    """Samples at 16 kHz as the bytes of a WAV file."""
    if samples.ndim != 1 or samples.dtype.kind != "f" or not len(samples) or not np.isfinite(samples).all():
        raise InputError(
            f"{name}: got an array {samples.dtype} of shape {samples.shape}; a sound is finite floats (samples,) at 16 kHz "
            f"between -1 and 1, a feature vector has length {width}"
        )
    out = io.BytesIO()
    wavfile.write(out, 16_000, (np.clip(samples, -1, 1) * 32767).astype("<i2"))
    return out.getvalue()


def check_values(vector: np.ndarray, name: str) -> np.ndarray:
    """A feature vector as float64; finite, and within float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray(vector, dtype=np.float64)
        fits = np.isfinite(values.astype(np.float32)).all() and bool(np.abs(values).max(initial=0.0) < 1e18)
    if not fits:
        raise InputError(
            f"the vector to ask {name} with has NaN or too large values; got up to {np.abs(values).max():.3g}"
        )
    return values


def _array(value: Any) -> Any:
    return to_tensor(value).detach().cpu().numpy() if type(value).__module__.startswith("torch") else value


def _unit(vector: np.ndarray, name: str) -> np.ndarray:
    length = float(np.linalg.norm(vector))
    if not length > 0:
        raise InputError(f"the vector to ask {name} with is zero, so nothing is near to it; give another")
    return np.asarray(vector) / length


def _scaled(parts: list[tuple[str, np.ndarray]]) -> list[tuple[str, np.ndarray]]:
    """The same, so that their sum has unit length."""
    length = float(np.linalg.norm(np.sum([vector for _, vector in parts], axis=0)))
    if length < SMALLEST:
        raise InputError("the terms of the query cancel each other; change a weight, or leave a term out")
    return [(name, vector / length) for name, vector in parts]
