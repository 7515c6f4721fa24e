"""Tables in the layout of the CalMRL paper from tidy results, as Markdown, LaTeX and CSV."""

from calmrl.report.paper_tables.layouts import (
    ablation_table,
    all_tables,
    average_table,
    classification_table,
    dataset_table,
    generative_table,
    measure_table,
    retrieval_table,
    sweep_tables,
)
from calmrl.report.paper_tables.table import PaperTable
from calmrl.report.paper_tables.table_files import to_csv, to_latex, to_markdown, write_tables

__all__ = [
    "PaperTable",
    "ablation_table",
    "all_tables",
    "average_table",
    "classification_table",
    "dataset_table",
    "generative_table",
    "measure_table",
    "retrieval_table",
    "sweep_tables",
    "to_csv",
    "to_latex",
    "to_markdown",
    "write_tables",
]
