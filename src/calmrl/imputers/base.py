"""What imputers share: one array instead of a dict, files and model cards, and for all but the Gaussian one `impute` itself."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data
from torch import Tensor

from calmrl._support.parsing import naming, parsing
from calmrl._support.tensor_files import load_state, save_state
from calmrl.arrays import Array, Views, check, check_names, to_tensor, with_holes
from calmrl.errors import InputError
from calmrl.hub import LIMITS, NO_NEWS, Card, OnHub
from calmrl.imputers.registry import IMPUTERS
from calmrl.interop.containers import from_object, impute_object, is_container
from calmrl.latent.predict import join, keep_observed

Columns = Sequence[int | str]
Blocks = Mapping[str, int | Columns] | Sequence[int] | None
WITHIN = "within."  # begins the names of the tensors of the latent model that completes holes


def is_chunks(z: Any) -> bool:
    """Whether `z` is an iterable of (z, present) chunks rather than one array."""
    if isinstance(z, (np.ndarray, str, bytes)) or hasattr(z, "__array__") or hasattr(z, "toarray"):
        return False
    if isinstance(z, (list, tuple)):
        return bool(z) and isinstance(z[0], (list, tuple)) and len(z[0]) == 2 and isinstance(z[0][0], Mapping)
    return isinstance(z, Iterable)


def is_matrix(z: Any) -> bool:
    """Whether `z` is one array or frame, or a list of rows."""
    rows = isinstance(z, (list, tuple)) and len(z) > 0 and isinstance(z[0], (list, tuple)) and not is_chunks(z)
    return rows or any(hasattr(z, name) for name in ("__array__", "toarray", "__dataframe__"))


def block_columns(blocks: Blocks, n_columns: int, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """{modality: numbers of its columns} from the `blocks` argument.

    None is one block; a list of widths, or a dict name -> width, are blocks side by side; a dict name -> list of column
    names or numbers may be in any order, but every column must be in one block.
    """
    if blocks is None:
        return {"x": np.arange(n_columns)}
    named = dict(blocks) if isinstance(blocks, Mapping) else {f"block{j}": width for j, width in enumerate(blocks)}
    check_names(list(named))
    if any(isinstance(columns, (list, tuple, np.ndarray)) for columns in named.values()):
        return _chosen_columns(named, n_columns, names)
    wrong = {name: width for name, width in named.items() if not isinstance(width, (int, np.integer)) or width < 1}
    if wrong or sum(named.values()) != n_columns:  # type: ignore[arg-type]
        raise InputError(
            f"blocks must be positive widths that add up to the {n_columns} columns; got "
            + ", ".join(f"{name}: {width}" for name, width in named.items())
        )
    edges = np.cumsum([0, *named.values()])
    return {name: np.arange(lo, hi) for name, lo, hi in zip(named, edges, edges[1:], strict=False)}


def _chosen_columns(named: Mapping[str, Any], n_columns: int, names: Sequence[str] | None) -> dict[str, np.ndarray]:
    places = {name: j for j, name in enumerate(names if names is not None else [])}
    chosen = {}
    for block, columns in named.items():
        unknown = [c for c in columns if (c not in places if isinstance(c, str) else not 0 <= int(c) < n_columns)]
        if unknown or not len(columns):
            have = (
                f"names are {', '.join(list(places)[:5])}, ..." if places else "the columns have no names; use numbers"
            )
            raise InputError(f"blocks: {block!r} names column {unknown[:1]}, which the input does not have ({have})")
        chosen[block] = np.array([places[c] if isinstance(c, str) else int(c) for c in columns])
    used = np.concatenate(list(chosen.values()))
    if len(used) != n_columns or len(set(used.tolist())) != n_columns:
        raise InputError(
            f"blocks name {len(set(used.tolist()))} different columns, {len(used)} in all, of an input that has {n_columns}; "
            "every column belongs to one block. To leave columns out, use a ColumnTransformer"
        )
    return chosen


def _block(array: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Some columns; a view where they stand side by side."""
    side_by_side = bool((np.diff(at) == 1).all())
    return array[:, at[0] : at[-1] + 1] if side_by_side else np.ascontiguousarray(array[:, at])


class BlockColumns:
    """What an estimator with a `blocks` argument needs to take and return one array, or an object that holds features."""

    blocks: Blocks
    takes_holes: ClassVar[bool] = False  # whether rows may be NaN in single entries

    def _holds_features(self, z: Any) -> bool:
        """Whether `z` is an object with named modalities; with `blocks` a frame is one matrix."""
        return is_container(z) and not (self.blocks is not None and hasattr(z, "columns"))

    def _as_dict(self, z: Any, present: Array | None, reset: bool, observed: Any = None) -> tuple[Any, Array | None]:
        """(dict, mask) of what was given; chunks as they are. A second 1-D argument is scikit-learn's y, and not used.

        Entries that are not `observed` (modality -> bool (N, d), or one array for one array) become NaN.
        """
        z, present = self._split(z, present, reset)
        if observed is None:
            return z, present
        if not isinstance(z, Mapping):
            raise InputError("observed goes with a dict or one array; in chunks mark single entries by NaN")
        if not isinstance(observed, Mapping):
            places = self._places(np.shape(observed)[-1], None)
            observed = {name: _block(np.asarray(observed), at) for name, at in places.items()}
        return with_holes(z, observed), present

    def _split(self, z: Any, present: Array | None, reset: bool) -> tuple[Any, Array | None]:
        if self._holds_features(z):
            if getattr(present, "ndim", 0) == 2:
                raise InputError(f"{type(z).__name__} says itself what is missing; leave out present")
            features = from_object(z, self.takes_holes)
            return features.z, np.asarray(features.present)
        if isinstance(z, Mapping) or is_chunks(z):
            return z, present
        finite = "allow-nan" if self.blocks is not None or self.takes_holes else True
        array = validate_data(self, z, dtype=[np.float64, np.float32], ensure_all_finite=finite, reset=reset)
        places = self._places(array.shape[1], z)
        is_mask = getattr(present, "ndim", 0) == 2
        return {name: _block(array, at) for name, at in places.items()}, present if is_mask else None

    def _in_kind(self, completed: dict[str, Array], given: Any) -> Any:
        """A dict for a dict; one array, with its columns in their order, for one array."""
        if isinstance(given, Mapping):
            return completed
        places = self._places(sum(block.shape[1] for block in completed.values()), given)
        array = np.concatenate(list(completed.values()), axis=1)
        return array[:, np.argsort(np.concatenate(list(places.values())))]

    def _places(self, n_columns: int, given: Any) -> dict[str, np.ndarray]:
        """The columns of each block, by the names that `fit` saw, or that the frame has."""
        names = getattr(self, "feature_names_in_", getattr(given, "columns", None))
        return block_columns(self.blocks, n_columns, names)

    def plain_blocks(self) -> Any:
        """`blocks` as JSON holds it."""
        if self.blocks is None or not isinstance(self.blocks, Mapping):
            return None if self.blocks is None else [int(width) for width in self.blocks]
        return {
            name: int(part) if np.ndim(part) == 0 else [c if isinstance(c, str) else int(c) for c in part]  # type: ignore
            for name, part in self.blocks.items()
        }

    def _input_columns(self) -> list[str] | None:
        """Names of the columns that `fit` saw, if they had names."""
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else [str(name) for name in names]

    def _set_input_columns(self, names: list[str] | None) -> None:
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
            self.n_features_in_ = len(names)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """For 2-D input: the columns keep their names."""
        check_is_fitted(self)
        return _check_feature_names_in(self, input_features)

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = self.blocks is not None or self.takes_holes
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


@contextmanager
def explain_linalg_errors() -> Iterator[None]:
    """A matrix that cannot be factorised becomes an `InputError`; as a context or as a decorator."""
    try:
        yield
    except torch.linalg.LinAlgError as error:
        raise InputError(
            "the equations of the imputer have no solution for these values: some columns are far from zero for how "
            "little they vary, or differ too much in size; subtract the column means and divide by the standard deviations"
        ) from error


def fit_latent(z: Any, present: Any, seed: int | None) -> Any:
    """A fitted `GaussianImputer` with everything on "auto"; it does not warn, for its iterations are chosen, not reached."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return IMPUTERS["gaussian"]("auto", "auto", "auto", random_state=seed).fit(z, present)


def state_of(model: Any, prefix: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(json-able, tensors by names that begin with `prefix`) of a fitted imputer inside another one."""
    state = model.get_state()
    return state["meta"], {f"{prefix}{name}": tensor for name, tensor in state["tensors"].items()}


def with_state(model: Any, meta: dict[str, Any], tensors: Mapping[str, Tensor], prefix: str) -> Any:
    """The inverse of `state_of`; other tensors are passed over."""
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return model.set_state({"meta": meta, "tensors": own})


CODE = """from calmrl.imputers import CLASS

imputer = CLASS.from_pretrained("{repo}")
values, std = imputer.impute(z, present, return_std=True)  # z: dict of the modalities below"""
UNKNOWN = "Not measured. Hide some observed blocks and compare, for instance with calmrl diagnose."


def imputer_card(imputer: Any, widths: dict[str, int]) -> Card:
    """What a fitted imputer says about itself."""
    name = type(imputer).__name__
    settings = getattr(imputer, "settings_", None)
    choice = {key: value for key, value in imputer.get_params().items() if key not in ("verbose", "blocks")}
    if settings is not None:
        choice |= {f"{key} (used)": value for key, value in vars(settings).items()}
    quality, note = _quality(getattr(imputer, "choice_", None))
    return Card(
        title=f"{name}: {', '.join(widths)}",
        code=CODE.replace("CLASS", name),
        widths=widths,
        choice=choice,
        quality=quality,
        quality_note=note,
        limits=[*LIMITS, NO_NEWS],
        tags=("calmrl-imputer", "imputation"),
    )


def _quality(choice: Any) -> tuple[list[dict[str, Any]], str]:
    """(rows, how they were measured) from what an imputer that chooses has measured."""
    if isinstance(choice, dict) and "error_by_modality" in choice:
        covered = choice.get("coverage_by_modality", {})
        rows = [
            {"modality": name, "error": error, "inside 95 % intervals, %": covered.get(name)}
            for name, error in choice["error_by_modality"].items()
        ]
        return rows, f"On {choice['held_out']} held-out blocks; 1 is the error of the column means."
    if isinstance(choice, dict) and all(isinstance(row, dict) and "error" in row for row in choice.values()):
        rows = [{"modality": name, "error": row["error"]} for name, row in choice.items()]
        return rows, "Leave-one-out error on the training rows; 1 is the error of the column means."
    return [], UNKNOWN


_Saved = TypeVar("_Saved", bound="SavedImputer")


class SavedImputer(OnHub, BlockColumns):
    """Files and the model card of an imputer that has `names_`, `widths_`, `get_state` and `set_state`."""

    names_: tuple[str, ...]
    widths_: tuple[int, ...]
    saved_as: ClassVar[str | None] = None  # the class that its files name; by default its own name
    title: ClassVar[str | None] = None  # in the error about files of another class

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Everything learned, as {"meta": json-able, "tensors": name -> tensor}."""

    @abstractmethod
    def set_state(self, state: dict[str, Any]) -> Any:
        """Take over what `get_state` gave."""

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a folder with imputer.json and imputer.safetensors; no pickle."""
        state = self.get_state()
        arguments = {**self.get_params(deep=False), "blocks": self.plain_blocks()}  # type: ignore[attr-defined]
        name = self.saved_as or type(self).__name__
        about = {"class": name, "arguments": arguments, "columns": self._input_columns()}
        save_state({"meta": {**about, **state["meta"]}, "tensors": state["tensors"]}, path, overwrite)

    @classmethod
    def load(cls: type[_Saved], path: str | os.PathLike[str]) -> _Saved:
        """Read what `save` wrote."""
        state = load_state(path)
        held = state["meta"].get("class")
        if held != (cls.saved_as or cls.__name__):
            raise InputError(f"{path} holds a {held!r} imputer, not {cls.title or cls.__name__}")
        with naming(path), parsing(path, "an imputer", "save it again"):
            imputer: _Saved = cls(**state["meta"]["arguments"]).set_state(state)
            imputer._set_input_columns(state["meta"].get("columns"))  # absent in files of earlier versions
            return imputer

    def _card(self) -> Card:
        check_is_fitted(self)
        return imputer_card(self, dict(zip(self.names_, self.widths_, strict=True)))


class BlockImputer(SavedImputer, TransformerMixin, BaseEstimator, ABC):
    """Imputes missing blocks. A subclass has `fit`, `_fill`, `_learned` and `_relearn`, and an argument `blocks`.

    Holes inside a modality are completed first, by the latent model: a `GaussianImputer` with everything on "auto", which
    `fit` fits if rows have holes. What is imputed there, and its deviations, are those of the latent model.
    """

    takes_holes = True
    within_: Any = None  # the latent model that completes holes; None if `fit` saw whole rows only

    def transform(self, z: Any, present: Array | None = None, observed: Any = None) -> Any:
        """The input with everything missing imputed; observed entries bit for bit as they were."""
        return self.impute(z, present, observed=observed)

    @explain_linalg_errors()
    def impute(self, z: Any, present: Array | None = None, return_std: bool = False, observed: Any = None) -> Any:
        """Impute every missing modality, and the holes inside those that are present.

        Parameters
        ----------
        z : mapping of str to array (N, d)
            Modality -> representations; a modality may be left out. Or one 2-D array (see `blocks`), or an object that
            holds features: it comes back as a new one with imputed values, deviations and masks (`calmrl.interop`).
        present : array of bool (N, k), optional
            What was observed; by default the rows that are not NaN throughout.
        return_std : bool
            Also return a standard deviation per entry, 0 where observed.
        observed : dict of str to array of bool (N, d), optional
            Which entries of a modality count; others are holes, like NaN in a row that has other entries.

        Returns
        -------
        dict of str to array (N, d), or a pair of these
        """
        check_is_fitted(self)
        if self._holds_features(z):
            return impute_object(self, z)
        arrays, present = self._as_dict(z, present, reset=False, observed=observed)
        views = check(arrays, present, names=self.names_, widths=self.widths_, holes=True)
        whole, spread = self._without_holes(views)
        imputed, std = self._fill_rows(whole, views, return_std)
        values, observed = views.rows(0, len(views)), views.observed(0, len(views))
        for name, deviation in spread.items():
            m = views.names.index(name)
            has = views.present[:, m, None]
            imputed[m] = torch.where(has, to_tensor(whole.arrays[name]).to(imputed[m].dtype), imputed[m])
            if return_std:
                std[m] = torch.where(has, deviation.to(std[m].dtype), std[m])
        done = [[keep_observed(v, observed[m], imputed[m], views.given())] for m, v in enumerate(values)]
        complete_z = self._in_kind(join(done, views, self.widths_), z)
        if not return_std:
            return complete_z
        zero = [[torch.where(observed[m], 0.0, s)] for m, s in enumerate(std)]
        return complete_z, self._in_kind(join(zero, views, self.widths_), z)

    def _training_rows(self, z: Any, present: Array | None, observed: Any = None) -> Views:
        """What `fit` was given, checked, with its holes completed."""
        views = check(*self._as_dict(z, present, reset=True, observed=observed), min_rows=1, holes=True)
        self.within_ = None
        if views.holes:
            self.within_ = fit_latent(dict(views.arrays), views.mask(), getattr(self, "random_state", 0))
        return self._without_holes(views)[0]

    def _without_holes(self, views: Views) -> tuple[Views, dict[str, Tensor]]:
        """(the rows with their holes completed by the latent model, its deviations (N, d) per modality that has holes)."""
        if not views.holes:
            return views, {}
        model = self._latent_model()
        if model is None:
            raise InputError(
                f"some rows have holes inside a modality ({', '.join(sorted(views.holes))}), but this {type(self).__name__} "
                "was fitted on whole rows; fit it on rows with holes, or complete these first with a GaussianImputer"
            )
        given = {name: array for name, array in views.arrays.items() if array is not None}
        at = [views.names.index(name) for name in given]
        known = Views(given, views.present[:, at], tuple(views.widths[m] for m in at), views.holes)
        values, std = model.impute(given, known.mask(), return_std=True)
        arrays = {name: values[name] if name in views.holes else array for name, array in views.arrays.items()}
        spread = {name: to_tensor(std[name]) for name in views.names if name in views.holes}
        return Views(arrays, views.present, views.widths), spread

    def _latent_model(self) -> Any:
        """What completes holes; None if there is nothing that can."""
        return self.within_

    def _fill_rows(self, whole: Views, given: Views, with_std: bool) -> tuple[list[Tensor], list[Tensor]]:
        """As `_fill`, where the rows as they were given are known too."""
        return self._fill(whole, with_std)

    def get_state(self) -> dict[str, Any]:
        """Everything learned, as {"meta": json-able, "tensors": name -> tensor}."""
        check_is_fitted(self)
        meta, tensors = self._learned()
        shape: dict[str, Any] = {"names": list(self.names_), "widths": list(self.widths_)}
        if self.within_ is not None:
            shape["within"], inner = state_of(self.within_, WITHIN)
            tensors = tensors | inner
        return {"meta": {**shape, **meta}, "tensors": {name: t.detach().clone() for name, t in tensors.items()}}

    def set_state(self, state: dict[str, Any]) -> BlockImputer:
        """Take over what `get_state` gave."""
        self.names_, self.widths_ = tuple(state["meta"]["names"]), tuple(state["meta"]["widths"])
        meta, tensors, inner = state["meta"], state["tensors"], state["meta"].get("within")
        self._relearn(meta, {name: t for name, t in tensors.items() if not name.startswith(WITHIN)})
        self.within_ = None if inner is None else with_state(IMPUTERS["gaussian"](), inner, tensors, WITHIN)
        return self

    @abstractmethod
    def _fill(self, views: Views, with_std: bool) -> tuple[list[Tensor], list[Tensor]]:
        """(values, deviations) per modality, each (N, d_m); only missing rows are used. Deviations only if `with_std`."""

    @abstractmethod
    def _learned(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """(json-able, tensors): what `fit` learned beside names and widths."""

    @abstractmethod
    def _relearn(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """The inverse of `_learned`."""

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "names_")
