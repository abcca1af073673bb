"""Where the older part of a log is, and folds of it that are kept."""

from __future__ import annotations

from pydantic import Field

from cerebro.contract.base import Contract, Sha256

MAX_SEQ = 2**53


class Segment(Contract):
    """A stretch of a log that is a file on the shared volume, and in the database no more. It never changes.

    Attributes:
        first, last: numbers of its first and its last entry.
        count: events that the cluster's log had when its last entry was appended.
        began, ended: when its first and its last entry were, by the clock of the store's machine, seconds.
        entries: how many it has. Of an experiment's log its own: events of the cluster are in segments of their own.
        size: bytes of the file.
        sha256: of the file.
        file: its name, in the folder of the log.
    """

    first: int
    last: int
    count: int = 0
    began: float
    ended: float
    entries: int
    size: int
    sha256: Sha256
    file: str


class Snapshot(Contract):
    """The fold of a log up to an event, as a file on the shared volume.

    Attributes:
        seq: of the newest event in it.
        format: of what made it. Who reads by another one folds the log instead.
        time: when it was made, seconds.
        size: bytes of the file.
        sha256: of the file.
        file: its name, in the folder of the log.
    """

    seq: int
    format: str = Field(min_length=1, max_length=64)
    time: float
    size: int
    sha256: Sha256
    file: str


class SegmentRequest(Contract):
    """The leading controller's: move the older part of a log out of the database.

    Attributes:
        term: of its leadership.
        until: number of the newest event that it has read: what comes later stays.
        keep: so many of the newest entries stay, at least one.
        least: nothing is moved that is less than so many entries.
        live_before: live points from before then are no longer needed, seconds; 0: all are.
        created: of the experiment that is meant: its name may be another one's by now. 0 of the cluster's log.
    """

    term: int
    created: float = 0.0
    until: int = Field(ge=0, le=MAX_SEQ)
    keep: int = Field(1, ge=1, le=1_000_000)
    least: int = Field(1, ge=1, le=1_000_000)
    live_before: float = 0.0


class SegmentAnswer(Contract):
    """What became of it.

    Attributes:
        moved: the segment that was made; `None`: there was too little to move.
        left: entries that are in the database yet.
    """

    moved: Segment | None = None
    left: int = 0


class SegmentsAnswer(Contract):
    """What there is of a log in files.

    Attributes:
        segments: oldest first.
        snapshots: newest first.
        left: entries that are in the database.
    """

    segments: tuple[Segment, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    left: int = 0
