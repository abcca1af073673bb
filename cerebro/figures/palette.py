"""Colours of models and themes.

A model's colour follows its position in the run's plan, so it is the same in all figures, tables and runs. Only
`figures.curves.restyled` gives other colours, to models that would look alike in one figure. The hues
are by Okabe and Ito (https://jfly.uni-koeln.de/color), distinct for colour-blind readers, with shades for each theme.
Marks have a contrast of at least 3:1 to the background, texts 4.5:1 (WCAG 2.2, 1.4.3 and 1.4.11; tests check both).
After eight hues the dashes change. After four dashes the looks repeat: model 33 looks like the first one.
"""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass
from typing import Literal

Theme = Literal["light", "dark"]

DASHES = ("solid", "dash", "dot", "dashdot")
"""Plotly's names of dashes."""

# Blue, orange, green, purple, sky, vermilion, yellow (as olive on light), black (as white on dark).
_HUES: dict[Theme, tuple[str, ...]] = {
    "light": ("#00609B", "#B88000", "#007E67", "#C2608F", "#258DE3", "#9A4A00", "#7A6A10", "#273037"),
    "dark": ("#4A96D8", "#E69F00", "#1DB58A", "#D88DB6", "#9AD7F7", "#F0753A", "#F0E442", "#E6EAEF"),
}

# The part of cividis (Nunez, Anderton, Renslow, PLOS ONE 2018) with enough contrast to the background, worst
# value first: the best one always has the strongest contrast.
_SCALES: dict[Theme, tuple[str, ...]] = {
    "light": ("#8A8678", "#707173", "#575D6D", "#3B496C", "#123570", "#00224E"),
    "dark": ("#707173", "#8A8678", "#A59C74", "#C3B369", "#E1CC55", "#FEE838"),
}

HUES = len(_HUES["light"])
STYLES = HUES * len(DASHES)
"""Number of combinations of colour and dash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ThemeColors:
    """Colours of a theme, the same as in the page's style sheet.

    Attributes:
        ground: background of figures.
        ink: text.
        quiet: secondary text.
        grid: grid lines.
        good, bad: marks of success and failure, always with a word or shape.
    """

    ground: str
    ink: str
    quiet: str
    grid: str
    good: str
    bad: str


THEME_COLORS: dict[Theme, ThemeColors] = {
    "light": ThemeColors(
        ground="#ffffff", ink="#1a2028", quiet="#59636f", grid="#d9dde3", good="#17693a", bad="#b3261e"
    ),
    "dark": ThemeColors(
        ground="#1a2027", ink="#e6eaef", quiet="#a0abb8", grid="#323b46", good="#7fd49b", bad="#f5a29b"
    ),
}


_COUNTERPARTS: dict[str, str] = {
    light.lower(): dark
    for light, dark in (
        *zip(_HUES["light"], _HUES["dark"], strict=True),
        *zip(_SCALES["light"], _SCALES["dark"], strict=True),
        *zip(astuple(THEME_COLORS["light"]), astuple(THEME_COLORS["dark"]), strict=True),
    )
}
_FAINT = re.compile(r"rgba\((\d+),(\d+),(\d+),([\d.]+)\)")


def colour(index: int, theme: Theme) -> str:
    """Return the colour of the model at a position in the plan, from 0."""
    return _HUES[theme][index % HUES]


def dash(index: int) -> str:
    """Return the dash of that model's lines."""
    return DASHES[index // HUES % len(DASHES)]


def colour_scale(theme: Theme) -> list[list[float | str]]:
    """Return Plotly's colour scale from the worst value (0) to the best one (1)."""
    colours = _SCALES[theme]
    return [[step / (len(colours) - 1), colour] for step, colour in enumerate(colours)]


def shade(share: float, theme: Theme) -> str:
    """Return the colour of a value at `share` of the range from the worst value (0) to the best one (1)."""
    colours = _SCALES[theme]
    return colours[min(int(max(0.0, share) * len(colours)), len(colours) - 1)]


def in_dark(colour: str) -> str:
    """Convert a colour of the light theme to the dark theme; other colours stay unchanged."""
    match = _FAINT.fullmatch(colour)
    if match is None:
        return _COUNTERPARTS.get(colour.lower(), colour)
    plain = "#" + "".join(f"{int(match[part]):02x}" for part in (1, 2, 3))
    return faint(_COUNTERPARTS[plain], float(match[4])) if plain in _COUNTERPARTS else colour


def faint(colour: str, opacity: float) -> str:
    """Return a colour with an opacity."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"
