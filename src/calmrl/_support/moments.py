"""Running count, mean and sum of squares of columns."""

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


def add_summary(n: Tensor, centre: Tensor, spread: Tensor, count: Tensor, mean: Tensor, square: Tensor) -> None:
    """As `add_rows`, for n rows of which mean and sum of squared deviations are known."""
    if not n > 0:
        return
    total = count + n
    gap = centre - mean
    square += spread + gap**2 * (count * n / total)
    mean += gap * (n / total)
    count.copy_(total)
