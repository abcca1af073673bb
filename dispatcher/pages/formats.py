"""Formats of numbers, sizes and times on all pages. Pure; `app` registers them as template filters.

Times are seconds since the epoch, shown in UTC; the page's script also shows local time. The read API is not
formatted.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

from cerebro.state.runs.goals import LAST_TIME
from cerebro.usercode.archive import human_bytes

MISSING = "\N{EN DASH}"
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def number(value: float | int | None) -> str:
    """Format with six significant digits. NaN, infinity and missing values have different texts."""
    if value is None:
        return MISSING
    try:
        value = float(value)
    except OverflowError:  # an integer that no float can represent
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "\N{INFINITY}" if value > 0 else "-\N{INFINITY}"
    return f"{value:.6g}"


def count(value: int) -> str:
    """Format an integer with thousands separators."""
    return f"{value:,}"


def duration(seconds: float | None) -> str:
    """Format with at most two units: ``1 h 4 min``, ``12 s``, ``0.4 s``."""
    if seconds is None:
        return MISSING
    if 0 < seconds < 1:
        return f"{seconds:.1g} s"
    remaining, parts = max(0, round(seconds)), []
    for length, unit in _UNITS:
        if remaining >= length:
            parts.append(f"{remaining // length} {unit}")
            remaining %= length
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def seconds(value: float) -> str:
    """Format with tenths below a minute, else as `duration`: ``43.2 s``, ``1 h 4 min``."""
    return f"{value:.1f} s" if value < 60 else duration(value)


def short(value: float | None) -> str:
    """Format as `seconds`; a dash for zero and unknown."""
    return seconds(value) if value else MISSING


def rate(value: float) -> str:
    """Format a rate with three significant digits; a dash for zero."""
    if not value:
        return MISSING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def plain(value: object) -> str:
    """Format a user's value: integers in full, floats as `number`, text unchanged, others as JSON."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def cell(value: object, kind: str) -> str:
    """Format a table cell by the kind of its column (`dispatcher.read_models.columns.Kind`)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return plain(value)
    if kind == "share":
        return share(value)
    if kind == "duration":
        return short(value)
    if kind == "time":
        return iso(value)
    return count(value) if kind == "count" and isinstance(value, int) else number(value)


def share(value: float) -> str:
    """Format as per cent with one decimal."""
    return f"{100 * value:.1f} %"


def ago(seconds: float | None) -> str:
    """Format an age in its largest units: ``3 min ago``."""
    if seconds is None:
        return MISSING
    return "now" if seconds < 1 else f"{' '.join(duration(seconds).split(' ')[:2])} ago"


def iso(time: float) -> str:
    """Format seconds since the epoch as ISO 8601 in UTC, for machines and tooltips."""
    return datetime.fromtimestamp(min(time, LAST_TIME), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clock(time: float) -> str:
    """Format the time of day in UTC."""
    return datetime.fromtimestamp(min(time, LAST_TIME), UTC).strftime("%H:%M:%S UTC")


def percent(done: int, total: int) -> str:
    """Format as whole per cent, rounded down, so 100 % means all."""
    return f"{100 * done // total} %" if total else MISSING


FILTERS = {
    "number": number,
    "count": count,
    "size": human_bytes,
    "duration": duration,
    "seconds": seconds,
    "short": short,
    "rate": rate,
    "plain": plain,
    "cell": cell,
    "share": share,
    "ago": ago,
    "iso": iso,
    "clock": clock,
}
