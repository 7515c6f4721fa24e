"""Models that know their encoders: raw files in, vectors out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from calmrl.encoders.encoder_set import EncoderSet
from calmrl.errors import InputError


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
        `--dtype float32`.

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
    descriptions = [_description(info) for info in infos]
    if not descriptions or any(description is None for description in descriptions):
        return None
    first = descriptions[0]
    assert first is not None
    entries: dict[str, Any] = {}
    for description in descriptions:
        assert description is not None
        if {**description, "encoders": 0} != {**first, "encoders": 0}:
            return None
        for name, entry in description["encoders"].items():
            if {**entries.setdefault(name, entry), "signature": 0} != {**entry, "signature": 0}:
                return None
    if any(name not in entries for name in modalities):
        return None
    return {**first, "encoders": {name: entries[name] for name in modalities}}


def _description(info: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `calmrl extract` recorded, also in features that were imputed afterwards."""
    if "encoding" in info:
        return dict(info["encoding"])
    inner = info.get("features")
    return _description(inner) if isinstance(inner, Mapping) else None
