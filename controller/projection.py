"""TensorBoard event files as a projection of the log: a pure function of what was committed, written as it grows.

One file per model. Its records follow from the log in a fixed order, so after a crash the projection counts
the complete
records of a file, cuts off a torn one and goes on behind them: nothing is written twice and nothing is missing. Values
reported within a unit are written when the unit commits, so a superseded attempt leaves no trace.

Runs in a thread of its own, because a slow metrics volume must not delay a hop.
"""

from __future__ import annotations

import logging
import queue
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro.contract.events import Event, LivePoint, TaskCommitted
from cerebro.errors import RetryableError
from cerebro.kvs import KvsClient
from cerebro.state import ExperimentState, TaskKey
from cerebro.volumes import Volumes

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event as TensorBoardEvent

log = logging.getLogger(__name__)

FILE_NAME = "events.out.tfevents.0000000000.cerebro"

_PAUSE_S = 5.0
"""Between two tries while the store or the metrics volume is away."""

_MAX_OPEN = 200
"""Files kept open; a grid may have more models than a process may have files."""
_GATHER_S = 0.2
"""Commits that follow one another within this time are written together: one request for live points each would slow
the store that the workers wait on."""


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """One value to draw: `step` counts units (``unit/``), epochs (``epoch/``) or rows (``live/``)."""

    tag: str
    step: int
    time: float
    value: float


@dataclass(frozen=True, kw_only=True)
class _Commit:
    experiment: str
    run: str
    model: str
    task: str
    attempt: int
    rows_before: int
    scalars: tuple[Scalar, ...]


class Projection:
    """Writes commits to event files in the background; see the module."""

    def __init__(self, kvs: KvsClient, volumes: Volumes) -> None:
        self._kvs, self._volumes = kvs, volumes
        self._commits: queue.SimpleQueue[_Commit] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._seen: set[tuple[str, str]] = set()
        self._live: dict[str, _LiveReader] = {}
        self._files: dict[Path, _EventFile] = {}
        self._passed: dict[Path, int] = {}
        """Records of a file that belong to commits which are done."""

    def start(self) -> None:
        """Begin writing, first what an earlier life of the process may have left out."""
        threading.Thread(target=self._write_all, name="projection", daemon=True).start()

    def observe(self, state: ExperimentState, event: Event) -> None:
        """Queue a commit. A unit that is done again, because its checkpoint was lost, says nothing new."""
        if not isinstance(event, TaskCommitted):
            return
        # Two readers of one log may come here; each event counts once, in the order of the log.
        with self._lock:
            if (state.name, event.task) in self._seen:
                return
            self._seen.add((state.name, event.task))
            commit = _commit(state, event)
            if commit is not None:
                self._commits.put(commit)

    def _write_all(self) -> None:
        try:
            self._read_logs()
        except RetryableError as error:
            log.warning("event files of ended runs not checked: %s", error)
        while True:
            for commit in self._gather():
                # Later commits wait: a file's records have a fixed order, and a gap would shift all behind it.
                while not self._is_written(commit):
                    time.sleep(_PAUSE_S)

    def _is_written(self, commit: _Commit) -> bool:
        try:
            self._write(commit)
        except (OSError, RetryableError) as error:
            log.warning("metrics of %s not written yet: %s", commit.task, error)
            return False
        return True

    def _gather(self) -> list[_Commit]:
        """The next commit and those that follow it closely: their live points are read in one go."""
        commits = [self._commits.get()]
        time.sleep(_GATHER_S)
        while not self._commits.empty():
            commits.append(self._commits.get())
        for reader in self._live.values():
            reader.is_behind = True
        return commits

    def _read_logs(self) -> None:
        for summary in self._kvs.experiments():
            state = ExperimentState(name=summary.experiment.name)
            while events := self._kvs.events(state.name, state.seq):
                for event in events:
                    state.apply(event)
                    self.observe(state, event)

    def _write(self, commit: _Commit) -> None:
        path = self._volumes.model_metrics(commit.experiment, commit.run, commit.model) / FILE_NAME
        reader = self._live.setdefault(commit.experiment, _LiveReader(self._kvs, commit.experiment))
        points = reader.points(commit.task, commit.attempt)
        file = self._open(path)
        try:
            for scalar in (*_live_scalars(commit, points), *commit.scalars):
                file.write(scalar)
            file.flush()
        except OSError:
            # What of it reached the file is counted when it is opened again.
            self._close(path)
            raise
        self._passed[path] = file.passed
        reader.forget(commit.task, commit.attempt)

    def _open(self, path: Path) -> _EventFile:
        file = self._files.pop(path, None)
        while len(self._files) >= _MAX_OPEN:
            self._close(next(iter(self._files)))
        # Put behind the others: the one that was used longest ago is closed first.
        file = self._files[path] = file or _EventFile(path, self._passed.get(path, 0))
        return file

    def _close(self, path: Path) -> None:
        try:
            self._files.pop(path).close()
        except OSError as error:
            log.warning("%s not closed properly: %s", path, error)


def _commit(state: ExperimentState, event: TaskCommitted) -> _Commit | None:
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
    return _Commit(
        experiment=state.name,
        run=key.run,
        model=key.model,
        task=event.task,
        attempt=event.attempt,
        rows_before=rows_before,
        scalars=tuple(scalars),
    )


def _scalars(prefix: str, step: int, time: float, metrics: dict[str, float]) -> Iterator[Scalar]:
    for name in sorted(metrics):
        yield Scalar(tag=f"{prefix}/{name}", step=step, time=time, value=metrics[name])


def _live_scalars(commit: _Commit, points: Sequence[LivePoint]) -> Iterator[Scalar]:
    for point in points:
        for name in sorted(point.values):
            yield Scalar(
                tag=f"live/{name}",
                step=commit.rows_before + point.rows,
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


class _EventFile:
    """A TensorBoard event file that is written from where its complete records end.

    A record is: length (uint64), its masked checksum (uint32), data, the data's masked checksum (uint32).

    Args:
        passed: records that the caller does not write again.
    """

    def __init__(self, path: Path, passed: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        count, end = _complete_records(path)
        self._skip = max(0, count - passed)
        self.passed = passed
        self._file = path.open("r+b")
        self._file.truncate(end)
        self._file.seek(end)
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._records: Any = RecordWriter(self._file)
        if not passed:
            self._write(_version())

    def write(self, scalar: Scalar) -> None:
        """Append a value, unless the file has it from an earlier life of the process."""
        self._write(_event(scalar))

    def _write(self, event: TensorBoardEvent) -> None:
        self.passed += 1
        if self._skip:
            self._skip -= 1
            return
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._records.flush()

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def _complete_records(path: Path) -> tuple[int, int]:
    """(number of complete records, where the last one ends)."""
    from tensorboard.summary.writer.record_writer import masked_crc32c

    count = start = end = length = 0
    size = path.stat().st_size
    with path.open("rb") as file:
        while end + 12 <= size:
            file.seek(end)
            header = file.read(12)
            length, checksum = struct.unpack("<QI", header)
            # Blocks that were allocated and not written read as zeros: a record of length 0 but for its checksum, or
            # the end of the last record.
            if end + 16 + length > size or masked_crc32c(header[:8]) != checksum:
                break
            start, end = end, end + 16 + length
            count += 1
        if count:
            file.seek(start + 12)
            data, checksum = file.read(length), struct.unpack("<I", file.read(4))[0]
            if masked_crc32c(data) != checksum:
                return count - 1, start
    return count, end


def _version() -> TensorBoardEvent:
    from tensorboard.compat.proto import event_pb2

    return event_pb2.Event(wall_time=0.0, file_version="brain.Event:2")


def _event(scalar: Scalar) -> TensorBoardEvent:
    from tensorboard.compat.proto import event_pb2, summary_pb2

    value = summary_pb2.Summary.Value(tag=scalar.tag, simple_value=scalar.value)
    return event_pb2.Event(
        wall_time=scalar.time, step=scalar.step, summary=summary_pb2.Summary(value=[value])
    )
