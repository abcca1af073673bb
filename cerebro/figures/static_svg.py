"""Figure of lines and points as a static SVG, for readers without scripts and while scripts load.

`dispatcher.api.views` serves learning curves with it. It draws only traces of type ``scatter`` on one pair of axes,
without hover texts. The picture fits any width: horizontal positions are percentages, so text keeps its size on a
phone. It uses neither style sheets nor scripts, which the pages' policy would block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape, unescape
from textwrap import wrap
from typing import Any
from unicodedata import category

from cerebro.figures.frame import Figure, distinct_labels
from cerebro.figures.palette import THEME_COLORS, Theme, ThemeColors

_LEFT_PX, _TOP, _FOOT, _LEGEND_ROW = 56, 44, 44, 18
"""Pixels left of, above and below the lines, and of a row of the legend."""
_SHARE = 0.76
"""Share of the width for the lines. The rest of a small phone's 270 pixels has room for the numbers."""
_GRID = 1000
"""Number of horizontal steps of the lines."""
_LETTERS_A_ROW, _MAX_ROWS = 45, 0.3
"""Characters in a row of the legend on a phone; maximum share of the height, beyond which names are omitted."""
_TICKS, _DIGITS = 5, 4
"""Approximate number of ticks; minimum of their digits, more if two would look the same."""
_DASHES = {
    "solid": ("", "\N{EM DASH}"),
    "dash": ("9 5", "--"),
    "dot": ("2 4", "\u00b7\u00b7\u00b7"),
    "dashdot": ("9 4 2 4", "-\u00b7"),
}
"""Plotly's name -> pixels drawn and skipped, and the sign in the legend."""
_UNITS = ((1e15, 1.0, ""), (1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
"""(smallest value, unit, letter) of an axis's numbers."""
_SYMBOLS = {  # Relative to the point; any other mark is a circle.
    "diamond": "M-5 0L0-5L5 0L0 5Z",
    "x": "M-5-3L-3-5L0-2L3-5L5-3L2 0L5 3L3 5L0 2L-3 5L-5 3L-2 0Z",
}
_CROSS = "\N{MULTIPLICATION SIGN}"
_LARGEST, _SMALLEST, _FINEST = 1e300, 1e-280, 1e-12
"""Larger values are not drawn. Values that differ by less than `_FINEST` of them, or of `_SMALLEST`, are equal."""
_POWERS = 300
"""Exponents of ticks are between these; a margin beyond `_LARGEST` would overflow."""
_NO_TEXT = ("Cc", "Cs", "Cn")
"""Unicode categories that XML cannot contain, and unassigned characters."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Scale of an axis."""

    low: float
    high: float
    is_log: bool = False

    def share(self, value: float) -> float | None:
        """Return the position between the ends, 0 to 1, or `None` for a value that is not drawn."""
        if not abs(value) <= _LARGEST or (self.is_log and value <= 0):
            return None
        position = math.log10(value) if self.is_log else value
        return (position - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return round values between the ends."""
        if not self.is_log:
            return _round_steps(self.low, self.high)
        powers = range(max(-_POWERS, math.floor(self.low)), min(_POWERS, math.floor(self.high)) + 1)
        factors = (1, 2, 5) if len(powers) <= 3 else (1,)
        every = math.ceil(len(powers) / (_TICKS + 1))
        ticks = [f * 10.0**p for p in powers for f in factors if p % every == 0]
        ticks = [value for value in ticks if self.low <= math.log10(value) <= self.high]
        if len(ticks) > 1 or abs(self.low) > _POWERS:
            return ticks
        return [value for value in _round_steps(10**self.low, 10**self.high) if value > 0]


def static_svg(drawn: Figure, *, theme: Theme = "light", height: int = 320) -> str:
    """Draw the lines and points of a figure as an SVG document.

    Args:
        drawn: figure in `theme` with traces of type ``scatter`` on one pair of axes, as of `cerebro.figures.curves`.
        height: pixels; the width is the reader's.

    Raises:
        ValueError: the figure has other marks than lines and points.
    """
    traces, layout, colors = drawn["data"], drawn["layout"], THEME_COLORS[theme]
    other = {trace.get("type") for trace in traces} - {"scatter"}
    if other:
        raise ValueError(f"a static SVG shows lines and points, not {', '.join(sorted(map(str, other)))}")
    legend = _legend(traces, int(_MAX_ROWS * height) // _LEGEND_ROW) if layout.get("showlegend") else []
    depth = height - _TOP - _FOOT - _LEGEND_ROW * len(legend)
    parts = [
        f'<rect width="100%" height="100%" fill="{colors.ground}"/>',
        f'<text x="12" y="24" font-size="14">{_figure_text(layout.get("title", {}).get("text", ""))}</text>',
    ]
    if traces:
        axes = layout.get("xaxis", {}), layout.get("yaxis", {})
        scales = _scale(traces, "x", axes[0]), _scale(traces, "y", axes[1])
        content = "".join([*_axes(axes, scales, depth, colors), *_lines(traces, scales, depth)])
        parts.append(
            f'<svg x="{_LEFT_PX}" y="{_TOP}" width="100%" height="{depth}" overflow="visible">{content}</svg>'
        )
        parts += (
            f'<text x="12" y="{_TOP + depth + _FOOT + 10 + _LEGEND_ROW * row}">{names}</text>'
            for row, names in enumerate(legend)
        )
    else:
        why = layout.get("meta", {}).get("empty", "")
        middle = f'x="50%" text-anchor="middle" fill="{colors.quiet}"'
        parts += (
            f'<text {middle} y="{height // 2 + 16 * row}">{_plain(line)}</text>'
            for row, line in enumerate(wrap(why, _LETTERS_A_ROW))
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{height}" fill="{colors.ink}" '
        f'font-family="system-ui, sans-serif" font-size="12">{"".join(parts)}</svg>'
    )


# --- axes -----------------------------------------------------------------------------------------------------------


def _scale(traces: Sequence[dict[str, Any]], name: str, axis: dict[str, Any]) -> _Scale:
    is_log = axis.get("type") == "log"
    values = [value for trace in traces for value in trace[name] if abs(value) <= _LARGEST]
    if is_log:
        values = [math.log10(value) for value in values if value > 0]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if axis.get("rangemode") == "tozero":
        low = min(low, 0.0)
    smallest = 1.0 if is_log else _SMALLEST
    if high - low <= _FINEST * max(abs(low), abs(high), smallest):  # A single value is drawn in the middle.
        reach = max(0.5, abs(low) / 2)
        low, high = low - reach, high + reach
    margin = 0.05 * (high - low) if name == "y" else 0.01 * (high - low)
    return _Scale(low - margin, high + margin, is_log)


def _round_steps(low: float, high: float) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step)
    return [count * step for count in range(first, math.floor(high / step) + 1)]


def _axes(
    axes: tuple[dict[str, Any], dict[str, Any]],
    scales: tuple[_Scale, _Scale],
    depth: int,
    colors: ThemeColors,
) -> Iterator[str]:
    x_axis, _ = axes
    x, y = scales
    number = f'font-size="11" fill="{colors.quiet}"'
    for value, word in _named_ticks(y.ticks()):
        at = _down(y, value, depth)
        yield f'<line x2="{100 * _SHARE:g}%" y1="{at}" y2="{at}" stroke="{colors.grid}"/>'
        yield f'<text x="-6" y="{at}" dy=".35em" text-anchor="end" {number}>{word}</text>'
    for value, word in _named_ticks(x.ticks()):
        if x_axis.get("dtick") == 1 and value != round(value):
            continue
        at = _across(x, value)
        yield f'<line x1="{at}" x2="{at}" y2="{depth}" stroke="{colors.grid}"/>'
        yield f'<text x="{at}" y="{depth + 16}" text-anchor="middle" {number}>{word}</text>'
    title = _figure_text(x_axis.get("title", {}).get("text", ""))
    yield f'<text x="{50 * _SHARE:g}%" y="{depth + 34}" text-anchor="middle">{title}</text>'


def _named_ticks(values: Sequence[float]) -> Iterator[tuple[float, str]]:
    """Return ticks with distinct labels."""
    largest = max(map(abs, values), default=0.0)
    unit, letter = next(((unit, letter) for start, unit, letter in _UNITS if largest >= start), (1.0, ""))
    for value, word in zip(values, distinct_labels([value / unit for value in values], _DIGITS), strict=True):
        yield value, f"{word}{letter}" if value else "0"


def _across(scale: _Scale, value: float) -> str:
    return f"{100 * _SHARE * (scale.share(value) or 0.0):.2f}%"


def _down(scale: _Scale, value: float, depth: int) -> str:
    return f"{depth * (1 - (scale.share(value) or 0.0)):.1f}"


# --- marks ----------------------------------------------------------------------------------------------------------


def _lines(traces: Sequence[dict[str, Any]], scales: tuple[_Scale, _Scale], depth: int) -> Iterator[str]:
    paths: list[str] = []
    marks: list[str] = []
    for trace in traces:
        mode = trace.get("mode", "lines")
        if "lines" in mode:
            paths.append(_line(trace, scales, depth))
        if "markers" in mode:
            marks += _marks(trace, scales, depth)
    # Stretch the lines to the width, but not their strokes.
    yield (
        f'<svg width="{100 * _SHARE:g}%" height="{depth}" viewBox="0 0 {_GRID} {depth}" '
        f'preserveAspectRatio="none" overflow="visible" fill="none">{"".join(paths)}</svg>'
    )
    yield from marks


def _line(trace: dict[str, Any], scales: tuple[_Scale, _Scale], depth: int) -> str:
    """Return one path, broken at values that are not drawn."""
    steps, is_drawn = [], False
    for x, y in zip(trace["x"], trace["y"], strict=True):
        across, down = scales[0].share(x), scales[1].share(y)
        if across is None or down is None:
            is_drawn = False
            continue
        steps.append(f"{'L' if is_drawn else 'M'}{_GRID * across:.0f} {depth * (1 - down):.1f}")
        is_drawn = True
    style = trace["line"]
    dashes, _ = _DASHES[style.get("dash", "solid")]
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<path d="{"".join(steps)}" stroke="{_attribute(style["color"])}" stroke-width="{style["width"]:g}"'
        f'{dashed} vector-effect="non-scaling-stroke"/>'
    )


def _marks(trace: dict[str, Any], scales: tuple[_Scale, _Scale], depth: int) -> Iterator[str]:
    marker = trace["marker"]
    colours = marker.get("color") or trace.get("line", {}).get("color", "")
    symbol = _SYMBOLS.get(marker.get("symbol", ""))
    is_open = marker.get("symbol") == "circle-open"
    for index, (x, y) in enumerate(zip(trace["x"], trace["y"], strict=True)):
        if scales[0].share(x) is None or scales[1].share(y) is None:
            continue
        across, down = _across(scales[0], x), _down(scales[1], y, depth)
        fill = _attribute(colours[index] if isinstance(colours, list) else colours)
        if symbol:
            yield f'<svg x="{across}" y="{down}" overflow="visible"><path d="{symbol}" fill="{fill}"/></svg>'
        else:
            style = f'fill="none" stroke="{fill}" stroke-width="2"' if is_open else f'fill="{fill}"'
            yield f'<circle cx="{across}" cy="{down}" r="{marker["size"] / 2:g}" {style}/>'


# --- words ----------------------------------------------------------------------------------------------------------


def _legend(traces: Sequence[dict[str, Any]], max_rows: int) -> list[str]:
    """Return up to `max_rows` rows of names, each after a coloured line or cross."""
    rows, letters = [""], 0
    for trace in sorted(traces, key=lambda trace: trace.get("legendrank", len(traces))):
        if not trace.get("showlegend", True):
            continue
        is_line = "lines" in trace.get("mode", "lines")
        style = trace["line"] if is_line else trace["marker"]
        sign = _DASHES[style.get("dash", "solid")][1] if is_line else _CROSS
        letters += len(trace["name"]) + 4
        if letters > _LETTERS_A_ROW and rows[-1]:
            rows.append("")
            letters = len(trace["name"]) + 4
        tint = style["color"][0] if isinstance(style["color"], list) else style["color"]
        mark = f'<tspan fill="{_attribute(tint)}" font-weight="bold"> {sign} </tspan>'
        rows[-1] += f"{mark}{_figure_text(trace['name'])}\N{EN SPACE}"
    if len(rows) > max_rows:
        rows[max_rows - 1 :] = [rows[max_rows - 1] + "\N{HORIZONTAL ELLIPSIS}"]
    return rows if rows[0] else []


def _figure_text(words: str) -> str:
    """Convert a figure's text, with its escaped HTML, to XML text."""
    return _plain(unescape(words.replace("<br>", " ")))


def _plain(words: str) -> str:
    """Convert any text to XML text."""
    printable = (" " if c.isspace() else c for c in words if c.isspace() or category(c) not in _NO_TEXT)
    return escape("".join(printable), quote=False)


def _attribute(value: str) -> str:
    return escape(value, quote=True)
