"""How numbers, sizes and times are written, everywhere on the pages. Pure; registered as template filters."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

from cerebro.usercode.archive import human_bytes

MISSING = "\N{EN DASH}"
_SUB_EPOCHS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def number(value: float | int | None) -> str:
    """Six significant digits; NaN, infinity and missing are three different texts."""
    if value is None:
        return MISSING
    try:
        value = float(value)
    except OverflowError:  # a whole number that no float can hold
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "\N{INFINITY}" if value > 0 else "-\N{INFINITY}"
    return f"{value:.6g}"


def count(value: int) -> str:
    """A whole number with thousands set apart."""
    return f"{value:,}"


def duration(seconds: float | None) -> str:
    """Two sub-epochs at most: ``1 h 4 min``, ``12 s``."""
    if seconds is None:
        return MISSING
    left, parts = max(0, round(seconds)), []
    for length, sub_epoch in _SUB_EPOCHS:
        if left >= length:
            parts.append(f"{left // length} {sub_epoch}")
            left %= length
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def seconds(value: float) -> str:
    """A short time to its tenths, a longer one as a duration: ``43.2 s``, ``1 h 4 min``."""
    return f"{value:.1f} s" if value < 60 else duration(value)


def short(value: float | None) -> str:
    """As `seconds`, and a dash for what took no time or is unknown."""
    return seconds(value) if value else MISSING


def rate(value: float) -> str:
    """How many a second or minute: three significant digits, thousands set apart; a dash for none."""
    if not value:
        return MISSING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def plain(value: object) -> str:
    """Format any value of a user: integers in full, floats as `number`, text unchanged, the rest as JSON."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def cell(value: object, kind: str) -> str:
    """A cell of a table by the kind of its column (`dispatcher.reading.columns.Kind`)."""
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
    """Per cent, to tenths."""
    return f"{100 * value:.1f} %"


def ago(seconds: float | None) -> str:
    """An age in its largest sub-epoch: ``3 min ago``."""
    if seconds is None:
        return MISSING
    return "now" if seconds < 1 else f"{' '.join(duration(seconds).split(' ')[:2])} ago"


def iso(time: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC, for machines and for hovering."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clock(time: float) -> str:
    """Time of day in UTC, named as such."""
    return datetime.fromtimestamp(time, UTC).strftime("%H:%M:%S UTC")


def percent(done: int, total: int) -> str:
    """Whole per cent, rounded down: 100 % means all."""
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
