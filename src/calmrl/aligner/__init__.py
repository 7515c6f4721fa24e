"""One space from incomplete rows, in closed form."""

from calmrl.aligner.estimator import Aligner

__all__ = ["Aligner"]
