"""Which runs are worked on: those that were begun and the first others in the queue; and how far their experiments'
logs are read.

An experiment with a fault (an error that nobody foresaw) is left alone for a while and then read anew: it must not stop
the others, and a fault of the moment must not stop it for good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cerebro.contract import api
from cerebro.state import ExperimentState, Run, RunState, gap
from cerebro.state.workers import NO_DEVICE, Ended
from controller.decisions.core import Core
from controller.scaling import cluster_decision
from controller.scaling.cluster_snapshot import WorkerView
from controller.sharing import claims
from controller.sharing.arbiter import Place, RunRef

_FIRST_S, _LONGEST_S = 1.0, 60.0
"""How long an experiment is left alone after a fault: at first, and after many."""

_REPORTED_S = 10.0
"""By then a worker has said that it runs what it was given."""


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What the loop has to know of an experiment whose log is read to its end, asked once in a turn: whatever its core
    raises is raised here, and does not stop the others.

    Attributes:
        runs: those that are worked on.
        held: places where they have tasks.
        used: places where they have their work done.
        to_train: devices of workers that train, as far as the experiment knows.
        ending: workers that gave a task back because they end.
        busy: workers with open tasks.
        ended: how attempts ended at workers where one failed.
        gap: of the newest epoch of a fit that is open; 0 without one.
    """

    runs: tuple[Run, ...]
    held: frozenset[Place]
    used: frozenset[Place]
    to_train: frozenset[Place]
    ending: frozenset[cluster_decision.Life]
    busy: frozenset[str]
    ended: Mapping[str, Collection[Ended]]
    gap: float

    @classmethod
    def of(cls, core: Core) -> Overview:
        """As it is now."""
        state, runs = core.state, core.open_runs()
        return cls(
            runs=tuple(runs),
            held=frozenset().union(*(claims.held(state, run) for run in runs)),
            used=frozenset().union(*(claims.used(state, run) for run in runs)),
            to_train=claims.places_to_train(state),
            ending=frozenset(cluster_decision.ending(state)),
            busy=frozenset(cluster_decision.busy(state)),
            ended=ended(state),
            gap=max((_gap(run) for run in runs), default=0.0),
        )


def ended(state: ExperimentState) -> dict[str, Collection[Ended]]:
    """How attempts ended at workers where one failed."""
    return {
        worker.name: [each._replace(experiment=state.name) for each in worker.ended]
        for worker in state.workers.values()
        if worker.has_failures
    }


def _gap(run: Run) -> float:
    return gap(run.epochs[-1].makespan_s, run.epochs[-1].lower_bound_s) if run.epochs else 0.0


def is_busy(overviews: Iterable[Overview]) -> bool:
    """Whether each place where open runs have their work done has a task; not where there is no such place."""
    used, held = set[Place](), set[Place]()
    for each in overviews:
        used |= each.used
        held |= each.held
    return bool(used) and used <= held


@dataclass(kw_only=True)
class Opened:
    """An experiment that is worked on.

    Attributes:
        runs: those of its runs in the queue that are worked on.
        is_behind: its log is to be read to the end before anything is decided.
        is_new: that has not been done yet.
        overview: as it was when its log was last read to the end; `None` before.
    """

    core: Core
    runs: tuple[str, ...]
    is_behind: bool = True
    is_new: bool = True
    overview: Overview | None = None


@dataclass(kw_only=True)
class _Fault:
    """An experiment that is left alone.

    Attributes:
        until: when it is tried again.
        delay_s: how long it is left alone after the next fault.
        held: where it had tasks when its log was last read to the end.
        known: when that was, at the latest.
        runs: those of its runs that were worked on.
    """

    until: float
    delay_s: float
    held: frozenset[Place]
    known: float
    runs: tuple[str, ...]


@dataclass
class Experiments:
    """Those that are worked on, by name. Belongs to the loop; not thread-safe.

    Args:
        most_open: so many runs at once.
    """

    most_open: int
    opened: dict[str, Opened] = field(default_factory=dict)
    _faults: dict[str, _Fault] = field(default_factory=dict)
    _admitted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Experiment -> its runs that are worked on, as last reported."""

    def admitted(
        self, queue: api.QueueAnswer, now: float, waiting: Collection[RunRef] = ()
    ) -> dict[str, tuple[str, ...]]:
        """Experiments to work on, each with those of its runs in the queue that are: those that are worked on already
        stay, also if they are too many by now, and the first of the others take the places that are left. One that
        waits for another run of its experiment takes none.

        Args:
            queue: open runs, and those of them that this or an earlier controller worked on.
            now: seconds, of a clock that does not go back.
            waiting: runs that wait for another one of their experiment, as far as their logs are read.
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
        stay = [entry for entry in tried if (entry.experiment, entry.run) in begun]
        others = [entry for entry in tried if (entry.experiment, entry.run) not in begun]
        found: dict[str, tuple[str, ...]] = {}
        for entry in (*stay, *others[: max(0, self.most_open - len(stay))]):
            found[entry.experiment] = (*found.get(entry.experiment, ()), entry.run)
        self._admitted = found
        return found

    def attended(self) -> dict[str, tuple[str, ...]]:
        """Runs that are worked on, by experiment; those with a fault as well, which go on in a while."""
        aside = {name: fault.runs for name, fault in self._faults.items() if fault.runs}
        return aside | {name: each.runs for name, each in self.opened.items()}

    def ready(self) -> dict[str, Core]:
        """Cores whose log is read to its end."""
        return {name: each.core for name, each in self.opened.items() if not each.is_behind}

    def behind(self) -> Iterator[tuple[str, Opened]]:
        """Those whose log is to be read on."""
        return ((name, each) for name, each in list(self.opened.items()) if each.is_behind)

    def look_again(self) -> None:
        """Somebody else may have written logs meanwhile: they are read to the end before anything is decided."""
        for each in self.opened.values():
            each.is_behind = True

    def overviews(self) -> dict[str, Overview]:
        """Of all that are worked on, as far as their logs were read to the end."""
        return {name: each.overview for name, each in self.opened.items() if each.overview is not None}

    def open_runs(self) -> list[tuple[Core, Run]]:
        """Runs that are worked on, of experiments whose logs are read to the end."""
        ready, overviews = self.ready(), self.overviews()
        return [(core, run) for name, core in ready.items() for run in overviews[name].runs if run.is_open]

    def set_aside(self, name: str, now: float) -> float:
        """Leave an experiment alone after a fault; how long, in seconds. Asks its core nothing."""
        held, known = self._last_held(name, now)
        each, fault = self.opened.pop(name, None), self._faults.get(name)
        delay_s = fault.delay_s if fault is not None else _FIRST_S
        runs = each.runs if each is not None else self._admitted.get(name, fault.runs if fault else ())
        self._faults[name] = _Fault(
            until=now + delay_s, delay_s=min(2 * delay_s, _LONGEST_S), held=held, known=known, runs=runs
        )
        return delay_s

    def unplanned(self) -> set[RunRef]:
        """Runs that may have to be planned, as far as logs are read."""
        named = ((each.core.state, run) for each in self.opened.values() for run in each.runs)
        return {
            RunRef(state.name, run)
            for state, run in named
            if run not in state.runs or state.runs[run].state is RunState.QUEUED
        }

    def unready(self) -> set[str]:
        """Experiments that are worked on, but decide nothing now: their log is read, or they are left alone."""
        return set(self.attended()) - set(self.ready())

    def taken(self, workers: Mapping[str, WorkerView], now: float) -> frozenset[Place]:
        """Places where these may have tasks.

        The places where they last had some, as long as the workers say that they run something of it there. Of one
        whose log this controller has not read yet, all places of such a worker that its tasks may take.
        """
        found: set[Place] = set()
        for name in self.unready():
            held, known = self._last_held(name, now)
            if now - known < _REPORTED_S:
                found |= held
            for worker, seen in workers.items():
                said = _said_to_run(name, worker, seen)
                found |= said & held or said
        return frozenset(found)

    def _last_held(self, name: str, now: float) -> tuple[frozenset[Place], float]:
        """Where an experiment had tasks when its log was last read to the end, and when that was, at the latest."""
        each, fault = self.opened.get(name), self._faults.get(name)
        if each is not None and each.overview is not None:
            return each.overview.held, now
        return (fault.held, fault.known) if fault is not None else (frozenset(), now)

    def _may_be_tried(self, name: str, now: float) -> bool:
        fault = self._faults.get(name)
        if fault is not None and now > fault.until + _LONGEST_S:
            del self._faults[name]  # it has gone well since
        return fault is None or now >= fault.until


def _said_to_run(experiment: str, worker: str, seen: WorkerView) -> set[Place]:
    """Places that tasks of an experiment may take at a worker, by what it says."""
    found: set[Place] = set()
    for name, _, key in (task.partition("/") for task in seen.tasks):
        if name == experiment:
            # It is text of the worker's, perhaps of another version.
            takes_none = key.split("/")[1:2] in (["etl"], ["search"], ["fitting"])
            lanes = (NO_DEVICE,) if takes_none else range(seen.devices)
            found.update(Place(worker, lane) for lane in lanes)
    return found
