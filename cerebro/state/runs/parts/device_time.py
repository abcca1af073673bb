"""Device time of a run: its own sub-epochs, and other runs' use of its devices.

While another run's task has a device, the device is absent for this run, as in a break: that time is not idle, and no
order of sub-epochs could use it. The run's log records it (`DevicesTaken`). It never overlaps the run's own use, so a
bound that includes it (`cerebro.state.reports.makespan_bound`) is valid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.contract.events import DevicesTaken
from cerebro.contract.runs import TakenSpan
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.runs.parts.clock import RunClock
from cerebro.state.workers import Worker

_TICK_S = 1e-3
"""Gap that counts as rounding."""


class ProcessStart(NamedTuple):
    """A process start before a sub-epoch, on one device."""

    worker: str
    started: float
    ended: float
    sharing: int = 1
    """Number of sub-epochs that share it; each counts for its share of the time."""


@dataclass(kw_only=True, slots=True)
class DeviceTime:
    """Time that sub-epochs, process starts and other runs used the devices of a run's workers."""

    trained_s: dict[str, float] = field(default_factory=dict)
    """Worker -> device-seconds of sub-epochs."""
    sub_epochs: Counter[str] = field(default_factory=Counter)
    """Worker -> number of sub-epochs."""
    starts: list[ProcessStart] = field(default_factory=list)
    """Process starts before sub-epochs, once per device and sub-epoch."""
    taken: dict[str, list[TakenSpan]] = field(default_factory=dict)
    """Worker -> spans of its devices in other runs."""
    taken_until: float = 0.0
    """End of the time range that `taken` covers."""
    compacted_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Worker -> (join time, device-seconds of compacted sub-epochs since then and the newest reported epoch)."""

    def add(self, sub_epoch: CompletedSubEpoch) -> None:
        """Add a committed sub-epoch."""
        for worker, devices in sub_epoch.places:
            self.trained_s[worker] = self.trained_s.get(worker, 0.0) + sub_epoch.device_s * len(devices)
            self.sub_epochs[worker] += 1
            if sub_epoch.timings.start_s:
                self.starts += [_start(worker, sub_epoch)] * len(devices)

    def remove(self, lost: CompletedSubEpoch) -> None:
        """Undo `add`."""
        for worker, devices in lost.places:
            self.trained_s[worker] -= lost.device_s * len(devices)
            self.sub_epochs[worker] -= 1
            if not self.sub_epochs[worker]:
                del self.sub_epochs[worker], self.trained_s[worker]
            for _ in devices if lost.timings.start_s else ():
                self.starts.remove(_start(worker, lost))

    def compact(self, sub_epoch: CompletedSubEpoch, workers: Mapping[str, Worker], *, since: float) -> None:
        """Add a compacted sub-epoch to `compacted_s`, without its time before `since`."""
        for worker, devices in sub_epoch.places:
            joined = workers[worker].joined if worker in workers else 0.0
            known_join, known = self.compacted_s.get(worker, (joined, 0.0))
            begin = max(sub_epoch.started, joined, since)
            spent = max(0.0, sub_epoch.ended - begin) * len(devices) / sub_epoch.group.size
            self.compacted_s[worker] = joined, spent + (known if known_join == joined else 0.0)

    def add_taken(self, event: DevicesTaken) -> None:
        """Add the spans in which other runs had devices of the run."""
        for span in event.spans:
            known = self.taken.setdefault(span.worker, [])
            newest = next((at for at in reversed(range(len(known))) if known[at].device == span.device), None)
            if newest is not None and span.since <= known[newest].until + _TICK_S:
                # Continuous use since the last record.
                known[newest] = known[newest]._replace(until=span.until)
            else:
                known.append(span)
        self.taken_until = event.until

    def taken_s(self, worker: str, begin: float, end: float, clock: RunClock) -> float:
        """Return the device-seconds of other runs on a worker between two times, without breaks."""
        spans = self.taken.get(worker, ())
        return sum(clock.open_s(max(span.since, begin), min(span.until, end)) for span in spans)


def _start(worker: str, sub_epoch: CompletedSubEpoch) -> ProcessStart:
    return ProcessStart(worker, sub_epoch.started, sub_epoch.begun, sub_epoch.group.size)
