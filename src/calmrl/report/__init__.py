"""Results become a page: the answer first, then figures and tables, as one HTML file and as Markdown.

A page is data (`blocks`), drawings are panels (`figures`), and `write_page` writes both down.
"""

from calmrl.report.blocks import Cell, Code, Figure, Number, Page, PageSection, Picture, Table, Text
from calmrl.report.compose import build_page
from calmrl.report.figures import plot_patterns
from calmrl.report.markdown import as_markdown
from calmrl.report.results import Results, read_results, results_of
from calmrl.report.web import as_html
from calmrl.report.write import write_page

__all__ = [
    "Cell",
    "Code",
    "Figure",
    "Number",
    "Page",
    "PageSection",
    "Picture",
    "Results",
    "Table",
    "Text",
    "as_html",
    "as_markdown",
    "build_page",
    "plot_patterns",
    "read_results",
    "results_of",
    "write_page",
]
