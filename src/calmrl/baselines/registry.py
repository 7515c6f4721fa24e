"""The baselines by name: BASELINES. `calmrl train` and `calmrl compare` know them by the same names."""

from __future__ import annotations

from typing import Any

from calmrl._support.registry import Registry

BASELINES: Registry[Any] = Registry(
    "baseline",
    {
        "cca": "calmrl.baselines.correlation:CCA",
        "mcca": "calmrl.baselines.correlation:MCCA",
        "gcca": "calmrl.baselines.correlation:GCCA",
        "asif": "calmrl.baselines.maps:ASIF",
        "ridge": "calmrl.baselines.maps:RidgeMap",
        "procrustes": "calmrl.baselines.maps:ProcrustesMap",
        "gfa": "calmrl.baselines.posteriors:GFA",
        "mopoe": "calmrl.baselines.posteriors:MoPoE",
    },
)
