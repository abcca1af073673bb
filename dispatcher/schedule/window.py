"""Which stretch of a run's time is looked at, whether that takes the log, and how to go on from there. Pure.

The fold of a long run keeps its newer sub-epochs alone (`cerebro.state.archive`). A window that reaches further back is
read from the log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.state import Run
from cerebro.state.log_pages import MOST, Log, Window
from dispatcher.reading.read_model import ReadModel

SUB_EPOCHS = 1000
"""Of a window that is offered: that many bars can be told apart."""

_MOST_SUB_EPOCHS = MOST // 4
"""Of one of which one model alone is shown: as many as are read at once, with room for attempts that failed."""
_LEAST_S = 1.0


class WindowQuery(Contract):
    """A stretch of a run. Seconds since its first sub-epoch started; the beginning, or now, where they are left out."""

    since: float | None = Field(None, ge=0, allow_inf_nan=False)
    until: float | None = Field(None, ge=0, allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """What is looked at of a run. Seconds of the store's clock.

    Attributes:
        log: of the experiment.
        zero: when the run's first sub-epoch started. end: now, or when the run ended.
        kept_since: from then on the fold has all sub-epochs; 0: it has all.
        sub-epochs: of the run, that are committed.
        is_chosen: whether the address says since when, or until when.
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
        """Whether the fold lacks some of it."""
        return self.since < self.kept_since

    @property
    def seconds(self) -> tuple[float, float]:
        """Since when and until when, since the first sub-epoch."""
        return self.since - self.zero, self.until - self.zero


Links = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class WindowView:
    """How a window is shown. Times are seconds since the run's first sub-epoch.

    Attributes:
        since_s, until_s: the window. end_s: of the run, so far.
        older, newer, closer, wider: where else to look, as parameters of the address; empty: there is nothing.
        is_whole: all of the run is shown.
        notes: what the reader has to know of it.
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


def stretch(read_model: ReadModel, run: Run, asked: WindowQuery, now: float) -> Stretch | None:
    """What is looked at; `None` while no sub-epoch of the run has started. Without a window it is all that the fold
    has."""
    if not math.isfinite(run.origin):
        return None
    record, zero, kept_since = read_model.record, run.origin, run.archived_until
    end = max(run.ended or now, zero)
    is_chosen = asked.since is not None or asked.until is not None
    first = zero if is_chosen or not kept_since else kept_since
    until = end if asked.until is None else min(zero + asked.until, end)
    since = first if asked.since is None else zero + asked.since
    return Stretch(
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


def shown(found: Stretch, read: Window | None = None, *, of_model: bool = False) -> WindowView:
    """How it is shown.

    Args:
        read: what was read of the log, if that was needed.
        of_model: the sub-epochs of one model alone are shown.
    """
    since_s, until_s = found.seconds
    end_s = found.end - found.zero
    if read is not None:
        since_s = read.since - found.zero
    length = max(_LEAST_S, until_s - since_s)
    if not found.is_chosen:
        wanted = _MOST_SUB_EPOCHS if of_model else SUB_EPOCHS
        length = max(_LEAST_S, end_s * min(1.0, wanted / max(1, found.sub_epochs)))
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


def _newer(found: Stretch, until_s: float, length: float, end_s: float) -> Links:
    """What the fold has all of is looked at without a window: it grows."""
    is_kept = found.kept_since and found.zero + until_s >= found.kept_since
    return {"since": None, "until": None} if is_kept else _link(until_s, until_s + length, end_s)


def _closer(found: Stretch, middle: float, length: float, end_s: float) -> Links:
    if found.is_chosen:
        return _link(middle - length / 4, middle + length / 4, end_s) if length > _LEAST_S else {}
    return _link(end_s - length, end_s, end_s) if found.sub_epochs > SUB_EPOCHS and length < end_s else {}


def _link(since_s: float, until_s: float, end_s: float) -> Links:
    since_s, until_s = max(0.0, since_s), min(until_s, end_s)
    return {"since": math.floor(since_s * 10) / 10, "until": math.ceil(until_s * 10) / 10}


def _notes(found: Stretch, read: Window | None) -> list[str]:
    notes = []
    if not found.is_chosen and found.kept_since:
        notes.append("Sub-epochs that ended before are in the log: go to older ones.")
    if read is None:
        return notes
    if read.is_cut:
        notes.append(
            f"There is more than is read at once: {read.events:,} events. Shown is the end of it: look closer, or go "
            "to older ones."
        )
    if read.guessed:
        notes.append(
            f"{read.guessed:,} of these tasks began long before: of them it is not known when they were assigned, nor "
            "on which devices."
        )
    notes += [f"A part of the log cannot be read, and is left out: {each}." for each in read.problems]
    return notes
