"""Figures within the file: the script once, the figures as data, a few lines that draw them (`report.js`).

The file's own security policy names the hashes of exactly these two scripts, so nothing else in it can run, whatever a
reader's browser finds in there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from cerebro.errors import DataError
from cerebro.figures import CONFIG, Figure, in_dark

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


@cache
def _drawing_script() -> str:
    return Path(__file__).with_name("report.js").read_text(encoding="utf-8")


def scripts(figures: Mapping[str, Figure]) -> str:
    """Elements that draw the figures, by the id of their place; they are of the light theme."""
    drawn = [
        # The file has words and tables already.
        {
            "id": place,
            "data": figure["data"],
            "layout": {k: v for k, v in figure["layout"].items() if k != "meta"},
        }
        for place, figure in figures.items()
    ]
    if not drawn:
        return ""
    dark = {colour: in_dark(colour) for colour in sorted(_colours(drawn))}
    told = {"config": CONFIG, "drawn": drawn, "dark": dark}
    # No text in it can end the element, or begin a comment.
    data = json.dumps(told, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<script type="application/json" id="figures">{data}</script>\n<script>{plotly_script()}</script>\n'
        f"<script>{_drawing_script()}</script>"
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
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in (plotly_script(), _drawing_script()))
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
