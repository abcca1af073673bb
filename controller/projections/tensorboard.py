"""TensorBoard event files as a projection of the log: a pure function of the commits.

One file per model, and one per run for its scheduling; `controller.projections.records` defines the content.
Records follow from the log in a fixed order. After a crash the projection finds a file's last complete
record, cuts off a partial one and continues: nothing is repeated or missing. Earlier records of the log are
skipped at little cost. Live values are written when their sub-epoch commits, so a superseded attempt leaves
no trace.

The controller passes events to it as a projection. It has its own thread, because a slow metrics volume must not
delay a hop.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cerebro.contract.events import Event
from cerebro.errors import NotFoundError, RetryableError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState
from cerebro.state.snapshots import restored
from controller.projections.event_file import FILE_NAME, EventFile, Last, last_record
from controller.projections.records import (
    EVENTS_WITH_RECORDS,
    LIVE,
    Addition,
    Ended,
    Reported,
    additions,
    keys_of,
)

log = logging.getLogger(__name__)

_PAUSE_S = 5.0
"""Seconds between two tries while the store or the volume is unavailable."""

_MAX_OPEN = 200
"""Maximum open files; a grid may have more models than a process may have files."""
_GATHER_S = 0.2
"""Seconds within which commits are written together: a request for live points for each would slow the store."""


@dataclass
class _Observed:
    """The observed part of a log: its first `seq` events, and the keys of their additions.

    Attributes:
        keys: keys, except of sub-epochs.
        shown: number of the newest observed event.
        unwritten: event numbers of additions not yet in files.
    """

    seq: int = 0
    keys: set[str] = field(default_factory=set)
    shown: int = 0
    unwritten: deque[int] = field(default_factory=deque)


class _Entry(NamedTuple):
    """An addition with its event, the life of the experiment's name, and its monotonic arrival."""

    what: Addition | Ended
    seq: int
    life: int
    since: float


class TensorBoardFiles:
    """Writes the metrics of commits to TensorBoard's event files, in the background."""

    def __init__(self, kvs: KvsClient, volumes: Volumes, *, open_runs: int = 1) -> None:
        self._kvs, self._volumes, self._open_runs = kvs, volumes, open_runs
        self._entries: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread()
        self._lock = threading.Lock()
        """Guards the next two."""
        self._observed: dict[str, _Observed] = {}
        self._lives: dict[str, int] = {}
        """Number of times an experiment with that name was forgotten."""
        self._since: float | None = None
        """Arrival of the entry being written; `None` without one."""
        self._writing = threading.Lock()
        """Guards files and the next five."""
        self._live: dict[str, _LiveReader] = {}
        self._files: dict[Path, EventFile] = {}
        self._passed: dict[Path, int] = {}
        """Records of a file from processed commits. For an earlier process's file, known once its last record
        was met.
        """
        self._last_records: dict[Path, Last | None] = {}
        """The last record of an earlier process."""
        self._paths: dict[tuple[str, str, str], Path] = {}
        """Files by experiment, run and model."""

    def start(self) -> None:
        """Start writing, first the entries an earlier process may have missed."""
        self._thread = threading.Thread(target=self._write_all, name="projection", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the present entry is written or fails, and close the files. Requires `start`."""
        self._stopped.set()
        self._entries.put(None)
        self._thread.join()
        for path in list(self._files):
            self._close(path)

    def apply(self, state: ExperimentState, event: Event, life: int | None = None) -> None:
        """Queue the additions of an event. A sub-epoch repeated after the loss of its checkpoint adds
        nothing.

        Each reader of a log starts at its beginning, or where another one in this process was. Repeated
        events are cheap.

        Args:
            life: life of the experiment's name at the start of reading; events of another life are ignored.
                `None` for the present one.
        """
        if not isinstance(event, EVENTS_WITH_RECORDS):
            self._observe(state)
            return
        with self._lock:
            present = self._lives.get(state.name, 0)
            observed = self._observed.setdefault(state.name, _Observed())
            # Two readers of one log may come here; each event counts once, in order.
            if life not in (None, present) or state.seq <= observed.seq:
                return
            observed.seq = observed.shown = state.seq
            has_end = False
            for what in additions(state, event):
                if isinstance(what, Addition):
                    if what.key in observed.keys:
                        continue
                    if not what.is_sub_epoch:
                        observed.keys.add(what.key)
                    has_end |= what.ended is not None
                elif has_end:
                    continue  # the writer of the addition then forgets the attempt
                observed.unwritten.append(state.seq)
                self._entries.put(_Entry(what, state.seq, present, time.monotonic()))

    def begin(self, state: ExperimentState, life: int | None = None) -> None:
        """Continue a log from this fold; the files have all its events (`is_settled`).

        Args:
            life: as for `apply`.
        """
        with self._lock:
            observed = self._observed.setdefault(state.name, _Observed())
            if life in (None, self._lives.get(state.name, 0)) and state.seq > observed.seq:
                observed.seq = observed.shown = state.seq
                observed.keys |= keys_of(state)

    def is_settled(self, experiment: str, seq: int) -> bool:
        """True if the files have all additions of a log's first `seq` events. Thread-safe."""
        with self._lock:
            known = self._observed.get(experiment)
            if known is None or known.shown < seq:
                return False
            return not known.unwritten or known.unwritten[0] > seq

    def show(self, experiment: str) -> None:
        """Read on in an inactive log, because another controller may have led. Thread-safe; blocks.

        Raises:
            CerebroError: the log cannot be read.
        """
        self._read_log(experiment)

    def _observe(self, state: ExperimentState) -> None:
        known = self._observed.get(state.name)
        if known is None:
            with self._lock:
                known = self._observed.setdefault(state.name, _Observed())
        known.shown = max(known.shown, state.seq)

    def _settle(self, entry: _Entry) -> None:
        """Mark an entry as written, or skipped for good."""
        with self._lock:
            known = self._observed.get(entry.what.experiment)
            if known is not None and entry.life == self._lives.get(entry.what.experiment, 0):
                known.unwritten.popleft()

    def forget(self, experiment: str) -> None:
        """Drop an experiment's queued additions and close its files.

        A later experiment with its name starts from the beginning. Thread-safe; waits for at most one write.
        """
        with self._lock:
            self._lives[experiment] = self._lives.get(experiment, 0) + 1
            self._observed.pop(experiment, None)
        root = self._volumes.tensorboard / experiment
        with self._writing:
            self._live.pop(experiment, None)
            for path in [path for path in self._files if path.is_relative_to(root)]:
                self._close(path)
            for known in (self._passed, self._last_records):
                for path in [path for path in known if path.is_relative_to(root)]:
                    del known[path]
            for of in [of for of in self._paths if of[0] == experiment]:
                del self._paths[of]

    def lag_s(self) -> float:
        """Return the waiting time of the oldest unwritten commit, in seconds."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def _write_all(self) -> None:
        try:
            self._read_logs()
        except RetryableError as error:
            log.warning("event files of ended runs not checked: %s", error)
        while not self._stopped.is_set():
            for entry in self._gather():
                self._since = entry.since
                # Later entries wait: records have a fixed order, and a gap would shift all later ones.
                while not self._is_written(entry):
                    if self._stopped.wait(_PAUSE_S):
                        return
                self._settle(entry)
            self._since = None

    def _is_written(self, entry: _Entry) -> bool:
        try:
            self._write(entry)
        except NotFoundError:
            log.info("metrics of %s dropped: the experiment is gone", entry.what.key)
        except (OSError, RetryableError) as error:
            log.warning("metrics of %s not written yet: %s", entry.what.key, error)
            return False
        except Exception:
            # An unexpected error would recur, and others wait.
            log.exception("metrics of %s of experiment %s dropped", entry.what.key, entry.what.experiment)
        return True

    def _gather(self) -> list[_Entry]:
        """Return the next entry and close followers: their live points are read together."""
        entries = [self._entries.get()]
        time.sleep(_GATHER_S)
        while not self._entries.empty():
            entries.append(self._entries.get())
        found = [entry for entry in entries if entry is not None]
        with self._writing:
            for reader in self._live.values():
                reader.is_at_end = False
        return found

    def _read_logs(self) -> None:
        # The leader's loop reads the oldest open runs' logs and passes on their events: no long log is read
        # twice. While these runs are open, they are the oldest.
        oldest = {entry.experiment for entry in self._kvs.queue()[: self._open_runs]}
        for summary in self._kvs.experiments():
            if not summary.is_deleting and summary.experiment.name not in oldest:
                try:
                    self._read_log(summary.experiment.name)
                except NotFoundError:  # deleted since
                    continue
                except RetryableError:
                    raise
                except Exception:
                    log.exception("event files of %s not checked", summary.experiment.name)

    def _read_log(self, experiment: str) -> None:
        with self._lock:
            life = self._lives.get(experiment, 0)
        state = restored(self._kvs, experiment)
        self.begin(state, life)
        while events := self._kvs.events(experiment, state.seq):
            for event in events:
                state.apply(event)
                self.apply(state, event, life)

    def _write(self, entry: _Entry) -> None:
        what = entry.what
        ended = what if isinstance(what, Ended) else what.ended
        with self._writing:
            reader = self._live.get(what.experiment)
            if reader is None:
                reader = self._live[what.experiment] = _LiveReader(self._kvs, what.experiment)
            if entry.life != self._lives.get(what.experiment, 0):
                return
            if isinstance(what, Ended) or self._is_written_before(what):
                if ended:
                    reader.forget(ended)
                return
        # Outside the lock: the store may be slow.
        points = reader.points(ended) if ended and what.live_values else []
        with self._writing:
            if entry.life != self._lives.get(what.experiment, 0):
                return
            records = list(what.records(points))
            path = self._path(what)
            last = self._last_records.get(path)
            if last is not None and path not in self._passed:
                # An earlier process was interrupted within this commit.
                position = [record.tag for record in records].index(last.tag)
                self._passed[path] = last.number - 1 - position
            file = self._open(path)
            try:
                file.write(records)
            except OSError:
                # Bytes that reached the file are counted when it is opened again.
                self._close(path)
                raise
            self._passed[path] = file.passed
            if ended:
                reader.forget(ended)

    def _is_written_before(self, what: Addition) -> bool:
        """True if an earlier process wrote the whole addition: up to the last record of the file."""
        path = self._path(what)
        if path in self._passed:
            return False
        if path not in self._last_records:
            self._last_records[path] = last_record(path, but=f"{LIVE}/")
        last = self._last_records[path]
        if last is None:
            return False
        # Times of a log never go back.
        if what.time > last.time:
            # The store has lost the events behind it.
            self._passed[path] = last.number
            return False
        if what.time < last.time or not what.contains(last):
            return True
        *_, newest = what.records()
        if newest.tag == last.tag:
            self._passed[path] = last.number
        return newest.tag == last.tag

    def _path(self, addition: Addition) -> Path:
        of = addition.experiment, addition.run, addition.model
        path = self._paths.get(of)
        if path is None:
            # A restart needs the same paths repeatedly, and making one is slower than making a record.
            folder = (
                self._volumes.model_metrics(*of) if addition.model else self._volumes.run_metrics(*of[:2])
            )
            path = self._paths[of] = folder / FILE_NAME
        return path

    def _open(self, path: Path) -> EventFile:
        file = self._files.pop(path, None)
        while len(self._files) >= _MAX_OPEN:
            self._close(next(iter(self._files)))
        # Reinsert the file as the newest: the least recently used file is closed first.
        file = self._files[path] = file or EventFile(path, self._passed.get(path, 0))
        return file

    def _close(self, path: Path) -> None:
        try:
            self._files.pop(path).close()
        except OSError as error:
            log.warning("%s not closed properly: %s", path, error)


class _LiveReader:
    """Live points of an experiment by (task, attempt), read on demand, each once.

    An attempt's points precede its end in the stream, so points of old attempts are read without newer ones:
    after a million points, a restart holds only points of running attempts.
    """

    def __init__(self, kvs: KvsClient, experiment: str) -> None:
        self._kvs, self._experiment = kvs, experiment
        self._cursor, self._time = 0, 0.0
        self._points: dict[tuple[str, int], list[Reported]] = {}
        self._unread: dict[str, int] = {}
        """Task -> its newest attempt forgotten before its points were read."""
        self.is_at_end = False
        """True if no attempt has ended since the end of the stream was reached."""

    def points(self, ended: Ended) -> Sequence[Reported]:
        """Return an ended attempt's points in order."""
        while not self.is_at_end and self._time <= ended.time:
            found = self._kvs.live(self._experiment, self._cursor)
            self.is_at_end = not found
            for point in found:
                self._cursor, self._time = point.seq, max(self._time, point.time)
                if point.values and point.attempt > self._unread.get(point.task, 0):
                    reported = Reported(point.time, point.rows, point.values)
                    self._points.setdefault((point.task, point.attempt), []).append(reported)
        self._unread.clear()
        return self._points.get((ended.task, ended.attempt), ())

    def forget(self, ended: Ended) -> None:
        """Drop the points of this and earlier attempts."""
        if self._time <= ended.time:
            self._unread[ended.task] = ended.attempt
        for number in range(1, ended.attempt + 1):
            self._points.pop((ended.task, number), None)
