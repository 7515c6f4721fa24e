"""Spaces side by side: what was learned elsewhere beside what the collection's own rows say.

A base is an aligner fitted on other collections with the same encoders, or modalities whose vectors are comparable as they are
(both sides of CLIP). An item's vector is its unit vector in every space times the root of that space's weight, one after the
other, so that the inner product of two items is the weighted sum of their cosines.

Cosines of different spaces vary by different amounts. So weights are chosen as shares of the spread: a share s of the own space
means w_own sd_own : w_base sd_base = s : 1 - s, where sd is the standard deviation of the cosines of held-out queries with all
gallery items. Cross-validation over the collection's own pairs tries SHARES, with all bases alike and with each alone. Few
pairs say little, so it takes, of all that is within two standard errors of the best, what is next to what n pairs usually
deserve: a share of n / (2 n + 200), and all bases alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calmrl.aligner.bases import BASES
from calmrl.aligner.crossvalidation import Fold, Outcome, Rows, outcome, score
from calmrl.aligner.expected import Evidence
from calmrl.aligner.features import FeatureMap
from calmrl.aligner.posterior import AS_LEARNED, Columns, place, shortened
from calmrl.aligner.space import Candidate, Space, direction, head_maps, spread
from calmrl.encoders.encoder_set import encoder_names
from calmrl.errors import InputError
from calmrl.latent.rows import Source

if TYPE_CHECKING:
    from calmrl.aligner.estimator import Aligner

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0)  # of the own space
USUAL = 200  # with half as many pairs, the own space usually deserves a quarter
NOISE = 2.0  # standard errors within which two settings are level
ALONE = 0.3  # as far from usual as so much more or less of a share: a base without the others
MIN_PAIRS = 20  # rows that must have both of two modalities before anything is learned from them
SURE = 1e6  # precision of comparable vectors: nothing is known beyond them, and they are what they are
CENTRE_ROWS = 50  # rows that the centre of a base counts as, beside those of the collection
RIDGE = tuple(10.0**power for power in range(-3, 5))


@dataclass(frozen=True)
class Base:
    """A space beside the own one."""

    name: str
    aligner: Aligner
    names: dict[str, str]  # modality of the collection -> modality of the base
    weight: float = 1.0
    bridge: Tensor | None = None  # (L, width): from own latents to the base, for rows that it does not know
    centres: dict[str, Tensor] = field(default_factory=dict)  # modality of the collection -> mean of its rows

    def place(self, columns: Columns, present: Tensor, names: Sequence[str]) -> Tensor:
        """Vectors (n, width) of rows whose columns are these modalities of the collection."""
        inner = [self.names.get(name) for name in names]
        return place(self.aligner, columns, present, inner, AS_LEARNED.inside(self.centres, names))


# ---- which bases


def open_bases(
    base: Any,
    shared: Sequence[Sequence[str]] | None,
    widths: Mapping[str, int],
    encoders: Mapping[str, str],
) -> list[Base]:
    """The bases that the arguments of an aligner mean, for modalities of these widths and, where known, encoders."""
    given = [] if base is None else list(base) if isinstance(base, (list, tuple)) else [base]
    opened = [_opened(one, number, len(given)) for number, one in enumerate(given)]
    bases = [Base(name, aligner, _matched(name, aligner, widths, encoders)) for name, aligner in opened]
    for names in shared or ():
        group = _shared_group(names, widths)
        bases.append(Base("+".join(group), shared_space(group, widths[group[0]]), {name: name for name in group}))
    return bases


def load_base(name: str | Path) -> Aligner:
    """The aligner of a base: one that ships with the package, by name, or one that was saved, by its path.

    Examples
    --------
    >>> from calmrl.aligner import load_base
    >>> load_base("named-things").modalities_  # doctest: +SKIP
    ('image', 'text', 'multilingual', 'speech', 'sound')
    """
    from calmrl.aligner.estimator import Aligner

    path = BASES[str(name)].path if str(name) in BASES else Path(name)
    if not path.exists():
        raise InputError(
            f"there is no base {str(name)!r}: neither a folder of that name nor one of those that come with calmrl "
            f"({', '.join(BASES)})"
        )
    return Aligner.load(path)


def fitting_base(widths: Mapping[str, int], encoders: Mapping[str, str]) -> str | None:
    """The base of those that come with calmrl whose encoders made these vectors; None where none did."""
    for name in BASES:
        try:
            aligner = load_base(name)
            _matched(name, aligner, {m: width for m, width in widths.items() if m in encoders}, encoders)
        except InputError:
            continue
        return name
    return None


def _opened(given: Any, number: int, count: int) -> tuple[str, Aligner]:
    from calmrl.aligner.estimator import Aligner

    if isinstance(given, Aligner):
        if not given.__sklearn_is_fitted__():
            raise InputError("base is an Aligner that is not fitted; fit it, or pass the name of a base")
        return "base" if count == 1 else f"base {number + 1}", given
    if isinstance(given, (str, Path)):
        return str(given), load_base(given)
    raise InputError(
        f"base must be a fitted Aligner, a name ({', '.join(BASES)}), a path, or a list of these; got {type(given).__name__}"
    )


def _matched(name: str, aligner: Aligner, widths: Mapping[str, int], encoders: Mapping[str, str]) -> dict[str, str]:
    """Modality of the collection -> modality of the base: of the same encoder, or, where one side does not know it, name.

    Modalities that only the base has keep their names, so that one can ask with them.
    """
    known = encoder_names(aligner.encoders_)
    names = {}
    for modality, width in widths.items():
        encoder = encoders.get(modality)
        same = [inner for inner, its in known.items() if its == encoder]
        if (encoder is None or modality not in known) and not same and modality in aligner.widths_:
            same = [modality]
        if same and aligner.widths_[same[0]] == width:
            names[modality] = same[0]
    if not names:
        has = ", ".join(f"{inner} (width {width})" for inner, width in aligner.widths_.items())
        rows = ", ".join(f"{modality} (width {width})" for modality, width in widths.items())
        raise InputError(
            f"the base {name} knows {has}, the rows have {rows}; none is of the same name and width, or made by the same "
            "encoder"
        )
    only_there = [inner for inner in aligner.widths_ if inner not in names.values() and inner not in widths]
    return names | {inner: inner for inner in only_there}


def _shared_group(names: Sequence[str], widths: Mapping[str, int]) -> list[str]:
    group = [names] if isinstance(names, str) else list(names)
    if len(group) < 2 or len(set(group)) < len(group):
        raise InputError(
            f"shared is a list of groups of two or more modalities, such as [('image', 'text')]; got {names!r}"
        )
    unknown = [name for name in group if name not in widths]
    if unknown:
        raise InputError(f"shared names {unknown[0]!r}, but the rows have {', '.join(widths)}")
    if len({widths[name] for name in group}) > 1:
        has = ", ".join(f"{name} {widths[name]}" for name in group)
        raise InputError(f"modalities whose vectors are comparable have one width; got {has}")
    return group


def shared_space(names: Sequence[str], width: int) -> Aligner:
    """Modalities whose vectors are comparable as they are, as an aligner: every row is its own direction.

    Examples
    --------
    >>> joint = shared_space(["image", "text"], 2)
    >>> joint.similarity({"image": np.array([[2.0, 0.0]])}, {"text": np.array([[3.0, 4.0]])}).round(6).tolist()
    [[0.6]]
    """
    from calmrl.aligner.estimator import Aligner

    eye, zero = torch.eye(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    maps = [
        FeatureMap(zero, True, eye[:0], torch.zeros(2, dtype=torch.float64), zero, eye, torch.ones(width).double())
        for _ in names
    ]
    aligner = Aligner(features="linear", unit_rows=True, whitening=0.0, latent_dim=width)
    aligner.names_ = aligner.modalities_ = tuple(names)
    aligner.feature_maps_ = maps
    aligner.space_ = Space([eye for _ in names], [zero for _ in names], [SURE * eye for _ in names])
    aligner.head_maps_ = head_maps(maps, 0.0, aligner.space_)
    aligner.choice_ = {
        "features": "linear",
        "unit_rows": True,
        "whitening": 0.0,
        "latent_dim": width,
        "comparable": True,
    }
    aligner.evidence_, aligner.gain_, aligner.dispersion_, aligner.references_ = {}, 0.0, 1.0, {}
    aligner.base_, aligner.own_weight_, aligner.elsewhere_, aligner.encoders_ = [], 1.0, {}, None
    return aligner


def centred(base: Base, source: Source) -> Base:
    """The base, centred by the means of the rows as far as there are rows; comparable vectors stay as they are."""
    if base.aligner.choice_.get("comparable"):
        return base
    centres = {}
    for name, mean, count in zip(source.names, source.mean, source.count.tolist(), strict=True):
        if name in base.names and count:
            centres[name] = (count * mean.double() + CENTRE_ROWS * _centre(base.aligner, base.names[name]).to(mean)) / (
                count + CENTRE_ROWS
            )
    return replace(base, centres=centres)


def _centre(aligner: Aligner, name: str) -> Tensor:
    """Around which a base was learned; the mean of its spaces where there are several."""
    own = [aligner.feature_maps_[aligner.names_.index(name)].centre] if name in aligner.names_ else []
    others = [_centre(base.aligner, base.names[name]) for base in aligner.base_ if name in base.names]
    return torch.stack([*own, *others]).double().mean(0)


def alike(bases: Sequence[Base], rows: Rows, names: Sequence[str]) -> list[Base]:
    """The bases alone, all with the same share of the spread."""
    spreads = [1.0]
    for base in bases:
        vectors = [part for part in vectors_by_modality(base, rows, names) if part is not None]
        spreads.append(spread(vectors))
    weights = weights_of(0.0, mixes(len(bases))[0], spreads)
    return [replace(base, weight=weight) for base, weight in zip(bases, weights.bases, strict=True)]


# ---- what a base reached elsewhere


def found_in(
    aligner: Aligner, z: Mapping[str, Any], most: int = 250, seed: int = 0, relevant: np.ndarray | None = None
) -> dict[str, Evidence]:
    """What the rows of another collection find of each other: direction -> evidence, of galleries of at most `most` rows.

    Missing rows are NaN. Rows are drawn at random; pass one row per concept, or siblings stand in each other's way. `relevant`
    is a number per row: rows with the same one count for each other, those with -1 for themselves only.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(50, 8))
    >>> found = found_in(shared_space(["image", "text"], 8), {"image": rows, "text": 2 * rows})
    >>> found["text->image"].recall(1, 50)
    1.0
    """
    names = [name for name in z if name in aligner.widths_]
    arrays = {name: np.asarray(z[name]) for name in names}
    observed = np.stack([~np.isnan(values).any(1) for values in arrays.values()], axis=1)
    evidence = {}
    for a, b in permutations(range(len(names)), 2):
        both = np.flatnonzero(observed[:, a] & observed[:, b])
        taken = np.random.default_rng(seed).permutation(both)[:most]
        if len(taken) < 2:
            continue
        unit = [torch.from_numpy(aligner.embed({names[m]: arrays[names[m]][taken]})) for m in (a, b)]
        count = None if relevant is None else relevant[taken]
        kept = [aligner.references_.get(names[m], unit[0][:0]).to(unit[0]) for m in (a, b)]  # of none, hubs stay
        found = outcome(unit, torch.ones((len(taken), 2), dtype=torch.bool), count, count is not None, kept)
        evidence[f"{names[a]}->{names[b]}"] = Evidence.of([found[0, 1]])
    return evidence


def quoted(bases: Sequence[Base], asked: str, wanted: str) -> list[Evidence]:
    """What the first base that knows this direction reached on collections it had not seen, one each."""
    for base in bases:
        key = f"{base.names.get(asked)}->{base.names.get(wanted)}"
        found = [directions[key] for directions in base.aligner.elsewhere_.values() if key in directions]
        if found:
            return found
    return []


# ---- with which weights


@dataclass(frozen=True)
class Weights:
    """What stands beside what: the weight of the own space and of each base, which sum to 1."""

    own: float
    bases: tuple[float, ...]


OWN = Weights(1.0, ())  # without bases


@dataclass(frozen=True)
class Sides:
    """Vectors of rows of a fold in the own space and in each base: per space, per modality, (n_m, width)."""

    spaces: list[list[Tensor]]
    rows: Rows

    def spreads(self) -> list[float]:
        """Standard deviation of the cosines between different modalities, per space."""
        return [spread(vectors) for vectors in self.spaces]

    def mixed(self, weights: Weights) -> list[Tensor]:
        """Their vectors with these weights, per modality."""
        roots = [math.sqrt(weight) for weight in (weights.own, *weights.bases)]
        used = [(root, space) for root, space in zip(roots, self.spaces, strict=True) if root > 0]
        return [torch.cat([root * space[m] for root, space in used], dim=1) for m in range(len(self.spaces[0]))]

    def outcome(self, weights: Weights, every: bool = False, references: list[Tensor] | None = None) -> Outcome:
        """What the rows find of each other with these weights."""
        return outcome(self.mixed(weights), self.rows.present, self.rows.relevant, every, references)


def sides_of(fold: Fold, space: Space, candidate: Candidate, bases: Sequence[Base], train: bool = False) -> Sides:
    """Where the held-out rows of a fold lie, or its training rows."""
    features = fold.whitened(candidate)
    rows = fold.train if train else fold.held
    heads = [space.head(m, part) for m, part in enumerate(features[0 if train else 1])]
    spaces = [[direction(head) for head in heads]]
    mean = None
    for base in bases:
        vectors = vectors_by_modality(base, rows, fold.names)
        bridge = torch.empty(0)
        if any(part is None for part in vectors):
            if mean is None:
                learned: list[Tensor | None] = [space.head(m, part).double() for m, part in enumerate(features[0])]
                mean = space.posterior(learned, fold.train.present, range(len(learned)))
            bridge = fit_bridge(base, fold.train, fold.names, mean)
        own = zip(vectors, heads, strict=True)
        spaces.append([shortened(head @ bridge.to(head)) if part is None else part.to(head) for part, head in own])
    return Sides(spaces, rows)


def vectors_by_modality(base: Base, rows: Rows, names: Sequence[str]) -> list[Tensor | None]:
    """Vectors in the base of the rows that have each modality, from that modality alone; None where the base lacks it."""
    out: list[Tensor | None] = []
    for m, name in enumerate(names):
        values = rows.of(m)
        everything = torch.ones((len(values), 1), dtype=torch.bool, device=values.device)
        out.append(base.place([values], everything, [name]) if name in base.names else None)
    return out


def fit_bridge(base: Base, rows: Rows, names: Sequence[str], mean: Tensor) -> Tensor:
    """The regression of base vectors on own latents (n, L), over the rows that the base knows; ridge by cross-validation."""
    known = rows.present & torch.tensor([name in base.names for name in names], device=rows.present.device)
    at = known.any(1)
    return ridge(mean[at].double(), base.place([values[at] for values in rows.z], known[at], names))


def ridge(x: Tensor, y: Tensor) -> Tensor:
    """(L, width) of the regression y = x B without intercept; the penalty has the least generalised cross-validation error."""
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    part, n = u.T @ y, len(x)
    rest = y.square().sum() - part.square().sum()
    best, error = s, math.inf
    for penalty in RIDGE:
        kept = s.square() / (s.square() + penalty)
        left = rest + ((1 - kept)[:, None] * part).square().sum()
        found = float(left) / max(1e-12, 1 - float(kept.sum()) / n) ** 2 if float(kept.sum()) < n else math.inf
        if found < error:
            best, error = s / (s.square() + penalty), found
    return vt.T @ (best[:, None] * part)


def weights_of(share: float, mix: Sequence[float], spreads: Sequence[float]) -> Weights:
    """Weights from the share of the own space and the mix of bases, given the spread of each space, the own one first."""
    raw = [share / spreads[0], *((1 - share) * part / sd for part, sd in zip(mix, spreads[1:], strict=True))]
    return Weights(raw[0] / sum(raw), tuple(part / sum(raw) for part in raw[1:]))


def mixes(count: int) -> list[tuple[float, ...]]:
    """Bases to be tried together: all alike, and each alone."""
    every = [tuple([1 / count] * count)]
    return every + [tuple(float(a == b) for b in range(count)) for a in range(count)] if count > 1 else every


@dataclass(frozen=True)
class Mixture:
    """The weights that cross-validation chose, what each fold finds with those that the others chose, and all scores."""

    weights: Weights
    share: float
    mix: tuple[float, ...]
    judged: list[Outcome]
    scores: list[dict[str, Any]]  # {"own": share, "bases": mix, "score": ...}, best first

    def summary(self, bases: Sequence[Base]) -> dict[str, Any]:
        """As a plain dict: the weight of each space, and all that was tried."""
        weights = {base.name: weight for base, weight in zip(bases, self.weights.bases, strict=True)}
        return {"own": self.weights.own, **weights, "share": self.share, "tried": self.scores}


def weigh(sides: list[Sides], pairs: float, needed: bool) -> Mixture:
    """Choose weights; `pairs` is how many rows the own space learns a direction from, `needed` forbids to go without bases."""
    spreads = np.mean([side.spreads() for side in sides], axis=0).tolist()
    settings = [
        (share, mix)
        for mix in mixes(len(spreads) - 1)
        for share in SHARES
        if share < 1 or (mix == mixes(len(spreads) - 1)[0] and not needed)
    ]
    found = {setting: [side.outcome(weights_of(*setting, spreads)) for side in sides] for setting in settings}
    usual = pairs / (2 * pairs + USUAL)
    chosen = nearest_of_best(found, usual)
    judged = []
    for f, side in enumerate(sides):
        others = {setting: [one for g, one in enumerate(outcomes) if g != f] for setting, outcomes in found.items()}
        judged.append(side.outcome(weights_of(*nearest_of_best(others, usual), spreads), every=True))
    ranked = sorted(((score(outcomes), setting) for setting, outcomes in found.items()), key=lambda pair: -pair[0])
    scores = [{"own": share, "bases": list(mix), "score": value} for value, (share, mix) in ranked]
    return Mixture(weights_of(*chosen, spreads), *chosen, judged, scores)


Setting = tuple[float, tuple[float, ...]]


def nearest_of_best(found: Mapping[Setting, list[Outcome]], usual: float) -> Setting:
    """Of the settings that are level with the best, the one that is nearest to the usual one."""
    gains = {setting: _gains(outcomes) for setting, outcomes in found.items()}
    best = max(gains, key=lambda setting: np.mean([gain.mean() for gain in gains[setting].values()]))
    near = []
    for setting, mine in gains.items():
        behind = [gains[best][key] - mine[key] for key in mine]
        error = math.sqrt(sum(gain.var() / len(gain) for gain in behind)) / len(behind)
        if np.mean([gain.mean() for gain in behind]) <= NOISE * error:
            near.append(setting)
    return min(near, key=lambda setting: abs(setting[0] - usual) + ALONE * (len(set(setting[1])) > 1))


def _gains(outcomes: Sequence[Outcome]) -> dict[tuple[int, int], np.ndarray]:
    """log(gallery) / rank of every query, per direction."""
    keys = dict.fromkeys(key for one in outcomes for key in one)
    return {
        key: np.concatenate([math.log(one[key].gallery) / one[key].ranks for one in outcomes if key in one])
        for key in keys
    }


def weighted(bases: Sequence[Base], weights: Weights, rows: Rows, names: Sequence[str], mean: Tensor) -> list[Base]:
    """The bases that have any weight, with it, and with the bridge from the own latents of these rows where one is needed."""
    out = []
    for base, weight in zip(bases, weights.bases, strict=True):
        if weight > 0:
            bridge = fit_bridge(base, rows, names, mean) if any(name not in base.names for name in names) else None
            out.append(replace(base, weight=weight, bridge=bridge))
    return out
