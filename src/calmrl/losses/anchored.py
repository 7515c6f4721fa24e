"""What the contrastive objectives share: an anchor modality, a temperature, and a mean over all terms."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from calmrl._support.arguments import Count, Positive, Share
from calmrl.convention import full_precision
from calmrl.losses.batch import Batch, joined
from calmrl.losses.softmax import Block, symmetric_terms
from calmrl.losses.temperature import Temperature


class AnchoredLoss(nn.Module, ABC):
    """The mean over terms in which modalities take turns; a subclass says which (`_turns`) and computes them (`_terms`).

    Parameters
    ----------
    anchor : str or None
        The modality that the others are compared with; None lets every modality take its turn.
    temperature : float
        Of the softmax over rows.
    learn_temperature : bool
        Whether the temperature is a parameter, to be given to the optimiser, that starts at `temperature`.
    label_smoothing : float
        Share of the target spread evenly over all competing rows.
    chunk_size : int or None
        Rows of the score matrix computed at once; None chooses by memory.
    """

    def __init__(
        self,
        anchor: str | None = "text",
        temperature: Positive = 0.07,
        *,
        learn_temperature: bool = True,
        label_smoothing: Share = 0.1,
        chunk_size: Count | None = None,
    ) -> None:
        super().__init__()
        self.anchor = anchor
        self.temperature = Temperature(temperature, learn_temperature)
        self.label_smoothing = label_smoothing
        self.chunk_size = chunk_size

    def forward(self, z: Mapping[str, Tensor], present: Tensor | None = None) -> Tensor:
        batch = joined(z, present)
        with full_precision(batch.z):
            temperature = self.temperature(batch.z)
            totals, counts = zip(*(self._terms(batch, turn, temperature) for turn in self._turns(batch)), strict=True)
            terms = torch.stack(counts).sum()
            self._remember(batch, temperature.detach(), terms)
            return torch.stack(totals).sum() / terms.clamp(min=1)

    def _turns(self, batch: Batch) -> Sequence[Any]:
        """The columns that are the anchor, one after the other."""
        return range(len(batch.names)) if self.anchor is None else [batch.index(self.anchor)]

    @abstractmethod
    def _terms(self, batch: Batch, turn: Any, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """(sum of the terms of a turn, their number)."""

    def _symmetric(self, scores: Block, queries: Tensor, candidates: Tensor, **kinds: Any) -> tuple[Tensor, Tensor]:
        """`symmetric_terms` with the options of this loss."""
        options: dict[str, Any] = {"smoothing": self.label_smoothing, "chunk_size": self.chunk_size}
        return symmetric_terms(scores, queries, candidates, **options, **kinds)

    def _remember(self, batch: Batch, temperature: Tensor, terms: Tensor) -> None:
        self._scalars = {"temperature": temperature, "terms": terms}

    @property
    def last(self) -> dict[str, Tensor]:
        """Detached scalars of the last call: "temperature" and "terms", the number of terms."""
        return getattr(self, "_scalars", {})
