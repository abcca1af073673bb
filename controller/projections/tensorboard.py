"""TensorBoard event files as a projection of the log: a pure function of what was committed, written as it grows.

One file per model, and one per run for how well it is scheduled; what goes into them says
`controller.projections.records`. Their records follow from the log in a fixed order, so after a crash the projection
looks up the last complete record
of a file, cuts off a torn one and goes on behind them: nothing is written twice and nothing is missing. What comes
before that record in the log is passed over at next to no cost. Values reported within a sub-epoch are written when the
sub-epoch commits, so a superseded attempt leaves no trace.

Runs in a thread of its own, because a slow metrics volume must not delay a hop.
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
from cerebro.runtime.kvs import KvsClient
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState
from cerebro.state.snapshots import restored
from controller.projections.event_file import FILE_NAME, EventFile, Last, last_record
from controller.projections.records import ADDING, LIVE, Addition, Ended, Reported, additions, keys_of

log = logging.getLogger(__name__)

_PAUSE_S = 5.0
"""Between two tries while the store or the metrics volume is away."""

_MAX_OPEN = 200
"""Files kept open; a grid may have more models than a process may have files."""
_GATHER_S = 0.2
"""Commits that follow one another within this time are written together: one request for live points each would slow
the store that the workers wait on."""


@dataclass
class _Observed:
    """What was observed of a log: its first `seq` events, and the keys of what they added to files.

    Attributes:
        keys: but for those of sub-epochs.
        shown: number of the newest event that was shown, whether it adds anything or not.
        unwritten: numbers of the events whose additions are not in files yet.
    """

    seq: int = 0
    keys: set[str] = field(default_factory=set)
    shown: int = 0
    unwritten: deque[int] = field(default_factory=deque)


class _Entry(NamedTuple):
    """What is to be done, of which event, in which life of the experiment's name, and since when it waits (monotonic
    seconds)."""

    what: Addition | Ended
    seq: int
    life: int
    since: float


class Projection:
    """Writes the metrics of commits to TensorBoard's event files, in the background."""

    def __init__(self, kvs: KvsClient, volumes: Volumes, *, open_runs: int = 1) -> None:
        self._kvs, self._volumes, self._open_runs = kvs, volumes, open_runs
        self._entries: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread()
        self._lock = threading.Lock()
        """Of what comes in: the next two."""
        self._observed: dict[str, _Observed] = {}
        self._lives: dict[str, int] = {}
        """How often an experiment of that name was forgotten."""
        self._since: float | None = None
        """When the entry that is being written came; `None`: nothing waits."""
        self._writing = threading.Lock()
        """Of files, and of the next five."""
        self._live: dict[str, _LiveReader] = {}
        self._files: dict[Path, EventFile] = {}
        self._passed: dict[Path, int] = {}
        """Records of a file that belong to commits which are done; of a file that an earlier life has left, only once
        that life's last record was met in the log."""
        self._left: dict[Path, Last | None] = {}
        """What an earlier life wrote last."""
        self._paths: dict[tuple[str, str, str], Path] = {}
        """Files by experiment, run and model."""

    def start(self) -> None:
        """Begin writing, first what an earlier life of the process may have left out."""
        self._thread = threading.Thread(target=self._write_all, name="projection", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write no more, once the entry that is being written is done or cannot be written. `start` has been called."""
        self._stopped.set()
        self._entries.put(None)
        self._thread.join()

    def observe(self, state: ExperimentState, event: Event, life: int | None = None) -> None:
        """Queue what an event adds. A sub-epoch that is done again, because its checkpoint was lost, says nothing new.

        Each reader of a log shows it from its beginning, or from where another one of this process had come. What was
        shown before costs next to nothing.

        Args:
            life: of the experiment's name when the reading of its log began; of another life, nothing is queued.
                `None`: the log is that of the present one.
        """
        if not isinstance(event, ADDING):
            self._see(state)
            return
        with self._lock:
            present = self._lives.get(state.name, 0)
            observed = self._observed.setdefault(state.name, _Observed())
            # Two readers of one log may come here; each event counts once, in the order of the log.
            if life not in (None, present) or state.seq <= observed.seq:
                return
            observed.seq = observed.shown = state.seq
            is_told = False
            for what in additions(state, event):
                if isinstance(what, Addition):
                    if what.key in observed.keys:
                        continue
                    if not what.is_sub_epoch:
                        observed.keys.add(what.key)
                    is_told |= what.ended is not None
                elif is_told:
                    continue  # who writes the addition forgets the attempt then
                observed.unwritten.append(state.seq)
                self._entries.put(_Entry(what, state.seq, present, time.monotonic()))

    def begin(self, state: ExperimentState, life: int | None = None) -> None:
        """A log is read on from this fold of it, which has nothing in it that is not in the files (`is_settled`).

        Args:
            life: as of `observe`.
        """
        with self._lock:
            observed = self._observed.setdefault(state.name, _Observed())
            if life in (None, self._lives.get(state.name, 0)) and state.seq > observed.seq:
                observed.seq = observed.shown = state.seq
                observed.keys |= keys_of(state)

    def is_settled(self, experiment: str, seq: int) -> bool:
        """Whether all that the first `seq` events of a log add is in the files. Safe in any thread."""
        with self._lock:
            known = self._observed.get(experiment)
            if known is None or known.shown < seq:
                return False
            return not known.unwritten or known.unwritten[0] > seq

    def show(self, experiment: str) -> None:
        """Read a log that rests, from where this has come: another controller may have led while it grew. Safe in any
        thread; blocks.

        Raises:
            CerebroError: it cannot be read.
        """
        self._read_log(experiment)

    def _see(self, state: ExperimentState) -> None:
        known = self._observed.get(state.name)
        if known is None:
            with self._lock:
                known = self._observed.setdefault(state.name, _Observed())
        known.shown = max(known.shown, state.seq)

    def _settle(self, entry: _Entry) -> None:
        """It is written, or left out for good."""
        with self._lock:
            known = self._observed.get(entry.what.experiment)
            if known is not None and entry.life == self._lives.get(entry.what.experiment, 0):
                known.unwritten.popleft()

    def forget(self, experiment: str) -> None:
        """Write nothing more of what was observed of this experiment, and close its files. One of the same name that
        is made later is written from its beginning. Safe in any thread; waits for at most one write."""
        with self._lock:
            self._lives[experiment] = self._lives.get(experiment, 0) + 1
            self._observed.pop(experiment, None)
        root = self._volumes.tensorboard / experiment
        with self._writing:
            self._live.pop(experiment, None)
            for path in [path for path in self._files if path.is_relative_to(root)]:
                self._close(path)
            for known in (self._passed, self._left):
                for path in [path for path in known if path.is_relative_to(root)]:
                    del known[path]
            for of in [of for of in self._paths if of[0] == experiment]:
                del self._paths[of]

    def lag_s(self) -> float:
        """For how long the oldest commit that is not in the files yet has waited, in seconds."""
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
                # Later entries wait: a file's records have a fixed order, and a gap would shift all behind it.
                while not self._is_written(entry):
                    if self._stopped.wait(_PAUSE_S):
                        return
                self._settle(entry)
            self._since = None

    def _is_written(self, entry: _Entry) -> bool:
        try:
            self._write(entry)
        except NotFoundError:
            log.info("metrics of %s left out: the experiment is gone", entry.what.key)
        except (OSError, RetryableError) as error:
            log.warning("metrics of %s not written yet: %s", entry.what.key, error)
            return False
        except Exception:
            # Whatever it is that we did not foresee: it would be so the next time, and others wait behind it.
            log.exception("metrics of %s of experiment %s left out", entry.what.key, entry.what.experiment)
        return True

    def _gather(self) -> list[_Entry]:
        """The next entry and those that follow it closely: their live points are read in one go."""
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
        # The logs of the oldest open runs are read by the loop of whoever leads, which shows them event by event: they
        # may be long, and are not read twice. As long as these runs are open, they are the oldest.
        oldest = {entry.experiment for entry in self._kvs.queue()[: self._open_runs]}
        for summary in self._kvs.experiments():
            if not summary.is_deleting and summary.experiment.name not in oldest:
                try:
                    self._read_log(summary.experiment.name)
                except NotFoundError:  # deleted meanwhile
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
                self.observe(state, event, life)

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
        # Not under the lock: the store may take long to answer.
        points = reader.points(ended) if ended and what.live_values else []
        with self._writing:
            if entry.life != self._lives.get(what.experiment, 0):
                return
            records = list(what.records(points))
            path = self._path(what)
            last = self._left.get(path)
            if last is not None and path not in self._passed:
                # An earlier life was interrupted within this commit.
                position = [record.tag for record in records].index(last.tag)
                self._passed[path] = last.number - 1 - position
            file = self._open(path)
            try:
                file.write(records)
            except OSError:
                # What of it reached the file is counted when it is opened again.
                self._close(path)
                raise
            self._passed[path] = file.passed
            if ended:
                reader.forget(ended)

    def _is_written_before(self, what: Addition) -> bool:
        """Whether an earlier life wrote all of it: what comes before the last record of the file, or ends with it."""
        path = self._path(what)
        if path in self._passed:
            return False
        if path not in self._left:
            self._left[path] = last_record(path, but=f"{LIVE}/")
        last = self._left[path]
        if last is None:
            return False
        # Times of a log never go back.
        if what.time > last.time:
            # What was written then is of events that the store has lost since.
            self._passed[path] = last.number
            return False
        if what.time < last.time or not what.has(last):
            return True
        *_, newest = what.records()
        if newest.tag == last.tag:
            self._passed[path] = last.number
        return newest.tag == last.tag

    def _path(self, addition: Addition) -> Path:
        of = addition.experiment, addition.run, addition.model
        path = self._paths.get(of)
        if path is None:
            # A restart asks for the same ones again and again, and to make one takes longer than to make a record.
            folder = (
                self._volumes.model_metrics(*of) if addition.model else self._volumes.run_metrics(*of[:2])
            )
            path = self._paths[of] = folder / FILE_NAME
        return path

    def _open(self, path: Path) -> EventFile:
        file = self._files.pop(path, None)
        while len(self._files) >= _MAX_OPEN:
            self._close(next(iter(self._files)))
        # Put behind the others: the one that was used longest ago is closed first.
        file = self._files[path] = file or EventFile(path, self._passed.get(path, 0))
        return file

    def _close(self, path: Path) -> None:
        try:
            self._files.pop(path).close()
        except OSError as error:
            log.warning("%s not closed properly: %s", path, error)


class _LiveReader:
    """Live points of an experiment by (task, attempt), read as far as they are needed, each once.

    An attempt's points are in the stream before it ends, so those of attempts that ended long ago are read without the
    ones that have come since: a restart after a million points holds no more than what runs at a time has reported.
    """

    def __init__(self, kvs: KvsClient, experiment: str) -> None:
        self._kvs, self._experiment = kvs, experiment
        self._cursor, self._time = 0, 0.0
        self._points: dict[tuple[str, int], list[Reported]] = {}
        self._unread: dict[str, int] = {}
        """Task -> its newest attempt that was forgotten before its points were read."""
        self.is_at_end = False
        """Whether no attempt has ended since there was nothing more to read."""

    def points(self, ended: Ended) -> Sequence[Reported]:
        """The points of an attempt that has ended, in order."""
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
        """Neither this attempt's points nor those of the attempts before are asked for again."""
        if self._time <= ended.time:
            self._unread[ended.task] = ended.attempt
        for number in range(1, ended.attempt + 1):
            self._points.pop((ended.task, number), None)
