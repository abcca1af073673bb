"""Files of a log: segments, which hold its older events, and snapshots of folds. Log readers see no difference.

`kvs_api.logs.segment_store` writes files and `kvs_api.logs.cluster_log` reads events from them. The database keeps
recent events. On the controller's request, one time range after the other is written to a file on the shared
volume; then one call of the script registers the file and removes the range from the database. An event is
therefore always in the database or in a registered file. Unregistered files are ignored. File names contain the
checksum, so two processes that write the same range do not conflict.

A file is valid only with the checksum in the database. Readers get an error for a missing or damaged file;
later events remain readable.
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

from cerebro.contract.stored.segments import Segment, Snapshot
from cerebro.data.files.durable import DurableFile
from cerebro.errors import LostEventsError, StoreUnavailableError
from kvs_api.logs.segments import DamagedSegmentError, Entry, decode
from kvs_api.store.database import translated

if TYPE_CHECKING:
    import redis


_DECODED = 4
"""Decoded segments in memory, some 10 MB each. A reader from the beginning requests page after page."""

Entries = list[tuple[bytes, dict[bytes, bytes]]]


class LogFiles:
    """Reads and writes files of logs, and reads their list in Redis. Thread-safe.

    Args:
        database: Redis client.
        folder: has a subfolder for each log; `None` if this process has no shared volume and reads no files.
    """

    def __init__(self, database: redis.Redis, folder: Path | None) -> None:
        self._redis, self.folder = database, folder
        self._lock = threading.Lock()
        self._decoded: OrderedDict[str, list[Entry]] = OrderedDict()

    # --- index -----------------------------------------------------------------------------------

    def newest(self, log: str) -> Segment | None:
        """Return the last segment of a log.

        `None` if the whole log is in the database.
        """
        with translated():
            found: Any = self._redis.lindex(f"{log}:segments", -1)
        return Segment.model_validate_json(found) if found else None

    def segments(self, log: str) -> tuple[Segment, ...]:
        """Return all segments of a log, oldest first."""
        with translated():
            found: Any = self._redis.lrange(f"{log}:segments", 0, -1)
        return tuple(map(Segment.model_validate_json, found))

    def snapshots(self, log: str) -> tuple[Snapshot, ...]:
        """Return the readable snapshots of a log, newest first."""
        with translated():
            found: Any = self._redis.lrange(f"{log}:snapshots", 0, -1)
        return tuple(map(Snapshot.model_validate_json, found))

    # --- reading ---------------------------------------------------------------------------------

    def entries_after(self, log: str, name: str, number: int) -> Entries:
        """Return the entries after a number, up to the end of the segment that holds the next entry.

        Returns [] if the next entry is in the database.


        Raises:
            LostEventsError: the segment's file is missing or damaged.
        """
        segment = self._segment_after(log, number)
        if segment is None:
            return []
        entries = self._entries(name, segment)
        return [_as_read(entry) for entry in entries[bisect_right(entries, number, key=_number) :]]

    def last_entry(self, log: str, name: str, number: int) -> Entries:
        """Return the last entry up to a number, as a list of one.

        Returns [] if no segment holds it.
        """
        newest = self.newest(log)
        if newest is None or number < self._first(log):
            return []
        if number >= newest.last:  # no need to open the file
            return [_as_read(Entry(newest.last, round(newest.ended * 1000), newest.count or None, b""))]
        segment = self._segment_after(log, number - 1) if number else None
        entries = self._entries(name, segment) if segment is not None else []
        at = bisect_right(entries, number, key=_number)
        if at == 0 and segment is not None:  # between two segments
            earlier = self._preceding(log, segment.first)
            entries = self._entries(name, earlier) if earlier is not None else []
            at = len(entries)
        return [_as_read(entries[at - 1])] if at else []

    def _first(self, log: str) -> int:
        with translated():
            found: Any = self._redis.lindex(f"{log}:segments", 0)
        return Segment.model_validate_json(found).first if found else 0

    def _segment_after(self, log: str, number: int) -> Segment | None:
        """Return the first segment with an entry after a number. Binary search: there may be hundreds."""
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

    def _preceding(self, log: str, first: int) -> Segment | None:
        earlier = [segment for segment in self.segments(log) if segment.last < first]
        return earlier[-1] if earlier else None

    def _entries(self, name: str, segment: Segment) -> list[Entry]:
        # One at a time: decoding is large, and waiting threads usually want the same segment.
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
        """Read and verify a file of a log.

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
        """Write a file of a log durably; return its checksum.

        Raises:
            StorageFullError: the volume is full.
        """
        assert self.folder is not None, "callers check for a shared volume"
        written = DurableFile(self.folder / name / file)
        try:
            written.write(content)
            written.commit()
        finally:
            written.discard()
        return hashlib.sha256(content).hexdigest()

    def remove(self, name: str, files: Iterator[str]) -> None:
        """Remove files of a log. Missing ones are ignored."""
        assert self.folder is not None, "callers check for a shared volume"
        for file in files:
            (self.folder / name / file).unlink(missing_ok=True)


def ended_tasks(entries: list[Entry]) -> dict[str, int]:
    """Return the newest ended attempt of each task that ended within these entries, by task."""
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
    """Convert to the form of Redis entries."""
    fields = {b"t": b"%d" % entry.time, b"e": entry.event}
    if entry.cluster is not None:
        fields[b"c"] = b"%d" % entry.cluster
    return b"%d-0" % entry.number, fields
