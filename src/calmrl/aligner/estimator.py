"""`Aligner`: one space from incomplete rows, in closed form."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from calmrl._support.arguments import seed_of
from calmrl._support.engine import one_thread
from calmrl._support.tensor_files import load_state, save_state
from calmrl.aligner.base import MIN_PAIRS, Base, alike, centred, open_bases, quoted, weighted, with_axes
from calmrl.aligner.choose import SEARCH_ROWS, choose, references_of
from calmrl.aligner.crossvalidation import fit_feature_maps, hub_levels, sample
from calmrl.aligner.expected import Evidence, expectation, expectation_elsewhere, expected_lines
from calmrl.aligner.features import FeatureMap, with_relative
from calmrl.aligner.posterior import place
from calmrl.aligner.refine import refine_space
from calmrl.aligner.rows import check_aligner, check_pairs, group_numbers, linked_rows, relevance_numbers
from calmrl.aligner.space import Space, beside_relative, fit_all, head_maps, make_grid
from calmrl.aligner.storage import from_state, to_state
from calmrl.arrays import Array, blocks_of_rows, check, to_tensor
from calmrl.data.features.distributed_rows import DistributedArrays
from calmrl.data.features.feature_set import ROW, FeatureSet
from calmrl.encoders.encoder_set import EmbedsFiles, encoder_names, recorded_encoders
from calmrl.errors import InputError
from calmrl.hub import OnHub
from calmrl.imputers.base import BlockColumns, Blocks, is_matrix
from calmrl.imputers.holes import Within, fit_within
from calmrl.interop.containers import from_object
from calmrl.latent.rows import Source, mapped_source, open_source, source_of, working_dtype
from calmrl.metrics.retrieve import check_hubs, csls

if TYPE_CHECKING:
    from calmrl.hub import Card


SAMPLE_ROWS = 10_000  # looked at for landmarks and principal directions
EMBED_BYTES = 1 << 27
GROUP = "group"  # column of a feature set that says which rows are siblings


class Aligner(OnHub, BlockColumns, EmbedsFiles, TransformerMixin, BaseEstimator):
    """Put items with any subset of modalities into one space, learned in closed form from incomplete rows.

    For every modality: centre, scale rows to unit length (or not), kernel or plain principal components f^m, partial
    whitening; then one linear-Gaussian latent model over the incomplete rows,

        f^m = W^m beta + mu^m + eps^m,    beta ~ N(0, I),

    fitted by five iterations of EM. The embedding of an item is E[beta | what it has], scaled to unit length; where that is
    zero, nothing is known about where the item lies, and its embedding is zero. Whatever is "auto" is chosen by
    cross-validation over the training rows: held-out rows must find each other.

    Rows may be NaN in single entries of a modality. These are completed first from its other entries, by a latent model of this
    modality alone, so that no item is found because it was completed from what it is looked for with.

    Parameters
    ----------
    features : {"auto", "linear", "kernel"}
        Principal components of the values, or of a Gaussian plus a linear kernel.
    unit_rows : {"auto", True, False}
        Whether centred rows are scaled to unit length first.
    whitening : float in [0, 1] or "auto"
        Direction i is divided by its variance to the power of half this number.
    latent_dim : int or "auto"
        Number of latents, the width of the embedding. With "auto", few and many latents may stand side by side.
    prior : float or "auto"
        As if so many more rows were pure noise.
    refine : {"auto", "never", "always"}
        Whether heads continue by gradient from the closed form: "auto" where held-out rows gain from it beyond noise.
    candidates : int
        Settings that the cross-validation tries, at most.
    folds : int
        Of the cross-validation.
    landmarks : int
        Rows that kernel features compare with, at most.
    random_state : int or None
        Seed of folds, landmarks and the start of EM; None draws one.
    hubs : {"beside", "auto", "never", "always"}
        Whether `similarity` takes off r(g) / 2, where r(g) is the mean of the ten largest similarities of a gallery item to
        training items of the query's modality: "beside" a base alone, unless held-out rows lose by it beyond noise; "auto"
        also without a base, where they gain from it beyond noise.
    base : str, path, Aligner, list of these, or None
        What was learned elsewhere with the same encoders, to stand beside the own space: a base that comes with calmrl, a
        saved or a fitted aligner. Its weight is chosen by cross-validation over the rows' own pairs; without any, the base
        stands alone. Modalities are matched by their encoders where these are known, else by name.
    shared : list of groups of modalities, or None
        Modalities whose vectors are comparable as they are, such as [("image", "text")] of CLIP: their cosine is a base.
    blocks : list, dict or None
        For one 2-D array or frame instead of a dict, as in a `Pipeline` of scikit-learn: list of column widths, dict
        name -> width, or dict name -> list of columns.

    Attributes
    ----------
    choice_ : dict
        What was chosen, its score, and "candidates": all that were tried, on how many "folds", best first. "second" are the
        settings of latents that stand beside those of the first, "relative" says that relative representations do; "latent_dim"
        counts all.
    expected_ : dict
        Direction ("text->image") -> R@1 and R@10 to expect on new items in a gallery of n, in percent, and the interval
        "low" to "high" for R@1. Directions that no row shows are not in it, unless a base can be quoted ("collections").
        `expected(n)` is the same for any n. With
        `relevant`, "own" is how many of the n count for a query on average.
    modalities_ : tuple of str
    elsewhere_ : dict
        Collection -> direction -> `Evidence`, of collections that it was not fitted on: what aligners with this one as their
        base quote where no pairs say anything. `calmrl.aligner.found_in` measures it.
    within_ : Within
        The latent models that complete holes inside a modality; there are none for modalities that were whole in `fit`.
    encoders_ : dict or None
        What encoded the features, if it was fitted on a directory of `calmrl extract`; `embed_files` needs it.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.normal(size=(300, 4))
    >>> z = {"image": shared @ rng.normal(size=(4, 20)), "text": shared @ rng.normal(size=(4, 10))}
    >>> z["text"][:50] = np.nan                            # fifty items without text
    >>> aligner = Aligner().fit(z)
    >>> aligner.similarity({"text": z["text"][50:53]}, {"image": z["image"][50:53]}).argmax(axis=1).tolist()
    [0, 1, 2]
    """

    takes_holes = True
    within_: Within = Within()
    choice_: dict[str, Any]
    modalities_: tuple[str, ...]
    names_: tuple[str, ...]  # names in the order of the parts below
    feature_maps_: list[FeatureMap]
    head_maps_: list[Tensor]  # (n_landmarks or d, L): from similarities to the head, whitening included
    space_: Space | None  # None where bases stand alone
    own_weight_: float
    references_: dict[str, Tensor]  # modality -> vectors of training items, where hubs are corrected for
    compact_: bool = False  # whether it was read from a compact file
    base_: list[Base]
    evidence_: dict[str, Evidence]
    elsewhere_: dict[str, dict[str, Evidence]]
    gain_: float
    dispersion_: float

    def __init__(
        self,
        features: str = "auto",
        unit_rows: bool | str = "auto",
        whitening: float | str = "auto",
        latent_dim: int | str = "auto",
        prior: float | str = "auto",
        refine: str = "auto",
        candidates: int = 16,
        folds: int = 3,
        landmarks: int = 2000,
        random_state: int | None = 0,
        *,
        hubs: str = "beside",
        base: Any = None,
        shared: Sequence[Sequence[str]] | None = None,
        blocks: Blocks = None,
    ) -> None:
        self.hubs = hubs
        self.base = base
        self.shared = shared
        self.blocks = blocks
        self.features = features
        self.unit_rows = unit_rows
        self.whitening = whitening
        self.latent_dim = latent_dim
        self.prior = prior
        self.refine = refine
        self.candidates = candidates
        self.folds = folds
        self.landmarks = landmarks
        self.random_state = random_state

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = super().__repr__(N_CHAR_MAX)
        return f"{text}, fitted: {self._spaces()}" if hasattr(self, "space_") else text

    def _spaces(self) -> str:
        """What is embedded, and the spaces side by side with their weights."""
        raw = "" if self.encoders_ is None else ", reads files"
        parts = [f"{base.name} (weight {base.weight:.2f})" for base in self.base_]
        if self.space_ is not None:
            share = f" (weight {self.own_weight_:.2f})" if parts else ""
            parts.insert(0, f"{self.space_.latent_dim} latents, {self.choice_['features']} features{share}")
        return f"{', '.join(self.modalities_)} -> {', beside '.join(parts)}{raw}"

    @torch.no_grad()
    def fit(
        self,
        z: Any,
        present: Array | None = None,
        groups: Sequence[Any] | None = None,
        relevant: Sequence[Any] | str | None = None,
        encoders: Mapping[str, str] | None = None,
    ) -> Aligner:
        """Choose and fit.

        Parameters
        ----------
        z, present
            As everywhere: a dict of arrays (memory-mapped ones are read in blocks) with a mask, an iterable of
            (z, present) chunks, or a feature set such as `open_features` and `load_dataset` return. Other objects that
            hold features (`calmrl.interop`: MuData, frames, ...) and one 2-D array with `blocks` will do as well. Single NaN
            entries are holes, which are completed within their modality: from arrays in memory once, else in every pass.
        groups : sequence, optional
            One label per row; rows with the same label are never on both sides of a fold. Pass it where items have
            siblings (frames of a film, captions of a picture), or `expected_` promises too much. By default the
            column "group" of a feature set, if it has one.
        relevant : sequence or str, optional
            One value per row (a caption, a class), or the name of a column of a feature set: a held-out query counts as
            found where any row with its value is found, in the choice and in `expected_`. Rows without a value (None, "",
            NaN) count for themselves only. By default every row does. It says nothing about folds: rows with one
            value are in several of them, as new items will have values that were seen, unless `groups` keeps them
            together.
        encoders : mapping of str to str, optional
            Modality -> name of the encoder that made its vectors, by which modalities of a base are recognised. Features
            of `calmrl extract` say it themselves.
        """
        arguments = self.get_params(deep=False)
        check_aligner(arguments)
        described = None
        if self._holds_features(z):
            z = from_object(z, holes=True)
        if present is None and isinstance(z, FeatureSet):
            if groups is None and GROUP in z.meta.column_names:
                groups = list(z.column(GROUP))
            if isinstance(relevant, str):
                relevant = None if relevant == ROW else list(z.column(relevant))
            described = recorded_encoders([z.info], z.names)
            z, present = z.z, np.asarray(z.present)
        if is_matrix(z):
            z, present = self._as_dict(z, present, reset=True)
        given = tuple(z) if isinstance(z, Mapping) else None
        source = open_source(*_sorted(z, present), holes=True)
        self.within_, source = whole_rows(source, seed_of(self.random_state))
        widths = dict(zip(source.names, source.widths, strict=True))
        bases = open_bases(self.base, self.shared, widths, {**encoder_names(described), **(encoders or {})})
        bases = [centred(base, source) for base in bases]
        numbers = [group_numbers(groups, source), relevance_numbers(relevant, source)]
        self.modalities_, self.encoders_, self.elsewhere_ = given or source.names, described, {}
        if not bases:
            check_pairs(source)
        linked, (siblings, alike) = linked_rows(source, numbers) if bases else (source, numbers)
        if linked is None:
            self._rest_on(bases, source)
        else:
            small = source.rows <= SEARCH_ROWS
            with one_thread() if small else nullcontext():  # else threads wait for each other most of the time
                self._fit_own(linked, siblings, alike, bases)
        return self

    def _fit_own(
        self, source: Source, groups: np.ndarray | None, relevant: np.ndarray | None, bases: list[Base]
    ) -> None:
        """Choose and fit the own space, and what stands beside it."""
        seed = seed_of(self.random_state)
        rows = sample(source, groups, SAMPLE_ROWS, seed, relevant)
        names = list(source.names)
        bases = [with_axes(base, rows, names) for base in bases]
        parts = ("features", "unit_rows", "whitening", "latent_dim", "prior")
        grid = make_grid(*(getattr(self, name) for name in parts))
        searched = (self.candidates, self.folds, self.landmarks, self.refine)
        engine = None if source.distributed is None else source.distributed.rows.engine
        needed = any(name not in names for name in self.modalities_)
        with one_thread():  # no fold has more rows than SEARCH_ROWS
            choice = choose(names, rows, source.rows, grid, *searched, seed, engine, bases, needed, self.hubs)
        if bases and choice.mixture is None:
            self._rest_on(bases, source)  # nothing can be held out that says how much the own space is worth
            return
        candidate = choice.candidate
        maps = fit_feature_maps(rows, candidate.features, candidate.unit_rows, seed, self.landmarks)
        space = fit_all(source, maps, candidate, seed)
        features = []
        if candidate.relative:
            maps = with_relative(maps, [rows.of(m) for m in range(len(maps))], rows.present, seed)
        if candidate.relative or choice.refine_steps or choice.mixture is not None:
            features = [lift(rows.of(m)) * lift.scale(candidate.whitening) for m, lift in enumerate(maps)]
        if candidate.relative:
            space = beside_relative(space, maps, features)
        if choice.refine_steps:
            space = refine_space(space, features, rows.present, choice.refine_steps, seed)
        self.names_, self.feature_maps_, self.space_ = source.names, maps, space
        self.head_maps_ = head_maps(maps, candidate.whitening, space)
        self.choice_ = choice.summary(space.latent_dim)
        self.evidence_, self.gain_, self.dispersion_ = choice.evidence, choice.gain, choice.dispersion
        self.own_weight_, self.base_ = 1.0, []
        if choice.mixture is not None:
            heads: list[Tensor | None] = [space.head(m, part).double() for m, part in enumerate(features)]
            mean = space.posterior(heads, rows.present, range(len(names)))
            self.own_weight_ = choice.mixture.weights.own
            self.base_ = weighted(bases, choice.mixture, rows, names, mean)
            self.choice_["beside"] = choice.mixture.summary(bases)
            if not self.own_weight_:
                self._forget_own()
        self.references_ = references_of(self, names, rows) if choice.hubs else {}

    def _rest_on(self, bases: list[Base], source: Source) -> None:
        """No rows say how the modalities belong together: the bases alone."""
        warnings.warn(
            f"no two modalities are linked by {MIN_PAIRS} rows or more, so that nothing is learned from the rows: embeddings "
            f"are those of {' and '.join(base.name for base in bases)} alone",
            UserWarning,
            stacklevel=4,
        )
        rows = sample(source, None, SAMPLE_ROWS, seed_of(self.random_state))
        self._forget_own()
        self.evidence_, self.gain_, self.dispersion_ = {}, 0.0, 1.0
        self.base_ = alike(bases, rows, source.names)
        corrected = self.hubs != "never" and int((source.count > 0).sum()) > 1  # else nothing asks for another modality
        self.references_ = references_of(self, source.names, rows) if corrected else {}
        beside = {"own": 0.0, **{base.name: base.weight for base in self.base_}}
        why = f"no two modalities are linked by {MIN_PAIRS} rows or more"
        self.choice_ = {"beside": beside, "why": why, "hubs": corrected}

    def _forget_own(self) -> None:
        self.names_, self.feature_maps_, self.head_maps_, self.space_, self.own_weight_ = (), [], [], None, 0.0

    # ---- one space

    @torch.no_grad()
    def embed(self, z: Any, present: Array | None = None) -> Array:
        """Unit vectors (N, L) in the shared space, from whatever each row has; missing ones may be left out of the dict.

        An item about which nothing is known gets exactly zero, and so cosine 0 with everything: one that has only modalities
        that were constant in training, or that equals the average of all. Everything is computed in float64, so that the
        same values give the same vectors in every dtype and in batches of any size. What comes back is float64 if any
        modality is, else float32, also for half precision, whose rounding (2e-4) would move a unit vector. Holes are completed
        as in `fit`; in a modality that was whole there, they are an error.
        """
        check_is_fitted(self)
        if is_matrix(z) or self._holds_features(z):
            z, present = self._as_dict(z, present, reset=False)
        names, widths = zip(*sorted(self.widths_.items()), strict=True)
        views = self.within_.whole(check(z, present, names=names, widths=widths, holes=True))
        parts = [
            place(self, views.rows(start, stop), views.present[start:stop], names)
            for start, stop in blocks_of_rows(len(views), 32 * _largest(self), EMBED_BYTES)
        ]
        if not parts:
            parts = [torch.zeros((0, self.width_), device=views.present.device)]
        vectors = torch.cat(parts).to(working_dtype(views))
        return vectors if isinstance(views.given(), Tensor) else vectors.numpy()

    @property
    def width_(self) -> int:
        """Width of the embedding: the latents of the own space and of all bases."""
        own = 0 if self.space_ is None else self.space_.latent_dim
        return own + sum(base.aligner.width_ for base in self.base_)

    @property
    def widths_(self) -> dict[str, int]:
        """Modality -> width of its vectors, of all that can be embedded: those of the rows, and those that a base adds."""
        widths = {name: len(lift.centre) for name, lift in zip(self.names_, self.feature_maps_, strict=True)}
        for base in self.base_:
            widths = {name: base.aligner.widths_[inner] for name, inner in base.names.items()} | widths
        order = [*(name for name in self.modalities_ if name in widths), *widths]
        return {name: widths[name] for name in dict.fromkeys(order)}

    def head(self, m: int, rows: Tensor, centre: Tensor | None = None) -> Tensor:
        """The posterior mean given modality m alone, (n, L) float64; `centre` replaces that of the training rows."""
        assert self.space_ is not None, "there is no own space"
        bias = self.space_.bias[m].to(rows.device, torch.float64)
        return self.feature_maps_[m].project(rows, self.head_maps_[m], centre) + bias

    def transform(self, z: Any, present: Array | None = None) -> Array:
        """`embed`, under the name that pipelines of scikit-learn call."""
        return self.embed(z, present)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns that `transform` gives: aligner0, aligner1, ..."""
        check_is_fitted(self)
        return np.array([f"aligner{j}" for j in range(self.width_)], dtype=object)

    def similarity(self, queries: Any, gallery: Any, hubs: str | None = None, k: int = 10) -> Array:
        """Cosines (Q, G) between items with any modalities; missing ones are NaN rows or left out of the dict.

        Where `choice_["hubs"]` says so, they are corrected for hubs, items that are near to everything: r(g) / 2 is taken off,
        which depends on the gallery item and the query's modalities alone. With hubs="csls" the mean cosine to the `k` nearest
        on either side is taken off: 2 cos(q, g) - r(q) - r(g); that depends on all queries together.
        """
        check_hubs(hubs, k)
        left, right = self.embed(queries), self.embed(gallery)
        if isinstance(left, Tensor) != isinstance(right, Tensor):
            raise InputError("queries and gallery mix NumPy arrays and torch tensors; pass one kind")
        scores = left @ right.T
        if hubs is not None:
            return csls(scores, k)
        return scores - self._levels(queries, right) if self.references_ else scores

    def _levels(self, queries: Any, gallery: Array) -> Array:
        """r(g) / 2 for every query, (Q, G): the mean over the modalities that it has."""
        names, widths = zip(*sorted(self.widths_.items()), strict=True)
        if is_matrix(queries) or self._holds_features(queries):
            queries, _ = self._as_dict(queries, None, reset=False)
        known = [name in self.references_ for name in names]
        asked = check(queries, None, names=names, widths=widths, holes=True).present[:, known].double()
        levels = self.hub_levels(gallery)
        table = torch.stack([to_tensor(levels[name]) for name in names if name in levels], dim=1).double()  # (G, k)
        mean = (asked / asked.sum(1, keepdim=True).clamp(min=1)).to(table) @ table.T / 2
        return mean.to(gallery) if isinstance(gallery, Tensor) else mean.numpy().astype(gallery.dtype)

    def hub_levels(self, vectors: Array) -> dict[str, Array]:
        """r(g) of embedded gallery items, (N,), by the modality that a query has; empty where hubs are not corrected for."""
        given = to_tensor(vectors)
        levels = {name: hub_levels(given, part.to(given)) for name, part in self.references_.items()}
        return levels if isinstance(vectors, Tensor) else {name: level.numpy() for name, level in levels.items()}

    # ---- what to expect

    @property
    def expected_(self) -> dict[str, dict[str, float]]:
        """`expected()`: for galleries as large as those of the folds."""
        return self.expected()

    def expected(self, n: int | None = None) -> dict[str, dict[str, float]]:
        """R@1 and R@10 in percent to expect on new items in a gallery of `n`, per direction.

        "low" to "high" holds the R@1 that n new queries measure, in about nine of ten cases. New items must be like the
        training rows; `n` beyond the folds' galleries is an extrapolation, and the interval grows with it. With `relevant`,
        the gallery is the query's own row and n - 1 random others, some of which count as well: "own" on average.

        Where no rows show a direction but a base knows it, the row quotes what that base reached on collections it had not
        seen; "collections" says on how many, and the interval is for one more such collection.
        """
        check_is_fitted(self)
        if n is not None and (isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 2):
            raise InputError(f"n is the number of gallery items, a whole number from 2 on; got {n!r}")
        rows = {}
        for asked, wanted in permutations(self.widths_, 2):
            key = f"{asked}->{wanted}"
            if key in self.evidence_:
                rows[key] = expectation(self.evidence_[key], self.gain_, self.dispersion_, n)
            elif evidence := quoted(self.base_, asked, wanted):
                rows[key] = expectation_elsewhere(evidence, n)
        return rows

    def summary(self) -> list[str]:
        """What was chosen and what to expect, as sentences."""
        check_is_fitted(self)
        alone = ", alone, for too few rows have two modalities to learn from" if self.space_ is None else ""
        return [f"one space: {self._spaces()}{alone}", *expected_lines(self.expected_)]

    # ---- on disk

    def save(self, path: str | os.PathLike[str], overwrite: bool = False, *, compact: bool = False) -> None:
        """Write a folder with aligner.json and aligner.safetensors; no pickle.

        `compact` takes less than a tenth of the space, for a base that is passed on; vectors then differ by about a tenth, and
        recall by about as much as chance makes it.
        """
        check_is_fitted(self)
        save_state(to_state(self, compact), path, overwrite, name="aligner")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Aligner:
        """Read what `save` wrote."""
        return from_state(load_state(path, name="aligner"), f"the saved aligner in {path}")

    def _card(self) -> Card:
        from calmrl.aligner.storage import aligner_card

        check_is_fitted(self)
        return aligner_card(self)

    def __sklearn_clone__(self) -> Aligner:
        return type(self)(**self.get_params(deep=False))  # a base stays fitted

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "space_")


def _largest(aligner: Aligner) -> int:
    """Numbers per row that embedding holds at once, at most."""
    own = [max(len(lift.landmarks), len(lift.centre)) for lift in aligner.feature_maps_]
    return max([*own, *(_largest(base.aligner) for base in aligner.base_)], default=1)


def whole_rows(source: Source, seed: int) -> tuple[Within, Source]:
    """(what completes holes, learned from about SAMPLE_ROWS rows; the rows without holes)."""
    if not source.torn:
        return Within(), source
    rows = sample(source, None, SAMPLE_ROWS, seed)
    within = fit_within({name: rows.of(m) for m, name in enumerate(source.names)}, seed)
    if source.in_memory:
        (views,) = source.chunks()
        return within, source_of(within.whole(views))
    return within, mapped_source(source, within.whole, source.widths)


def _sorted(z: Any, present: Array | None) -> tuple[Any, Array | None]:
    """Modalities by name, so that the order in which they come does not matter."""
    if isinstance(z, DistributedArrays):
        return z.ordered(sorted(z)), None
    if not isinstance(z, Mapping):
        return z, present
    names = list(z)
    if not all(isinstance(name, str) for name in names) or (present is not None and np.ndim(present) != 2):
        return z, present  # `check` says what is wrong
    order = sorted(range(len(names)), key=lambda j: names[j])
    if present is not None:
        if present.shape[1] != len(names):
            return z, present
        present = present[:, order]
    return {names[j]: z[names[j]] for j in order}, present
