"""Imputers that are neural networks: scaling, minibatch Adam, early stopping, their state; and `SMILImputer`, one of them."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.adam import adam

from calmrl._support.arguments import Count, Positive, seed_of
from calmrl._support.linalg import add_rows
from calmrl.arrays import Array, Views, blocks_of_rows, check
from calmrl.data.hiding import hide
from calmrl.errors import InputError
from calmrl.imputers.base import BlockImputer, Blocks

FARTHEST = 1e6  # deviations from the mean; a network overflows on rows far beyond, which count as so far away
HELD_OUT = 0.1  # share of the observed blocks that early stopping looks at
FILL_BYTES = 1 << 27
ADAM = ("step", "exp_avg", "exp_avg_sq")


class SkipMLP(nn.Module):
    """x -> A x + B gelu(C x + c) + a: a linear map with one hidden layer beside it."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.hidden = nn.Linear(inputs, hidden)
        self.out = nn.Linear(hidden, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        linear: Tensor = self.linear(x)
        return linear + self.out(nn.functional.gelu(self.hidden(x)))


class FusedAdam:
    """`torch.optim.Adam(fused=True)` to the bit, without torch's compiler, which that one takes a second to import."""

    def __init__(self, parameters: list[Tensor], lr: float) -> None:
        self.param_groups = [{"params": parameters, "lr": lr}]
        self.state: dict[Tensor, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.param_groups[0]["params"]:  # type: ignore[attr-defined]
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step for every parameter that has a gradient."""
        moved = [p for p in self.param_groups[0]["params"] if p.grad is not None]  # type: ignore[attr-defined]
        for p in moved:
            if p not in self.state:
                self.state[p] = {"step": torch.zeros((), device=p.device)} | {k: torch.zeros_like(p) for k in ADAM[1:]}
        steps, first, second = ([self.state[p][key] for p in moved] for key in ADAM)
        fixed = {"amsgrad": False, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}
        gradients = [p.grad for p in moved]
        adam(moved, gradients, first, second, [], steps, fused=True, lr=self.param_groups[0]["lr"], **fixed)  # type: ignore


class NeuralImputer(BlockImputer):
    """Trains a network on blocks that are centred per column and scaled per modality, zero where missing.

    A subclass gives the network, which has `loss(z, present, generator)`, the
    value to minimise on a batch, and `predict(z, present, with_std)` -> (means, variances), lists of (n, d_m); variances
    only if `with_std`. The variance that the network leaves unexplained, `noise_`, is measured on the held-out blocks;
    before that, or where there are none, it is the variance of the modality. The learning rate falls linearly to zero
    in `fit` and is constant in `partial_fit`.

    Parameters
    ----------
    latent_dim, hidden : int
        Number of latents; width of the hidden layers.
    epochs, batch_size, learning_rate : int, int, float
        Of Adam.
    patience : int
        Stop after that many epochs without a smaller error on held-out blocks.
    random_state : int or None
        Seed; None draws one.
    blocks : list, dict or None
        For one 2-D array instead of a dict, as in `GaussianImputer`.
    """

    network_: Any

    def __init__(
        self,
        latent_dim: Count = 32,
        hidden: Count = 256,
        epochs: Count = 40,
        batch_size: Count = 128,
        learning_rate: Positive = 2e-3,
        patience: Count = 10,
        random_state: int | None = 0,
        *,
        blocks: Blocks = None,
    ) -> None:
        self.blocks = blocks
        self.latent_dim = latent_dim
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.random_state = random_state

    @abstractmethod
    def _network(self) -> Any:
        """A new network for `widths_`; its weights come from torch's global generator, which `fit` seeds and restores."""

    def _prepare(self, network: Any, z: list[Tensor], present: Tensor) -> None:
        """What the network has to see of the training rows before the first step."""

    def fit(
        self,
        z: Any,
        present: Array | None = None,
        observed: Any = None,
        stop: Callable[[NeuralImputer], bool] | None = None,
    ) -> NeuralImputer:
        """`epochs` passes at most; keeps the weights with the least error on a tenth of the observed blocks, held out.

        `stop` is called with the imputer after every epoch, of which `errors_` has the errors; True ends the training.
        """
        views = self._training_rows(z, present, observed)
        self._start(views)
        self._observe(views)
        rows = [block.detach() for block in self._scaled(views, 0, len(views))]
        hidden = self._held_out(views.present)
        seen = views.present & ~hidden
        visible = [torch.where(seen[:, m, None], block, 0.0) for m, block in enumerate(rows)]
        self._prepare(self.network_, visible, seen)
        steps = self.epochs * -(-len(views) // self.batch_size)
        best, weights, waited = float("inf"), None, 0
        self.errors_ = []
        for epoch in range(self.epochs):
            generator = torch.Generator().manual_seed(self.seed_ + epoch)
            for index in torch.randperm(len(views), generator=generator).split(self.batch_size):
                self.optimiser_.param_groups[0]["lr"] = self.learning_rate * (1 - self.steps_ / steps)
                index = index.to(seen.device)
                self._step([block[index] for block in visible], seen[index], generator)
            if not bool(hidden.any()):
                continue
            self.errors_.append(self._error(rows, visible, seen, hidden))
            if self.errors_[-1] < best:
                best, weights, waited = self.errors_[-1], copy.deepcopy(self.network_.state_dict()), 0
            else:
                waited += 1
                if waited >= self.patience:
                    break
            if stop is not None and stop(self):
                break
        if weights is not None:
            self.network_.load_state_dict(weights)
            self.noise_ = self._left_over(rows, visible, seen, hidden)
        self.optimiser_.param_groups[0]["lr"] = self.learning_rate
        return self

    def partial_fit(self, z: Any, present: Array | None = None) -> NeuralImputer:
        """One step of Adam on one batch; continues from `fit` or from earlier batches."""
        started = hasattr(self, "names_")
        z, present = self._as_dict(z, present, reset=not started)
        if started:
            views = check(z, present, names=self.names_, widths=self.widths_, min_rows=1)
            self._to(views.present.device)
        else:
            views = check(z, present, min_rows=1)
            self._start(views)
        self._observe(views)
        rows = [block.detach() for block in self._scaled(views, 0, len(views))]
        if not started:
            self._prepare(self.network_, rows, views.present)
        self._step(rows, views.present, torch.Generator().manual_seed(self.seed_ + self.steps_))
        return self

    # ---- training

    def _start(self, views: Views) -> None:
        for name in ("epochs", "batch_size", "learning_rate", "patience"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} must be positive; got {getattr(self, name)}")
        self.names_, self.widths_, self.seed_, self.steps_ = views.names, views.widths, seed_of(self.random_state), 0
        device = views.present.device
        self.count_ = torch.zeros(len(views.names), dtype=torch.float64, device=device)
        self.mean_ = [torch.zeros(width, dtype=torch.float64, device=device) for width in views.widths]
        self.square_ = [torch.zeros_like(mean) for mean in self.mean_]
        self.noise_ = [torch.ones_like(mean) for mean in self.mean_]
        self._build(device)

    def _build(self, device: torch.device) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed_)
            self.network_ = self._network().to(device).requires_grad_(False)
        self.optimiser_ = FusedAdam(list(self.network_.parameters()), self.learning_rate)

    def _observe(self, views: Views) -> None:
        """Take further rows into the count, mean and sum of squares of each column."""
        for m, values in enumerate(views.rows(0, len(views))):
            if values is None or not bool(views.present[:, m].any()):
                continue
            block = values.detach()[views.present[:, m]].double()
            add_rows(block, self.count_[m], self.mean_[m], self.square_[m])

    def _scale(self, m: int) -> Tensor:
        """One deviation for the whole modality."""
        return (self.square_[m].mean() / self.count_[m].clamp(min=1)).sqrt()

    def _scaled(self, views: Views, start: int, stop: int) -> list[Tensor]:
        """Rows as the network sees them, float32; differentiable in the values."""
        present, scaled = views.present[start:stop], []
        for m, values in enumerate(views.rows(start, stop)):
            if values is None:
                values = self.mean_[m].expand(stop - start, -1)
            scale = self._scale(m)
            block = (values.double() - self.mean_[m]) / torch.where(scale > 0, scale, 1.0)
            scaled.append(torch.where(present[:, m, None], block, 0.0).clamp(-FARTHEST, FARTHEST).float())
        return scaled

    def _held_out(self, present: Tensor) -> Tensor:
        observed = int(present.sum())
        share = min(HELD_OUT, (observed - len(present)) / observed)
        return present & ~hide(present, share, np.random.default_rng(self.seed_))

    def _step(self, z: list[Tensor], present: Tensor, generator: torch.Generator) -> None:
        self.network_.requires_grad_(True)
        self.optimiser_.zero_grad()
        self.network_.loss(z, present, generator).backward()
        self.optimiser_.step()
        self.network_.requires_grad_(False)  # constants wherever they impute
        self.steps_ += 1

    @torch.no_grad()
    def _guesses(
        self, rows: list[Tensor], visible: list[Tensor], seen: Tensor, hidden: Tensor, with_std: bool
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(truth, guess, variance) of the held-out blocks of each modality, float64."""
        at = hidden.any(1).nonzero()[:, 0]
        means, variances = self.network_.predict([block[at] for block in visible], seen[at], with_std)
        triples = zip([block[at] for block in rows], means, variances if with_std else means, strict=True)
        return [tuple(t[hidden[at, m]].double() for t in triple) for m, triple in enumerate(triples)]  # type: ignore[misc]

    def _error(self, rows: list[Tensor], visible: list[Tensor], seen: Tensor, hidden: Tensor) -> float:
        """Normalised error of the held-out blocks: 1.0 is the column mean."""
        guesses = self._guesses(rows, visible, seen, hidden, with_std=False)
        wrong = sum(float((guess - truth).square().sum()) for truth, guess, _ in guesses)
        total = sum(float(truth.square().sum()) for truth, _, _ in guesses)
        return wrong / max(total, torch.finfo(torch.float32).tiny)

    def _left_over(self, rows: list[Tensor], visible: list[Tensor], seen: Tensor, hidden: Tensor) -> list[Tensor]:
        """Per column, the squared error of the held-out blocks that the network's own variance does not explain."""
        left = []
        for m, (truth, guess, variance) in enumerate(self._guesses(rows, visible, seen, hidden, with_std=True)):
            square = (guess - truth).square().mean(0) if len(truth) else self.noise_[m]
            explained = variance.mean(0) if len(truth) else torch.zeros_like(square)
            left.append(torch.maximum(square - explained, 0.05 * square))
        return left

    # ---- imputing

    def _to(self, device: torch.device) -> None:
        """The learned tensors follow the input."""
        if self.count_.device == device:
            return
        state = self.get_state()
        self.set_state({"meta": state["meta"], "tensors": {name: t.to(device) for name, t in state["tensors"].items()}})

    def _fill(self, views: Views, with_std: bool) -> tuple[list[Tensor], list[Tensor]]:
        self._to(views.present.device)
        imputed: list[list[Tensor]] = [[block.new_zeros((0, len(block)))] for block in self.mean_]
        std: list[list[Tensor]] = [[block.new_zeros((0, len(block)))] for block in self.mean_]
        for start, stop in blocks_of_rows(len(views), 64 * sum(self.widths_), FILL_BYTES):
            z, present = self._scaled(views, start, stop), views.present[start:stop]
            means, variances = self.network_.predict(z, present, with_std)
            for m, mean in enumerate(means):
                imputed[m].append(mean.double() * self._scale(m) + self.mean_[m])
                if with_std:
                    variance = variances[m].double() + self.noise_[m]
                    std[m].append(variance.sqrt() * self._scale(m))
        return [torch.cat(part) for part in imputed], [torch.cat(part) for part in std]

    # ---- state

    def _learned(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors = {"count": self.count_}
        for m, name in enumerate(self.names_):
            for part, held in (("mean", self.mean_), ("square", self.square_), ("noise", self.noise_)):
                tensors[f"{part}.{name}"] = held[m]
        tensors.update({f"network.{key}": t for key, t in self.network_.state_dict().items()})
        for number, parameter in enumerate(self.network_.parameters()):
            for key, t in self.optimiser_.state.get(parameter, {}).items():
                tensors[f"adam.{number}.{key}"] = t
        return {"seed": self.seed_, "steps": self.steps_}, tensors

    def _relearn(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.seed_, self.steps_, self.count_ = meta["seed"], meta["steps"], tensors["count"].clone()
        self.mean_, self.square_, self.noise_ = (
            [tensors[f"{part}.{name}"].clone() for name in self.names_] for part in ("mean", "square", "noise")
        )
        self._build(self.count_.device)
        start = len("network.")
        self.network_.load_state_dict({key[start:]: t for key, t in tensors.items() if key.startswith("network.")})
        for number, parameter in enumerate(self.network_.parameters()):
            if f"adam.{number}.step" in tensors:
                self.optimiser_.state[parameter] = {key: tensors[f"adam.{number}.{key}"].clone() for key in ADAM}


# ---- sets of modalities to train on


def one_of(present: Tensor, generator: torch.Generator) -> Tensor:
    """One modality of each row, drawn uniformly from those it has, (n, k) bool."""
    chance = torch.rand(present.shape, generator=generator).to(present.device)
    pick = torch.where(present, chance, -1.0).argmax(1)
    return nn.functional.one_hot(pick, present.shape[1]).bool()


def some_of(present: Tensor, generator: torch.Generator) -> Tensor:
    """A non-empty subset of the modalities of each row, (n, k) bool: each with chance 1/2, one where that leaves none."""
    chosen = present & (torch.rand(present.shape, generator=generator).to(present.device) < 0.5)
    return torch.where(chosen.any(1, keepdim=True), chosen, one_of(present, generator))


# ---- weighted sums of priors


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
