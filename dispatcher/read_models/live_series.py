"""Live metrics of one experiment as time series with bounded memory.

A *line* is one metric of one model. Its points are four numbers each in one array, because a million objects would
take ten times the memory. When a line, or all lines together, grow too long, lines are reduced to the minimum,
maximum and last value of each bucket (`cerebro.figures.downsample`), so spikes stay visible. `ReadModel` owns it,
`curves.view` reads it. Not a log: no decision depends on these points.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cerebro.contract.events import LivePoint
from cerebro.figures.downsample import kept_indices
from cerebro.state import TaskKey

MAX_POINTS = 1_000_000
"""Maximum number of points of one experiment: 32 MB."""
MAX_LINES = 50_000
"""Maximum number of lines. Further metrics are ignored."""
MAX_LINE_POINTS, MIN_LINE_POINTS = 2_000, 16
"""A line with twice as many points is reduced to `MAX_LINE_POINTS`, or less within `MAX_POINTS`."""

_WIDTH = 4  # index into `_Model.spans`, rows, time, value
_LINES_PER_SWEEP = 50
"""Lines to check per page of points. Lines of ended models get no points, so only this check reduces them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """An attempt of a sub-epoch that a line has points of."""

    epoch: int
    partition: int
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """A value that user code reported after `rows` rows of the sub-epoch, at `time` (store's clock, seconds)."""

    span: Span
    rows: int
    time: float
    value: float


@dataclass(slots=True)
class _Line:
    points: array[float] = field(default_factory=lambda: array("d"))
    broke: tuple[float, float, float] | None = None
    """Index of the span, rows and time of the first value that is not finite. Such values are dropped."""

    def __len__(self) -> int:
        return len(self.points) // _WIDTH

    def cut(self, points: int) -> None:
        self.points = self._select(kept_indices(self.points[3::_WIDTH], points))

    def drop(self, span_index: int) -> None:
        span_indices = self.points[0::_WIDTH]
        if span_index in span_indices:
            self.points = self._select(
                [index for index, each in enumerate(span_indices) if each != span_index]
            )
        if self.broke and self.broke[0] == span_index:
            self.broke = None

    def _select(self, indices: Iterable[int]) -> array[float]:
        found = array("d")
        for index in indices:
            found.extend(self.points[index * _WIDTH : (index + 1) * _WIDTH])
        return found


@dataclass(slots=True)
class _Model:
    spans: list[Span] = field(default_factory=list)
    lines: dict[str, _Line] = field(default_factory=dict)


class LiveSeries:
    """Live points of one experiment. Not thread-safe.

    Attributes:
        seq: sequence number of the newest point.
        newest: task -> its newest point, for tasks with an open attempt; see `forget`.
    """

    def __init__(self) -> None:
        self.seq = 0
        self.newest: dict[str, LivePoint] = {}
        self._models: dict[tuple[str, str], _Model] = {}
        self._lines: list[_Line] = []
        self._points = 0
        self._swept = 0
        self._key = "", TaskKey(run="", kind="")

    def __len__(self) -> int:
        """Number of points of all lines."""
        return self._points

    def add(self, points: Iterable[LivePoint]) -> None:
        """Add points, oldest first."""
        for point in points:
            self.seq = point.seq
            known = self.newest.get(point.task)
            if known is None or point.attempt >= known.attempt:
                self.newest[point.task] = point
            if point.values:
                self._add(point)
        self._sweep()

    def forget(self, task: str) -> None:
        """Drop the newest point of a task: its attempt has ended, and the log has its progress."""
        self.newest.pop(task, None)

    def metrics(self, run: str) -> tuple[str, ...]:
        """Return the names of metrics that models of a run reported."""
        return tuple(
            sorted(
                {name for (run_id, _), model in self._models.items() if run_id == run for name in model.lines}
            )
        )

    def line(self, run: str, model: str, metric: str) -> Iterator[Reported]:
        """Yield the points of one metric of one model, in the order of the reports."""
        known = self._models.get((run, model))
        line = known.lines.get(metric) if known else None
        if known is None or line is None:
            return
        points = line.points
        for index in range(0, len(points), _WIDTH):
            span_index, rows, time, value = points[index : index + _WIDTH]
            yield Reported(span=known.spans[int(span_index)], rows=int(rows), time=time, value=value)

    def broke(self, run: str, model: str, metric: str) -> Reported | None:
        """Return the first report of a metric that is not finite."""
        known = self._models.get((run, model))
        line = known.lines.get(metric) if known else None
        if known is None or line is None or line.broke is None:
            return None
        span_index, rows, time = line.broke
        return Reported(span=known.spans[int(span_index)], rows=int(rows), time=time, value=math.nan)

    def _add(self, point: LivePoint) -> None:
        if point.task != self._key[0]:  # points of a sub-epoch arrive together
            self._key = point.task, TaskKey.parse(point.task)
        key = self._key[1]
        if key.kind != "train" or key.model is None:
            return
        model = self._models.get((key.run, key.model))
        if model is None:
            model = self._models[key.run, key.model] = _Model()
        span_index = self._span_index(model, key, point.attempt)
        if span_index is None:
            return
        for name, value in point.values.items():
            line = model.lines.get(name) or self._begin(model, name)
            if line is None:
                continue
            if not math.isfinite(value):
                line.broke = line.broke or (span_index, point.rows, point.time)
                continue
            line.points.extend((span_index, point.rows, point.time, value))
            self._points += 1
            if len(line) > 2 * MAX_LINE_POINTS:
                self._cut(line, MAX_LINE_POINTS)

    def _begin(self, model: _Model, name: str) -> _Line | None:
        if len(self._lines) >= MAX_LINES:
            return None
        line = model.lines[name] = _Line()
        self._lines.append(line)
        return line

    def _span_index(self, model: _Model, key: TaskKey, attempt: int) -> int | None:
        """Return the index of the attempt in `model.spans`; `None` if a newer attempt has replaced it."""
        for index in range(len(model.spans) - 1, -1, -1):
            span = model.spans[index]
            if (span.epoch, span.partition) != (key.epoch, key.partition):
                continue
            if span.attempt == attempt:
                return index
            if span.attempt > attempt:
                return None
            self._drop(model, index)
            break
        assert key.epoch is not None
        assert key.partition is not None
        model.spans.append(Span(epoch=key.epoch, partition=key.partition, attempt=attempt))
        return len(model.spans) - 1

    def _drop(self, model: _Model, span_index: int) -> None:
        for line in model.lines.values():
            old_length = len(line)
            line.drop(span_index)
            self._points -= old_length - len(line)

    def _cut(self, line: _Line, points: int) -> None:
        old_length = len(line)
        line.cut(points)
        self._points -= old_length - len(line)

    def _sweep(self) -> None:
        longest = max(MIN_LINE_POINTS, MAX_POINTS // max(1, 2 * len(self._lines)))
        if self._points < MAX_POINTS:
            return
        for _ in range(min(_LINES_PER_SWEEP, len(self._lines))):
            self._swept = (self._swept + 1) % len(self._lines)
            if len(self._lines[self._swept]) > longest:
                self._cut(self._lines[self._swept], longest)
