"""A figure as notebooks keep it: still there when the notebook is exported to HTML, and without a network."""

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
<div id="{place}" role="group" aria-label="{label}">{said}</div>
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


class Carriers:
    """Which cell of this kernel's notebook carries Plotly's script. Its output is 5 MB larger; all other figures of an
    exported notebook use it."""

    def __init__(self) -> None:
        self.cell: str | None = None

    def carries(self, cell: str) -> bool:
        """Whether the script goes into the output of this cell: of the first that shows a figure, however often."""
        if self.cell is None:
            self.cell = cell
        return self.cell == cell


_CARRIERS = Carriers()


class ShownFigure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """A figure of Plotly like any other, but for what a notebook keeps of it."""

    def _ipython_display_(self) -> None:
        # Where notebooks do not understand Plotly's own format, the package knows what to do.
        if "plotly_mimetype" not in str(pio.renderers.default):
            super()._ipython_display_()
            return
        from IPython.display import display

        script = f"<script>{plotly_script()}</script>" if _CARRIERS.carries(_cell()) else ""
        display(bundle(self, script), raw=True)  # type: ignore[no-untyped-call]


def bundle(figure: go.Figure, script: str = "") -> dict[str, Any]:
    """What a notebook keeps: the figure for itself, HTML for an export, words for everything else.

    Args:
        script: an element that defines Plotly in the page, if no other output does.
    """
    plain = json.loads(pio.to_json(figure, validate=False)) | {"config": CONFIG}
    said = description(plain) if plain["layout"].get("meta") else "A figure."
    html = _DRAW.format(
        place=f"figure-{uuid.uuid4().hex}",
        label=escape(said),
        said=escape(said),
        # No text in it can end the element.
        figure=json.dumps(plain).replace("<", "\\u003c"),
    )
    return {_MIMETYPE: plain, "text/html": script + html, "text/plain": said}


def _cell() -> str:
    """Which cell is being executed; empty where the notebook does not say."""
    from IPython import get_ipython

    shell = get_ipython()
    parent = shell.get_parent() if shell is not None else {}
    return str(parent.get("metadata", {}).get("cellId", parent.get("header", {}).get("msg_id", "")))
