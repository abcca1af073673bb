"""Whether an attempt that shows no batch hangs. Busy is not hung. Pure: times and usage are given.

An attempt is quiet while it comes to no new batch. For how long it may be depends on how long its batches take, up to
the run's `hang_timeout_s`: that is the limit before the first batch and after the last one, where libraries are
imported, compiled and checkpoints written. One whose processes use a processor or its GPU is slow, and has more time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["first", "between", "last"]
"""Before the first batch, between two, after the last one."""
Verdict = Literal["goes on", "idle", "busy"]
"""What becomes of it: `idle` and `busy` are hangs, by what its processes did."""

FLOOR_S, FLOOR_SHARE = 60.0, 0.1
"""No limit between two batches is less than the larger one: seconds, and the share of the run's limit. So who raises
that gives short batches more time, too."""
BATCHES = 20
"""Times the slow batches of the attempt: so long another one may take."""
SLOW = 3
"""Times the limit: so long a busy one has."""
BUSY_CORES, BUSY_GPU = 0.05, 0.01
"""Of one core, and of a GPU: who uses more is busy."""
_RUNNABLE = 0.5
"""Of the looks: who could compute at so many is busy, too. On a crowded machine it may have got no processor."""
_LOOKS, _LONGEST_LOOK_S = 8, 5.0
"""Within the second half of the limit, usage is measured so often, and at least so often."""
_REMEMBERED = 1000
_EARLY_S = 1e-3
"""A look that comes so much before its time has come in time."""


def limit_s(cap_s: float, phase: Phase, batches_s: Sequence[float]) -> float:
    """Seconds without a batch after which an idle attempt hangs.

    Args:
        cap_s: the run's limit, which no other one exceeds.
        batches_s: seconds that batches of the attempt have taken; those that came faster than they are told may
            be means of several.
    """
    if phase != "between" or not batches_s:
        return cap_s
    slow = sorted(batches_s)[(len(batches_s) * 99 - 1) // 100]
    return min(cap_s, max(FLOOR_S, FLOOR_SHARE * cap_s, BATCHES * slow))


@dataclass(frozen=True, kw_only=True)
class Use:
    """What the processes of an attempt used for a while.

    Attributes:
        cores: on average.
        gpu: share of the GPU, at most.
        runnable: share of the looks at which one of its threads ran or waited for a processor.
    """

    cores: float
    gpu: float
    runnable: float

    @property
    def is_busy(self) -> bool:
        """Whether they do anything."""
        return self.cores > BUSY_CORES or self.gpu > BUSY_GPU or self.runnable >= _RUNNABLE


def verdict(*, quiet_s: float, limit: float, cap_s: float, use: Use) -> Verdict:
    """Whether an attempt hangs that has been quiet for so long.

    Args:
        limit: as `limit_s` says.
        use: in the last part of that time.
    """
    if quiet_s < limit:
        return "goes on"
    if not use.is_busy:
        return "idle"
    return "busy" if quiet_s >= max(cap_s, SLOW * limit) else "goes on"


@dataclass(frozen=True, kw_only=True)
class Activity:
    """What the processes of an attempt do at one moment.

    Attributes:
        spent_s: process -> seconds of processor time until now, those of its own that have ended included.
        is_runnable: whether one of their threads runs or waits for a processor.
        gpu: share of the GPU in use.
    """

    spent_s: Mapping[int, float]
    is_runnable: bool = False
    gpu: float = 0.0


@dataclass
class Watch:
    """Of one attempt: when to look at it again, and what follows. All times are of one clock, in seconds.

    Args:
        cap_s: the run's limit.
        since: from when it is watched.
        is_for_all: `cap_s` is for the task as a whole, busy or not.
    """

    cap_s: float
    since: float
    is_for_all: bool = False
    phase: Phase = "first"
    batches_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _batch: int = 0
    _before: Activity | None = None
    _looked: float = 0.0
    _used: deque[tuple[float, float, Activity]] = field(default_factory=deque)
    """Of each look: when, core-seconds since the one before, and what there was to be seen."""

    def advance(self, at: float, *, batch: int = 0, is_last: bool = False) -> None:
        """It has come to another batch or row."""
        if batch > self._batch > 0 and at > self.since:
            self.batches_s.append((at - self.since) / (batch - self._batch))
        self._batch = max(batch, self._batch)
        self.phase = "last" if is_last else "between" if batch else "first"
        self.restart(at)

    def restart(self, at: float) -> None:
        """Its time begins anew."""
        self.since, self._before = at, None
        self._used.clear()

    @property
    def limit(self) -> float:
        """Seconds that it may be quiet while it is idle."""
        return self.cap_s if self.is_for_all else limit_s(self.cap_s, self.phase, self.batches_s)

    def due_s(self, now: float) -> float:
        """Seconds until it is to be looked at."""
        if self.is_for_all:
            return max(0.0, self.since + self.cap_s - now)
        limit = self.limit
        following = self._looked + min(limit / 2 / _LOOKS, _LONGEST_LOOK_S)
        if self._before is None:
            following = self.since + limit / 2
        elif self._looked < self.since + limit - _EARLY_S:
            following = min(following, self.since + limit)
        return max(0.0, following - now)

    def look(self, now: float, seen: Activity) -> Verdict:
        """What is to be done, now that it is `due_s`."""
        if self.is_for_all:
            return "idle" if now >= self.since + self.cap_s else "goes on"
        if self._before is not None:
            known = self._before.spent_s
            # Of a process that is new, all it has used is of this time.
            used_s = sum(max(0.0, spent - known.get(pid, 0.0)) for pid, spent in seen.spent_s.items())
            self._used.append((now, used_s, seen))
        self._before, self._looked = seen, now
        limit = self.limit
        window_s = min(limit / 2, _LOOKS * _LONGEST_LOOK_S)
        while self._used and self._used[0][0] < now - window_s:
            self._used.popleft()
        if not self._used:
            return "goes on"
        use = Use(
            cores=sum(used_s for _, used_s, _ in self._used) / window_s,
            gpu=max(seen.gpu for *_, seen in self._used),
            runnable=sum(seen.is_runnable for *_, seen in self._used) / len(self._used),
        )
        return verdict(quiet_s=now - self.since + _EARLY_S, limit=limit, cap_s=self.cap_s, use=use)
