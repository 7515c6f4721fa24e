"""Two gloo processes, each with its own rows, give the aligner of one process with all rows."""

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist

from calmrl import Aligner
from calmrl._support.distributed import leave
from calmrl.aligner import space as fitting
from tests.aligner.aligner_data import KERNEL, linear_rows
from tests.support import warm


def fitted(rows):
    z, present = linear_rows()
    part = {name: a[rows] for name, a in z.items()}
    out = {}
    for way, limit in (("rows", 4), ("sums", 0)):
        fitting.ROWS_PER_FEATURE = limit
        aligner = Aligner(**{**KERNEL, "whitening": "auto"}).fit(part, present[rows])
        out[way] = (aligner.embed(z, present), aligner.choice_["whitening"], aligner.expected_)
    fitting.ROWS_PER_FEATURE = 4
    values = [None if i % 5 == 0 else f"class {i % 30}" for i in range(240)][rows]
    aligner = Aligner(**KERNEL).fit(part, present[rows], relevant=values)
    assert all(row["own"] > 1 for row in aligner.expected_.values())
    out["relevant"] = (aligner.embed(z, present), aligner.choice_["whitening"], aligner.expected_)
    return out


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(fitted(slice(100 * rank, 100 + 140 * rank)), os.path.join(folder, f"{rank}.pt"))
    leave()


@pytest.mark.filterwarnings("ignore")
def test_two_processes_equal_one(tmp_path):
    warm.ranks(work, tmp_path)
    alone = fitted(slice(0, 240))
    for rank in range(2):
        together = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        for way, (vectors, whitening, expected) in alone.items():
            np.testing.assert_allclose(together[way][0], vectors, atol=1e-7, err_msg=f"{way}, rank {rank}")
            assert together[way][1:] == (whitening, expected)
