"""Align three encoders in a plain PyTorch loop although most items lack a modality.

The loss takes a dict of vectors and a mask; everything else is your own code. Run: python examples/drop_in_loss.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import normalize

from calmrl import CalibratedAlignment, GaussianImputer

NAMES = ("image", "text", "audio")


def main(steps: int = 200, seed: int = 0) -> tuple[float, float]:
    """Train; return text-to-image accuracy on new items before and after."""
    torch.manual_seed(seed)
    views = {name: torch.randn(16, 40) for name in NAMES}  # how each modality shows the 16 facts about an item

    def items(n: int) -> dict[str, torch.Tensor]:
        facts = torch.randn(n, 16)
        return {name: facts @ view + 0.5 * torch.randn(n, 40) for name, view in views.items()}

    encoders = nn.ModuleDict({name: nn.Linear(40, 32) for name in NAMES})
    loss = CalibratedAlignment("contrastive", imputer=GaussianImputer(latent_dim=16))
    optimiser = torch.optim.AdamW([*encoders.parameters(), *loss.parameters()], lr=3e-3)

    def accuracy(x: dict[str, torch.Tensor]) -> float:
        text, image = (normalize(encoders[name](x[name]), dim=1) for name in ("text", "image"))
        return ((text @ image.T).argmax(1) == torch.arange(len(text))).float().mean().item()

    test = items(200)
    before = accuracy(test)
    for _ in range(steps):
        present = torch.rand(64, 3) < 0.6
        present[:, 1] |= ~present.any(1)  # every item has something
        z = {name: normalize(encoders[name](x), dim=1) for name, x in items(64).items()}
        optimiser.zero_grad()
        loss(z, present).backward()
        optimiser.step()
    return before, accuracy(test)


if __name__ == "__main__":
    print("text-to-image R@1: {:.2f} before, {:.2f} after".format(*main()))
