"""How good representations are: `retrieval`."""

from calmrl.evaluate.retrieve import retrieval

__all__ = ["retrieval"]
