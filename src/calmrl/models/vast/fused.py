"""The first stage of retrieval: one vector for all that a row has beside its text."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

SETS = {"va": ("vision", "audio"), "vs": ("vision", "subtitle"), "vas": ("vision", "audio", "subtitle")}


class FusedHeads(nn.ModuleDict):
    """A linear layer with bias for each set of modalities that VAST has one for, on their pooled vectors side by side.

        f_i = normalize(W_S [pooled_m]_{m in S} + b_S),   S = what row i has of vision, audio and subtitle

    Where there is no layer for S (one modality, or audio with subtitle) it is the normalised sum of the unit vectors.
    The score of text i with row j is t_i . f_j: it ranks, gives the candidates of re-ranking, and weighs negatives.
    """

    def __init__(self, widths: Mapping[str, int], width: int) -> None:
        sets = {key: names for key, names in SETS.items() if all(name in widths for name in names)}
        super().__init__({key: nn.Linear(sum(widths[name] for name in sets[key]), width) for key in sets})
        self.sets = sets

    def forward(
        self, z: Mapping[str, Tensor], pooled: Mapping[str, Tensor], present: Tensor, names: Sequence[str]
    ) -> Tensor:
        """(N, width): `z` holds unit vectors of all rows, 0 where missing, `pooled` those of the rows that are there."""
        others = [name for name in names if name != "text"]
        column = {name: present[:, names.index(name)] for name in others}
        fused = summed(z)
        for key, parts in self.sets.items():
            has = torch.stack([column[name] == (name in parts) for name in others]).all(0)  # these and no others
            rows = has.nonzero()[:, 0]
            if len(rows):
                place = {name: column[name].cumsum(0)[rows] - 1 for name in parts}  # of each row in `pooled`
                side_by_side = torch.cat([pooled[name][place[name]] for name in parts], dim=1)
                vectors = normalize(self[key](side_by_side).float(), dim=1).to(fused.dtype)
                fused = fused.index_copy(0, rows, vectors)
        return fused


def summed(z: Mapping[str, Tensor]) -> Tensor:
    """(N, width) normalised sum of the unit vectors of each row beside its text; 0 where it has none."""
    return normalize(torch.stack([rows for name, rows in z.items() if name != "text"]).sum(0), dim=1)
