"""The losses written as their formulas read: one row, one pair, one score at a time; autograd does the rest."""

from __future__ import annotations

from itertools import combinations, product
from math import prod

import torch

Views = dict[str, torch.Tensor]


def stacked(z: Views, present: torch.Tensor, i: int) -> torch.Tensor:
    """(d, number present): the modalities row i has, side by side."""
    return torch.stack([vectors[i] for j, vectors in enumerate(z.values()) if present[i, j]], dim=1)


def leading(matrix: torch.Tensor, guard: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Singular values, the leading one first, and the leading left vector, oriented toward the columns."""
    u, sigma, _ = torch.linalg.svd(matrix, full_matrices=False)
    first = 0
    if guard and matrix.shape[1] == 2 and matrix[:, 0] @ matrix[:, 1] < 0:
        first, sigma = 1, sigma.flip(0)
    side = 1.0 if u[:, first] @ matrix.sum(1) >= 0 else -1.0
    return sigma, side * u[:, first]


def mean(terms: list[torch.Tensor], z: Views) -> torch.Tensor:
    return torch.stack(terms).mean() if terms else sum(v.nan_to_num().sum() * 0 for v in z.values())


def pmrl(
    z: Views, present: torch.Tensor, t: float = 0.05, ta: float = 0.1, log: bool = True, guard: bool = True
) -> torch.Tensor:
    align, anchors = [], []
    for i in range(len(present)):
        if present[i].any():
            sigma, u = leading(stacked(z, present, i), guard)
            anchors.append(u)
            if present[i].sum() >= 2:
                p = torch.softmax(sigma / t, dim=0)[0]
                align.append(-p.log() if log else -p)
    instance = []
    for i, u in enumerate(anchors):
        p = torch.softmax(torch.stack([u @ v / ta for v in anchors]), dim=0)[i]
        instance.append(-p.log() if log else -p)
    return mean(align, z) + mean(instance, z)


def cross_entropy(scores: list[torch.Tensor], right: int, smoothing: float) -> torch.Tensor:
    logp = torch.log_softmax(torch.stack(scores), dim=0)
    return -(1 - smoothing) * logp[right] - smoothing * logp.mean()


def both_ways(score, n: int, query, candidate, kind, smoothing: float) -> list[torch.Tensor]:  # type: ignore[no-untyped-def]
    """Terms of the symmetric cross-entropy; score(i, j), and which rows and columns take part, as functions."""
    terms = []
    for i in range(n):
        if query(i) and candidate(i):
            columns = [j for j in range(n) if candidate(j) and kind(j) == kind(i)]
            rows = [j for j in range(n) if query(j)]
            forward = cross_entropy([score(i, j) for j in columns], columns.index(i), smoothing)
            backward = cross_entropy([score(j, i) for j in rows], rows.index(i), smoothing)
            terms.append((forward + backward) / 2)
    return terms


def contrastive(
    z: Views, present: torch.Tensor, anchor: str | None, t: float = 0.07, smoothing: float = 0.1
) -> torch.Tensor:
    names = list(z)
    pairs = list(combinations(names, 2)) if anchor is None else [(anchor, name) for name in names if name != anchor]
    terms = []
    for a, b in pairs:
        terms += both_ways(
            lambda i, j, a=a, b=b: z[a][i] @ z[b][j] / t,
            len(present),
            lambda i, a=a: bool(present[i, names.index(a)]),
            lambda j, b=b: bool(present[j, names.index(b)]),
            lambda j: 0,
            smoothing,
        )
    return mean(terms, z)


def gram(
    z: Views, present: torch.Tensor, anchor: str | None, t: float = 0.07, smoothing: float = 0.1, guard: bool = True
) -> torch.Tensor:
    def volume(ti: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        vectors = torch.cat([ti[None], others])
        found = torch.sqrt(torch.det(vectors @ vectors.T))
        if guard and len(others) == 1 and ti @ others[0] < 0:
            return 2 * ti.norm() * others[0].norm() - found
        return found

    return anchored(z, present, anchor, lambda ti, others: -volume(ti, others) / t, lambda p: p, smoothing)


def triangle(
    z: Views, present: torch.Tensor, anchor: str | None, t: float = 0.07, smoothing: float = 0.1, root: bool = True
) -> torch.Tensor:
    def score(ti: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        if len(others) == 1:
            return ti @ others[0] / t
        areas = []
        for x, y in combinations(others, 2):
            a, b = ti - x, ti - y
            square = (a @ a) * (b @ b) - (a @ b) ** 2
            areas.append((square.sqrt() if root else square) / 2)
        return -torch.stack(areas).mean() / t

    return anchored(z, present, anchor, score, lambda p: min(p, 2), smoothing)


def anchored(z: Views, present: torch.Tensor, anchor: str | None, score, kind, smoothing: float) -> torch.Tensor:  # type: ignore[no-untyped-def]
    names = list(z)
    terms = []
    for name in names if anchor is None else [anchor]:
        others = [other for other in names if other != name]

        def of(j: int, others: list[str] = others) -> list[torch.Tensor]:
            return [z[other][j] for other in others if present[j, names.index(other)]]

        terms += both_ways(
            lambda i, j, name=name, of=of: score(z[name][i], torch.stack(of(j))),
            len(present),
            lambda i, name=name: bool(present[i, names.index(name)]),
            lambda j, of=of: len(of(j)) >= 1,
            lambda j, of=of: kind(len(of(j))),
            smoothing,
        )
    return mean(terms, z)


def symile(
    z: Views, present: torch.Tensor, anchor: str | None, t: float = 0.07, smoothing: float = 0.0, mixed: bool = True
) -> torch.Tensor:
    names = list(z)
    has = {name: [i for i in range(len(present)) if present[i, j]] for j, name in enumerate(names)}
    terms = []
    for i in range(len(present)):
        own = [name for name in names if i in has[name]]
        for name in own if len(own) >= 2 else []:
            if anchor not in (None, name):
                continue
            others = [other for other in own if other != name]
            rows = [has[other] for other in others]
            together = [(j,) * len(others) for j in range(len(present)) if all(j in each for each in rows)]
            candidates = list(product(*rows)) if mixed and len(others) == 2 else together
            scores = []
            for chosen in candidates:
                vectors = [z[name][i], *(z[other][j] for other, j in zip(others, chosen, strict=True))]
                width = len(vectors[0])
                scores.append(prod(vectors[1:], start=vectors[0]).sum() * width ** ((len(own) - 2) / 2) / t)
            terms.append(cross_entropy(scores, candidates.index((i,) * len(others)), smoothing))
    return mean(terms, z)


def confu(  # type: ignore[no-untyped-def]
    z: Views, present: torch.Tensor, t: float = 0.07, smoothing: float = 0.0, weight: float = 0.5, fuse=None
) -> torch.Tensor:
    """`fuse(a, b, x, y)` is the fused vector of x of modality a and y of modality b; their mean if it is not given."""
    names = list(z)
    fuse = fuse or (lambda a, b, x, y: (x + y) / 2)
    terms = []
    for a, b in combinations(names, 2):
        for c in names:
            if c in (a, b):
                continue

            def score(i: int, j: int, a: str = a, b: str = b, c: str = c) -> torch.Tensor:
                f = fuse(a, b, z[a][i], z[b][i])
                return f @ z[c][j] / f.norm() / t

            both = [bool(row[names.index(a)] and row[names.index(b)]) for row in present]
            third = [bool(row[names.index(c)]) for row in present]
            terms += both_ways(score, len(present), both.__getitem__, third.__getitem__, lambda j: 0, smoothing)
    return (1 - weight) * contrastive(z, present, None, t, smoothing) + weight * mean(terms, z)


def neighbours(rows: list[torch.Tensor], t: float) -> list[torch.Tensor]:
    """The softmax over all rows, itself too, of the similarities of each row, centred."""
    unit = [row / row.norm() for row in rows]
    centre = sum(unit) / len(unit)
    return [torch.softmax(torch.stack([(a - centre) @ (b - centre) / t for b in unit]), dim=0) for a in unit]


def structure(z: Views, present: torch.Tensor, features: Views, weight: float, t: float = 0.05) -> torch.Tensor:
    changes = []
    for j, name in enumerate(z):
        rows = [i for i in range(len(present)) if present[i, j]]
        if len(rows) < 2:
            continue
        divergences = []
        before = neighbours([features[name][i] for i in rows], t)
        after = neighbours([z[name][i] for i in rows], t)
        for p, q in zip(before, after, strict=True):
            m = (p + q) / 2
            divergences.append(((p * (p / m).log()).sum() + (q * (q / m).log()).sum()) / 2)
        changes.append(torch.stack(divergences).mean())
    return contrastive(z, present, None, t, 0.0) + weight * mean(changes, z)
