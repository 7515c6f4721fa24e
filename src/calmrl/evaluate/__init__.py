"""How good representations are: `retrieval`, and `mixed_pool` where items differ in the modalities they have."""

from calmrl.evaluate.pool import mixed_pool
from calmrl.evaluate.retrieve import retrieval
from calmrl.evaluate.scores import SCORES, scored_retrieval

__all__ = ["SCORES", "mixed_pool", "retrieval", "scored_retrieval"]
