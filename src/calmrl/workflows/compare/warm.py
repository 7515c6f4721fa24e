"""What the workers of a comparison import once for all of them. This module itself imports none of it."""

from calmrl._support.workers import import_early

ONCE = (
    "torch",
    "sklearn.linear_model",
    "sklearn.cluster",
    "torch._dynamo",  # the first optimiser of a process imports it
    "accelerate",
)


def warm_up() -> None:
    """Let another process begin with these imports, while this one has yet to make its own."""
    import_early(ONCE)
