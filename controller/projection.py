"""TensorBoard event files as a projection of the log: a pure function of what was committed, written as it grows.

One file per model, and one per run for how well it is scheduled. Its records follow from the log in a fixed order, so
after a crash the projection counts the complete records of a file, cuts off a torn one and goes on behind them: nothing
is written twice and nothing is missing. Values reported within a unit are written when the unit commits, so a
superseded attempt leaves no trace.

Runs in a thread of its own, because a slow metrics volume must not delay a hop.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebro.contract.events import EpochCompleted, Event, LivePoint, TaskCommitted
from cerebro.errors import RetryableError
from cerebro.kvs import KvsClient
from cerebro.state import ExperimentState, TaskKey, gap
from cerebro.volumes import Volumes
from controller.event_file import FILE_NAME, EventFile, Scalar

log = logging.getLogger(__name__)

_PAUSE_S = 5.0
"""Between two tries while the store or the metrics volume is away."""

_MAX_OPEN = 200
"""Files kept open; a grid may have more models than a process may have files."""
_GATHER_S = 0.2
"""Commits that follow one another within this time are written together: one request for live points each would slow
the store that the workers wait on."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """What an event adds to a file: a model's, or without one the run's. A commit brings its task's live values."""

    experiment: str
    run: str
    key: str
    model: str = ""
    attempt: int = 0
    rows_before: int = 0
    scalars: tuple[Scalar, ...]


class Projection:
    """Writes commits to event files in the background; see the module."""

    def __init__(self, kvs: KvsClient, volumes: Volumes) -> None:
        self._kvs, self._volumes = kvs, volumes
        self._entries: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._seen: set[tuple[str, str]] = set()
        self._live: dict[str, _LiveReader] = {}
        self._files: dict[Path, EventFile] = {}
        self._passed: dict[Path, int] = {}
        """Records of a file that belong to commits which are done."""

    def start(self) -> None:
        """Begin writing, first what an earlier life of the process may have left out."""
        threading.Thread(target=self._write_all, name="projection", daemon=True).start()

    def observe(self, state: ExperimentState, event: Event) -> None:
        """Queue a commit, or a completed epoch. A unit that is done again, because its checkpoint was lost, says
        nothing new."""
        if not isinstance(event, TaskCommitted | EpochCompleted):
            return
        key = event.task if isinstance(event, TaskCommitted) else f"{event.run}/epochs/e{event.epoch}"
        # Two readers of one log may come here; each event counts once, in the order of the log.
        with self._lock:
            if (state.name, key) in self._seen:
                return
            self._seen.add((state.name, key))
            entry = _commit(state, event) if isinstance(event, TaskCommitted) else _epoch(state, event, key)
            if entry is not None:
                self._entries.put(entry)

    def _write_all(self) -> None:
        try:
            self._read_logs()
        except RetryableError as error:
            log.warning("event files of ended runs not checked: %s", error)
        while True:
            for entry in self._gather():
                # Later entries wait: a file's records have a fixed order, and a gap would shift all behind it.
                while not self._is_written(entry):
                    time.sleep(_PAUSE_S)

    def _is_written(self, entry: _Entry) -> bool:
        try:
            self._write(entry)
        except (OSError, RetryableError) as error:
            log.warning("metrics of %s not written yet: %s", entry.key, error)
            return False
        return True

    def _gather(self) -> list[_Entry]:
        """The next entry and those that follow it closely: their live points are read in one go."""
        entries = [self._entries.get()]
        time.sleep(_GATHER_S)
        while not self._entries.empty():
            entries.append(self._entries.get())
        for reader in self._live.values():
            reader.is_behind = True
        return entries

    def _read_logs(self) -> None:
        for summary in self._kvs.experiments():
            state = ExperimentState(name=summary.experiment.name)
            while events := self._kvs.events(state.name, state.seq):
                for event in events:
                    state.apply(event)
                    self.observe(state, event)

    def _write(self, entry: _Entry) -> None:
        path = self._path(entry)
        reader = self._live.setdefault(entry.experiment, _LiveReader(self._kvs, entry.experiment))
        points = reader.points(entry.key, entry.attempt) if entry.attempt else []
        file = self._open(path)
        try:
            for scalar in (*_live_scalars(entry, points), *entry.scalars):
                file.write(scalar)
            file.flush()
        except OSError:
            # What of it reached the file is counted when it is opened again.
            self._close(path)
            raise
        self._passed[path] = file.passed
        reader.forget(entry.key, entry.attempt)

    def _path(self, entry: _Entry) -> Path:
        if entry.model:
            return self._volumes.model_metrics(entry.experiment, entry.run, entry.model) / FILE_NAME
        return self._volumes.run_metrics(entry.experiment, entry.run) / FILE_NAME

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


def _commit(state: ExperimentState, event: TaskCommitted) -> _Entry | None:
    """The scalars of a commit that was just applied."""
    key = TaskKey.parse(event.task)
    if key.kind not in ("train", "valid") or key.model is None or key.epoch is None:
        return None
    model = state.runs[key.run].models[key.model]
    scalars: list[Scalar] = []
    unit = len(model.visits) - 1
    rows_before = sum(visit.rows for visit in model.visits[:unit])
    if key.kind == "train":
        scalars += _scalars("unit/train", unit + 1, event.time, event.result.metrics)
        if (unit + 1) % len(model.partitions) == 0:
            scalars += _scalars("epoch/train", key.epoch, event.time, model.training_metrics(key.epoch))
    else:
        scalars += _scalars("epoch/valid", key.epoch, event.time, event.result.metrics)
    return _Entry(
        experiment=state.name,
        run=key.run,
        key=event.task,
        model=key.model,
        attempt=event.attempt,
        rows_before=rows_before,
        scalars=tuple(scalars),
    )


def _epoch(state: ExperimentState, event: EpochCompleted, key: str) -> _Entry:
    """The scalars of a run's epoch."""
    values = {
        "makespan_s": event.makespan_s,
        "lower_bound_s": event.lower_bound_s,
        "gap": gap(event.makespan_s, event.lower_bound_s),
        "idle_s": sum(event.idle_s.values()),
    }
    scalars = _scalars("schedule", event.epoch, event.time, values)
    return _Entry(experiment=state.name, run=event.run, key=key, scalars=tuple(scalars))


def _scalars(prefix: str, step: int, time: float, metrics: dict[str, float]) -> Iterator[Scalar]:
    for name in sorted(metrics):
        yield Scalar(tag=f"{prefix}/{name}", step=step, time=time, value=metrics[name])


def _live_scalars(entry: _Entry, points: Sequence[LivePoint]) -> Iterator[Scalar]:
    for point in points:
        for name in sorted(point.values):
            yield Scalar(
                tag=f"live/{name}",
                step=entry.rows_before + point.rows,
                time=point.time,
                value=point.values[name],
            )


class _LiveReader:
    """Live points of an experiment by (task, attempt); read on demand, each once."""

    def __init__(self, kvs: KvsClient, experiment: str) -> None:
        self._kvs, self._experiment = kvs, experiment
        self._cursor = 0
        self._points: dict[tuple[str, int], list[LivePoint]] = {}
        self.is_behind = True
        """Whether an attempt may have ended since the last reading."""

    def points(self, task: str, attempt: int) -> list[LivePoint]:
        """The points of an attempt that has ended."""
        while self.is_behind and (points := self._kvs.live(self._experiment, self._cursor)):
            self._cursor = points[-1].seq
            for point in points:
                if point.values:
                    self._points.setdefault((point.task, point.attempt), []).append(point)
        self.is_behind = False
        return self._points.get((task, attempt), [])

    def forget(self, task: str, attempt: int) -> None:
        """The task is committed: neither this attempt's points nor those of the attempts before are asked for again."""
        for number in range(1, attempt + 1):
            self._points.pop((task, number), None)
