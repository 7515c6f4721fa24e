"""Before any training: what is missing, what it costs, and whether filling it in will help. `diagnose(features)`."""

from calmrl.workflows.diagnose.examine import diagnose
from calmrl.workflows.diagnose.result import Diagnosis
from calmrl.workflows.diagnose.text import as_text
from calmrl.workflows.diagnose.write import write

__all__ = ["Diagnosis", "as_text", "diagnose", "write"]
