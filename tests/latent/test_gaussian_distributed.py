"""Two gloo processes, each with its own rows, give the result of one process with all rows."""

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist

from calmrl import GaussianImputer
from calmrl._support.distributed import leave
from tests.support import warm
from tests.support.latent_data import from_model

CASES = {
    "em": {"latent_dim": 2},
    "diagonal": {"latent_dim": 2, "noise": "diagonal", "m_step": "sequential"},
    "mixture": {"latent_dim": 2, "n_components": 3, "max_iter": 10, "tol": 0.0},
    "auto": {"latent_dim": "auto", "noise": "auto"},
}


def halves(rank, size):
    z, present = from_model(n=240)
    present[:120, 2] = False  # the first process never sees the third modality
    present[:120, 0] = True
    rows = slice(0, 240) if size == 1 else slice(120 * rank, 120 * (rank + 1))
    return {n: a[rows] for n, a in z.items()}, present[rows]


def fit_all(rank, size):
    out = {}
    z, present = halves(rank, size)
    for name, arguments in CASES.items():
        imp = GaussianImputer(**arguments).fit(z, present)
        out[name] = {f"{part}.{n}": a for part in ("W_", "mu_", "sigma2_") for n, a in getattr(imp, part).items()}
    imp = GaussianImputer(2)
    for start in range(0, 120, 40):
        whole = np.r_[start : start + 40, 120 + start : 160 + start] if size == 1 else np.r_[start : start + 40]
        imp.partial_fit({n: a[whole] for n, a in z.items()}, present[whole])
    out["stepwise"] = {f"W_.{n}": a for n, a in imp.W_.items()}
    return out


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(fit_all(rank, 2), os.path.join(folder, f"{rank}.pt"))
    leave()


@pytest.mark.filterwarnings("ignore")
def test_two_processes_equal_one(tmp_path):
    warm.ranks(work, tmp_path)
    alone = fit_all(0, 1)
    for rank in range(2):
        together = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        for case, tensors in alone.items():
            for name, value in tensors.items():
                np.testing.assert_allclose(
                    together[case][name], value, atol=1e-10, err_msg=f"{case} {name} rank {rank}"
                )
