"""Reports of a fit run: one HTML file to send around, and the figures in it.

Knows the state and the figures; of stores, pages and notebooks nothing, so that all of them can offer it.
"""

from cerebro.client.reporting.drawings import Drawings
from cerebro.client.reporting.report import report_html

__all__ = ["Drawings", "report_html"]
