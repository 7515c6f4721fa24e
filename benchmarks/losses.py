"""Alignment losses against straightforward transcriptions of the public formulas: forward + backward, d = 512, float32.

Seconds are CPU time of one thread, the median over interleaved rounds; read the ratios. Values of the whole PMRL loss
differ because the anchors of an SVD have arbitrary signs.
`python -m benchmarks.losses` prints the rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from calmrl._support.linalg import spectrum
from calmrl.losses import ContrastiveLoss, GramLoss, PMRLLoss, TriangleLoss
from calmrl.losses.base import joined

WIDTH = 512
NAMES = ("text", "image", "audio", "subtitle")
Views = dict[str, torch.Tensor]
WEIGHTS = torch.linspace(-1e-3, 1e-3, WIDTH)  # makes a scalar of the anchors, whatever their signs


def plain_pmrl(z: Views, full_matrices: bool) -> torch.Tensor:
    """Singular values and anchors from an SVD of every instance."""
    u, sigma, _ = torch.linalg.svd(torch.stack(list(z.values()), dim=-1), full_matrices=full_matrices)
    anchors = u[:, :, 0]
    first = torch.zeros(len(anchors), dtype=torch.long)
    return F.cross_entropy(sigma / 0.05, first) + F.cross_entropy(anchors @ anchors.T / 0.1, torch.arange(len(anchors)))


def plain_spectral(z: Views, full_matrices: bool) -> torch.Tensor:
    """The same without the N x N comparison of anchors, which costs the same whatever the factorisation."""
    u, sigma, _ = torch.linalg.svd(torch.stack(list(z.values()), dim=-1), full_matrices=full_matrices)
    return (
        F.cross_entropy(sigma / 0.05, torch.zeros(len(u), dtype=torch.long))
        + ((u[:, :, 0] * WEIGHTS).sum(1) ** 2).sum()
    )


def our_spectral(z: Views, present: torch.Tensor) -> torch.Tensor:
    sigma, _, u = spectrum(joined(z, present).z)
    return F.cross_entropy(sigma / 0.05, torch.zeros(len(u), dtype=torch.long)) + ((u * WEIGHTS).sum(1) ** 2).sum()


def plain_gram(z: Views) -> torch.Tensor:
    """N x N determinants of k x k Gram matrices."""
    t, *others = z.values()
    n = len(t)
    rows = [[(t * t).sum(1)[:, None].expand(n, n)] + [t @ o.T for o in others]]
    for a in others:
        rows.append([t @ a.T] + [(a * b).sum(1)[None, :].expand(n, n) for b in others])
    matrix = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
    volume = torch.sqrt(torch.abs(torch.det(matrix)))
    return symmetric(-volume / 0.07)


def plain_triangle(z: Views) -> torch.Tensor:
    """Differences of all pairs, N x N x d."""
    t, x, y = z.values()
    a, b = t[:, None] - x[None], t[:, None] - y[None]
    area = torch.sqrt((a**2).sum(2) * (b**2).sum(2) - (a * b).sum(2) ** 2) / 2
    return symmetric(-area / 0.07)


def plain_contrastive(z: Views) -> torch.Tensor:
    """One cross-entropy per pair with the anchor."""
    t, *others = z.values()
    return sum(symmetric(t @ o.T / 0.07) for o in others) / len(others)  # type: ignore[return-value]


def symmetric(scores: torch.Tensor) -> torch.Tensor:
    own = torch.arange(len(scores))
    return (F.cross_entropy(scores, own, label_smoothing=0.1) + F.cross_entropy(scores.T, own, label_smoothing=0.1)) / 2


def views(n: int, k: int) -> Views:
    """Partly aligned unit vectors: a shared direction plus noise."""
    generator = torch.Generator().manual_seed(n + k)
    shared = torch.randn(n, WIDTH, generator=generator)
    made = {name: shared + torch.randn(n, WIDTH, generator=generator) for name in NAMES[:k]}
    return {name: F.normalize(vectors, dim=1).requires_grad_() for name, vectors in made.items()}


def race(
    ours: Callable[[], torch.Tensor], theirs: Callable[[], torch.Tensor], rounds: int
) -> tuple[float, float, float]:
    """(seconds of ours, of theirs, difference of the values): medians of `rounds` runs in turn after one unmeasured."""
    took: dict[str, list[float]] = {"ours": [], "theirs": []}
    gap = abs(float(ours().detach()) - float(theirs().detach()))
    repeat = max(1, int(0.25 / max(1e-4, _once(ours))))  # quick ones often, or what ran before weighs in
    for _ in range(rounds):
        took["ours"].append(sum(_once(ours) for _ in range(repeat)) / repeat)
        took["theirs"].append(_once(theirs))
    return statistics.median(took["ours"]), statistics.median(took["theirs"]), gap


def _once(function: Callable[[], torch.Tensor]) -> float:
    start = time.process_time()
    function().backward()
    return time.process_time() - start


def run() -> list[dict]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row(*case) for case in _cases()]
    finally:
        torch.set_num_threads(threads)


def _cases() -> list[tuple]:
    """(case, k, n, our loss, their formula, target ratio, rounds)"""
    plain = {"learn_temperature": False}
    whole_full, whole_thin = partial(plain_pmrl, full_matrices=True), partial(plain_pmrl, full_matrices=False)
    full, thin = partial(plain_spectral, full_matrices=True), partial(plain_spectral, full_matrices=False)
    return [
        ("PMRL k=4 N=64, whole loss, full SVD", 4, 64, PMRLLoss(), whole_full, 25.0, 15),
        ("PMRL k=4 N=64, whole loss, thin SVD", 4, 64, PMRLLoss(), whole_thin, 1.2, 41),
        ("PMRL k=4 N=64, spectral part, full SVD", 4, 64, our_spectral, full, 25.0, 15),
        ("PMRL k=4 N=64, spectral part, thin SVD", 4, 64, our_spectral, thin, 1.2, 41),
        ("PMRL k=4 N=2048, spectral part, full SVD", 4, 2048, our_spectral, full, 100.0, 5),
        ("PMRL k=4 N=2048, spectral part, thin SVD", 4, 2048, our_spectral, thin, 1.2, 9),
        ("PMRL k=4 N=2048, whole loss, full SVD", 4, 2048, PMRLLoss(), whole_full, None, 3),
        ("PMRL k=4 N=2048, whole loss, thin SVD", 4, 2048, PMRLLoss(), whole_thin, 1.2, 9),
        ("GRAM k=4 N=1024, N x N x 4 x 4 determinants", 4, 1024, GramLoss(**plain), plain_gram, 4.0, 5),
        ("TRIANGLE N=256, N x N x d broadcast", 3, 256, TriangleLoss(**plain), plain_triangle, 100.0, 7),
        ("contrastive k=4 N=1024, three score matrices", 4, 1024, ContrastiveLoss(**plain), plain_contrastive, None, 7),
    ]


def _row(
    case: str,
    k: int,
    n: int,
    loss: Callable[[Views, torch.Tensor], torch.Tensor],
    formula: Callable[[Views], torch.Tensor],
    target: float | None,
    rounds: int,
) -> dict:
    z, present = views(n, k), torch.ones(n, k, dtype=torch.bool)
    ours, theirs, gap = race(lambda: loss(z, present), lambda: formula(z), rounds)
    return {
        "case": case,
        "ours_s": ours,
        "theirs_s": theirs,
        "ratio": theirs / ours,
        "target": target,
        "note": f"d={WIDTH}, forward + backward, CPU seconds of one thread, values differ by {gap:.1e}",
    }


if __name__ == "__main__":
    for row in run():
        print(
            f"{row['case']:48s} {row['ratio']:8.2f} x (target {row['target']})  {row['ours_s']:.4g} s against "
            f"{row['theirs_s']:.4g} s  {row['note']}"
        )
