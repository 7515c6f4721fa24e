"""Before any training: what is missing, what it costs, and whether filling it in will help. `diagnose(features)`."""

from calmrl.workflows._diagnose.examine import diagnose
from calmrl.workflows._diagnose.result import Diagnosis
from calmrl.workflows._diagnose.text import as_text
from calmrl.workflows._diagnose.write import write

__all__ = ["Diagnosis", "as_text", "diagnose", "write"]
