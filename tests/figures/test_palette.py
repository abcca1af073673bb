"""Colours have enough contrast in both themes."""

from __future__ import annotations

from typing import get_args

import pytest

from cerebro.figures.palette import (
    DASHES,
    HUES,
    STYLES,
    THEME_COLORS,
    Theme,
    colour,
    colour_scale,
    dash,
)

THEMES = get_args(Theme)
PAGE: dict[Theme, str] = {"light": "#f6f7f9", "dark": "#12161b"}
"""The page background behind a figure's card."""


def channels(given: str) -> list[float]:
    return [int(given[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def luminance(given: str) -> float:
    """Compute the relative luminance of WCAG 2.2."""
    red, green, blue = (((c + 0.055) / 1.055) ** 2.4 if c > 0.04045 else c / 12.92 for c in channels(given))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Compute the contrast ratio of WCAG 2.2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_marks_contrast_with_the_background(theme: Theme) -> None:
    """3:1 for every model colour, every step of the scale, and for good and bad."""
    colors = THEME_COLORS[theme]
    marks = {colour(index, theme) for index in range(STYLES)} | {colors.good, colors.bad}
    marks |= {str(tint) for _, tint in colour_scale(theme)}
    for ground in (colors.ground, PAGE[theme]):
        assert min(contrast(mark, ground) for mark in marks) >= 3.0


@pytest.mark.parametrize("theme", THEMES)
def test_text_contrasts_with_the_background(theme: Theme) -> None:
    """4.5:1 for both font weights."""
    colors = THEME_COLORS[theme]
    assert min(contrast(words, colors.ground) for words in (colors.ink, colors.quiet)) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_neighbouring_models_have_different_styles(theme: Theme) -> None:
    """Any 32 consecutive models have 32 combinations of colour and dash."""
    looks = [(colour(index, theme), dash(index)) for index in range(4 * STYLES)]
    for first in range(3 * STYLES):
        assert len(set(looks[first : first + STYLES])) == STYLES == HUES * len(DASHES)
