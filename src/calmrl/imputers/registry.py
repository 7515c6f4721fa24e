"""The imputers by name, and the function that makes one."""

from __future__ import annotations

from typing import Any, Literal

from calmrl._support.registry import Registry

IMPUTERS: Registry[Any] = Registry(
    "imputer",
    {
        "auto": "calmrl.imputers.auto:AutoImputer",
        "gaussian": "calmrl.imputers.gaussian:GaussianImputer",
        "kernel": "calmrl.imputers.kernel:KernelImputer",
        "mean": "calmrl.imputers.simple:MeanImputer",
        "knn": "calmrl.imputers.simple:KNNImputer",
        "ridge": "calmrl.imputers.simple:RidgeImputer",
        "mvae": "calmrl.imputers.variational:MVAEImputer",
        "mopoe": "calmrl.imputers.variational:MoPoEImputer",
        "smil": "calmrl.imputers.neural:SMILImputer",
        "gfa": "calmrl.imputers.gfa:GFAImputer",
        "knowledge_bridger": "calmrl.imputers.simple:KnowledgeBridgerImputer",
    },
)

Kind = Literal["real", "count", "binary", "category"]  # what values are: see `MixedImputer`


def make_imputer(method: str, seed: int, **arguments: Any) -> Any:
    """The imputer of that name.

    Parameters
    ----------
    method : str
        A name of IMPUTERS.
    seed : int
        Its `random_state`, if it has one.
    **arguments
        Of its constructor.

    Examples
    --------
    >>> make_imputer("knn", seed=0, n_neighbors=5)
    KNNImputer(n_neighbors=5)
    """
    if "random_state" in IMPUTERS.signature(method).parameters:
        arguments["random_state"] = seed
    return IMPUTERS[method](**arguments)
