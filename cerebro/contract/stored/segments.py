"""Segments and snapshots: files with a log's older events and with its fold, and requests for them. Types only.

The controller requests them (`controller.loop.log_keeper`); `kvs_api.logs` writes and reads the files.
"""

from __future__ import annotations

from pydantic import Field

from cerebro.contract.base import Contract, Sha256

MAX_SEQ = 2**53


class Segment(Contract):
    """An immutable time range of a log, moved from the database to a file on the shared volume.

    Attributes:
        first, last: numbers of its first and last entry.
        count: events in the cluster log when its last entry was appended.
        began, ended: times of its first and last entry, in seconds by the clock of the store's machine.
        entries: number of its entries. Segments of an experiment's log do not contain cluster events.
        size: bytes of the file.
        sha256: hash of the file.
        file: its name in the folder of the log.
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
    """The state after an event, as a file on the shared volume.

    Attributes:
        seq: number of the newest event in it.
        format: format of the writer. A reader of another format folds the log instead.
        time: time of writing, in seconds.
        size: bytes of the file.
        sha256: hash of the file.
        file: its name in the folder of the log.
    """

    seq: int
    format: str = Field(min_length=1, max_length=64)
    time: float
    size: int
    sha256: Sha256
    file: str


class SegmentRequest(Contract):
    """Request by the leading controller to move the older part of a log out of the database.

    Attributes:
        term: term of its leadership.
        until: number of the newest event it has read; later events stay.
        keep: number of newest entries that stay, at least one.
        least: minimum number of entries to move.
        live_before: time in seconds before which live points are removed; 0 keeps all.
        created: creation time of the experiment, because its name may be reused. 0 for the cluster log.
    """

    term: int
    created: float = 0.0
    until: int = Field(ge=0, le=MAX_SEQ)
    keep: int = Field(1, ge=1, le=1_000_000)
    least: int = Field(1, ge=1, le=1_000_000)
    live_before: float = 0.0


class SegmentAnswer(Contract):
    """Answer to a `SegmentRequest`.

    Attributes:
        moved: the new segment; `None` if there were too few entries.
        remaining: entries in the database.
    """

    moved: Segment | None = None
    remaining: int = 0


class SegmentsAnswer(Contract):
    """Files of a log.

    Attributes:
        segments: oldest first.
        snapshots: newest first.
        remaining: entries in the database.
    """

    segments: tuple[Segment, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    remaining: int = 0
