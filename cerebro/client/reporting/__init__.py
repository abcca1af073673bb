"""Report of a fit run: one HTML file, and the figures in it.

`drawings.py` draws figures from the state, `report.py` renders `report.html`, and `plotting.py` embeds the figures with
the script `report.js`. It depends only on state and figures, so notebooks, the command line and the web page use it.
"""

from cerebro.client.reporting.drawings import Drawings
from cerebro.client.reporting.report import report_html

__all__ = ["Drawings", "report_html"]
