"""Figures within the file: the script once, the figures as data, a few lines that draw them.

The file's own security policy names the hashes of exactly these two scripts, so nothing else in it can run, whatever a
reader's browser finds in there.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from cerebro.errors import DataError
from cerebro.figures import CONFIG, Figure, description, table
from cerebro.reporting.html import Html, element, text
from cerebro.reporting.html import table as html_table

_DRAW = """
// On touch screens the buttons would always be there, over the title.
const bar = matchMedia("(pointer: coarse)").matches ? false : "hover";
const figures = JSON.parse(document.getElementById("figures").textContent);
for (const { id, data, layout } of figures.drawn) {
  const place = document.getElementById(id);
  place.replaceChildren();
  Plotly.newPlot(place, data, layout, { ...figures.config, displayModeBar: bar });
}
const fit = () => { for (const { id } of figures.drawn) Plotly.Plots.resize(id); };
addEventListener("beforeprint", fit);
addEventListener("afterprint", fit);
"""


@cache
def plotly_script() -> str:
    """The text of plotly.js in the installed package, which is not imported: nothing else of it is needed.

    Raises:
        DataError: the package is not installed.
    """
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise DataError("figures in a file need the plotly package: install it with pip install plotly")
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def shown(place: str, heading: str, figure: Figure | None) -> Html:
    """A figure with its words and its data as a table; empty if there is nothing to draw."""
    if figure is None or not figure["data"]:
        return Html("")
    said = description(figure)
    columns, rows, note = table(figure)
    waiting = element(
        "p", text("This figure is drawn by a script. Its data are in the table below."), class_="quiet"
    )
    data = element(
        "details",
        element("summary", text("Data of this figure")),
        html_table(heading, columns, rows, note=note),
    )
    return element(
        "figure",
        element("h3", text(heading)),
        element("div", waiting, id=place, class_="plot", role="group", aria_label=heading),
        element("figcaption", text(said)),
        data,
    )


def scripts(figures: dict[str, Figure]) -> Html:
    """What draws the figures, by the id of their place."""
    drawn = [
        # The file has words and tables already.
        {
            "id": place,
            "data": figure["data"],
            "layout": {k: v for k, v in figure["layout"].items() if k != "meta"},
        }
        for place, figure in figures.items()
        if figure["data"]
    ]
    if not drawn:
        return Html("")
    # No text in it can end the element, or begin a comment.
    data = json.dumps({"config": CONFIG, "drawn": drawn}, separators=(",", ":")).replace("<", "\\u003c")
    return Html(
        f'<script type="application/json" id="figures">{data}</script>\n<script>{plotly_script()}</script>\n'
        f"<script>{_DRAW}</script>"
    )


def policy() -> str:
    """The security policy of the file. Styles may be inline: Plotly sets them; scripts may not, but for these two."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in (plotly_script(), _DRAW))
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
