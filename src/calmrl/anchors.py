"""The anchor of an instance, how far missing modalities move it, and bounds on that.

Z holds an instance's k modalities side by side (d x k), sigma_1 >= sigma_2 >= ... its singular values. The anchor u is
its leading left singular vector, oriented toward the modalities: u . sum_m z^m >= 0. With Omega the modalities that
are there, u^Omega the anchor of those alone and sigma_1^Omega their largest singular value, the anchor shift is

    Delta = |u - u^Omega|,     eta^2 = sum over missing m of (u^Omega . z^m)^2.

`docs/concepts/anchor-shift.md` derives all of it and says where the bounds printed in the CalMRL paper fail.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from calmrl._support.linalg import Spectrum, spectrum
from calmrl.arrays import Array, Views, check, like_input, to_tensor
from calmrl.errors import InputError


def anchor(z: Mapping[str, Array], present: Array | None = None) -> Array:
    """u: the leading left singular vector of each row's observed modalities, oriented toward them; differentiable.

    Parameters
    ----------
    z : dict
        Modality -> (N, d), all of one width.
    present : bool array (N, k), optional
        By default a row that is entirely NaN is missing.

    Returns
    -------
    array (N, d)

    Examples
    --------
    >>> import numpy as np
    >>> anchor({"image": np.eye(2)[:1], "text": np.eye(2)[:1]})
    array([[1., 0.]])
    """
    views = check(z, present)
    stacked = _stack(views)
    wide = stacked if stacked.dtype == torch.float64 else stacked.float()
    return like_input(spectrum(torch.where(views.present[:, :, None], wide, 0.0)).u, views.given())


def anchor_shift(z_complete: Mapping[str, Array], present: Array) -> Array:
    """Delta = |u - u^Omega|: how far the anchor moves when only the modalities in `present` are there.

    Parameters
    ----------
    z_complete : dict
        Modality -> (N, d), with the values of all modalities.
    present : bool array (N, k)
        What is there.

    Returns
    -------
    array (N,)
    """
    parts = _parts(z_complete, present)
    return like_input((parts.whole.u - parts.seen.u).norm(dim=1), parts.given)


def completion_shift(
    z_complete: Mapping[str, Array], z_completed: Mapping[str, Array], present: Array
) -> tuple[Array, Array]:
    """|u - u^Omega| and |u - u^completed|, oriented each: the shift before and after imputing.

    Parameters
    ----------
    z_complete, present
        As in `anchor_shift`.
    z_completed : dict
        Modality -> (N, d), the missing ones imputed, for instance `imputer.transform(z, present)`.

    Returns
    -------
    (array (N,), array (N,))
    """
    parts = _parts(z_complete, present)
    after = spectrum(_imputed(z_completed, z_complete, parts)).u
    before = (parts.whole.u - parts.seen.u).norm(dim=1)
    return like_input(before, parts.given), like_input((parts.whole.u - after).norm(dim=1), parts.given)


def completion_bounds(
    z_complete: Mapping[str, Array], z_completed: Mapping[str, Array], present: Array
) -> tuple[Array, Array]:
    """(low, high), each (N,), with low <= |u - u^completed| <= high. With hats for what belongs to the completed Z:

    low  = sqrt(2 (1 - |Z^T u^completed| / sigma_1)),
    high = sqrt(2) min(1, |Z - Z^|_2 / max(sigma_1 - sigma_2^, sigma_1^ - sigma_2))   if u . u^completed >= 0, else 2.
    """
    parts = _parts(z_complete, present)
    completed = _imputed(z_completed, z_complete, parts)
    after, error = spectrum(completed), spectrum(completed - parts.z).sigma[:, 0]
    reach = (parts.z @ after.u[:, :, None])[:, :, 0].norm(dim=1)
    low = (2 * (1 - reach / parts.sigma_1 - parts.slack).clamp(min=0)).sqrt()
    gap = torch.maximum(parts.sigma_1 - after.sigma[:, 1], after.sigma[:, 0] - parts.whole.sigma[:, 1])
    high = 2**0.5 * torch.where(gap > error, error / gap, 1.0)
    high = torch.where((parts.whole.u * after.u).sum(1) >= 0, high, 2.0)
    return like_input(low, parts.given), like_input(high, parts.given)


def shift_bounds(z_complete: Mapping[str, Array], present: Array) -> tuple[Array, Array]:
    """(low, high), each (N,), with low <= Delta <= high:

    low  = sqrt(2 (1 - sqrt((sigma_1^Omega)^2 + eta^2) / sigma_1)),
    high = sqrt(2) min(1, |Z^missing|_2 / (sigma_1 - sigma_2))   if u . u^Omega >= 0, else 2.

    The arguments are those of `anchor_shift`.
    """
    parts = _parts(z_complete, present)
    low = (2 * (1 - parts.reach / parts.sigma_1 - parts.slack).clamp(min=0)).sqrt()
    high = 2**0.5 * (parts.lost / parts.gap).clamp(max=1)
    high = torch.where((parts.whole.u * parts.seen.u).sum(1) >= 0, high, 2.0)
    high = torch.where(parts.lost > 0, high, 0.0)
    return like_input(torch.where(parts.lost > 0, low, 0.0), parts.given), like_input(high, parts.given)


def printed_shift_bounds(z_complete: Mapping[str, Array], present: Array) -> tuple[Array, Array]:
    """(low, high) as printed in the CalMRL paper. They do not hold: use `shift_bounds`.

    low  = sqrt(2 (1 - (sigma_1^Omega + eta^2) / sigma_1)), NaN where the radicand is negative,
    high = sqrt(2) |Z^missing|_2 / (sigma_1 - sigma_2).
    """
    parts = _parts(z_complete, present)
    low = (2 * (1 - (parts.seen.sigma[:, 0] + parts.eta_squared) / parts.sigma_1)).sqrt()
    return like_input(low, parts.given), like_input(2**0.5 * parts.lost / parts.gap, parts.given)


def calibration_threshold(z_complete: Mapping[str, Array], present: Array) -> Array:
    """(N,) imputation error below which imputing moves the anchor closer to u, given that it stays on u's side.

    If every imputed vector is off by less than

        epsilon = (sigma_1 - sigma_2) / sqrt(number missing) * t / (1 + t),   t^2 = 1 - ((sigma_1^Omega)^2 + eta^2) /
        sigma_1^2,

    then |u - u^completed| < |u - u^Omega| for anchors at less than 90 degrees. Sufficient, not necessary; 0 where
    nothing is missing. `calibration_helps` also certifies the side.
    """
    parts = _parts(z_complete, present)
    return like_input(parts.threshold, parts.given)


def printed_calibration_threshold(z_complete: Mapping[str, Array], present: Array) -> Array:
    """(N,) the threshold printed in the CalMRL paper, NaN where its radicand is negative. It guarantees nothing."""
    parts = _parts(z_complete, present)
    inside = 1 - (parts.seen.sigma[:, 0] + parts.eta_squared) / parts.sigma_1
    return like_input(parts.gap / parts.n_missing.sqrt() * inside.sqrt(), parts.given)


def calibration_helps(z_complete: Mapping[str, Array], present: Array, error: float | Array) -> Array:
    """(N,) bool: True where imputation errors of at most `error` are certain to reduce the anchor shift.

    Besides `error < calibration_threshold`, the completed anchor must keep its orientation. With b = u . s for
    s = sum_m z^m, e = sqrt(n) error for n missing modalities, and x = e / (sigma_1 - sigma_2 - e) >= sin(theta):
    sqrt(1 - x^2) b > x sqrt(|s|^2 - b^2) + n error. False means "not certain", not "harmful".
    """
    parts = _parts(z_complete, present)
    bound = to_tensor(torch.as_tensor(error)).to(parts.z)
    e = parts.n_missing.sqrt() * bound
    x = (e / (parts.gap - e).clamp(min=torch.finfo(e.dtype).tiny)).clamp(max=1)
    total = parts.z.sum(1)
    along = (parts.whole.u * total).sum(1)
    across = ((total * total).sum(1) - along**2).clamp(min=0).sqrt()
    keeps_side = (1 - x**2).sqrt() * along > x * across + parts.n_missing * bound
    helps = (bound < parts.threshold) & keeps_side
    return helps if isinstance(parts.given, torch.Tensor) else helps.numpy()


@dataclass(frozen=True)
class _Parts:
    given: Array
    present: torch.Tensor  # (N, k)
    z: torch.Tensor  # (N, k, d), float64
    whole: Spectrum
    seen: Spectrum
    lost: torch.Tensor  # (N,) |Z^missing|_2

    @property
    def sigma_1(self) -> torch.Tensor:
        return self.whole.sigma[:, 0]

    @property
    def gap(self) -> torch.Tensor:
        return self.whole.sigma[:, 0] - self.whole.sigma[:, 1]

    @property
    def slack(self) -> float:
        """Rounding must not lift a lower bound."""
        return 16 * self.z.shape[1] * torch.finfo(self.z.dtype).eps

    @property
    def n_missing(self) -> torch.Tensor:
        return (~self.present).sum(1).to(self.z.dtype)

    @property
    def eta_squared(self) -> torch.Tensor:
        along = (self.z @ self.seen.u[:, :, None])[:, :, 0] ** 2  # (N, k)
        return torch.where(self.present, 0.0, along).sum(1)

    @property
    def reach(self) -> torch.Tensor:
        """|Z^T u^Omega| = sqrt((sigma_1^Omega)^2 + eta^2)."""
        return (self.z @ self.seen.u[:, :, None])[:, :, 0].norm(dim=1)

    @property
    def threshold(self) -> torch.Tensor:
        t = (1 - (self.reach / self.sigma_1) ** 2).clamp(min=0).sqrt()
        return torch.where(self.n_missing > 0, self.gap / self.n_missing.clamp(min=1).sqrt() * t / (1 + t), 0.0)


def _parts(z_complete: Mapping[str, Array], present: Array) -> _Parts:
    """The spectra of all modalities, of the observed and of the missing ones, in float64."""
    mask = check(z_complete, present, values=False).present
    views = check(z_complete, _all(mask))  # the hidden values are needed too
    z = _stack(views).double()
    if z.shape[1] < 2:
        raise InputError("an anchor shift needs at least two modalities; z_complete has one")
    seen = spectrum(torch.where(mask[:, :, None], z, 0.0))
    lost = spectrum(torch.where(mask[:, :, None], 0.0, z)).sigma[:, 0]
    return _Parts(views.given(), mask, z, spectrum(z), seen, lost)


def _imputed(z_completed: Mapping[str, Array], z_complete: Mapping[str, Array], parts: _Parts) -> torch.Tensor:
    """(N, k, d) the completed modalities."""
    if tuple(z_completed) != tuple(z_complete):
        raise InputError(
            f"z_completed has the modalities {', '.join(z_completed)} but z_complete has {', '.join(z_complete)}; pass "
            "the same ones in the same order"
        )
    return _stack(check(z_completed, _all(parts.present))).to(parts.z)


def _all(present: torch.Tensor) -> Array:
    return torch.ones_like(present).numpy(force=True)


def _stack(views: Views) -> torch.Tensor:
    """(N, k, d) all modalities, which need one width."""
    if len(set(views.widths)) > 1:
        widths = ", ".join(f"{name}: {width}" for name, width in zip(views.names, views.widths, strict=True))
        raise InputError(f"an anchor needs modalities of one width; got {widths}. Project them to one space first")
    return torch.stack([to_tensor(array) for array in views.arrays.values()], dim=1)
