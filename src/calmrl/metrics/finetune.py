"""A linear classifier trained together with the model that gives the representations."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from calmrl.convention import Array, check, to_tensor
from calmrl.metrics.classify import accuracy_and_f1, classes_and_parts, masks_without
from calmrl.metrics.measures import Measurement

CHECK_EVERY = 20  # steps between looks at the validation rows
PREDICT_ROWS = 4096


class Classifier(nn.Module):
    """Class scores (N, classes) = linear(unit vector of sum over observed m of z^m), with z = model(inputs, present).

    `model` may also be an `nn.ModuleDict` with one head per modality, as `GaussianImputer.as_heads` gives: z^m is then the
    unit vector of its output.
    """

    def __init__(self, model: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.model, self.head = model, head

    def forward(self, inputs: Mapping[str, Tensor], present: Tensor) -> Tensor:
        inputs = {name: torch.where(present[:, j, None], x, 0.0) for j, (name, x) in enumerate(inputs.items())}
        if isinstance(self.model, nn.ModuleDict):
            z = {name: normalize(self.model[name](x), dim=1) for name, x in inputs.items()}
        else:
            z = self.model(inputs, present)
        stacked = torch.stack([z[name] for name in inputs], dim=1)  # (N, k, width)
        return self.head(normalize(torch.where(present[:, :, None], stacked, 0.0).sum(1), dim=1))

    @torch.no_grad()
    def predict(self, inputs: Mapping[str, Tensor], present: Tensor) -> np.ndarray:
        """(N,) numbers of classes; -1 for rows that have nothing."""
        self.eval()
        guesses = []
        for start in range(0, len(present), PREDICT_ROWS):
            rows = slice(start, start + PREDICT_ROWS)
            guess = self({name: values[rows] for name, values in inputs.items()}, present[rows]).argmax(1)
            guesses.append(torch.where(present[rows].any(1), guess, -1))
        return torch.cat(guesses).numpy(force=True)


def fine_tune(
    model: nn.Module,
    head: nn.Linear,
    inputs: Mapping[str, Tensor],
    present: Tensor,
    y: Tensor,
    validation: tuple[Mapping[str, Tensor], Tensor, Tensor],
    *,
    steps: int = 500,
    batch_size: int = 64,
    lr: float = 1e-4,
    head_lr: float = 1e-2,
    patience: int = 5,
    seed: int = 0,
) -> Classifier:
    """Train `head` and a copy of `model` by cross-entropy (AdamW), and keep the weights that were best on validation rows.

    `model(inputs, present)` gives a dict of (N, width) tensors, one per modality; `inputs` is a dict of (N, d_m) tensors
    by the shared convention, `y` (N,) the numbers of the classes, `validation` the same three for validation rows. At
    most `steps` steps; every 20 the validation accuracy is looked at, and after `patience` looks without a better one
    training stops. `model` and `head` stay as they were.
    """
    both = Classifier(copy.deepcopy(model), copy.deepcopy(head))
    optimizer = torch.optim.AdamW(
        [{"params": list(both.model.parameters()), "lr": lr}, {"params": list(both.head.parameters()), "lr": head_lr}]
    )
    generator = torch.Generator().manual_seed(seed)
    asked, there, truth = validation[0], validation[1], validation[2].numpy(force=True)

    def score() -> float:
        return float((both.predict(asked, there) == truth).mean())

    best, kept, since = score(), copy.deepcopy(both.state_dict()), 0
    order: list[int] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for dropout in the model
        for step in range(1, steps + 1):
            if not order:
                order = torch.randperm(len(present), generator=generator).tolist()
            rows, order = torch.tensor(order[:batch_size], device=present.device), order[batch_size:]
            both.train()
            loss = cross_entropy(both({name: values[rows] for name, values in inputs.items()}, present[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % CHECK_EVERY == 0 or step == steps:
                reached = score()
                if reached > best:
                    best, kept, since = reached, copy.deepcopy(both.state_dict()), 0
                else:
                    since += 1
                if since >= patience:
                    break
    both.load_state_dict(kept)
    return both


def fine_tuned_classification(
    model: nn.Module,
    inputs: Mapping[str, Array],
    present: Array | None,
    labels: Sequence[Any] | np.ndarray,
    split: Sequence[str] | np.ndarray,
    width: int,
    **options: Any,
) -> list[Measurement]:
    """As `classification`, by `fine_tune` of a model whose representations have that width; options are its keywords.

    Tasks are "classification fine-tuned" and "classification fine-tuned without image".
    """
    views = check(inputs, present)
    classes, y, parts = classes_and_parts(labels, split, len(views))
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    whole = {name: to_tensor(array).float().to(device) for name, array in views.arrays.items()}
    target = torch.from_numpy(y).to(device)

    def part(name: str, mask: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        rows = torch.from_numpy(parts[name]).to(device)
        return {m: x[rows] for m, x in whole.items()}, mask.to(device)[rows], target[rows]

    head = nn.utils.skip_init(nn.Linear, width, len(classes), device=device)  # draws no random numbers
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    tuned = fine_tune(model, head, *part("train", views.present), part("val", views.present), **options)
    rows = []
    for suffix, mask in masks_without(views.names, views.present):
        asked, there, truth = part("test", mask)
        guess = tuned.predict(asked, there)
        rows += accuracy_and_f1(truth.numpy(force=True), guess, f"classification fine-tuned{suffix}")
    return rows
