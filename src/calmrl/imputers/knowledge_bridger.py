"""`KnowledgeBridgerImputer`: training-free imputation from a memory of items and the relations among them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.arguments import Count, Fraction, Positive
from calmrl.imputers.base import Blocks
from calmrl.imputers.simple import NeighbourImputer, Ranking


class KnowledgeBridgerImputer(NeighbourImputer):
    """Candidates from memory, ranked by likeness and by structure; nothing is trained.

    For a row with modalities O, every item r of the memory that has the missing modality m is a candidate, with score
        (1 - structure) mean_{o in O} cos(z^o, z_r^o) + structure mean_{o in O} corr_l(cos(z^o, z_l^o), cos(z_r^m, z_l^m)):
    its likeness to the row in the modalities that both have, and how well its relations to landmark items l in modality
    m agree with the row's relations to the same items in modality o. The best `n_candidates` are averaged with weights
    softmax(score / temperature).

    Adapted to representations: the original builds a knowledge graph with a large multimodal model, generates
    candidates with a generator and ranks them by graph and by representation. Here the graph is the matrix of cosines
    among remembered items (centred), the landmarks are items with both modalities, and the candidates are remembered
    ones; an item needs the missing modality, not all modalities, to be remembered.

    Ke et al., Knowledge Bridger: towards training-free missing modality completion, CVPR 2025.

    Holes inside a modality are completed first, by the latent model (`GaussianImputer`), with its deviations.

    Parameters
    ----------
    n_candidates : int
        Number of the best ranked candidates that are averaged.
    structure : float
        Weight of the agreement of relations, 0 to 1.
    temperature : float
        Of the weights; a small one trusts the first candidate.
    landmarks : int
        Number of items that relations are taken to, evenly spaced in the memory.
    blocks : list, dict or None
        For one 2-D array instead of a dict, as in `GaussianImputer`.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> data = load_dataset("world", n=80)  # lacks 30 % of its blocks
    >>> KnowledgeBridgerImputer().fit_transform(data.z, data.present)["text"].shape
    (80, 48)
    """

    def __init__(
        self,
        n_candidates: Count = 20,
        structure: Fraction = 0.3,
        temperature: Positive = 0.1,
        landmarks: Count = 256,
        *,
        blocks: Blocks = None,
    ) -> None:
        super().__init__(blocks=blocks)
        self.n_candidates = n_candidates
        self.structure = structure
        self.temperature = temperature
        self.landmarks = landmarks

    def _ranking(self, seen: list[int], m: int, pool: Tensor) -> Ranking:
        present, direction = self.present_.cpu()[pool], self._directions(self.rows_[m].cpu()[pool], m)
        shared = present[:, seen].T.double()  # (seen, pool)
        memory = [self._directions(self.rows_[j].cpu()[pool], j) * shared[c, :, None] for c, j in enumerate(seen)]
        marks = [self._landmarks(present[:, j]) for j in seen]
        relations = [_profile(direction @ direction[at].T) for at in marks]  # (pool, landmarks)

        def nearest(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
            likeness = agreement = torch.zeros((), dtype=torch.float64)
            for j, block, theirs, at, relation in zip(seen, rows, memory, marks, relations, strict=True):
                mine = self._directions(block, j)
                likeness = likeness + mine @ theirs.T
                agreement = agreement + _profile(mine @ theirs[at].T) @ relation.T / len(seen)
            score = (1 - self.structure) * likeness / shared.sum(0).clamp(min=1) + self.structure * agreement
            best = score.topk(min(self.n_candidates, len(pool)), dim=1)
            return best.indices, torch.softmax(best.values / self.temperature, dim=1)

        return nearest

    def _directions(self, block: Tensor, m: int) -> Tensor:
        """Centred rows of unit length."""
        return normalize(block - self.mean_[m].cpu(), dim=1)

    def _landmarks(self, both: Tensor) -> Tensor:
        """Positions in the pool of items that also have the other modality, evenly spaced."""
        at = both.nonzero()[:, 0]
        if len(at) <= self.landmarks:
            return at
        return at[torch.linspace(0, len(at) - 1, self.landmarks).round().long()]


def _profile(cosines: Tensor) -> Tensor:
    """Rows centred and of unit length, so that inner products are correlations; no landmarks, no correlation."""
    if cosines.shape[1] == 0:
        return cosines
    return normalize(cosines - cosines.mean(1, keepdim=True), dim=1)
