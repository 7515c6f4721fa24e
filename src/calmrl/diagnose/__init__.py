"""Before any training: what is missing, what it costs, and whether filling it in will help. `diagnose(features)`."""

from calmrl.diagnose.examine import diagnose
from calmrl.diagnose.result import Diagnosis
from calmrl.diagnose.text import as_text
from calmrl.diagnose.write import write

__all__ = ["Diagnosis", "as_text", "diagnose", "write"]
