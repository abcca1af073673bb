"""Selection of a time range of a run, and links to neighbouring ranges. Pure.

The fold of a long run keeps only newer sub-epochs (`cerebro.state.models.compaction`). A time range that starts
earlier is read from the log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.state import Run
from cerebro.state.log_pages import MOST, Log, Window
from dispatcher.read_models.read_model import ReadModel

SUB_EPOCHS = 1000
"""Number of sub-epochs in a suggested time range: the chart can distinguish that many bars."""

_MODEL_SUB_EPOCHS = MOST // 4
"""The same with a single model: the maximum of one read, with room for failed attempts."""
_MIN_LENGTH_S = 1.0


class WindowQuery(Contract):
    """A time range of a run, in seconds since its first sub-epoch started. Default: all that the fold has."""

    since: float | None = Field(None, ge=0, allow_inf_nan=False)
    until: float | None = Field(None, ge=0, allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True)
class TimeRange:
    """A time range of a run. Times are seconds of the store's clock.

    Attributes:
        log: log of the experiment.
        zero: start of the run's first sub-epoch.
        end: now, or the end of the run.
        kept_since: the fold has all sub-epochs from this time; 0 means all.
        sub_epochs: number of committed sub-epochs of the run.
        is_chosen: True if the address names the range.
    """

    log: Log
    run: str
    zero: float
    since: float
    until: float
    end: float
    kept_since: float
    sub_epochs: int
    is_chosen: bool

    @property
    def is_in_log(self) -> bool:
        """True if the fold lacks a part of the range."""
        return self.since < self.kept_since

    @property
    def seconds(self) -> tuple[float, float]:
        """Start and end relative to the first sub-epoch."""
        return self.since - self.zero, self.until - self.zero


Links = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class WindowView:
    """A time range for a page. Times are seconds since the run's first sub-epoch.

    Attributes:
        since_s, until_s: the range.
        end_s: end of the run so far.
        older, newer, closer, wider: address parameters of other ranges; empty mappings if impossible.
        is_whole: True if the range covers the run.
        notes: limitations of the data, for the reader.
    """

    since_s: float
    until_s: float
    end_s: float
    is_chosen: bool
    is_whole: bool
    older: Links = field(default_factory=dict)
    newer: Links = field(default_factory=dict)
    closer: Links = field(default_factory=dict)
    wider: Links = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def time_range(read_model: ReadModel, run: Run, query: WindowQuery, now: float) -> TimeRange | None:
    """Return the requested time range, by default everything in the fold; `None` before the first sub-epoch starts."""
    if not math.isfinite(run.clock.first_start):
        return None
    record, zero, kept_since = read_model.record, run.clock.first_start, run.compaction.until
    end = max(run.clock.ended or now, zero)
    is_chosen = query.since is not None or query.until is not None
    first = zero if is_chosen or not kept_since else kept_since
    until = end if query.until is None else min(zero + query.until, end)
    since = first if query.since is None else zero + query.since
    return TimeRange(
        log=Log(record.name, record.created, read_model.state.seq),
        run=run.id,
        zero=zero,
        since=min(since, until),
        until=until,
        end=end,
        kept_since=kept_since,
        sub_epochs=run.counts.sub_epochs,
        is_chosen=is_chosen,
    )


def window_view(found: TimeRange, read: Window | None = None, *, of_model: bool = False) -> WindowView:
    """Build the view of a time range.

    Args:
        read: result of reading the log, if it was needed.
        of_model: True if the page shows a single model.
    """
    since_s, until_s = found.seconds
    end_s = found.end - found.zero
    if read is not None:
        since_s = read.since - found.zero
    length = max(_MIN_LENGTH_S, until_s - since_s)
    if not found.is_chosen:
        count = _MODEL_SUB_EPOCHS if of_model else SUB_EPOCHS
        length = max(_MIN_LENGTH_S, end_s * min(1.0, count / max(1, found.sub_epochs)))
    middle = (since_s + until_s) / 2
    is_whole = since_s <= 0 and until_s >= end_s
    return WindowView(
        since_s=since_s,
        until_s=until_s,
        end_s=end_s,
        is_chosen=found.is_chosen,
        is_whole=is_whole,
        older=_link(since_s - length, since_s, end_s) if since_s > 0 else {},
        newer=_newer(found, until_s, length, end_s) if until_s < end_s else {},
        closer=_closer(found, middle, length, end_s),
        wider=_link(middle - length, middle + length, end_s) if found.is_chosen and not is_whole else {},
        notes=tuple(_notes(found, read)),
    )


def _newer(found: TimeRange, until_s: float, length: float, end_s: float) -> Links:
    """Link to the newer range. Without a range in the link, the page follows the run."""
    is_kept = found.kept_since and found.zero + until_s >= found.kept_since
    return {"since": None, "until": None} if is_kept else _link(until_s, until_s + length, end_s)


def _closer(found: TimeRange, middle: float, length: float, end_s: float) -> Links:
    if found.is_chosen:
        return _link(middle - length / 4, middle + length / 4, end_s) if length > _MIN_LENGTH_S else {}
    return _link(end_s - length, end_s, end_s) if found.sub_epochs > SUB_EPOCHS and length < end_s else {}


def _link(since_s: float, until_s: float, end_s: float) -> Links:
    since_s, until_s = max(0.0, since_s), min(until_s, end_s)
    return {"since": math.floor(since_s * 10) / 10, "until": math.ceil(until_s * 10) / 10}


def _notes(found: TimeRange, read: Window | None) -> list[str]:
    notes = []
    if not found.is_chosen and found.kept_since:
        notes.append("Earlier sub-epochs are in the log: press Older to see them.")
    if read is None:
        return notes
    if read.is_cut:
        notes.append(
            f"The time range has too many events ({read.events:,}), so only its end is shown: press Closer or Older to "
            "see the rest."
        )
    if read.guessed:
        notes.append(
            f"{read.guessed:,} of these tasks started long before this time range: their assignment time and "
            "devices are unknown."
        )
    notes += [f"A part of the log cannot be read and is missing here: {each}." for each in read.problems]
    return notes
