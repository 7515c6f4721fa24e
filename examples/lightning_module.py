"""Train linear heads on incomplete rows with Lightning: the loss is one line of `training_step`.

Needs `pip install lightning` (tried with 2.6). Run: python examples/lightning_module.py
"""

from __future__ import annotations

import lightning
import torch
from emoji_rows import NAMES, incomplete_emoji
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, TensorDataset

from calmrl import CalibratedAlignment, GaussianImputer
from calmrl.losses import ContrastiveLoss
from calmrl.metrics import retrieval


# --8<-- [start:module]
class Heads(lightning.LightningModule):
    """One linear layer per modality, trained on whatever a row has."""

    def __init__(self, widths: dict[str, int]) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(width, 64) for name, width in widths.items()})
        imputer = GaussianImputer(latent_dim=32, random_state=0)
        self.loss = CalibratedAlignment(ContrastiveLoss(anchor=None), imputer=imputer, weight=0.5)

    def forward(self, *values: Tensor) -> dict[str, Tensor]:
        return {name: normalize(self.heads[name](x), dim=1) for name, x in zip(NAMES, values, strict=True)}

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        *values, present = batch
        value = self.loss(self(*values), present)
        self.log("loss", value, on_step=False, on_epoch=True)
        return value

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        z = self(*batch[:-1])
        self.log("R@1", retrieval(z["french"], z["text"])["R@1"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


# --8<-- [end:module]


class Losses(lightning.Callback):
    """Remembers the mean loss of every epoch."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_epoch_end(self, trainer: lightning.Trainer, _: lightning.LightningModule) -> None:
        self.seen.append(float(trainer.callback_metrics["loss"]))


def main(epochs: int = 10, seed: int = 0) -> dict[str, list[float]]:
    """Train; return the loss of every epoch, and French-to-English R@1 (%) on test items before and after."""
    lightning.seed_everything(seed, verbose=False)
    (z, present), (test, all_present) = incomplete_emoji(seed)
    model, losses = Heads({name: x.shape[1] for name, x in z.items()}), Losses()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[losses],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    gallery = DataLoader(TensorDataset(*test.values(), all_present), batch_size=len(all_present))
    (before,) = trainer.test(model, gallery, verbose=False)
    trainer.fit(model, DataLoader(TensorDataset(*z.values(), present), batch_size=128, shuffle=True))
    (after,) = trainer.test(model, gallery, verbose=False)
    return {"loss": losses.seen, "R@1": [before["R@1"], after["R@1"]]}


if __name__ == "__main__":
    print("French-to-English R@1: {:.1f} % before, {:.1f} % after".format(*main()["R@1"]))
