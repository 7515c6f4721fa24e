"""How good representations are: `retrieval`, and `mixed_pool` where items differ in the modalities they have."""

from calmrl.evaluate.pool import mixed_pool
from calmrl.evaluate.retrieve import retrieval

__all__ = ["mixed_pool", "retrieval"]
