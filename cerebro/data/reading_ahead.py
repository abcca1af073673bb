"""How many batches are gathered ahead, and by how many threads: by what earlier passes of this process have shown.

Changed between passes only, and never which rows are in a batch or in which order they come. The threads that torch
computes with are another matter, and stay: their number changes results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

_STEP = 0.3
"""Weight of the newest pass."""

_ROOM = 1.2
"""Threads gather so much faster than batches are used."""

_WAITING = 0.5
"""Of the time that gathering takes, from which on threads gain on a processor: so much it waits for storage, and leaves
the processor to training."""

_WORTH = 0.05
"""Of a step: shorter waits are not worth a thread."""

_MOST = 16
"""Threads of a pass."""

_MEMORY = 0.1
"""Of the memory that there is, for batches ahead."""


class Ahead(NamedTuple):
    """Threads that gather, and batches that are ready or being gathered beside the one in use; 0: each is gathered
    when it is asked for."""

    threads: int
    depth: int


ON_DEMAND, NEXT_ONE = Ahead(0, 0), Ahead(1, 1)
"""Where nothing is known: on a processor, and on other devices, which compute by themselves."""


class PassTimes(NamedTuple):
    """What a pass has shown; seconds of all its batches together.

    Attributes:
        rows: that were gathered.
        gather_s: that gathering took, in whichever threads.
        busy_s: of that, what was no waiting for storage.
        step_s: that batches were used for.
        used: batches that were used.
        num_bytes: that the gathered rows take.
    """

    rows: int
    gather_s: float
    busy_s: float
    step_s: float
    used: int
    num_bytes: int


@dataclass(frozen=True)
class Reading:
    """Of a loader: how its batches are gathered ahead, and who is told what a pass has shown once it has ended."""

    ahead: Ahead
    on_pass: Callable[[PassTimes], None]


@dataclass
class _Mean:
    value: float | None = None

    def learn(self, newest: float) -> None:
        self.value = newest if self.value is None else self.value + _STEP * (newest - self.value)


@dataclass
class ReadingAhead:
    """What passes of this process have shown. Not thread-safe.

    Attributes:
        cores: that there are.
        memory_bytes: that there are; `None`: not known.
    """

    cores: int
    memory_bytes: int | None = None
    _row_s: _Mean = field(default_factory=_Mean)
    _waiting: _Mean = field(default_factory=_Mean)
    _row_bytes: _Mean = field(default_factory=_Mean)
    _step_s: dict[str, _Mean] = field(default_factory=dict)
    _any_step_s: _Mean = field(default_factory=_Mean)

    def reading(self, model: str, batch_size: int, *, is_on_host: bool) -> Reading:
        """For the loader of a model's next sub-epoch; arguments as of `ahead`."""
        ahead = self.ahead(model, batch_size, is_on_host=is_on_host)
        return Reading(ahead, partial(self.learn, model))

    def learn(self, model: str, times: PassTimes) -> None:
        """A pass of a model's sub-epoch has ended."""
        if times.rows <= 0 or times.used <= 0 or times.gather_s <= 0 or times.step_s <= 0:
            return
        self._row_s.learn(times.gather_s / times.rows)
        self._waiting.learn(min(1.0, max(0.0, 1 - times.busy_s / times.gather_s)))
        self._row_bytes.learn(times.num_bytes / times.rows)
        step_s = times.step_s / times.used
        self._step_s.setdefault(model, _Mean()).learn(step_s)
        self._any_step_s.learn(step_s)

    def ahead(self, model: str, batch_size: int, *, is_on_host: bool) -> Ahead:
        """For the next pass of a model.

        Args:
            is_on_host: it computes with the processors that gather, too.
        """
        otherwise = ON_DEMAND if is_on_host else NEXT_ONE
        step_s = self._step_s.get(model, self._any_step_s).value
        row_s, waiting, row_bytes = self._row_s.value, self._waiting.value, self._row_bytes.value
        if step_s is None or row_s is None or waiting is None or row_bytes is None:
            return otherwise
        gather_s = row_s * batch_size
        waits_s = gather_s * waiting
        if is_on_host and (waiting < _WAITING or waits_s < _WORTH * step_s):
            return otherwise
        # A thread that waits takes no processor.
        most = min(_MOST, max(1, self.cores - 1) / max(1 - waiting, 1 / _MOST))
        threads = max(1, min(math.ceil(_ROOM * gather_s / step_s), int(most)))
        depth = threads + 1
        if self.memory_bytes is not None and row_bytes > 0:
            depth = min(depth, int(_MEMORY * self.memory_bytes / (row_bytes * batch_size)))
        return Ahead(min(threads, depth), depth) if depth >= 1 else otherwise
