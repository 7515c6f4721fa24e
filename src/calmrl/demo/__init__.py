"""The demo: hide blocks of bundled real data, complete them with every imputer, and say what came out."""

from calmrl.demo.compare import compare, steps
from calmrl.demo.report import write_report
from calmrl.demo.words import in_words

__all__ = ["compare", "in_words", "steps", "write_report"]
