"""`MoPoEImputer`: a multimodal VAE whose posterior is a mixture of products of experts."""

from __future__ import annotations

import torch
from torch import Tensor

from calmrl._support.arguments import Count, Positive
from calmrl.imputers.experts import Experts, some_of
from calmrl.imputers.neural import NeuralImputer

SUBSETS = 2  # per row and step


class _Network(Experts):
    def sets(self, present: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        encoded = torch.stack([some_of(present, generator) for _ in range(SUBSETS)])
        return encoded, present.expand_as(encoded)


class MoPoEImputer(NeuralImputer):
    """Multimodal VAE with a mixture of products of experts.

    q(b | z) = mean over subsets S of q(b | z^S), each a product of experts; every subset has to decode all that the row
    has, with KL(q || p) bounded by the mean of KL(q(b | z^S) || p). A missing z^m is f_m(E[b | all observed]).

    Adapted to representations: perceptrons with a linear path, Gaussian likelihood of variance `beta` in standardised
    units, two random subsets of what the row has per step instead of the sum over all of them, and imputation from the
    largest product alone.

    Sutter, Daunhawer and Vogt, Generalized multimodal ELBO, ICLR 2021. Parameters as those of `MVAEImputer`.
    """

    def __init__(
        self,
        latent_dim: Count = 32,
        hidden: Count = 256,
        beta: Positive = 0.2,
        epochs: Count = 40,
        batch_size: Count = 128,
        learning_rate: Positive = 2e-3,
        patience: Count = 10,
        random_state: int | None = 0,
    ) -> None:
        self.latent_dim = latent_dim
        self.hidden = hidden
        self.beta = beta
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.random_state = random_state

    def _network(self) -> Experts:
        return _Network(self.widths_, self.latent_dim, self.hidden, self.beta)
