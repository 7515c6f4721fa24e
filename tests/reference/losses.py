"""The losses written as their formulas read: one row, one pair, one score at a time; autograd does the rest."""

from __future__ import annotations

from itertools import combinations

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
