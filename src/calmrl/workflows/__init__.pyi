from ._compare.run import Comparison as Comparison
from ._compare.run import compare as compare
from ._diagnose.result import Diagnosis as Diagnosis
from ._diagnose.run import diagnose as diagnose
from ._report import Report as Report
from ._report import report as report
