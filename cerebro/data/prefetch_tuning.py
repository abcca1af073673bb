"""Choose how many threads gather batches and how many batches ahead, from measurements of earlier passes.

The training process keeps one `ReadingAhead` for all its sub-epochs and passes a `Reading` to each loader. The choice
changes between passes only. It never changes the rows of a batch or their order. torch's compute threads are separate
and constant, because their number changes results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

_LEARNING_RATE = 0.3
"""Weight of the latest pass in the running means."""

_SPEED_MARGIN = 1.2
"""Required ratio of gathering speed to consumption."""

_MIN_WAITING = 0.5
"""Minimum share of storage waits in gathering before threads help on a CPU.

Waiting leaves the CPU to training.
"""

_MIN_WAIT = 0.05
"""Share of a step; shorter waits do not justify a thread."""

_MAX_THREADS = 16
"""Maximum number of threads."""

_MEMORY_SHARE = 0.1
"""Share of memory for batches ahead."""


class Ahead(NamedTuple):
    """Number of gathering threads, and of batches ready or in progress; (0, 0) gathers on request."""

    threads: int
    depth: int


ON_DEMAND, NEXT_ONE = Ahead(0, 0), Ahead(1, 1)
"""Defaults before the first measurement: on a CPU, and on devices that compute by themselves."""


class PassTimes(NamedTuple):
    """Measurements of a pass; seconds are totals over all batches.

    Attributes:
        rows: gathered rows.
        gather_s: seconds of gathering, over all threads.
        busy_s: seconds of gathering without storage waits.
        step_s: seconds that the consumer used batches.
        used: number of batches used.
        num_bytes: bytes of the gathered rows.
    """

    rows: int
    gather_s: float
    busy_s: float
    step_s: float
    used: int
    num_bytes: int


@dataclass(frozen=True)
class Reading:
    """How a loader gathers ahead, and the callback with the measurements of a complete pass."""

    ahead: Ahead
    on_pass: Callable[[PassTimes], None]


@dataclass
class _Mean:
    value: float | None = None

    def learn(self, newest: float) -> None:
        self.value = newest if self.value is None else self.value + _LEARNING_RATE * (newest - self.value)


@dataclass
class ReadingAhead:
    """Measurements of this process's passes. Not thread-safe.

    Attributes:
        cores: number of available cores.
        memory_bytes: available memory; `None` if unknown.
    """

    cores: int
    memory_bytes: int | None = None
    _row_s: _Mean = field(default_factory=_Mean)
    _waiting: _Mean = field(default_factory=_Mean)
    _row_bytes: _Mean = field(default_factory=_Mean)
    _step_s: dict[str, _Mean] = field(default_factory=dict)
    _any_step_s: _Mean = field(default_factory=_Mean)

    def reading(self, model: str, batch_size: int, *, is_on_host: bool) -> Reading:
        """Return the settings for the loader of a model's next sub-epoch; arguments as for `ahead`."""
        ahead = self.ahead(model, batch_size, is_on_host=is_on_host)
        return Reading(ahead, partial(self.learn, model))

    def learn(self, model: str, times: PassTimes) -> None:
        """Record a complete pass of a model's sub-epoch."""
        if times.rows <= 0 or times.used <= 0 or times.gather_s <= 0 or times.step_s <= 0:
            return
        self._row_s.learn(times.gather_s / times.rows)
        self._waiting.learn(min(1.0, max(0.0, 1 - times.busy_s / times.gather_s)))
        self._row_bytes.learn(times.num_bytes / times.rows)
        step_s = times.step_s / times.used
        self._step_s.setdefault(model, _Mean()).learn(step_s)
        self._any_step_s.learn(step_s)

    def ahead(self, model: str, batch_size: int, *, is_on_host: bool) -> Ahead:
        """Return the threads and depth for a model's next pass.

        Args:
            model: the model's id.
            batch_size: rows per batch.
            is_on_host: True if the model computes on the same CPU that gathers.
        """
        default = ON_DEMAND if is_on_host else NEXT_ONE
        step_s = self._step_s.get(model, self._any_step_s).value
        row_s, waiting, row_bytes = self._row_s.value, self._waiting.value, self._row_bytes.value
        if step_s is None or row_s is None or waiting is None or row_bytes is None:
            return default
        gather_s = row_s * batch_size
        waits_s = gather_s * waiting
        if is_on_host and (waiting < _MIN_WAITING or waits_s < _MIN_WAIT * step_s):
            return default
        # A waiting thread uses no CPU.
        limit = min(_MAX_THREADS, max(1, self.cores - 1) / max(1 - waiting, 1 / _MAX_THREADS))
        threads = max(1, min(math.ceil(_SPEED_MARGIN * gather_s / step_s), int(limit)))
        depth = threads + 1
        if self.memory_bytes is not None and row_bytes > 0:
            depth = min(depth, int(_MEMORY_SHARE * self.memory_bytes / (row_bytes * batch_size)))
        return Ahead(min(threads, depth), depth) if depth >= 1 else default
