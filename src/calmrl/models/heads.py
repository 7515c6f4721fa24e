"""Projectors on frozen features: the model for people who have embeddings."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn
from torch.nn.functional import normalize

from calmrl._support.distributed import own_rows
from calmrl.aligner.features import FeatureMap, fit_kernel
from calmrl.data.loaders.feature_rows import FeatureRows, principal_axes, standardization
from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.models.registry import HeadsSection


class Heads(nn.Module):
    """One projector per modality into a common space, on features as they come.

    z^m = normalize(head_m((x^m - centre_m) map_m)), computed for the rows that have m; the others are 0.

    - `widths`: modality -> width of its features; `width`: of the common space.
    - `hidden`: None is a linear head, a number an MLP Linear - GELU - LayerNorm - Linear with so many hidden units.
    - `skip`: an MLP is added to a linear head instead, and starts at zero, so that it can start from a latent model too.
    - `inner`: modality -> columns of map_m (d_m x inner_m); None leaves out the map. `standardize` sets centre and map,
      which are not trained.
    - `kernels`: modality -> (number of landmarks, whether rows are scaled to length one): map_m is then applied to
      kernel values with so many landmarks, which `compare_with` sets.

    >>> heads = Heads({"image": 6, "text": 4}, width=3)
    >>> x = {"image": torch.randn(5, 6), "text": torch.randn(5, 4)}
    >>> heads(x, torch.ones(5, 2, dtype=torch.bool))["image"].shape
    torch.Size([5, 3])
    """

    kind = "heads"  # its name in MODELS

    def __init__(
        self,
        widths: Mapping[str, int],
        width: int = 512,
        *,
        hidden: int | None = None,
        inner: Mapping[str, int] | None = None,
        skip: bool = False,
        kernels: Mapping[str, tuple[int, bool]] | None = None,
    ) -> None:
        super().__init__()
        self.names, self.width, self.hidden, self.skip = tuple(widths), width, hidden, skip
        self.widths, self.inner = dict(widths), None if inner is None else dict(inner)
        self.kernels = None if kernels is None else {name: tuple(kernels[name]) for name in widths}
        self.heads = nn.ModuleDict({name: _head((inner or widths)[name], width, hidden, skip) for name in widths})
        for name, inside in widths.items():
            self.register_buffer(f"centre_{name}", torch.zeros(inside))
            rows = inside
            if self.kernels is not None:
                rows = self.kernels[name][0]
                self.register_buffer(f"landmarks_{name}", torch.zeros(rows, inside))
                self.register_buffer(f"offset_{name}", torch.zeros(rows))
                self.register_buffer(f"shape_{name}", torch.zeros(2, dtype=torch.float64))
            if inner is not None:
                self.register_buffer(f"map_{name}", torch.eye(rows, inner[name]))

    @property
    def arguments(self) -> dict[str, Any]:
        """What to call the class with to get one of the same shape."""
        sizes = {"widths": self.widths, "width": self.width, "hidden": self.hidden, "inner": self.inner}
        return sizes | {"skip": self.skip, "kernels": self.kernels}

    def standardize(self, centre: Mapping[str, Tensor], maps: Mapping[str, Tensor]) -> None:
        """Subtract `centre[name]` (d,) from the features and multiply them by `maps[name]` (d, inner) before the head."""
        for name in self.names:
            self.get_buffer(f"centre_{name}").copy_(centre[name])
            self.get_buffer(f"map_{name}").copy_(maps[name])

    def compare_with(self, feature_maps: Mapping[str, FeatureMap]) -> None:
        """Take over kernel features: landmarks, kernel and directions of every modality."""
        for name, feature_map in feature_maps.items():
            parts = {"centre": feature_map.centre, "landmarks": feature_map.landmarks, "offset": feature_map.offset}
            for part, values in (parts | {"shape": feature_map.shape, "map": feature_map.projection}).items():
                self.get_buffer(f"{part}_{name}").copy_(values)

    def standardized(self, name: str, x: Tensor) -> Tensor:
        """Features as the head of this modality sees them."""
        if self.kernels is not None:
            landmarks, shape, offset, directions = (
                self.get_buffer(f"{part}_{name}") for part in ("landmarks", "shape", "offset", "map")
            )
            centre, unit = self.get_buffer(f"centre_{name}"), bool(self.kernels[name][1])
            return FeatureMap(centre, unit, landmarks, shape, offset, directions, variance=offset[:0])(x)
        centred = x - self.get_buffer(f"centre_{name}")
        return centred if self.inner is None else centred @ self.get_buffer(f"map_{name}")

    def start_from(self, layers: nn.ModuleDict) -> None:
        """Take over linear layers, for instance `GaussianImputer.as_heads()` fitted on standardised features."""
        if self.hidden is not None and not self.skip:
            raise InputError("an MLP cannot start from a latent model; leave out hidden, or pass skip=True")
        layer: Any
        for name, layer in layers.items():
            head: Any = self.heads[name]
            head = head.linear if isinstance(head, SkipHead) else head
            if layer.weight.shape != head.weight.shape:
                raise InputError(
                    f"the latent model has {len(layer.weight)} latents but the heads have width {self.width}; "
                    "make them equal"
                )
            with torch.no_grad():
                head.weight.copy_(layer.weight)
                head.bias.copy_(layer.bias)

    def forward(self, inputs: Mapping[str, Tensor], present: Tensor) -> dict[str, Tensor]:
        """Unit vectors (N, width) for every modality; 0 in rows that lack it."""
        z = {}
        for name, has in zip(self.names, present.T, strict=True):
            z[name] = _spread(normalize(self.heads[name](self.standardized(name, inputs[name][has])), dim=1), has)
        return z

    def head_inputs(self, inputs: Mapping[str, Tensor], present: Tensor) -> dict[str, Tensor]:
        """Features as the heads see them, for every modality; 0 in rows that lack it."""
        columns = zip(self.names, present.T, strict=True)
        return {name: _spread(self.standardized(name, inputs[name][has]), has) for name, has in columns}

    def project(self, features: Mapping[str, Tensor], present: Tensor) -> dict[str, Tensor]:
        """`forward` from what `head_inputs` gave, perhaps changed."""
        columns = zip(self.names, present.T, strict=True)
        return {name: _spread(normalize(self.heads[name](features[name][has]), dim=1), has) for name, has in columns}

    def encode(self, inputs: Mapping[str, Tensor], present: Tensor) -> tuple[dict[str, Tensor], None]:
        """(`forward`, the tokens a matching head could look at: none)."""
        return self(inputs, present), None


def _spread(rows: Tensor, has: Tensor) -> Tensor:
    """Rows of those that have them at their places, 0 elsewhere."""
    return rows.new_zeros(len(has), rows.shape[1]).index_put((has.nonzero()[:, 0],), rows)


class SkipHead(nn.Module):
    """linear(x) + mlp(x), where the last layer of the MLP starts at zero."""

    def __init__(self, linear: nn.Linear, mlp: nn.Sequential) -> None:
        super().__init__()
        self.linear, self.mlp = linear, mlp
        last: Any = mlp[-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inner) -> (n, width)."""
        return self.linear(x) + self.mlp(x)


def _head(inside: int, width: int, hidden: int | None, skip: bool) -> nn.Module:
    if hidden is None:
        return nn.Linear(inside, width)
    mlp = nn.Sequential(nn.Linear(inside, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, width))
    return SkipHead(nn.Linear(inside, width), mlp) if skip else mlp


UNIT_ROWS = {"kernel": True, "kernel-plain": False}  # form of the features -> whether rows are scaled to length one
WHITENING = 0.5  # the first that the aligner tries
LANDMARKS = 2000  # rows that features compare with, at most


def fit_kernels(sources: Sequence[FeatureRows], how: str, seed: int) -> dict[str, FeatureMap]:
    """Modality -> its kernel features, whitened by half, from the observed training rows; mean square 1."""
    generator = torch.Generator().manual_seed(seed)
    feature_maps = {}
    for j, name in enumerate(sources[0].names):
        x = torch.cat([_observed(source, j, name) for source in sources])
        if not len(x):
            raise InputError(f"no training row has {name}; leave it out of modalities, or add a source")
        feature_map = fit_kernel(x, UNIT_ROWS[how], generator, LANDMARKS)
        feature_maps[name] = replace(feature_map, projection=feature_map.projection * feature_map.scale(WHITENING))
    return feature_maps


def lifted_rows(source: FeatureRows, feature_maps: Mapping[str, FeatureMap]) -> FeatureRows:
    """The same rows with their features computed, in memory; 0 where a modality is missing."""
    z = {}
    for j, name in enumerate(source.names):
        values = np.zeros((len(source), feature_maps[name].width), dtype=np.float32)
        values[source.present[:, j]] = feature_maps[name](_observed(source, j, name)).numpy()
        z[name] = values
    widths = {name: feature_map.width for name, feature_map in feature_maps.items()}
    return replace(source, z=z, rows=np.arange(len(source)), widths=widths)


def _observed(source: FeatureRows, j: int, name: str) -> torch.Tensor:
    """(n, d) modality j of the rows that have it."""
    only = np.zeros((int(source.present[:, j].sum()), len(source.names)), dtype=bool)
    only[:, j] = True
    return source.fetch(np.flatnonzero(source.present[:, j]), only, 0)[name]


INIT_ROWS = 50_000  # at most, to fit the latent model that heads start from


def build_heads(section: HeadsSection, data: Any, names: Sequence[str], seed: int, root: str | None = None) -> Heads:
    """The heads before their first step, for the rows of `data`."""
    torch.manual_seed(seed)
    sources = list(data.train.values())
    heads = _heads(section, data.widths, sources, seed)
    if section.init == "latent":
        x, present = _standardized(heads, sources)
        if section.latent_rows == "complete":
            x, present = {name: rows[present.all(1)] for name, rows in x.items()}, present[present.all(1)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # few iterations are meant: more would overfit
            latent = GaussianImputer(
                section.width, prior=section.latent_prior, max_iter=section.latent_iterations, random_state=seed
            ).fit(*own_rows(x, present))
        heads.start_from(latent.as_heads())
    elif section.init == "identity":
        heads.start_from(_first_columns(heads))
    return heads


def _first_columns(heads: Heads) -> nn.ModuleDict:
    """Linear layers that keep the first columns of the features, as many as the heads are wide."""
    narrow = [f"{name} has {d}" for name, d in heads.widths.items() if d < heads.width]
    if narrow:
        raise InputError(
            f"heads of width {heads.width} cannot start as the identity: {', '.join(narrow)} columns; make width smaller"
        )
    if heads.inner is not None:
        raise InputError("features that are turned are not comparable any more; init: identity needs standardize: null")
    layers = nn.ModuleDict({name: nn.Linear(d, heads.width) for name, d in heads.widths.items()})
    for layer in layers.children():
        nn.init.eye_(layer.weight)  # type: ignore[arg-type]
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layers


def _heads(section: HeadsSection, widths: dict[str, int], sources: Sequence[FeatureRows], seed: int) -> Heads:
    """Heads with random weights on the form of the features that the section names."""
    shape: dict[str, Any] = {"hidden": section.hidden}
    shape["skip"] = section.hidden is not None and section.init != "random"
    if section.standardize in UNIT_ROWS:
        feature_maps = fit_kernels(sources, section.standardize, seed)
        shape["inner"] = {name: feature_map.width for name, feature_map in feature_maps.items()}
        shape["kernels"] = {
            name: (len(feature_map.landmarks), feature_map.unit) for name, feature_map in feature_maps.items()
        }
        heads = Heads(widths, section.width, **shape)
        heads.compare_with(feature_maps)
    elif section.standardize is not None:
        centres, maps = standardization(principal_axes(sources), section.standardize)
        heads = Heads(widths, section.width, inner={name: m.shape[1] for name, m in maps.items()}, **shape)
        heads.standardize(centres, maps)
    else:
        heads = Heads(widths, section.width, **shape)
    return heads


def _standardized(heads: Heads, sources: Sequence[FeatureRows]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Features of the training rows as the heads see them."""
    pace = max(1, -(-sum(map(len, sources)) // INIT_ROWS))
    parts, masks = [], []
    for source in sources:
        chosen = np.arange(0, len(source), pace)
        values = source.fetch(chosen, source.present[chosen], 0)
        parts.append({name: heads.standardized(name, x) for name, x in values.items()})
        masks.append(torch.from_numpy(source.present[chosen]))
    return {name: torch.cat([part[name] for part in parts]) for name in heads.names}, torch.cat(masks)
