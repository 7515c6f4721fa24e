"""Posterior means of generative models as vectors: group factor analysis (GFA, MOFA) and the multimodal VAE MoPoE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from calmrl._support.arguments import Count, Fraction, Positive
from calmrl.baselines.base import Baseline, TrainingFeatures
from calmrl.imputers.gfa import GFAImputer, pattern_groups
from calmrl.imputers.variational import MoPoEImputer


@dataclass(kw_only=True, eq=False, repr=False)
class _Posterior(Baseline):
    """An item is the posterior mean of the latents given all that it has, scaled to unit length."""

    latent_dim: Count = 64
    directions: Count = 128

    def _features(self, m: int, x: Tensor) -> Tensor:
        return super()._features(m, x)[:, : self.directions]

    @property
    def width_(self) -> int:
        """Width of the embedding."""
        return self.latent_dim


@dataclass(eq=False, repr=False)
class GFA(_Posterior):
    """Group factor analysis (the model of MOFA): shared and private factors, posterior means of `GFAImputer`.

    With f^m the features and what was learned about modality m, E[W^m], the precisions tau^m of its noise and
    P_m = E[W^m' diag(tau^m) W^m], an item that has the modalities S is

        b = (I + sum_{m in S} P_m)^(-1) sum_{m in S} E[W^m]' diag(tau^m) (f^m - mu^m),

    scaled to unit length.

    Parameters
    ----------
    latent_dim : int
        Factors at the start; those that no modality needs fade out.
    directions : int
        Leading features of each modality that take part, at most.
    whitening : float in [0, 1]
        Direction i of the features is divided by its variance to the power of half this number.
    max_iter : int
        Iterations of variational Bayes, at most: with all of them it overfits a few hundred rows.
    features, unit_rows, landmarks, random_state
        As for `CCA`; `random_state` also draws the start.

    References
    ----------
    Virtanen, Klami, Khan and Kaski, Bayesian group factor analysis, AISTATS 2012; Argelaguet et al., MOFA+, 2020.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.normal(size=(300, 4))
    >>> z = {"image": shared @ rng.normal(size=(4, 20)), "text": shared @ rng.normal(size=(4, 10))}
    >>> z["text"][:50] = np.nan
    >>> model = GFA(latent_dim=8, whitening=0.0, max_iter=20, features="linear", unit_rows=False).fit(z)
    >>> model.similarity({"text": z["text"][50:53]}, {"image": z["image"][50:53]}).argmax(axis=1).tolist()
    [0, 1, 2]
    """

    name = "gfa"

    whitening: Fraction = 1.0
    max_iter: Count = 10

    def _learn(self, rows: TrainingFeatures) -> dict[str, Tensor]:
        turns = [1.0 - 2.0 * (f.pow(3).sum(0) < 0) for f in rows.values]  # so that signs of directions do not matter
        z = {name: f * turn for name, f, turn in zip(rows.names, rows.values, turns, strict=True)}
        model = GFAImputer(self.latent_dim, self.max_iter, random_state=self.random_state).fit(z, rows.present)
        learned = {}
        for name, part, turn in zip(rows.names, model.loadings_, turns, strict=True):
            learned[f"map.{name}"] = (turn * part.precision)[:, None] * part.W
            learned[f"mean.{name}"] = turn * part.mean
            learned[f"information.{name}"] = part.information()
        return learned

    def _items(self, features: Mapping[int, Tensor], present: Tensor) -> Tensor:
        means = torch.zeros((len(present), self.latent_dim), dtype=torch.float64)
        for m, f in features.items():
            name = self.names_[m]
            means[present[:, m]] += (f - self.learned_[f"mean.{name}"]) @ self.learned_[f"map.{name}"]
        for index, held in pattern_groups(present):
            precision = torch.eye(self.latent_dim, dtype=torch.float64)
            for m in held:
                precision += self.learned_[f"information.{self.names_[m]}"]
            means[index] = torch.cholesky_solve(means[index].T, torch.linalg.cholesky(precision)).T
        return means


@dataclass(eq=False, repr=False)
class MoPoE(_Posterior):
    """The posterior of a multimodal VAE with a mixture of products of experts, that of `MoPoEImputer`.

    Every modality has an encoder that gives an expert N(a_m, v_m). An item that has the modalities S is the mean of their
    product with the prior N(0, I), (sum_S a_m / v_m) / (1 + sum_S 1 / v_m), scaled to unit length.

    Parameters
    ----------
    latent_dim : int
        Latents.
    directions : int
        Leading features of each modality that take part, at most.
    whitening : float in [0, 1]
        Direction i of the features is divided by its variance to the power of half this number.
    hidden, beta, epochs
        As those of `MoPoEImputer`.
    features, unit_rows, landmarks, random_state
        As for `CCA`; `random_state` also draws the weights at the start and the batches.

    References
    ----------
    Sutter, Daunhawer and Vogt, Generalized multimodal ELBO, ICLR 2021.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.normal(size=(300, 4))
    >>> z = {"image": shared @ rng.normal(size=(4, 20)), "text": shared @ rng.normal(size=(4, 10))}
    >>> z["text"][:50] = np.nan
    >>> MoPoE(latent_dim=8, hidden=16, epochs=2).fit(z).embed(z).shape
    (300, 8)
    """

    name = "mopoe"

    whitening: Fraction = 0.5
    hidden: Count = 256
    beta: Positive = 0.8
    epochs: Count = 40

    @torch.enable_grad()
    def _learn(self, rows: TrainingFeatures) -> dict[str, Tensor]:
        model = MoPoEImputer(self.latent_dim, self.hidden, self.beta, self.epochs, random_state=self.random_state)
        model.fit(dict(zip(rows.names, rows.values, strict=True)), rows.present)
        learned = {f"network.{key}": tensor for key, tensor in model.network_.state_dict().items()}
        for name, mean, square, count in zip(rows.names, model.mean_, model.square_, model.count_, strict=True):
            learned[f"mean.{name}"], learned[f"scale.{name}"] = mean, (square.mean() / count).sqrt()
        return learned

    def _items(self, features: Mapping[int, Tensor], present: Tensor) -> Tensor:
        means = [self.learned_[f"mean.{name}"] for name in self.names_]
        with torch.random.fork_rng(devices=[]):  # its weights at the start are drawn, and replaced
            network = MoPoEImputer.network_class(list(map(len, means)), self.latent_dim, self.hidden, self.beta)
        start = "network."
        network.load_state_dict(
            {key.removeprefix(start): tensor for key, tensor in self.learned_.items() if key.startswith(start)}
        )
        z = [torch.zeros((len(present), len(mean))) for mean in means]
        for m, f in features.items():
            scale = self.learned_[f"scale.{self.names_[m]}"]
            z[m][present[:, m]] = ((f - means[m]) / torch.where(scale > 0, scale, 1.0)).float()
        return network.product(z, present)[0].double()
