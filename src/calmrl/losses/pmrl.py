"""PMRL: maximise the leading singular value of each instance, keep the anchors of different instances apart."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from calmrl._support.arguments import Count, Positive
from calmrl._support.linalg import spectrum
from calmrl.arrays import full_precision
from calmrl.losses.base import joined, masked_mean, positive, row_terms


class PMRLLoss(nn.Module):
    r"""Aligns all modalities of an instance at once, without a privileged one.

    With sigma_1 >= sigma_2 >= ... the singular values of the instance's modalities side by side and u its leading left
    singular vector (the anchor, oriented toward the modalities):

        L = mean_i -log softmax(sigma_i / temperature)_1  +  mean_i -log softmax_j(u_i . u_j / anchor_temperature)_i

    | input | meaning |
    |---|---|
    | z | dict of modality name -> (N, d) tensor of unit vectors, the same d for all; k >= 2 modalities |
    | present | (N, k) bool; None: rows that are NaN throughout are missing |

    The first term runs over rows with two or more modalities and over as many singular values as the row has
    modalities; the second over all rows with any. Missing modalities enter neither, in value or in gradient.

    When to use which: PMRL fine-tunes encoders that are already roughly aligned. At `temperature=0.05` the first term
    is flat for two modalities from a cosine of about 0.3 on: from scratch take 0.5, chosen on validation data, or
    `ContrastiveLoss`. `last["saturation"]` says how flat the term is.

    Singular values cannot tell z from -z, so with two modalities of negative cosine the published objective pushes
    them further *apart*. With `sign_guard=True` rows of exactly two modalities put the direction in which they agree
    in the first place instead of the larger one (sigma = sqrt(1 + cos), sqrt(1 - cos) for unit vectors), which is the
    same for a positive cosine. `sign_guard=False` is the published form. `log=False` is the form printed in the CalMRL
    paper: minus the softmax itself.

    After each call `last` holds detached scalars: "align" and "instance" (the two terms), "saturation" (mean softmax
    weight of the leading singular value; at 1 the first term has no gradient left), "sign_conflict" (share of rows with
    two or more modalities in which one of them points away from the others' leading direction; for two modalities, a
    negative cosine), "guarded" (share of rows the guard acted on).

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> z = {name: normalize(torch.randn(8, 16), dim=1).requires_grad_() for name in ("image", "text", "audio")}
    >>> present = torch.ones(8, 3, dtype=torch.bool)
    >>> present[0, 2] = False
    >>> value = PMRLLoss(temperature=0.5)(z, present)
    >>> value.backward()
    """

    def __init__(
        self,
        temperature: Positive = 0.05,
        anchor_temperature: Positive = 0.1,
        *,
        log: bool = True,
        sign_guard: bool = True,
        chunk_size: Count | None = None,
    ) -> None:
        super().__init__()
        self.temperature = positive("temperature", temperature)
        self.anchor_temperature = positive("anchor_temperature", anchor_temperature)
        self.log = log
        self.sign_guard = sign_guard
        self.chunk_size = chunk_size
        self._seen: tuple[Tensor, ...] | None = None

    def forward(self, z: Mapping[str, Tensor], present: Tensor | None = None) -> Tensor:
        batch = joined(z, present)
        with full_precision(batch.z):
            count = batch.present.sum(1)
            sigma, v, u = spectrum(batch.z, agree=(count == 2) if self.sign_guard else None)
            used = torch.arange(sigma.shape[1], device=sigma.device) < count[:, None]  # (N, k)
            logits = (sigma / self.temperature).masked_fill(~used, torch.finfo(sigma.dtype).min)
            leading = logits[:, 0] - logits.logsumexp(1)
            scaled = u / self.anchor_temperature
            own = row_terms(lambda start, stop: scaled[start:stop] @ u.T, count >= 1, self.chunk_size)
            align = masked_mean(-leading if self.log else -leading.exp(), count >= 2)
            instance = masked_mean(-own if self.log else -own.exp(), count >= 1)
            self._seen = (align.detach(), instance.detach(), leading.detach(), sigma.detach(), v.detach(), count)
            return align + instance

    @property
    def last(self) -> dict[str, Tensor]:
        """Diagnostics of the last call, computed when they are read."""
        if self._seen is None:
            return {}
        align, instance, leading, sigma, v, count = self._seen
        several = count >= 2
        swapped = (count == 2) & (sigma[:, 0] < sigma[:, 1])
        against = (v[:, :, 0] < -1e-3).any(1) | swapped
        return {
            "align": align,
            "instance": instance,
            "saturation": masked_mean(leading.exp(), several),
            "sign_conflict": masked_mean(against.to(leading.dtype), several),
            "guarded": masked_mean(swapped.to(leading.dtype), several),
        }
