"""Figures inside a report: Plotly's script, the figures as JSON, and `report.js`, which draws them.

`report.py` calls it; the page and notebooks only use plotly.js from here. The report's security policy allows exactly
these two scripts, by their hashes, so no other script can run.
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

_COLOR_KEY = re.compile(r"color(scale)?$")
"""Keys of colors in a figure, as in `report.js`."""


@cache
def plotly_script() -> str:
    """Return the source of plotly.js."""
    return plotly_path().read_text(encoding="utf-8")


def plotly_path() -> Path:
    """Return the path of plotly.js in the installed package, without importing the package.

    Raises:
        DataError: the package is not installed.
    """
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise DataError("figures need the plotly package: install it with `pip install plotly`")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


@cache
def _drawing_script() -> str:
    return Path(__file__).with_name("report.js").read_text(encoding="utf-8")


def scripts(figures: Mapping[str, Figure]) -> str:
    """Return the script elements that draw figures of the light theme, by element id."""
    plots = [
        # Without `meta`, because the report has the description and the table already.
        {
            "id": place,
            "data": figure["data"],
            "layout": {k: v for k, v in figure["layout"].items() if k != "meta"},
        }
        for place, figure in figures.items()
    ]
    if not plots:
        return ""
    dark = {color: in_dark(color) for color in sorted(_colors(plots))}
    content = {"config": CONFIG, "drawn": plots, "dark": dark}
    # Escaped, so no text can close the element or start a comment.
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<script type="application/json" id="figures">{data}</script>\n<script>{plotly_script()}</script>\n'
        f"<script>{_drawing_script()}</script>"
    )


def _colors(value: object, *, is_color: bool = False) -> set[str]:
    if isinstance(value, dict):
        parts = [_colors(each, is_color=bool(_COLOR_KEY.search(str(name)))) for name, each in value.items()]
    elif isinstance(value, list):
        parts = [_colors(each, is_color=is_color) for each in value]
    else:
        return {value} if is_color and isinstance(value, str) else set()
    return set().union(*parts)


def policy() -> str:
    """Return the content security policy of the report. Plotly needs inline styles; scripts are allowed by hash."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in (plotly_script(), _drawing_script()))
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
