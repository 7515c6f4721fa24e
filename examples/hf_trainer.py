"""Train linear heads on incomplete rows with the Trainer of transformers: the model returns the loss.

Needs `pip install transformers accelerate` (tried with 5.22). Run: python examples/hf_trainer.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from emoji_rows import NAMES, incomplete_emoji
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import Trainer, TrainingArguments, set_seed

from calmrl import CalibratedAlignment, GaussianImputer
from calmrl.losses import ContrastiveLoss
from calmrl.metrics import retrieval


# --8<-- [start:module]
class Heads(nn.Module):
    """One linear layer per modality; called with the columns of a batch, it returns its loss and its vectors."""

    def __init__(self, widths: dict[str, int]) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(width, 64) for name, width in widths.items()})
        imputer = GaussianImputer(latent_dim=32, random_state=0)
        self.loss = CalibratedAlignment(ContrastiveLoss(anchor=None), imputer=imputer, weight=0.5)

    def forward(self, present: Tensor, **values: Tensor) -> dict[str, Tensor]:
        z = {name: normalize(self.heads[name](x), dim=1) for name, x in values.items()}
        return {"loss": self.loss(z, present), **z}


# --8<-- [end:module]


def columns(z: dict[str, Tensor], present: Tensor) -> list[dict[str, Tensor]]:
    """One dict per row: what the Trainer's collator stacks into batches."""
    return [{**{name: z[name][row] for name in NAMES}, "present": present[row]} for row in range(len(present))]


def main(epochs: int = 10, seed: int = 0, output: str | None = None) -> dict[str, list[float]]:
    """Train; return the loss of every epoch, and French-to-English R@1 (%) on test items before and after."""
    set_seed(seed)
    (z, present), (test, all_present) = incomplete_emoji(seed)
    model = Heads({name: x.shape[1] for name, x in z.items()})
    arguments: dict[str, Any] = {
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 128,
        "learning_rate": 3e-3,
        "logging_strategy": "epoch",
        "save_strategy": "no" if output is None else "epoch",
        "remove_unused_columns": False,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(model, TrainingArguments(output or scratch, **arguments), train_dataset=columns(z, present))
        before = french_to_english(model, test, all_present)
        trainer.train()
        after = french_to_english(model, test, all_present)
    return {"loss": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], "R@1": [before, after]}


@torch.no_grad()
def french_to_english(model: Heads, z: dict[str, Tensor], present: Tensor) -> float:
    vectors = {name: normalize(model.heads[name](x), dim=1) for name, x in z.items()}
    return retrieval(vectors["french"], vectors["text"])["R@1"]


if __name__ == "__main__":
    print("French-to-English R@1: {:.1f} % before, {:.1f} % after".format(*main()["R@1"]))
