"""A comparison of runs as one HTML page that needs nothing else: no server, no network, no other file.

Python writes the words, the table and a small JSON of what the charts show; the page's own script draws them, so that
they fit a phone as well as a screen. Nothing here computes a metric.
"""

from fairlead.sim.report.page import write_report
from fairlead.sim.report.runs import Run

__all__ = ["Run", "write_report"]
