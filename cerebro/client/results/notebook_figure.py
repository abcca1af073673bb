"""Plotly figures that stay visible in exported notebooks, without a network.

`plots.to_plotly` creates them. The first cell with a figure embeds Plotly's script (5 MB); later ones share it.
"""

from __future__ import annotations

import json
import uuid
from html import escape
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio

from cerebro.client.reporting.plotting import plotly_script
from cerebro.figures import CONFIG, description

_DRAW = """
<div id="{place}" role="group" aria-label="{label}">{text}</div>
<script>
(() => {{
  const figure = {figure};
  const draw = () => {{
    if (!window.Plotly) return false;
    const place = document.getElementById("{place}");
    place.replaceChildren();
    Plotly.newPlot(place, figure.data, figure.layout, figure.config);
    return true;
  }};
  if (!draw()) addEventListener("load", draw);
}})();
</script>
"""

_MIMETYPE = "application/vnd.plotly.v1+json"


class ScriptOutput:
    """The notebook cell whose output contains Plotly's script (5 MB). All other figures share it."""

    def __init__(self) -> None:
        self.cell: str | None = None

    def has_script(self, cell: str) -> bool:
        """Return True for the first cell that shows a figure, also when it runs again."""
        if self.cell is None:
            self.cell = cell
        return self.cell == cell


_SCRIPT_OUTPUT = ScriptOutput()


class NotebookFigure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """A Plotly figure with an own representation in notebooks."""

    def _ipython_display_(self) -> None:
        # Front ends without support for Plotly's MIME type use the renderer of the package.
        if "plotly_mimetype" not in str(pio.renderers.default):
            super()._ipython_display_()
            return
        from IPython.display import display

        script = f"<script>{plotly_script()}</script>" if _SCRIPT_OUTPUT.has_script(_cell()) else ""
        display(bundle(self, script), raw=True)  # type: ignore[no-untyped-call]


def bundle(figure: go.Figure, script: str = "") -> dict[str, Any]:
    """Return the representations of a figure: Plotly's MIME type, HTML for exports, and text.

    Args:
        script: HTML element that loads Plotly, if no other output of the page does.
    """
    plain = json.loads(pio.to_json(figure, validate=False)) | {"config": CONFIG}
    text = description(plain) if plain["layout"].get("meta") else "A figure."
    html = _DRAW.format(
        place=f"figure-{uuid.uuid4().hex}",
        label=escape(text),
        text=escape(text),
        # Escaped, so no text in the figure can close the script element.
        figure=json.dumps(plain).replace("<", "\\u003c"),
    )
    return {_MIMETYPE: plain, "text/html": script + html, "text/plain": text}


def _cell() -> str:
    """Return the id of the running cell, if the front end sends one."""
    from IPython import get_ipython

    shell = get_ipython()
    parent = shell.get_parent() if shell is not None else {}
    return str(parent.get("metadata", {}).get("cellId", parent.get("header", {}).get("msg_id", "")))
