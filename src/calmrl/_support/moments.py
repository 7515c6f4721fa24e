"""Running count, mean and sum of squares of columns."""

from torch import Tensor


def add_rows(block: Tensor, count: Tensor, mean: Tensor, square: Tensor) -> None:
    """Take the rows of `block` (n, d) into count (), mean (d,) and sum of squared deviations (d,), in place.

    Chan's update: with gap = mean(block) - mean and N = count + n,
        square += sum (block - mean(block))^2 + gap^2 count n / N,    mean += gap n / N,    count = N.
    """
    if not len(block):
        return
    total, centre = count + len(block), block.mean(0)
    gap = centre - mean
    square += (block - centre).square().sum(0) + gap**2 * (count * len(block) / total)
    mean += gap * (len(block) / total)
    count.copy_(total)
