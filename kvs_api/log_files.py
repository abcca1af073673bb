"""The older part of logs, which is in files: segments, and snapshots of folds. Who reads a log does not see the
difference.

The database keeps what is new. The controller has the rest moved, a stretch at a time: it is written into a file on the
shared volume and read back, then one call of the script makes the file known and takes the stretch out of the database.
So an event is in the database or in a file that is known, at every moment, and a file that no call made known is of no
account. Names of files hold their checksums: two processes that write the same stretch never disturb each other.

A file is believed only if its checksum is the one in the database. That one is missing or damaged is told to who reads
of it; what comes after it is read all the same.
"""

from __future__ import annotations

import hashlib
import json
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro.contract.segments import Segment, Snapshot
from cerebro.data.durable import DurableFile
from cerebro.errors import LostEventsError, StoreUnavailableError
from kvs_api.database import translated
from kvs_api.segments import DamagedSegmentError, Entry, decode

if TYPE_CHECKING:
    import redis


_DECODED = 4
"""Segments held decoded, each some ten megabytes. Who reads a log from its beginning asks for page after page."""

Entries = list[tuple[bytes, dict[bytes, bytes]]]


class LogFiles:
    """Files of logs, and what the database knows of them. Safe for use by many threads.

    Args:
        database: Redis.
        folder: with a folder for each log; `None`: this process has no shared volume, and reads no file.
    """

    def __init__(self, database: redis.Redis, folder: Path | None) -> None:
        self._redis, self.folder = database, folder
        self._lock = threading.Lock()
        self._decoded: OrderedDict[str, list[Entry]] = OrderedDict()

    # --- what is known ---------------------------------------------------------------------------

    def newest(self, log: str) -> Segment | None:
        """The last segment of a log; `None`: all of the log is in the database."""
        with translated():
            found: Any = self._redis.lindex(f"{log}:segments", -1)
        return Segment.model_validate_json(found) if found else None

    def segments(self, log: str) -> tuple[Segment, ...]:
        """All segments of a log, oldest first."""
        with translated():
            found: Any = self._redis.lrange(f"{log}:segments", 0, -1)
        return tuple(map(Segment.model_validate_json, found))

    def snapshots(self, log: str) -> tuple[Snapshot, ...]:
        """Snapshots of a log that may be read, newest first."""
        with translated():
            found: Any = self._redis.lrange(f"{log}:snapshots", 0, -1)
        return tuple(map(Snapshot.model_validate_json, found))

    # --- reading ---------------------------------------------------------------------------------

    def after(self, log: str, name: str, number: int) -> Entries:
        """Entries after a number, of the one segment that has the next of them; none if the database has it.

        Raises:
            LostEventsError: the segment's file is missing or damaged.
        """
        segment = self._replica(log, number)
        if segment is None:
            return []
        entries = self._entries(name, segment)
        return [_as_read(entry) for entry in entries[bisect_right(entries, number, key=_number) :]]

    def until(self, log: str, name: str, number: int) -> Entries:
        """The last entry up to a number, if that is in a segment; else none."""
        newest = self.newest(log)
        if newest is None or number < self._first(log):
            return []
        if number >= newest.last:  # nobody need open the file
            return [_as_read(Entry(newest.last, round(newest.ended * 1000), newest.count or None, b""))]
        segment = self._replica(log, number - 1) if number else None
        entries = self._entries(name, segment) if segment is not None else []
        at = bisect_right(entries, number, key=_number)
        if at == 0 and segment is not None:  # between two segments
            before = self._before(log, segment.first)
            entries = self._entries(name, before) if before is not None else []
            at = len(entries)
        return [_as_read(entries[at - 1])] if at else []

    def _first(self, log: str) -> int:
        with translated():
            found: Any = self._redis.lindex(f"{log}:segments", 0)
        return Segment.model_validate_json(found).first if found else 0

    def _replica(self, log: str, number: int) -> Segment | None:
        """The first segment that has an entry after a number; found by halves, as there may be hundreds."""
        with translated():
            length: Any = self._redis.llen(f"{log}:segments")
            low, high = 0, int(length)
            found = None
            while low < high:
                middle = (low + high) // 2
                content: Any = self._redis.lindex(f"{log}:segments", middle)
                segment = Segment.model_validate_json(content)
                if segment.last > number:
                    found, high = segment, middle
                else:
                    low = middle + 1
        return found

    def _before(self, log: str, first: int) -> Segment | None:
        earlier = [segment for segment in self.segments(log) if segment.last < first]
        return earlier[-1] if earlier else None

    def _entries(self, name: str, segment: Segment) -> list[Entry]:
        # One at a time: they are large while they are decoded, and who waits wants the same one most of the time.
        with self._lock:
            if segment.sha256 not in self._decoded:
                what = f"events {segment.first} to {segment.last}"
                content = self.read(name, segment, what)
                try:
                    self._decoded[segment.sha256] = decode(content)
                except DamagedSegmentError as cause:
                    reason = f"{what} are in {segment.file}: {cause}. Run the version that wrote it"
                    raise LostEventsError.for_event(name, segment.first, reason) from cause
                while len(self._decoded) > _DECODED:
                    self._decoded.popitem(last=False)
            self._decoded.move_to_end(segment.sha256)
            return self._decoded[segment.sha256]

    def read(self, name: str, found: Segment | Snapshot, what: str) -> bytes:
        """A file of a log.

        Raises:
            LostEventsError: it is missing or damaged.
            StoreUnavailableError: the volume does not answer.
        """
        number = found.first if isinstance(found, Segment) else found.seq
        if self.folder is None:
            reason = (
                f"{what} are in {found.file}, and this kvs_api has no shared volume: give it CEREBRO_VOLUMES"
            )
            raise LostEventsError.for_event(name, number, reason)
        path = self.folder / name / found.file
        try:
            content = path.read_bytes()
        except FileNotFoundError as cause:
            reason = f"{what} were in {path}, which is gone: restore it from a backup of the shared volume"
            raise LostEventsError.for_event(name, number, reason) from cause
        except OSError as cause:
            raise StoreUnavailableError(f"{path} cannot be read: {cause}") from cause
        if hashlib.sha256(content).hexdigest() != found.sha256:
            reason = (
                f"{what} are in {path}, which is damaged: its checksum is not the one it was written with. Restore "
                "it from a backup of the shared volume"
            )
            raise LostEventsError.for_event(name, number, reason)
        return content

    # --- writing ---------------------------------------------------------------------------------

    def write(self, name: str, file: str, content: bytes) -> str:
        """Write a file of a log, so that it outlives a power cut; returns its checksum.

        Raises:
            StorageFullError: the volume is full.
        """
        assert self.folder is not None, "asked for by who has one"
        written = DurableFile(self.folder / name / file)
        try:
            written.write(content)
            written.commit()
        finally:
            written.discard()
        return hashlib.sha256(content).hexdigest()

    def remove(self, name: str, files: Iterator[str]) -> None:
        """Remove files that nobody reads any more."""
        assert self.folder is not None, "asked for by who has one"
        for file in files:
            (self.folder / name / file).unlink(missing_ok=True)


def ended_tasks(entries: list[Entry]) -> dict[str, int]:
    """Key of each task that ended within these -> number of the attempt that did, the newest of several."""
    found: dict[str, int] = {}
    for entry in entries:
        if b'"type":"Task' in entry.event:
            event = json.loads(entry.event)
            if event["type"] in ("TaskCommitted", "TaskFailed", "TaskRevoked"):
                found[event["task"]] = event["attempt"]
    return found


def _number(entry: Entry) -> int:
    return entry.number


def _as_read(entry: Entry) -> tuple[bytes, dict[bytes, bytes]]:
    """As Redis would tell of it."""
    fields = {b"t": b"%d" % entry.time, b"e": entry.event}
    if entry.cluster is not None:
        fields[b"c"] = b"%d" % entry.cluster
    return b"%d-0" % entry.number, fields
