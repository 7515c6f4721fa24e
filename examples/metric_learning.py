"""A loss of calmrl in a loop of pytorch-metric-learning, whose losses take embeddings and labels.

There a batch is a list of embeddings, each with a label. Here an embedding is one modality of one item, and its label
says which: `label = item * k + modality`. A missing modality is an embedding that is not in the batch.

Needs `pip install pytorch-metric-learning` (tried with 2.9). Run: python examples/metric_learning.py
"""

from __future__ import annotations

import torch
from emoji_rows import NAMES, incomplete_emoji
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.trainers import MetricLossOnly
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from calmrl.losses import ContrastiveLoss

K = len(NAMES)


# --8<-- [start:loss]
class ModalityLoss(BaseMetricLossFunction):
    """A loss of calmrl as a loss of pytorch-metric-learning; labels are item * k + modality."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def compute_loss(self, embeddings: Tensor, labels: Tensor, *_: object) -> dict[str, dict[str, object]]:
        items, row = torch.unique(labels // K, return_inverse=True)
        empty = embeddings.new_zeros(K, len(items), embeddings.shape[1])
        z = empty.index_put((labels % K, row), normalize(embeddings, dim=1))
        present = torch.zeros(len(items), K, dtype=torch.bool, device=labels.device)
        present[row, labels % K] = True
        value = self.loss(dict(zip(NAMES, z, strict=True)), present)
        return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


# --8<-- [end:loss]


class Heads(nn.Module):
    """One linear layer per modality for rows of mixed modalities; the last column says which one a row is."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.widths = widths
        self.heads = nn.ModuleList(nn.Linear(width, 64) for width in widths)

    def forward(self, rows: Tensor) -> Tensor:
        of = rows[:, -1].long()
        parts = [head(rows[of == m, : self.widths[m]]) for m, head in enumerate(self.heads)]
        order = torch.cat([torch.nonzero(of == m)[:, 0] for m in range(K)])
        return torch.cat(parts)[order.argsort()]


def main(epochs: int = 10, seed: int = 0) -> dict[str, list[float]]:
    """Train; return the loss of every step, and French-to-English precision at 1 (%) on test items before and after."""
    torch.manual_seed(seed)
    (z, present), (test, _) = incomplete_emoji(seed)
    widths = [x.shape[1] for x in z.values()]

    def cells(z: dict[str, Tensor], m: int) -> Tensor:
        x = z[NAMES[m]]
        return torch.cat([pad(x, (0, max(widths) - widths[m])), torch.full((len(x), 1), float(m))], dim=1)

    rows = torch.stack([cells(z, m) for m in range(K)], dim=1)  # (items, k, width + 1)

    def batch(items: list[int]) -> tuple[Tensor, Tensor]:
        which = torch.tensor(items)
        labels = which[:, None] * K + torch.arange(K)
        return rows[which][present[which]], labels[present[which]]

    model, losses = Heads(widths), list[float]()
    loss = ModalityLoss(ContrastiveLoss(anchor=None))
    trainer = MetricLossOnly(
        models={"trunk": model},
        optimizers={"trunk_optimizer": torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=3e-3)},
        batch_size=128,
        loss_funcs={"metric_loss": loss},
        dataset=range(len(present)),
        collate_fn=batch,
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
        end_of_iteration_hook=lambda trainer: losses.append(float(trainer.losses["total_loss"])),
    )
    accuracy = AccuracyCalculator(
        include=("precision_at_1",), k=1, device=torch.device("cpu"), knn_func=CustomKNN(CosineSimilarity())
    )

    @torch.no_grad()
    def french_to_english() -> float:
        french, english = (model(cells(test, NAMES.index(name))) for name in ("french", "text"))
        own = torch.arange(len(french))
        return 100 * accuracy.get_accuracy(french, own, english, own)["precision_at_1"]

    before = french_to_english()
    trainer.train(num_epochs=epochs)
    return {"loss": losses, "R@1": [before, french_to_english()]}


if __name__ == "__main__":
    print("French-to-English precision at 1: {:.1f} % before, {:.1f} % after".format(*main()["R@1"]))
