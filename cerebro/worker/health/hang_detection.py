"""Detect an attempt that hangs because it reaches no batch and is idle. Pure.

`worker.agent.attempt_runner` reports batches and process activity to a `Watch`, and ends the attempt after a verdict.

An attempt is quiet until it reaches its next batch. Its limit follows from the duration of its batches, up to the run's
`hang_timeout_s`, which applies before the first batch and after the last, during imports, compilation and checkpoints.
An attempt that uses a processor or GPU is slow rather than hung: it has the run's limit, or `SLOW` times its own limit
if that is longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["first", "between", "last"]
"""Before the first batch, between two, after the last one."""
Verdict = Literal["goes on", "idle", "busy"]
"""Verdict on an attempt: `idle` and `busy` are hangs, named by its processes' activity."""

FLOOR_S, FLOOR_SHARE = 60.0, 0.1
"""Minimum limit between two batches: the larger of these seconds and this share of the run's limit."""
BATCHES = 20
"""Multiple of the attempt's slow batches that a batch may take."""
SLOW = 3
"""Multiple of the limit for a busy attempt."""
BUSY_CORES, BUSY_GPU = 0.05, 0.01
"""Minimum use of one core and of a GPU for a busy attempt."""
_RUNNABLE = 0.5
"""Fraction of checks that found runnable threads, for a busy attempt. A crowded machine may give it no processor."""
_SAMPLES, _LONGEST_SAMPLE_S = 8, 5.0
"""Number of usage checks in the second half of the limit, and the most seconds between two."""
_REMEMBERED = 1000
"""Number of batch durations that are kept."""
_EARLY_S = 1e-3
"""Seconds by which a check may be early."""


def limit_s(cap_s: float, phase: Phase, batches_s: Sequence[float]) -> float:
    """Return the seconds without a batch until an idle attempt hangs.

    Args:
        cap_s: the run's limit, the maximum.
        batches_s: durations of the attempt's batches in seconds; fast ones may be means of several.
    """
    if phase != "between" or not batches_s:
        return cap_s
    slow = sorted(batches_s)[(len(batches_s) * 99 - 1) // 100]
    return min(cap_s, max(FLOOR_S, FLOOR_SHARE * cap_s, BATCHES * slow))


@dataclass(frozen=True, kw_only=True)
class Use:
    """Resource use of an attempt's processes during an interval.

    Attributes:
        cores: mean number of busy cores.
        gpu: maximum share of the GPU.
        runnable: fraction of checks that found a running or runnable thread.
    """

    cores: float
    gpu: float
    runnable: float

    @property
    def is_busy(self) -> bool:
        """True if they use a core or a GPU."""
        return self.cores > BUSY_CORES or self.gpu > BUSY_GPU or self.runnable >= _RUNNABLE


def verdict(*, quiet_s: float, limit: float, cap_s: float, use: Use) -> Verdict:
    """Classify an attempt by its quiet time and resource use.

    Args:
        limit: see `limit_s`.
        use: resource use in the last part of that time.
    """
    if quiet_s < limit:
        return "goes on"
    if not use.is_busy:
        return "idle"
    return "busy" if quiet_s >= max(cap_s, SLOW * limit) else "goes on"


@dataclass(frozen=True, kw_only=True)
class Activity:
    """Activity of an attempt's processes at one moment.

    Attributes:
        spent_s: processor seconds by process, including its ended children.
        is_runnable: True if a thread runs or waits for a processor.
        gpu: share of the GPU in use.
    """

    spent_s: Mapping[int, float]
    is_runnable: bool = False
    gpu: float = 0.0


@dataclass
class Watch:
    """Schedules and evaluates the checks of one attempt. All times are seconds of one clock.

    Args:
        cap_s: the run's limit.
        since: start time.
        is_for_all: True if `cap_s` limits the entire task, busy or not.
    """

    cap_s: float
    since: float
    is_for_all: bool = False
    phase: Phase = "first"
    batches_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _batch: int = 0
    _previous: Activity | None = None
    _sampled_at: float = 0.0
    _used: deque[tuple[float, float, Activity]] = field(default_factory=deque)
    """Time, core-seconds since the previous check, and activity of each check."""

    def advance(self, at: float, *, batch: int = 0, is_last: bool = False) -> None:
        """Record a new batch or row."""
        if batch > self._batch > 0 and at > self.since:
            self.batches_s.append((at - self.since) / (batch - self._batch))
        self._batch = max(batch, self._batch)
        self.phase = "last" if is_last else "between" if batch else "first"
        self.restart(at)

    def restart(self, at: float) -> None:
        """Restart the quiet time."""
        self.since, self._previous = at, None
        self._used.clear()

    @property
    def limit(self) -> float:
        """Seconds that it may be quiet while idle."""
        return self.cap_s if self.is_for_all else limit_s(self.cap_s, self.phase, self.batches_s)

    def due_s(self, now: float) -> float:
        """Return the seconds until the next check."""
        if self.is_for_all:
            return max(0.0, self.since + self.cap_s - now)
        limit = self.limit
        following = self._sampled_at + min(limit / 2 / _SAMPLES, _LONGEST_SAMPLE_S)
        if self._previous is None:
            following = self.since + limit / 2
        elif self._sampled_at < self.since + limit - _EARLY_S:
            following = min(following, self.since + limit)
        return max(0.0, following - now)

    def check(self, now: float, activity: Activity) -> Verdict:
        """Evaluate a check that is due."""
        if self.is_for_all:
            return "idle" if now >= self.since + self.cap_s else "goes on"
        if self._previous is not None:
            known = self._previous.spent_s
            # A new process used all its time since the previous check.
            used_s = sum(max(0.0, spent - known.get(pid, 0.0)) for pid, spent in activity.spent_s.items())
            self._used.append((now, used_s, activity))
        self._previous, self._sampled_at = activity, now
        limit = self.limit
        window_s = min(limit / 2, _SAMPLES * _LONGEST_SAMPLE_S)
        while self._used and self._used[0][0] < now - window_s:
            self._used.popleft()
        if not self._used:
            return "goes on"
        use = Use(
            cores=sum(used_s for _, used_s, _ in self._used) / window_s,
            gpu=max(sample.gpu for *_, sample in self._used),
            runnable=sum(sample.is_runnable for *_, sample in self._used) / len(self._used),
        )
        return verdict(quiet_s=now - self.since + _EARLY_S, limit=limit, cap_s=self.cap_s, use=use)
