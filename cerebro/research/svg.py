"""The pieces that drawings are made of: colours, round numbers, and text that can do no harm.

What is drawn is the matter of `cerebro.research.gantt`.
"""

from __future__ import annotations

import math
import re
from html import escape

# Okabe and Ito's colours, then Tol's muted ones: neighbours can be told apart by colour-blind readers, too. No black
# and no white: one of them would vanish, on light or on dark.
PALETTE = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C8C8C"),
    *("#5A4FCF", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255"),
    *("#AA4499", "#B8860B", "#6699CC", "#994F00"),
)

_LONGEST_NAME = 24
_UNITS = ((20_000.0, 1.0, "s"), (500_000.0, 3600.0, "h"), (math.inf, 86_400.0, "d"))
"""Charts that end before so many seconds are labelled in a unit of so many."""


def ticks(span: float, end: float) -> tuple[float, float, str]:
    """Seconds between ticks (about ten of them), and the unit of their labels: its seconds and its name."""
    unit, name = next((unit, name) for limit, unit, name in _UNITS if end < limit)
    power = 10.0 ** math.floor(math.log10(span / unit / 5))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if span / unit / step <= 10)
    return step * unit, unit, name


def digits(value: float) -> str:
    """Four digits that count, and never an exponent."""
    places = max(0, 3 - math.floor(math.log10(value))) if value > 0 else 0
    found = f"{value:.{places}f}"
    return found.rstrip("0").rstrip(".") if "." in found else found


def short(name: str) -> str:
    """The beginning of a long name."""
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def safe(text: str) -> str:
    """Text that is nothing else in HTML and in XML, which forbids control characters even if they are escaped."""
    return escape(re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\N{REPLACEMENT CHARACTER}", text))


def titled(text: str) -> str:
    """A tooltip, as the child of what it belongs to."""
    return f"<title>{safe(text)}</title>"


def ink(colour: str) -> str:
    """Black or white, whichever is read on the colour (relative luminance, WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (((part + 0.055) / 1.055) ** 2.4 if part > 0.04045 else part / 12.92 for part in parts)
    return "#000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#fff"
