"""The encoders of a model: raw items in, the features out that `calmrl extract` writes, to the bit."""

from __future__ import annotations

import io
import math
import threading
import warnings
import wave
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import one_thread
from calmrl._support.text import plural
from calmrl.data.media.jobs import Job, Segmented, decoded
from calmrl.data.media.manifest import as_texts
from calmrl.data.media.problems import Unreadable
from calmrl.encoders.base import Encoder
from calmrl.encoders.registry import PACKAGES, full_name, is_path, load_encoder, spec_of
from calmrl.errors import InputError, need

SIGNATURE = 8  # numbers
TOLERANCE = 0.05  # of numbers that are about standard normal for two unrelated vectors


@dataclass(frozen=True)
class ReadyEncoder:
    """An encoder and the lock under which it runs: some keep their input in place while they work."""

    name: str
    spec: Any  # the entry of ENCODERS it was made from; None for "hf:" and "st:"
    encoder: Encoder
    lock: threading.Lock

    def encode(self, items: Sequence[Any]) -> np.ndarray:
        """Vectors (items, width) float32.

        Packaged encoders run on one thread: they are too small to gain from more, which wait for each other on a busy machine.
        """
        with self.lock, one_thread() if self.name in PACKAGES else nullcontext():
            return self.encoder.encode(list(items))


_READY: dict[tuple[str, str], ReadyEncoder] = {}
_LOADING = threading.Lock()


def ready_encoder(name: str, device: str = "cpu") -> ReadyEncoder:
    """The encoder of that name, loaded at the first call in this process."""
    spec = None if is_path(name) else spec_of(name)
    with _LOADING:
        ready = _READY.get((name, device))
        if ready is None or ready.spec is not spec:  # the entry may have been replaced
            ready = _READY[name, device] = ReadyEncoder(name, spec, load_encoder(name, device), threading.Lock())
    return ready


def signature(ready: ReadyEncoder) -> list[float]:
    """Eight numbers that differ between encoders: random signs applied to the unit vector of a fixed item.

    Other weights, another pooling or another preparation of the input change them; another machine does not, beyond
    `TOLERANCE`.
    """
    vector = ready.encode([_fixed_item(ready.encoder)])[0].astype(np.float64)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (SIGNATURE, len(vector)))
    return [round(float(value), 3) for value in signs @ vector / max(float(np.linalg.norm(vector)), 1e-30)]


def same_signature(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two signatures belong to the same encoder."""
    return len(one) == len(other) and bool(np.abs(np.subtract(one, other)).max(initial=0.0) <= TOLERANCE)


def _fixed_item(encoder: Encoder) -> Any:
    if encoder.reads_files:
        return np.sin(np.arange(math.prod(encoder.item_shape))).reshape(encoder.item_shape).astype(np.float32)
    if encoder.kind == "text":
        return encoder.prepare("a red boat on a quiet lake")
    if encoder.kind == "audio":
        seconds = np.arange(encoder.rate) / encoder.rate
        return encoder.prepare(np.sin(2 * np.pi * (200 + 600 * seconds) * seconds).astype(np.float32) / 2)
    image = need("PIL.Image", "media", "reading images")
    y, x = np.mgrid[0:96, 0:128]
    pixels = np.stack([2 * x, 255 - 2 * y, (x + y) % 256], axis=2).astype(np.uint8)  # (96, 128, 3)
    return encoder.prepare(image.fromarray(pixels))[None]


def try_encoder(modality: str, name: str) -> str | None:
    """Encode one tiny text, picture or sound, files included; says why that fails, None if it works."""
    try:
        EncoderSet({modality: name}).encode([{modality: _tiny_cell(spec_of(name).kind)}])
    except Exception as error:  # whatever a package that is half there raises
        return str(error) if isinstance(error, (InputError, ImportError)) else f"{type(error).__name__}: {error}"
    return None


def _tiny_cell(kind: str) -> Any:
    """A text, or the bytes of a file."""
    out = io.BytesIO()
    if kind == "text":
        return "a red boat"
    if kind == "image":
        need("PIL.Image", "media", "reading images").new("RGB", (32, 32), "red").save(out, "PNG")
    else:
        with wave.open(out, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes((8000 * np.sin(np.arange(16_000) / 8)).astype("<i2").tobytes())
    return out.getvalue()


FORMAT, VERSION = "calmrl.encoders", 1
ALPHA = "on white, cut to what is visible"  # what `open_image` does with transparent pictures
BATCH = 16
SHOWN = 3  # problems in a message
Cell = Any  # a text or several, a path, bytes, or an image of Pillow
Features = tuple[dict[str, np.ndarray], np.ndarray]  # z and present


class EncoderSet:
    """One encoder per modality, with all that decides about their vectors.

    Parameters
    ----------
    names : mapping of str to str
        Modality -> name of an encoder (`calmrl ls encoders`, "hf:PATH" or "st:PATH"). "imagebind", "languagebind" and
        "internvideo" stand for their side that fits the name of the modality.
    frames : int
        Frames per video.
    dtype : {"float16", "float32"}
        Of the features.
    device : str
        Where "hf:" and "st:" encoders and those of official code run.

    Examples
    --------
    >>> encoders = EncoderSet({"text": "use_multilingual", "image": "efficientnet_lite0"})  # doctest: +SKIP
    >>> z, present = encoders.encode([{"text": "a dog", "image": "dog.png"}, {"text": "rain"}])  # doctest: +SKIP
    """

    def __init__(
        self, names: Mapping[str, str], *, frames: int = 8, dtype: str = "float16", device: str = "cpu"
    ) -> None:
        if not names:
            raise InputError("name at least one encoder, for instance image=efficientnet_lite0")
        if dtype not in ("float16", "float32"):
            raise InputError(f'features are float16 or float32; got dtype "{dtype}"')
        self.names = {modality: full_name(modality, name) for modality, name in names.items()}
        self.frames, self.dtype, self.device = frames, dtype, device
        self.allow_other = False
        self._described: dict[str, dict[str, Any]] = {}  # modality -> its entry in the description it was made from
        self._checked: set[str] = set()
        for name in self.names.values():
            if not is_path(name):
                spec_of(name)  # an unknown name is an error now, not at the first item

    def __repr__(self) -> str:
        return f"EncoderSet({', '.join(f'{modality}={name}' for modality, name in self.names.items())})"

    @property
    def modalities(self) -> tuple[str, ...]:
        return tuple(self.names)

    def encoder(self, modality: str) -> ReadyEncoder:
        """The encoder of a modality, loaded once per process and compared with the description."""
        ready = ready_encoder(self.names[modality], self.device)
        entry = self._described.get(modality)
        if entry is not None and modality not in self._checked:
            if entry["width"] != ready.encoder.width or not same_signature(entry["signature"], signature(ready)):
                self._differs(modality, "gives other vectors for the same input than the encoder did that made them")
            self._checked.add(modality)
        return ready

    def kind(self, modality: str) -> str:
        """What its encoder takes: "text", "image" or "audio"."""
        return self._known(modality, "kind")

    def width(self, modality: str) -> int:
        """Length of the vectors of a modality."""
        return int(self._known(modality, "width"))

    # ---- raw items in, features out

    def encode(self, cells: Sequence[Mapping[str, Cell]], *, pool: Executor | None = None) -> Features:
        """Features of raw items, as `calmrl extract` writes them.

        Parameters
        ----------
        cells : sequence of mappings
            One per item: modality -> a text or a list of texts; a path, the bytes of a file, or an image of Pillow.
            A modality that is absent, None or empty is missing.
        pool : Executor, optional
            Processes that decode.

        Returns
        -------
        z : dict of str to ndarray (N, width)
            NaN where a modality is missing. Several texts of an item give the mean of their vectors.
        present : ndarray of bool (N, k)
        """
        if isinstance(cells, Mapping):
            raise InputError("pass a list of items, each a dict of modality -> text or file; got a single dict")
        rows = {name: self._rows(cells, name) for name in self.names}
        for number, item in enumerate(cells):
            if unknown := [key for key in item if key not in self.names]:
                names = ", ".join(self.names)
                raise InputError(f'item {number} has "{unknown[0]}", for which there is no encoder; there are {names}')
        z, bad = {}, []
        for name, sources in rows.items():
            z[name] = np.full((len(cells), self.width(name)), np.nan, dtype=self.dtype)
            if not sources:
                continue
            if self.kind(name) == "text":
                z[name][list(sources)] = self.encode_texts(name, list(sources.values()))
                continue
            places = list(sources)
            for first, vectors in self.encode_files(name, list(sources.values()), pool=pool):
                for place, vector in zip(places[first:], vectors, strict=False):
                    if isinstance(vector, Unreadable):
                        bad.append(f"{f'item {place}, ' if len(cells) > 1 else ''}{name}: {vector}")
                    else:
                        z[name][place] = vector
        if bad:
            more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
            raise InputError(f"{plural(len(bad), 'file')} cannot be used: {'; '.join(bad[:SHOWN])}{more}")
        present = np.stack([np.isin(np.arange(len(cells)), list(rows[name])) for name in self.names], axis=1)
        return z, present

    def encode_texts(self, modality: str, texts: Sequence[Sequence[str]]) -> np.ndarray:
        """(items, width) float32: the mean of the vectors of each item's texts. Texts that repeat are encoded once."""
        encoder = self.encoder(modality)
        places = {text: number for number, text in enumerate(dict.fromkeys(text for item in texts for text in item))}
        every = list(places)
        vectors = np.concatenate([encoder.encode(every[i : i + BATCH]) for i in range(0, len(every), BATCH)])
        return np.stack([mean_of(vectors[[places[text] for text in item]]) for item in texts])

    def encode_files(
        self,
        modality: str,
        sources: Sequence[Cell],
        *,
        pool: Executor | None = None,
        batch_size: int = BATCH,
        segments: float = 0.0,
    ) -> Iterator[tuple[int, list[np.ndarray | Segmented | Unreadable]]]:
        """Decode and encode in batches: (number of the first file, a float32 vector or an Unreadable for each).

        With `segments` a video that has some, of so many seconds, gives their vectors beside that of the whole.
        """
        ready = self.encoder(modality)
        results = decoded([self.job_of(modality, source, segments) for source in sources], pool)
        for first in range(0, len(sources), batch_size):
            batch: list[Any] = []
            of_parts: dict[int, Segmented] = {}
            for place in range(len(sources[first : first + batch_size])):
                item = next(results)
                if isinstance(item, Segmented):  # at once, for the frames of many segments are large
                    pieces = [item.parts[i : i + BATCH] for i in range(0, len(item.parts), BATCH)]
                    parts = [vector for piece in pieces for vector in ready.encode(piece)]
                    of_parts[place] = Segmented(item.whole, item.spans, parts)
                    item = item.whole
                batch.append(item)
            good = [item for item in batch if not isinstance(item, Unreadable)]
            vectors = iter(ready.encode(good) if good else ())
            found: list[Any] = [item if isinstance(item, Unreadable) else next(vectors) for item in batch]
            for place, item in of_parts.items():
                found[place] = item._replace(whole=found[place])
            yield first, found

    def job_of(self, modality: str, source: Cell, segments: float = 0.0) -> Job:
        """How a file is decoded for the encoder of a modality."""
        source = str(source) if isinstance(source, Path) else source
        encoder = self.encoder(modality).encoder
        frames = encoder.frames or self.frames
        job = Job(source, encoder.kind, encoder.prepare, frames, encoder.rate, reads_files=encoder.reads_files)
        return replace(job, segments=segments, per_segment=encoder.frames)

    # ---- beside a model

    def describe(self) -> dict[str, Any]:
        """Names, weights, preparation and a signature of every encoder, as JSON. Loads all of them."""
        entries = {}
        for modality, name in self.names.items():
            ready = self.encoder(modality)
            entries[modality] = self._described.get(modality) or {
                "name": name,
                "kind": ready.encoder.kind,
                "width": ready.encoder.width,
                "weights": _weights(name),
                "prepare": _preparation(ready),
                "signature": signature(ready),
            }
        return {
            "format": FORMAT,
            "version": VERSION,
            "frames": self.frames,
            "transparency": ALPHA,
            "dtype": self.dtype,
            "encoders": entries,
        }

    @classmethod
    def from_description(
        cls, description: Mapping[str, Any], *, device: str = "cpu", allow_other: bool = False
    ) -> EncoderSet:
        """The encoders that `describe` described.

        Weights of another version are an error, or with `allow_other` a warning. Vectors are compared when an encoder
        is first used.
        """
        if description.get("format") != FORMAT or description.get("version", 0) > VERSION:
            got = f"{description.get('format')} {description.get('version')}"
            raise InputError(f"these encoders are described as {got}; this calmrl reads {FORMAT} up to {VERSION}")
        entries = description["encoders"]
        new = cls(
            {modality: entry["name"] for modality, entry in entries.items()},
            frames=description["frames"],
            dtype=description["dtype"],
            device=device,
        )
        new.allow_other, new._described = allow_other, dict(entries)
        for modality, entry in entries.items():
            if entry["weights"] != _weights(entry["name"]):
                new._differs(modality, f"has the weights {_weights(entry['name'])}, not {entry['weights']}")
        if description["transparency"] != ALPHA:
            raise InputError(f'transparent pictures were put "{description["transparency"]}", which is unknown here')
        return new

    def _differs(self, modality: str, how: str) -> None:
        sentence = f'the encoder "{self.names[modality]}" of {modality} {how}'
        if not self.allow_other:
            raise InputError(
                f"{sentence}, so that new items could not be compared with old ones; install the version that was used, "
                "or extract and train again (allow_other=True goes on regardless)"
            )
        warnings.warn(f"{sentence}; new items may not be comparable with old ones", stacklevel=3)

    def _known(self, modality: str, key: str) -> Any:
        """The kind or the width of an encoder, without loading it where that is possible."""
        if modality in self._described:
            return self._described[modality][key]
        name = self.names[modality]
        if is_path(name) or (key == "width" and "@" in name):  # other weights may have another width
            return getattr(ready_encoder(name, self.device).encoder, key)
        return getattr(spec_of(name), key)

    def _rows(self, cells: Sequence[Mapping[str, Cell]], modality: str) -> dict[int, Any]:
        """Row -> what there is of a modality; texts as lists."""
        rows: dict[int, Any] = {}
        for number, item in enumerate(cells):
            value = item.get(modality)
            if self.kind(modality) == "text":
                value, wrong = as_texts(value)
                if wrong:
                    raise InputError(f"item {number}, {modality}: {wrong[0]}; pass a text or a list of texts")
                if value:
                    rows[number] = value
            elif value is not None and not (isinstance(value, (str, bytes)) and not value):
                rows[number] = value
        return rows


def mean_of(vectors: np.ndarray) -> np.ndarray:
    """The vector of an item with one or several texts."""
    return vectors[0] if len(vectors) == 1 else vectors.mean(axis=0)


def _weights(name: str) -> str:
    return name if is_path(name) else spec_of(name).weights


def _preparation(ready: ReadyEncoder) -> str:
    """How items are prepared, as text for people."""
    prepare = ready.encoder.prepare
    text = getattr(prepare, "__name__", None) or repr(prepare)
    return f"{text}, {ready.encoder.rate} Hz" if ready.encoder.kind == "audio" else text


class EmbedsFiles:
    """Adds `embed_files` to a model that has `embed`.

    Attributes
    ----------
    encoders_ : dict or None
        What made the features that the model was fitted on, as `EncoderSet.describe` gives it; None if unknown.
    """

    encoders_: dict[str, Any] | None = None
    embed: Any

    def encoder_set(self, *, device: str = "cpu", allow_other: bool = False) -> EncoderSet:
        """The encoders of this model, checked to be those that made its features.

        Other weights are an error; with `allow_other` they are a warning.
        """
        if self.encoders_ is None:
            raise InputError(
                "this model does not know its encoders: it was fitted on arrays, or on features that calmrl extract did "
                "not write. Encode the files with what made those features and call embed, or fit on the directory that "
                "calmrl extract writes"
            )
        return EncoderSet.from_description(self.encoders_, device=device, allow_other=allow_other)

    def embed_files(self, items: Sequence[Mapping[str, Any]], *, device: str = "cpu", allow_other: bool = False) -> Any:
        """One unit vector per item from raw texts and files: what `calmrl extract` and then `embed` give, to the bit.

        So vectors have the dtype of the features that the model was fitted on, which `calmrl extract` writes as float16
        unless told otherwise: lengths are then 1 to three digits. Convert them before large sums, or extract with
        `dtype="float32"`.

        Parameters
        ----------
        items : sequence of mappings
            Modality -> a text or several; a path, the bytes of a file, or an image of Pillow. What an item lacks is
            left out.
        device : str
            Where "hf:" and "st:" encoders and those of official code run.
        allow_other : bool
            Go on, with a warning, where an encoder is not the one that made the features.

        Examples
        --------
        >>> model = calmrl.load("run")  # doctest: +SKIP
        >>> model.embed_files([{"text": "a dog", "image": "dog.png"}, {"sound": "bark.wav"}])  # doctest: +SKIP
        """
        z, present = self.encoder_set(device=device, allow_other=allow_other).encode(items)
        empty = [number for number, row in enumerate(present) if not row.any()]
        if empty:
            raise InputError(f"item {empty[0]} has no text and no file; give it one of {', '.join(z)}")
        return self.embed(z, present)


def recorded_encoders(infos: Iterable[Mapping[str, Any]], modalities: Sequence[str]) -> dict[str, Any] | None:
    """The encoders of these modalities that all feature sets record in their `info`; None where one does not.

    Feature sets of which one was encoded differently give None too: no single encoder belongs to them.
    """
    found: dict[str, Any] | None = None
    for info in infos:
        description = _description(info)
        if description is None:
            return None
        found = found or {**description, "encoders": {}}
        if {**description, "encoders": 0} != {**found, "encoders": 0}:
            return None
        for name, entry in description["encoders"].items():
            if {**found["encoders"].setdefault(name, entry), "signature": 0} != {**entry, "signature": 0}:
                return None
    if found is None or any(name not in found["encoders"] for name in modalities):
        return None
    return {**found, "encoders": {name: found["encoders"][name] for name in modalities}}


def encoder_names(description: Mapping[str, Any] | None) -> dict[str, str]:
    """Modality -> name of its encoder, as `EncoderSet.describe` has it; empty where nothing is described."""
    entries = {} if description is None else description.get("encoders", {})
    return {name: str(entry["name"]) for name, entry in entries.items()}


def _description(info: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `calmrl extract` recorded, also in features that were imputed afterwards."""
    if "encoding" in info:
        return dict(info["encoding"])
    inner = info.get("features")
    return _description(inner) if isinstance(inner, Mapping) else None
