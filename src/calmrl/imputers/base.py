"""What all imputers but the Gaussian one share: checked input, observed entries kept, state, save and load."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from calmrl._support.parsing import naming, parsing
from calmrl._support.tensor_files import load_state, save_state
from calmrl.convention import Array, Views, check
from calmrl.errors import InputError
from calmrl.hub.on_hub import OnHub
from calmrl.imputers.columns import BlockColumns
from calmrl.imputers.gaussian.predict import join, keep_observed
from calmrl.imputers.solvable import solvable
from calmrl.interop.containers import impute_object

if TYPE_CHECKING:
    from calmrl.hub.card import Card


class BlockImputer(OnHub, BlockColumns, TransformerMixin, BaseEstimator, ABC):
    """Imputes missing blocks. A subclass has `fit`, `_fill`, `_learned` and `_relearn`, and an argument `blocks`."""

    names_: tuple[str, ...]
    widths_: tuple[int, ...]

    def transform(self, z: Any, present: Array | None = None) -> Any:
        """The input with every missing modality imputed; observed entries bit for bit as they were."""
        return self.impute(z, present)

    @solvable()
    def impute(self, z: Any, present: Array | None = None, return_std: bool = False) -> Any:
        """Impute every missing modality.

        Parameters
        ----------
        z : mapping of str to array (N, d)
            Modality -> representations; a modality may be left out. Or one 2-D array (see `blocks`), or an object that
            holds features: it comes back as a new one with imputed values, deviations and masks (`calmrl.interop`).
        present : array of bool (N, k), optional
            What was observed; by default the rows that are not NaN.
        return_std : bool
            Also return a standard deviation per entry, 0 where observed.

        Returns
        -------
        dict of str to array (N, d), or a pair of these
        """
        check_is_fitted(self)
        if self._holds_features(z):
            return impute_object(self, z)
        arrays, present = self._as_dict(z, present, reset=False)
        views = check(arrays, present, names=self.names_, widths=self.widths_)
        imputed, std = self._fill(views, return_std)
        values = views.rows(0, len(views))
        done = [[keep_observed(v, views.present[:, m], imputed[m], views.given())] for m, v in enumerate(values)]
        complete_z = self._in_kind(join(done, views, self.widths_), z)
        if not return_std:
            return complete_z
        zero = [[torch.where(views.present[:, m, None], 0.0, s)] for m, s in enumerate(std)]
        return complete_z, self._in_kind(join(zero, views, self.widths_), z)

    def _training_rows(self, z: Any, present: Array | None) -> Views:
        """What `fit` was given, checked."""
        return check(*self._as_dict(z, present, reset=True), min_rows=1)

    def get_state(self) -> dict[str, Any]:
        """Everything learned, as {"meta": json-able, "tensors": name -> tensor}."""
        check_is_fitted(self)
        meta, tensors = self._learned()
        shape = {"names": list(self.names_), "widths": list(self.widths_)}
        return {"meta": {**shape, **meta}, "tensors": {name: t.detach().clone() for name, t in tensors.items()}}

    def set_state(self, state: dict[str, Any]) -> BlockImputer:
        """Take over what `get_state` gave."""
        self.names_, self.widths_ = tuple(state["meta"]["names"]), tuple(state["meta"]["widths"])
        self._relearn(state["meta"], state["tensors"])
        return self

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a folder with imputer.json and imputer.safetensors; no pickle."""
        state = self.get_state()
        arguments = {**self.get_params(), "blocks": self._plain_blocks()}
        about = {"class": type(self).__name__, "arguments": arguments, "columns": self._input_columns()}
        meta = {**about, **state["meta"]}
        save_state({"meta": meta, "tensors": state["tensors"]}, path, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Any:
        """Read what `save` wrote."""
        state = load_state(path)
        if state["meta"].get("class") != cls.__name__:
            raise InputError(f"{path} holds a {state['meta'].get('class')!r} imputer, not {cls.__name__}")
        with naming(path), parsing(path, "an imputer", "save it again"):
            imputer = cls(**state["meta"]["arguments"]).set_state(state)
            imputer._set_input_columns(state["meta"].get("columns"))  # absent in files of earlier versions
            return imputer

    def _card(self) -> Card:
        from calmrl.imputers.card import imputer_card

        check_is_fitted(self)
        return imputer_card(self, dict(zip(self.names_, self.widths_, strict=True)))

    @abstractmethod
    def _fill(self, views: Views, spread: bool) -> tuple[list[Tensor], list[Tensor]]:
        """(values, deviations) per modality, each (N, d_m); only missing rows are used. Deviations only if `spread`."""

    @abstractmethod
    def _learned(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """(json-able, tensors): what `fit` learned beside names and widths."""

    @abstractmethod
    def _relearn(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """The inverse of `_learned`."""

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "names_")
