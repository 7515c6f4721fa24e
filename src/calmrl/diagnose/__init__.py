"""Before any training: what is missing, what it costs, and whether filling it in will help. `diagnose(features)`."""

from calmrl.diagnose.examine import diagnose
from calmrl.diagnose.result import Diagnosis

__all__ = ["Diagnosis", "diagnose"]
