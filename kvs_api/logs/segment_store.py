"""Moves the oldest events of logs from Redis into files, and stores snapshots of folds.

`kvs_api.api.segment_views` calls it for the controller, which decides when. A cut writes one segment of at most
20,000 events, checks that it decodes, and then lets the script (`segments.lua`) drop these events from Redis.
No event is lost; live points before `SegmentRequest.live_before` are deleted. Reads of moved events are in
`kvs_api.logs.cluster_log`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from typing import Any

from cerebro import errors
from cerebro.contract.stored.segments import Segment, SegmentAnswer, SegmentRequest, SegmentsAnswer, Snapshot
from kvs_api.logs.cluster_log import ClusterLogStore
from kvs_api.logs.log_files import ended_tasks
from kvs_api.logs.segments import Entry, decode, encode
from kvs_api.store import keys
from kvs_api.store.database import PAGE, seq_of, translated

_log = logging.getLogger(__name__)

MOST = 20_000
"""Entries of a segment. Reading one page decodes the whole segment, in a third of a second."""


class SegmentStore(ClusterLogStore):
    """Moves logs into files and keeps snapshots. `name` is an experiment or `keys.CLUSTER_LOG_NAME`."""

    def cut(self, name: str, request: SegmentRequest) -> SegmentAnswer:
        """Move the oldest entries in the database into at most one segment, within the limits of `request`.

        Raises:
            NotFoundError: the experiment does not exist.
            ConflictError: another controller leads, or the shared volume is full or missing.
        """
        log = keys.log_of(name)
        if self._files.folder is None:
            raise errors.ConflictError(
                "this kvs_api has no shared volume, so logs stay in the database: give it CEREBRO_VOLUMES"
            )
        floor = self._files.newest(log)
        last_moved = floor.last if floor else 0
        entries, length = self._oldest(log, last_moved, request)
        if len(entries) < request.least:
            return SegmentAnswer(remaining=length)
        content = encode(entries)
        if decode(content) != entries:
            raise errors.ConflictError(
                f"events {entries[0].number} to {entries[-1].number} of {name} cannot be decoded after encoding"
            )
        segment = self._write_segment(name, entries, content, floor)
        moved = self._register_segment(name, segment, last_moved, entries, request)
        if moved:
            self._shrink_file()
        return SegmentAnswer(
            moved=segment if moved else None, remaining=length - len(entries) if moved else length
        )

    def _oldest(self, log: str, cursor: int, request: SegmentRequest) -> tuple[list[Entry], int]:
        """Return the oldest entries to move, and the number of entries in the database."""
        with translated():
            length: Any = self._redis.xlen(log)
            max_entries, found = min(MOST, int(length) - request.keep), list[Entry]()
            while len(found) < max_entries:
                page: Any = self._redis.xrange(log, f"({cursor}-0", count=min(PAGE, max_entries - len(found)))
                for identity, fields in page:
                    if seq_of(identity) > request.until:
                        return found, int(length)
                    found.append(_entry(identity, fields))
                if not page:
                    break
                cursor = found[-1].number
        return found, int(length)

    def _write_segment(
        self, name: str, entries: list[Entry], content: bytes, floor: Segment | None
    ) -> Segment:
        first, last = entries[0], entries[-1]
        counts = [entry.cluster for entry in entries if entry.cluster is not None]
        sha256 = hashlib.sha256(content).hexdigest()
        segment = Segment(
            first=first.number,
            last=last.number,
            count=counts[-1] if counts else floor.count if floor else 0,
            began=first.time / 1000,
            ended=last.time / 1000,
            entries=len(entries),
            size=len(content),
            sha256=sha256,
            file=f"{first.number:012d}-{last.number:012d}-{sha256[:16]}.segment",
        )
        self._put(name, segment.file, content)
        return segment

    def _put(self, name: str, file: str, content: bytes) -> None:
        try:
            self._files.write(name, file, content)
        except (errors.StorageFullError, OSError) as cause:
            raise errors.ConflictError(
                f"{file} of {name} was not written, and nothing was moved: {cause}"
            ) from cause

    def _register_segment(
        self, name: str, segment: Segment, last_moved: int, entries: list[Entry], request: SegmentRequest
    ) -> bool:
        call: dict[str, Any] = {
            "call": "cut",
            "log": keys.log_of(name),
            "term": request.term,
            "after": last_moved,
            "last": segment.last,
            "segment": segment.model_dump_json(),
            "tasks": [],
        }
        if name != keys.CLUSTER_LOG_NAME:
            ended = ended_tasks(entries)
            call |= {"experiment": keys.experiment(name), "created": request.created}
            call["tasks"] = [{"key": keys.task(name, task), "attempt": ended[task]} for task in ended]
            if request.live_before:
                call |= {"live": keys.live(name), "live_from": self._live_from(name, request.live_before)}
        return bool(self._answered(name, call, request.term)["moved"])

    def _live_from(self, name: str, before: float) -> int:
        """Return the number of the first live point since `before`. Times never decrease."""
        key = keys.live(name)
        with translated():
            first: Any = self._redis.xrange(key, count=1)
            last: Any = self._redis.xrevrange(key, count=1)
            if not first or not last:
                return 0
            low, high = seq_of(first[0][0]), seq_of(last[0][0]) + 1
            while low < high:
                middle = (low + high) // 2
                found: Any = self._redis.xrange(key, f"{middle}-0", count=1)
                if found and int(found[0][1][b"t"]) < before * 1000:
                    low = seq_of(found[0][0]) + 1
                else:
                    high = middle
        return low

    # --- snapshots -------------------------------------------------------------------------------

    def keep_snapshot(
        self, name: str, seq: int, of_format: str, term: int, content: bytes, *, created: float
    ) -> Snapshot:
        """Store the controller's fold of a log up to `seq`. Removes the snapshot before the last.

        Raises:
            NotFoundError, ConflictError: as `cut`.
        """
        if self._files.folder is None:
            raise errors.ConflictError("this kvs_api has no shared volume: give it CEREBRO_VOLUMES")
        with translated():
            seconds, micros = self._redis.time()
        sha256 = hashlib.sha256(content).hexdigest()
        snapshot = Snapshot(
            seq=seq,
            format=of_format,
            time=seconds + micros / 1e6,
            size=len(content),
            sha256=sha256,
            file=f"{seq:012d}-{sha256[:16]}-{uuid.uuid4().hex[:8]}.snapshot",
        )
        self._put(name, snapshot.file, content)
        call: dict[str, Any] = {
            "call": "snapshot",
            "log": keys.log_of(name),
            "term": term,
            "snapshot": snapshot.model_dump_json(),
        }
        if name != keys.CLUSTER_LOG_NAME:
            call |= {"experiment": keys.experiment(name), "created": created}
        old = self._answered(name, call, term)["old"] or []
        self._files.remove(name, (json.loads(each)["file"] for each in old))
        return snapshot

    def snapshot(self, name: str, of_format: str) -> tuple[Snapshot, bytes] | None:
        """Return the newest readable snapshot of this format; `None` if the log must be folded."""
        for found in self._files.snapshots(keys.log_of(name)):
            if found.format == of_format:
                try:
                    return found, self._files.read(name, found, f"the fold up to event {found.seq}")
                except (errors.LostEventsError, errors.StoreUnavailableError) as error:
                    # A damaged file or volume does not matter: the log has the same information.
                    _log.warning("a snapshot is ignored: %s", error)
        return None

    def segments(self, name: str) -> SegmentsAnswer:
        """List a log's segments and snapshots, and count its entries still in the database."""
        log = keys.log_of(name)
        with translated():
            remaining: Any = self._redis.xlen(log)
        segments, snapshots = self._files.segments(log), self._files.snapshots(log)
        return SegmentsAnswer(segments=segments, snapshots=snapshots, remaining=int(remaining))

    def _answered(self, name: str, call: dict[str, Any], term: int) -> dict[str, Any]:
        answer = self._run(call)
        if "missing" in answer:
            raise errors.NotFoundError(f"no experiment {name!r} in the store")
        return answer


def _entry(identity: bytes, fields: dict[bytes, bytes]) -> Entry:
    count = int(fields[b"c"]) if b"c" in fields else None
    return Entry(seq_of(identity), int(fields[b"t"]), count, fields[b"e"])
