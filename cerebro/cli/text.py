"""The output style of all commands: sizes, durations, times, tables, details and warnings. Also parses sizes."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence

from cerebro.errors import BadRequestError

_KILO = 1000
_PREFIXES = ("", "k", "m", "g", "t")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?)(i?)b?", re.IGNORECASE)
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


def size(number: float) -> str:
    """Format bytes with up to three digits: ``512 B``, ``38 MB``, ``1.2 GB``."""
    for suffix in ("B", "kB", "MB"):
        if number < _KILO:
            return f"{number:.0f} {suffix}"
        number /= _KILO
    return f"{number:.1f} GB" if number < _KILO else f"{number / _KILO:.1f} TB"


def bytes_of(text: str) -> int:
    """Parse a size: ``200GB``, ``1.5 TiB``, ``4096``.

    Raises:
        BadRequestError: the text is not a size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise BadRequestError(f"{text!r} is no size, expected a number of bytes such as 200GB or 1.5TiB")
    number, prefix, is_binary = found.groups()
    step: int = 1024 if is_binary else _KILO
    return round(float(number) * float(step) ** _PREFIXES.index(prefix.lower()))


def duration(seconds: float) -> str:
    """Format a time span, rounded: ``8 s``, ``3 min``, ``5 h``, ``2 days``."""
    if seconds < _MINUTE_S:
        return f"{max(0, seconds):.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    if seconds < 2 * _DAY_S:
        return f"{seconds / _HOUR_S:.0f} h"
    return f"{seconds / _DAY_S:.0f} days"


def moment(time_s: float) -> str:
    """Format a time of this machine's zone: ``2026-03-01 14:05:09``."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def day(time_s: float) -> str:
    """Format a date of this machine's zone: ``2026-03-01``."""
    return moment(time_s).partition(" ")[0]


def detail(label: str, text: str) -> str:
    """Format a line with a fact about the object above it."""
    return f"  {label:<12} {text}"


def warn(text: str) -> None:
    """Print a warning where errors go, so that programs can read the standard output."""
    sys.stderr.write(f"cerebro: warning: {text}\n")


def crowd(workers: int, cores: int, devices: int = 1) -> str:
    """Return a warning if local devices outnumber processor cores, or an empty text."""
    if workers * devices <= cores:
        return ""
    if devices > 1:
        return (
            f"{counted(workers, 'worker')} with {devices} devices each: {workers * devices} sub-epochs at a "
            f"time "
            f"share {cores} processor core(s) and slow each other down; a run takes no longer with one device per core"
        )
    return (
        f"{workers} workers share {cores} processor core(s) and slow each other down; "
        f"`cerebro scale --workers {cores}` has as many as there are cores"
    )


def counted(number: int, noun: str) -> str:
    """Format a number and its noun: ``1 row``, ``1,797 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format left-aligned columns below heads in capitals; return no lines without rows."""
    if not rows:
        return []
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return [
        ("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))).rstrip()
        for line in lines
    ]
