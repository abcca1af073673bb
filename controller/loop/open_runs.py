"""Active runs: those already begun, then the first in the queue; and the progress of log reading.

An experiment with a fault (an unexpected error) is paused for a while and then read again: it must not stop
the others, and a temporary fault must not stop it forever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cerebro.contract.rest import api
from cerebro.state import ExperimentState, Run, RunState, gap
from cerebro.state.workers import NO_DEVICE, Ended
from controller.decisions.core import Core
from controller.scaling import cluster_decision
from controller.scaling.cluster_snapshot import WorkerView
from controller.sharing import claims
from controller.sharing.arbiter import DeviceSlot, RunRef

_FIRST_S, _LONGEST_S = 1.0, 60.0
"""Seconds of the pause after a fault: the first, and the maximum after many."""

_REPORTED_S = 10.0
"""Seconds after which a worker has reported a new task."""


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The loop's view of a loaded experiment, computed once per turn, so that a core's faults show here.

    Attributes:
        runs: the active runs.
        held: device slots with their tasks.
        used: device slots where their tasks can run.
        to_train: known devices of training workers.
        ending: workers that released a task because they are ending.
        busy: workers with open tasks.
        ended: results of attempts by worker, if one failed there.
        gap: gap of the newest epoch of an open fit; 0 without one.
    """

    runs: tuple[Run, ...]
    held: frozenset[DeviceSlot]
    used: frozenset[DeviceSlot]
    to_train: frozenset[DeviceSlot]
    ending: frozenset[cluster_decision.Life]
    busy: frozenset[str]
    ended: Mapping[str, Collection[Ended]]
    gap: float

    @classmethod
    def of(cls, core: Core) -> Overview:
        """Return the present overview."""
        state, runs = core.state, core.open_runs()
        return cls(
            runs=tuple(runs),
            held=frozenset().union(*(claims.held(state, run) for run in runs)),
            used=frozenset().union(*(claims.used(state, run) for run in runs)),
            to_train=claims.training_slots(state),
            ending=frozenset(cluster_decision.ending(state)),
            busy=frozenset(cluster_decision.busy(state)),
            ended=ended(state),
            gap=max((_gap(run) for run in runs), default=0.0),
        )


def ended(state: ExperimentState) -> dict[str, Collection[Ended]]:
    """Return the results of attempts by worker, if one failed there."""
    return {
        worker.name: [each._replace(experiment=state.name) for each in worker.ended]
        for worker in state.workers.values()
        if worker.has_failures
    }


def _gap(run: Run) -> float:
    return (
        gap(run.scheduling.epochs[-1].makespan_s, run.scheduling.epochs[-1].lower_bound_s)
        if run.scheduling.epochs
        else 0.0
    )


def is_busy(overviews: Iterable[Overview]) -> bool:
    """True if every slot where open runs can work has a task; False without slots."""
    used, held = set[DeviceSlot](), set[DeviceSlot]()
    for each in overviews:
        used |= each.used
        held |= each.held
    return bool(used) and used <= held


@dataclass(kw_only=True)
class Opened:
    """An active experiment.

    Attributes:
        runs: its active runs in the queue.
        is_behind: True if its log must be read before a decision.
        is_new: True before the first complete read.
        overview: overview at the last complete read; `None` before.
    """

    core: Core
    runs: tuple[str, ...]
    is_behind: bool = True
    is_new: bool = True
    overview: Overview | None = None


@dataclass(kw_only=True)
class _Fault:
    """A paused experiment.

    Attributes:
        until: time of the next try.
        delay_s: pause after the next fault.
        held: its slots at the last complete read of its log.
        known: latest possible time of that read.
        runs: its active runs.
    """

    until: float
    delay_s: float
    held: frozenset[DeviceSlot]
    known: float
    runs: tuple[str, ...]


@dataclass
class Experiments:
    """The active experiments by name. Owned by the loop; not thread-safe.

    Args:
        max_open: maximum number of active runs.
    """

    max_open: int
    opened: dict[str, Opened] = field(default_factory=dict)
    _faults: dict[str, _Fault] = field(default_factory=dict)
    _admitted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Experiment -> its active runs, as last reported."""

    def admitted(
        self, queue: api.QueueAnswer, now: float, waiting: Collection[RunRef] = ()
    ) -> dict[str, tuple[str, ...]]:
        """Return the experiments to work on, each with its active runs.

        Active runs continue even above the limit `max_open`; runs from the head of the queue fill the rest.
        A run that waits for another run of its experiment is not admitted.

        Args:
            queue: open runs, marked if this or an earlier controller worked on them.
            now: monotonic seconds.
            waiting: runs known to wait for another run of their experiment.
        """
        queued = {entry.experiment for entry in queue.runs}
        self._faults = {name: fault for name, fault in self._faults.items() if name in queued}
        begun = {(each.experiment, each.run) for each in queue.attended.runs}
        begun |= {(name, run) for name, each in self.opened.items() for run in each.runs}
        tried = [
            entry
            for entry in queue.runs
            if self._may_be_tried(entry.experiment, now)
            and RunRef(entry.experiment, entry.run) not in waiting
        ]
        active_entries = [entry for entry in tried if (entry.experiment, entry.run) in begun]
        inactive_entries = [entry for entry in tried if (entry.experiment, entry.run) not in begun]
        found: dict[str, tuple[str, ...]] = {}
        for entry in (*active_entries, *inactive_entries[: max(0, self.max_open - len(active_entries))]):
            found[entry.experiment] = (*found.get(entry.experiment, ()), entry.run)
        self._admitted = found
        return found

    def attended(self) -> dict[str, tuple[str, ...]]:
        """Return the active runs by experiment, including paused experiments."""
        aside = {name: fault.runs for name, fault in self._faults.items() if fault.runs}
        return aside | {name: each.runs for name, each in self.opened.items()}

    def attended_runs(self) -> set[RunRef]:
        """Return the active runs."""
        return {RunRef(name, run) for name, runs in self.attended().items() for run in runs}

    def ready(self) -> dict[str, Core]:
        """Return cores with a completely read log."""
        return {name: each.core for name, each in self.opened.items() if not each.is_behind}

    def behind(self) -> Iterator[tuple[str, Opened]]:
        """Return experiments with an incompletely read log."""
        return ((name, each) for name, each in list(self.opened.items()) if each.is_behind)

    def invalidate(self) -> None:
        """Mark all logs as incomplete: another controller may have written."""
        for each in self.opened.values():
            each.is_behind = True

    def overviews(self) -> dict[str, Overview]:
        """Return the overviews of active experiments, as known."""
        return {name: each.overview for name, each in self.opened.items() if each.overview is not None}

    def open_runs(self) -> list[tuple[Core, Run]]:
        """Return active runs of completely read experiments."""
        ready, overviews = self.ready(), self.overviews()
        return [(core, run) for name, core in ready.items() for run in overviews[name].runs if run.is_open]

    def set_aside(self, name: str, now: float) -> float:
        """Pause an experiment after a fault; return the seconds. Does not call its core."""
        held, known = self._last_held(name, now)
        each, fault = self.opened.pop(name, None), self._faults.get(name)
        delay_s = fault.delay_s if fault is not None else _FIRST_S
        runs = each.runs if each is not None else self._admitted.get(name, fault.runs if fault else ())
        self._faults[name] = _Fault(
            until=now + delay_s, delay_s=min(2 * delay_s, _LONGEST_S), held=held, known=known, runs=runs
        )
        return delay_s

    def unplanned(self) -> set[RunRef]:
        """Return runs that may need a plan, as known."""
        named = ((each.core.state, run) for each in self.opened.values() for run in each.runs)
        return {
            RunRef(state.name, run)
            for state, run in named
            if run not in state.runs or state.runs[run].state is RunState.QUEUED
        }

    def unready(self) -> set[str]:
        """Return active experiments that decide nothing now: unread or paused."""
        return set(self.attended()) - set(self.ready())

    def taken(self, workers: Mapping[str, WorkerView], now: float) -> frozenset[DeviceSlot]:
        """Return slots where these experiments may have tasks.

        Their last known slots, while the workers report their tasks there. For an unread log, all slots of
        such a worker that these tasks may take.
        """
        found: set[DeviceSlot] = set()
        for name in self.unready():
            held, known = self._last_held(name, now)
            if now - known < _REPORTED_S:
                found |= held
            for worker, view in workers.items():
                said = _said_to_run(name, worker, view)
                found |= said & held or said
        return frozenset(found)

    def _last_held(self, name: str, now: float) -> tuple[frozenset[DeviceSlot], float]:
        """Return the experiment's last known slots, and their latest possible time."""
        each, fault = self.opened.get(name), self._faults.get(name)
        if each is not None and each.overview is not None:
            return each.overview.held, now
        return (fault.held, fault.known) if fault is not None else (frozenset(), now)

    def _may_be_tried(self, name: str, now: float) -> bool:
        fault = self._faults.get(name)
        if fault is not None and now > fault.until + _LONGEST_S:
            del self._faults[name]  # no fault since
        return fault is None or now >= fault.until


def _said_to_run(experiment: str, worker: str, view: WorkerView) -> set[DeviceSlot]:
    """Return slots that an experiment's tasks may take on a worker, by the worker's report."""
    found: set[DeviceSlot] = set()
    for name, _, key in (task.partition("/") for task in view.tasks):
        if name == experiment:
            # The text comes from a worker of possibly another version.
            takes_none = key.split("/")[1:2] in (["etl"], ["search"], ["fitting"])
            slots = (NO_DEVICE,) if takes_none else range(view.devices)
            found.update(DeviceSlot(worker, slot) for slot in slots)
    return found
