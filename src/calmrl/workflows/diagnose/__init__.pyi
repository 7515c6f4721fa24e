from .examine import diagnose as diagnose
from .result import Diagnosis as Diagnosis
from .text import as_text as as_text
from .write import write as write
