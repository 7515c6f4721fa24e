"""Quality of every imputer at its defaults: 40 % of the blocks hidden (mask 1), every row keeps one.

`ratio` is the normalised error of the hidden blocks (1.0 = the column mean), `ours_s` processor seconds of fit and impute.
Targets are the errors of other implementations on the same mask, plus 5 %: the VAEs of multivae with 40 epochs, and
mofapy2 for `gfa`.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from benchmarks.latent_quality import complete
from benchmarks.latent_speed import normalised_error
from calmrl.data.hiding import hide
from calmrl.imputers import IMPUTERS

OTHERS = {
    "mvae": {"synth": 0.634, "digits": 0.778, "mfeat": 0.357},
    "mopoe": {"synth": 0.629, "digits": 0.7075, "mfeat": 0.336},
    "gfa": {"synth": 0.5808, "digits": 0.816, "mfeat": 0.4175},
}


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    rows = []
    for dataset in ("synth", "digits", "mfeat"):
        truth = complete(dataset)
        present = hide(np.ones((len(next(iter(truth.values()))), len(truth)), bool), 0.4, np.random.default_rng(1))
        for name, imputer in IMPUTERS.items():
            start = time.process_time()
            filled = imputer().fit(truth, present).transform(truth, present)
            took = time.process_time() - start
            other = OTHERS.get(name, {}).get(dataset)
            rows.append(
                {
                    "case": f"{dataset}: {name}",
                    "ours_s": took,
                    "theirs_s": None,
                    "ratio": normalised_error(filled, truth, ~present),
                    "target": "none" if other is None else f"<= {1.05 * other:.4f}",
                    "note": f"{took:.1f} s" if other is None else f"{took:.1f} s; another implementation has {other}",
                }
            )
    return rows
