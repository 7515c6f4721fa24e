"""Moments of columns: running count, mean and sum of squares, and the principal directions of a covariance."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def add_rows(block: Tensor, count: Tensor, mean: Tensor, square: Tensor) -> None:
    """Take the rows of `block` (n, d) into count (), mean (d,) and sum of squared deviations (d,), in place.

    Chan's update: with gap = mean(block) - mean and N = count + n,
        square += sum (block - mean(block))^2 + gap^2 count n / N,    mean += gap n / N,    count = N.
    """
    if len(block):
        centre = block.mean(0)
        number = count.new_tensor(float(len(block)))
        add_summary(number, centre, (block - centre).square().sum(0), count, mean, square)


def add_entries(block: Tensor, count: Tensor, mean: Tensor, square: Tensor) -> None:
    """As `add_rows`, for rows with NaN in single entries: every column has a count of its own, (d,)."""
    if len(block):
        seen = ~torch.isnan(block)
        number = seen.sum(0).to(count.dtype)
        centre = torch.where(seen, block, 0.0).sum(0) / number.clamp(min=1)
        spread = torch.where(seen, block - centre, 0.0).square().sum(0)
        add_summary(number, centre, spread, count, mean, square)


def add_summary(n: Tensor, centre: Tensor, spread: Tensor, count: Tensor, mean: Tensor, square: Tensor) -> None:
    """As `add_rows`, for n rows of which mean and sum of squared deviations are known; counts may be per column."""
    if not bool((n > 0).any()):
        return
    total = count + n
    some = total.clamp(min=1)
    gap = centre - mean
    square += spread + gap**2 * (count * n / some)
    mean += gap * (n / some)
    count.copy_(total)


def numpy_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """As `torch.linalg.eigh`; on the CPU by NumPy, whose LAPACK needs two thirds of the time on some processors."""
    if matrix.device.type != "cpu":
        return torch.linalg.eigh(matrix)
    values, vectors = np.linalg.eigh(matrix.numpy())
    return torch.from_numpy(values), torch.from_numpy(vectors)


def principal_directions(
    covariance: Tensor, most: int, smallest: float, eigh: Callable[[Tensor], tuple[Tensor, Tensor]] = numpy_eigh
) -> tuple[Tensor, Tensor]:
    """(all variances (d,), leading directions (d, r)) of a symmetric matrix, largest first; 1 <= r <= `most`.

    Directions with no more than a share `smallest` of the largest variance are rounding, and not among the r. Signs and last
    digits are those of the solver `eigh`; a fit that starts at random depends on them.
    """
    variance, directions = eigh(covariance)
    variance, directions = variance.flip(0).clamp(min=0), directions.flip(1)
    r = max(1, min(most, int((variance > smallest * variance[0]).sum())))
    return variance, directions[:, :r].contiguous()
