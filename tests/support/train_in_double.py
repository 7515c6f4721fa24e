"""`calmrl train` in double precision, to be started by torchrun: what differs then between processes is no rounding.

torchrun --nproc_per_node 2 tests/support/train_in_double.py CONFIG OUT [CONFIG OUT ...]

Several runs share the processes, because starting them takes longer than training does.
"""

import importlib
import json
import sys
from pathlib import Path

import torch

from calmrl._support.distributed import world
from calmrl.config import load
from calmrl.data.loaders.feature_rows import FeatureRows

workflow = importlib.import_module("calmrl.workflows.train")  # of this name, the package has the function
single_step, single_rows = workflow.build_step, FeatureRows.fetch


def double_step(*arguments, **options):
    step = single_step(*arguments, **options).double()
    FeatureRows.fetch = double_rows
    return step


def double_rows(self, *arguments):
    return {name: rows.double() for name, rows in single_rows(self, *arguments).items()}


if __name__ == "__main__":
    workflow.build_step = double_step
    for config, out in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        FeatureRows.fetch = single_rows
        workflow.train(load(config, kind="train"), out)
        size, rank = world()
        state = {"size": size, "rank": rank, "backend": torch.distributed.get_backend() if size > 1 else None}
        Path(f"{out}.rank{rank}.json").write_text(json.dumps(state))
