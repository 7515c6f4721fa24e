"""Losses of what the vectors of an item span: GRAM (its volume) and TRIANGLE (the area between an anchor and two others).

Both come from inner products, without factorisations.
"""

from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from calmrl._support.arguments import Positive
from calmrl.arrays import maybe_any
from calmrl.losses.base import AnchoredLoss, Batch, masked_mean


def adjugate(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(adj, det) of a stack of small square matrices, by the Faddeev-LeVerrier recurrence.

    Polynomials of the entries: nothing is inverted, so singular matrices are no special case, in value or gradient.
    Computed in float64 (the matrices are tiny) and returned in the dtype given.
    """
    b = matrix.double()
    n = b.shape[-1]
    eye = torch.eye(n, dtype=b.dtype, device=b.device)
    m = eye.expand_as(b)
    for step in range(1, n + 1):
        product = b @ m
        c = -product.diagonal(dim1=-2, dim2=-1).sum(-1) / step
        if step < n:
            m = product + c[..., None, None] * eye
    sign = 1.0 if n % 2 else -1.0
    return (sign * m).to(matrix.dtype), (-sign * c).to(matrix.dtype)


def root(x: Tensor) -> Tensor:
    """sqrt(max(x, 0)) with a derivative that stays finite: 1 / (2 sqrt(x)) becomes sqrt(x) / (2 (x + delta)).

    delta is ten times the rounding unit, so only what is zero up to rounding is changed; there the derivative is 0.
    """
    return _Root.apply(x)


class _Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clamp(min=0).sqrt_()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * (0.5 * y) / (y * y + 10 * torch.finfo(y.dtype).eps)


def quadratic_forms(inner: Tensor, weights: Tensor) -> Tensor:
    """(c, N) values q_ij = l_ij^T A_j l_ij for l in `inner` (c, p, N) and symmetric A in `weights` (N, p, p)."""
    return _QuadraticForms.apply(inner, weights)


class _QuadraticForms(torch.autograd.Function):
    """Autograd would keep p^2 products of size c x N; this keeps `inner` only."""

    @staticmethod
    def forward(ctx: Any, inner: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(inner, weights)
        value = torch.zeros_like(inner[:, 0])
        for a in range(inner.shape[1]):
            half = inner[:, a] * weights[:, a, a]  # what lies right of the diagonal counts twice
            for b in range(a + 1, inner.shape[1]):
                half.addcmul_(inner[:, b], weights[:, a, b], value=2)
            value.addcmul_(inner[:, a], half)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        inner, weights = ctx.saved_tensors
        p = inner.shape[1]
        scaled = inner * (2 * gradient[:, None])  # (c, p, N)
        to_inner = torch.zeros_like(inner)
        for a in range(p):
            for b in range(p):
                to_inner[:, a].addcmul_(scaled[:, b], weights[:, a, b])
        rows = [[(scaled[:, a] * inner[:, b]).sum(0) for b in range(a + 1)] for a in range(p)]
        full = [[rows[max(a, b)][min(a, b)] for b in range(p)] for a in range(p)]
        return to_inner, torch.stack([torch.stack(row, dim=1) for row in full], dim=1) / 2


class GramLoss(AnchoredLoss):
    r"""Symmetric cross-entropy over -volume / temperature.

    The score of anchor t_i with row j is the volume spanned by t_i and the other modalities o_j that row j has,

        vol_ij = sqrt(det Gram(t_i, o_j)) = sqrt(|t_i|^2 det B_j - l_ij^T adj(B_j) l_ij),
        L      = mean_i ( -log softmax_j(-vol_ij / t)_i - log softmax_j(-vol_ji / t)_i ) / 2

    with B_j = Gram(o_j) and l_ij the inner products of t_i with o_j. Nothing is factorised or inverted.

    | input | meaning |
    |---|---|
    | z | dict of modality name -> (N, d) tensor of unit vectors, the same d for all; k >= 2 modalities |
    | present | (N, k) bool; None: rows that are NaN throughout are missing |

    Missing modalities are left out of the Gram matrix; with two modalities it is 2 x 2. Volumes of different dimension
    are not comparable, so for anchor i only rows with as many other modalities as row i compete; for the other
    modalities of row j all anchors compete. Rows without the anchor, or with nothing but the anchor, add no term of
    their own.

    When to use which: aligns three or more modalities at once but only through its anchor; `anchor="text"` is the
    published form, `anchor=None` lets every modality take its turn (k times the work, and rows without text count
    too).

    A volume cannot tell z from -z. With `sign_guard=True` a pair of negative cosine gets 2 |t| |o| - vol instead
    (smooth, and falling in the cosine from 2 to 0), so that two modalities cannot be pushed apart; False is the
    published form.

    After each call `last` holds detached scalars: "temperature", "volume" (mean volume of the rows' own modalities),
    "sign_conflict" (share of rows of two modalities with a negative cosine; 0 when there are none), "terms".

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> z = {name: normalize(torch.randn(8, 16), dim=1).requires_grad_() for name in ("image", "text", "audio")}
    >>> present = torch.ones(8, 3, dtype=torch.bool)
    >>> present[0, 2] = False
    >>> GramLoss(anchor="text")(z, present).backward()
    """

    def __init__(
        self, anchor: str | None = "text", temperature: Positive = 0.07, *, sign_guard: bool = True, **shared: Any
    ) -> None:
        super().__init__(anchor, temperature, **shared)
        self.sign_guard = sign_guard

    def _terms(self, batch: Batch, turn: int, temperature: Tensor) -> tuple[Tensor, Tensor]:
        t, others, has = batch.split(turn)  # (N, d), p times (N, d), (N, p)
        weights, det = adjugate(gram(torch.stack(others, dim=1), has))  # (N, p, p), (N,)
        square = (t * t).sum(1)  # (N,)
        number = has.sum(1)
        flat = torch.cat(others)  # (p N, d)
        guard = self.sign_guard and maybe_any(number == 1)

        def scores(start: int, stop: int) -> Tensor:
            inner = (t[start:stop] @ flat.T).unflatten(1, (len(others), -1))  # (c, p, N)
            volume = root(square[start:stop, None] * det - quadratic_forms(inner, weights))
            if guard:
                apart = (number == 1) & (inner.detach().sum(1) < 0)
                volume = torch.where(apart, 2 * root(square[start:stop, None]) * root(det) - volume, volume)
            return volume * (-1 / temperature)

        kinds = {"kinds": number, "n_kinds": len(others) + 1}
        return self._symmetric(scores, batch.present[:, turn], number >= 1, **kinds)

    def _remember(self, batch: Batch, temperature: Tensor, terms: Tensor) -> None:
        self._seen = (batch.z.detach(), batch.present, temperature, terms)

    @property
    @torch.no_grad()
    def last(self) -> dict[str, Tensor]:
        """Diagnostics of the last call, computed when they are read."""
        if not hasattr(self, "_seen"):
            return {}
        z, present, temperature, terms = self._seen
        products = z @ z.mT  # (N, k, k)
        count = present.sum(1)
        apart = products.sum((1, 2)) < products.diagonal(dim1=1, dim2=2).sum(1)
        return {
            "temperature": temperature,
            "volume": masked_mean(root(adjugate(gram(z, present))[1]), count >= 2),
            "sign_conflict": masked_mean(apart.to(z.dtype), count == 2),
            "terms": terms,
        }


def gram(vectors: Tensor, present: Tensor) -> Tensor:
    """(N, k, k) inner products of each row's vectors, 1 on the diagonal of missing ones: determinants skip them."""
    return vectors @ vectors.mT + torch.diag_embed((~present).to(vectors.dtype))


class TriangleLoss(AnchoredLoss):
    r"""Symmetric cross-entropy over -area / temperature.

    The score of anchor t_i with row j is the area of the triangle whose corners are t_i and two other modalities x_j,
    y_j,

        area_ij = sqrt(|t_i - x_j|^2 |t_i - y_j|^2 - ((t_i - x_j) . (t_i - y_j))^2) / 2,

    computed from inner products. `root=False` leaves the square root out, as the published code does.

    | input | meaning |
    |---|---|
    | z | dict of modality name -> (N, d) tensor of unit vectors, the same d for all; k >= 2 modalities |
    | present | (N, k) bool; None: rows that are NaN throughout are missing |

    A row j with only one other modality is scored by the cosine instead (as in the CalMRL paper's appendix), a row
    with three or more by the mean area over the pairs of them. Areas and cosines are not comparable, so for anchor i
    only rows of the same kind compete; for the other modalities of row j all anchors compete. Rows without the anchor,
    or with nothing but the anchor, add no term of their own.

    When to use which: for exactly three modalities. Unlike a volume, an area sees the sign of the vectors.
    `anchor="text"` is the published form, `anchor=None` lets every modality take its turn.

    After each call `last` holds the detached scalars "temperature" and "terms".

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> z = {name: normalize(torch.randn(8, 16), dim=1).requires_grad_() for name in ("image", "text", "audio")}
    >>> present = torch.ones(8, 3, dtype=torch.bool)
    >>> present[0, 2] = False
    >>> TriangleLoss(anchor="text")(z, present).backward()
    """

    def __init__(
        self, anchor: str | None = "text", temperature: Positive = 0.07, *, root: bool = True, **shared: Any
    ) -> None:
        super().__init__(anchor, temperature, **shared)
        self.root = root

    def _terms(self, batch: Batch, turn: int, temperature: Tensor) -> tuple[Tensor, Tensor]:
        t, others, has = batch.split(turn)  # (N, d), p times (N, d), (N, p)
        square = (t * t).sum(1)
        norms = [(x * x).sum(1) for x in others]
        flat = torch.cat(others)  # (p N, d)
        pairs = list(combinations(range(len(others)), 2))
        products = [(others[x] * others[y]).sum(1) for x, y in pairs]
        number = has.sum(1)
        of_pairs = (number * (number - 1) // 2).clamp(min=1)
        # How much each pair's area, or the only cosine, counts in the score of row j. All scores are finite.
        shares = [(has[:, x] & has[:, y]) / (of_pairs * temperature) for x, y in pairs]
        alone = (number == 1) / temperature

        def scores(start: int, stop: int) -> Tensor:
            inner = (t[start:stop] @ flat.T).unflatten(1, (len(others), -1))  # (c, p, N)
            far = [square[start:stop, None] + norms[x] - 2 * inner[:, x] for x in range(len(others))]
            total = inner.sum(1) * alone  # the cosine, where there is only one
            for (x, y), product, share in zip(pairs, products, shares, strict=True):
                cross = square[start:stop, None] + product - inner[:, x] - inner[:, y]
                area = far[x] * far[y] - cross * cross
                total = torch.addcmul(total, root(area) if self.root else area, share, value=-0.5)
            return total

        return self._symmetric(scores, batch.present[:, turn], number >= 1, kinds=number.clamp(max=2), n_kinds=3)
