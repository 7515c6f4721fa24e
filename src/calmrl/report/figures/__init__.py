"""The drawings of the reports. Each takes plain numbers and gives a `Panel`."""

from calmrl.report.figures.dots import Mark, dots
from calmrl.report.figures.lines import Curve, curves, small_curves
from calmrl.report.figures.scatter import scatter
from calmrl.report.figures.upset import plot_patterns, upset

__all__ = ["Curve", "Mark", "curves", "dots", "plot_patterns", "scatter", "small_curves", "upset"]
