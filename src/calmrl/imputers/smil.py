"""`SMILImputer`: missing modalities as weighted sums of modality priors, with meta-learned weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.func import functional_call

from calmrl._support.arguments import Count, Positive
from calmrl.imputers.base import Blocks
from calmrl.imputers.neural import NeuralImputer, SkipMLP
from calmrl.imputers.variational import some_of


class _SMILNetwork(nn.Module):
    """Observed modalities -> a common code (mean of their encodings) -> weights of each modality's priors."""

    def __init__(self, widths: Sequence[int], code: int, hidden: int, priors: int, inner_rate: float) -> None:
        super().__init__()
        self.inner_rate = inner_rate
        self.encoders = nn.ModuleList([SkipMLP(width, hidden, code) for width in widths])
        self.weights = nn.ModuleList([SkipMLP(code, hidden, priors) for _ in widths])
        for m, width in enumerate(widths):
            self.register_buffer(f"priors{m}", torch.zeros(priors, width))

    def priors(self, m: int) -> Tensor:
        centres: Tensor = getattr(self, f"priors{m}")
        return centres

    def forward(self, z: list[Tensor], sets: Tensor) -> list[Tensor]:
        """The weights per modality, (n, priors), given the modalities in `sets`."""
        codes = torch.stack([encode(block) for encode, block in zip(self.encoders, z, strict=True)], dim=1)
        code = torch.where(sets[..., None], codes, 0.0).sum(1) / sets.sum(1, keepdim=True)
        return [torch.softmax(weigh(code), dim=1) for weigh in self.weights]

    def loss(self, z: list[Tensor], present: Tensor, generator: torch.Generator) -> Tensor:
        """Error on one half of the batch, and error on the other half after a gradient step on the first."""
        sets = some_of(present, generator)
        half = len(present) // 2

        def error(parameters: Mapping[str, Tensor], part: slice) -> Tensor:
            blocks = [block[part] for block in z]
            weights = functional_call(self, dict(parameters), (blocks, sets[part]))
            squares = [
                torch.where(present[part, m], (weight @ self.priors(m) - block).square().sum(1), 0.0).sum()
                for m, (weight, block) in enumerate(zip(weights, blocks, strict=True))
            ]
            return torch.stack(squares).sum() / len(blocks[0])

        own = dict(self.named_parameters())
        if half == 0:
            return error(own, slice(None))
        support = error(own, slice(half))
        slopes = torch.autograd.grad(support, list(own.values()), create_graph=True)
        moved = {name: p - self.inner_rate * g for (name, p), g in zip(own.items(), slopes, strict=True)}
        return support + error(moved, slice(half, None))

    def predict(self, z: list[Tensor], present: Tensor, with_std: bool) -> tuple[list[Tensor], list[Tensor]]:
        """Weighted sums of the priors; as variance that of the priors under the weights."""
        weights = self(z, present)
        means = [weight @ self.priors(m) for m, weight in enumerate(weights)]
        if not with_std:
            return means, []
        squares = [weight @ self.priors(m).square() for m, weight in enumerate(weights)]
        return means, [(s - mean.square()).clamp(min=0) for s, mean in zip(squares, means, strict=True)]


class SMILImputer(NeuralImputer):
    """Reconstruction from modality priors, meta-learned.

    z^m = sum_k w_k(observed) c^m_k: the priors c^m_k are the centres of a k-means clustering of modality m, the weights w
    (positive, sum 1) come from a network that takes any set of modalities. One step of training minimises
        E(theta; A) + E(theta - inner_rate grad E(theta; A); B),
    where A and B are the halves of a batch, and E the squared error of all that a row has, given a random part of it.

    Adapted to representations: the original reconstructs features inside a classifier, takes its inner step on the
    classifier's loss on incomplete rows and its outer step on complete rows. Here there are no labels: both losses are
    reconstructions, and rows that lack something take part with what they have. The weights are not random; the
    deviation is that of the priors under the weights, and what held-out blocks show to be left over.

    Ma et al., SMIL: multimodal learning with severely missing modality, AAAI 2021.

    Holes inside a modality are completed first, by the latent model (`GaussianImputer`), with its deviations.

    Parameters
    ----------
    priors : int
        Number of centres per modality.
    inner_rate : float
        Learning rate of the inner step.
    latent_dim, hidden, epochs, batch_size, learning_rate, patience, random_state, blocks
        As those of `NeuralImputer`; `latent_dim` is the width of the common code.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> data = load_dataset("world", n=80)  # lacks 30 % of its blocks
    >>> SMILImputer(latent_dim=2, priors=4, epochs=2).fit_transform(data.z, data.present)["text"].shape
    (80, 48)
    """

    def __init__(
        self,
        latent_dim: Count = 32,
        hidden: Count = 256,
        priors: Count = 64,
        inner_rate: Positive = 1e-3,
        epochs: Count = 40,
        batch_size: Count = 128,
        learning_rate: Positive = 2e-3,
        patience: Count = 10,
        random_state: int | None = 0,
        *,
        blocks: Blocks = None,
    ) -> None:
        super().__init__(latent_dim, hidden, epochs, batch_size, learning_rate, patience, random_state, blocks=blocks)
        self.priors = priors
        self.inner_rate = inner_rate

    def _network(self) -> _SMILNetwork:
        return _SMILNetwork(self.widths_, self.latent_dim, self.hidden, self.priors, self.inner_rate)

    def _prepare(self, network: Any, z: list[Tensor], present: Tensor) -> None:
        for m, block in enumerate(z):
            rows = block[present[:, m]].cpu().numpy()
            if len(rows) <= self.priors:  # every row is a prior of its own, the rest stay zero
                network.priors(m)[: len(rows)] = torch.as_tensor(rows)
                continue
            centres = KMeans(self.priors, n_init=1, max_iter=20, random_state=self.seed_).fit(rows).cluster_centers_
            network.priors(m).copy_(torch.as_tensor(centres))
