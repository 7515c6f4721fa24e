"""Features extracted with ImageBind, made fit for alignment."""

from collections.abc import Mapping

import torch
from torch.nn.functional import normalize

from calmrl.convention import Array, check, like_input, to_tensor
from calmrl.errors import InputError


def imagebind_features(z: Mapping[str, Array], present: Array | None = None) -> dict[str, Array]:
    """What ImageBind gives, each row scaled to length 1; NaN where a modality is missing.

    ImageBind multiplies its unit vectors by a temperature of each modality (none for vision, 20 for audio, a learned one
    up to 100 for text). Scores between two modalities are meant to include it, but a Gram matrix of such vectors is
    dominated by the longest one: singular values, volumes and the latent model's noise would measure the temperature
    instead of agreement. Use this on all features that come from ImageBind, then train `Heads` on them.
    """
    views = check(z, present)
    unit_rows = {}
    for j, (name, array) in enumerate(views.arrays.items()):
        rows = to_tensor(array).float()
        there = views.present[:, j].to(rows.device)
        flat = there & (torch.where(there[:, None], rows, 1.0).norm(dim=1) == 0)
        if flat.any():
            row = int(flat.nonzero()[0, 0])
            raise InputError(f"{name} of row {row} is all 0, which has no direction; mark it missing")
        unit_rows[name] = like_input(torch.where(there[:, None], normalize(rows, dim=1), torch.nan), array)
    return unit_rows
