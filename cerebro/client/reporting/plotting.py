"""Figures within the file: the script once, the figures as data, a few lines that draw them, light or dark as the
reader's system is; on paper always light.

The file's own security policy names the hashes of exactly these two scripts, so nothing else in it can run, whatever a
reader's browser finds in there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from cerebro.client.reporting.html import Html, element, text
from cerebro.client.reporting.html import table as html_table
from cerebro.errors import DataError
from cerebro.figures import CONFIG, Figure, description, in_dark, table

_DRAW = """
// On touch screens the buttons would always be there, over the title.
const bar = matchMedia("(pointer: coarse)").matches ? false : "hover";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const tinted = (value, colours, isColour = false) => {
  if (Array.isArray(value)) return value.map((each) => tinted(each, colours, isColour));
  if (value === null || typeof value !== "object") return (isColour && colours.get(value)) || value;
  return Object.fromEntries(
    Object.entries(value).map(([name, each]) => [name, tinted(each, colours, /color(scale)?$/.test(name))]),
  );
};
const draw = (isDark) => {
  for (const { id, data, layout } of figures.drawn) {
    const colours = new Map(Object.entries(isDark ? figures.dark : {}));
    Plotly.react(id, tinted(data, colours), tinted(layout, colours), { ...figures.config, displayModeBar: bar });
    Plotly.Plots.resize(id);
  }
};
for (const { id } of figures.drawn) document.getElementById(id).replaceChildren();
draw(dark.matches);
dark.addEventListener("change", () => draw(dark.matches));
addEventListener("beforeprint", () => draw(false)); // paper is light
addEventListener("afterprint", () => draw(dark.matches));
"""
_IS_COLOUR = re.compile(r"color(scale)?$")
"""Names of what is a colour in a figure, or has colours in it: the same as in the script."""


@cache
def plotly_script() -> str:
    """The text of plotly.js; see `plotly_path`."""
    return plotly_path().read_text(encoding="utf-8")


def plotly_path() -> Path:
    """Plotly.js in the installed package, which is not imported: nothing else of it is needed.

    Raises:
        DataError: the package is not installed.
    """
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise DataError("figures in a file need the plotly package: install it with pip install plotly")
    return Path(found.origin).parent / "package_data" / "plotly.min.js"


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
    """What draws the figures, by the id of their place; they are of the light theme."""
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
    dark = {colour: in_dark(colour) for colour in sorted(_colours(drawn))}
    told = {"config": CONFIG, "drawn": drawn, "dark": dark}
    data = json.dumps(told, separators=(",", ":")).replace("<", "\\u003c")
    return Html(
        f'<script type="application/json" id="figures">{data}</script>\n<script>{plotly_script()}</script>\n'
        f"<script>{_DRAW}</script>"
    )


def _colours(value: object, *, is_colour: bool = False) -> set[str]:
    """All that figures are drawn in."""
    if isinstance(value, dict):
        parts = [_colours(each, is_colour=bool(_IS_COLOUR.search(str(name)))) for name, each in value.items()]
    elif isinstance(value, list):
        parts = [_colours(each, is_colour=is_colour) for each in value]
    else:
        return {value} if is_colour and isinstance(value, str) else set()
    return set().union(*parts)


def policy() -> str:
    """The security policy of the file. Styles may be inline: Plotly sets them; scripts may not, but for these two."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in (plotly_script(), _DRAW))
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
