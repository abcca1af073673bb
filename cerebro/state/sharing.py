"""How the runs that are open share the cluster, as users see it: what each is due and has, its place in the queue, and
why it waits. Pure.

The controller says which runs it works on and what they have (`cerebro.contract.api.Attended`), because only it knows
all of them; page, notebook and command line say the same of it. What it said may be two seconds old. So a
reader of the run's log takes what the run has from there (`QueuePosition.as_logged`), as the controller does
(`lanes_held`): the numbers then match the tasks on display.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from cerebro.contract.api import AttendedRun, QueueAnswer, QueueEntry
from cerebro.contract.priority import shown
from cerebro.contract.priority import weight as weight_of
from cerebro.state.workers import NO_DEVICE, lanes_of

if TYPE_CHECKING:
    from cerebro.state.experiment import ExperimentState
    from cerebro.state.runs import Run
    from cerebro.state.tasks import Task

_Key = TypeVar("_Key", bound=Hashable)


def due_shares(runs: Mapping[_Key, tuple[str, float]]) -> dict[_Key, float]:
    """Share of the cluster, 0 to 1, that each run is due while all of them want more than they have.

    A project's weight is the mean of its runs' weights. Within a project, runs share by weight. So the runs of one
    project count as one, and a priority counts both within a project and between projects.

    Args:
        runs: the project of each run, and its weight, above 0.
    """
    projects: dict[str, list[float]] = {}
    for project, weight in runs.values():
        projects.setdefault(project, []).append(weight)
    means = {name: sum(weights) / len(weights) for name, weights in projects.items()}
    total = sum(means.values())
    return {
        key: means[project] / total * weight / sum(projects[project])
        for key, (project, weight) in runs.items()
    }


def lanes_held(state: ExperimentState, run: Run) -> frozenset[tuple[str, int]]:
    """Worker and device (`NO_DEVICE`: its lane for tasks without one) wherever a run has open tasks; all of a worker
    where it has one that must be alone."""
    found = {lane for key, task in run.open.items() for lane in task_lanes(state, key, task)}
    if run.exhausted:
        alone = {task.attempts[-1].worker for task in run.open.values() if task.exhausted}
        for name in alone:
            found.update((name, lane) for lane in (NO_DEVICE, *range(state.workers[name].devices)))
    return frozenset(found)


def task_lanes(state: ExperimentState, key: str, task: Task) -> Iterator[tuple[str, int]]:
    """Worker and lane wherever an open task is."""
    for name, devices in task.attempts[-1].places:
        for lane in lanes_of(devices):
            yield name, lane


@dataclass(frozen=True, kw_only=True)
class QueuePosition:
    """Where an open run stands.

    Attributes:
        is_attended: the controller works on it.
        place: its place among those that wait for that, from 1; 0: it does not wait, or for a moment only, or
            `has_to_wait`: for another run of its experiment, however much room there is.
        due: its share of the cluster, 0 to 1, while all want more than they have; `None` until it is worked on.
        devices: on which it has tasks, `of` so many of the cluster.
        without_device: workers that have a task of it that takes no device.
        ahead: runs that are before it in turn and could use more, as it could; `None`: it could use no more.
        others_have: it could use more, and other runs have devices.
        kept_s: so many seconds yet the devices that it could use stay with the experiments that are there.
        place_reason: why it has a place in the queue.
    """

    experiment: str
    run: str
    is_attended: bool
    has_to_wait: bool = False
    place: int = 0
    priority: str = ""
    project: str = ""
    due: float | None = None
    devices: int = 0
    of: int = 0
    without_device: int = 0
    ahead: int | None = None
    others_have: bool = False
    kept_s: float = 0.0
    place_reason: str = ""

    @property
    def reason(self) -> str:
        """Why it waits; empty if it does not, or not for runs of other experiments. See `reason_to_wait`."""
        # What runs without a device is due none.
        has_less = not self.without_device and (self.devices < (self.due or 0) * self.of or not self.devices)
        if self.ahead is None or not self.others_have or not has_less:
            return self.place_reason
        have = "it has fewer devices than it is due" if self.devices else "other runs have the devices"
        ahead = (
            f"{self.ahead} other{'s are' if self.ahead > 1 else ' is'} before it"
            if self.ahead
            else "it is next"
        )
        stay = f"; they keep them for {self.kept_s:.0f} s yet" if self.kept_s else ""
        return f"{have}, and {ahead} in turn{stay}"

    def as_logged(self, state: ExperimentState) -> QueuePosition:
        """The same with what the run has by its experiment's log, which is newer than what was told of it."""
        run = state.runs.get(self.run)
        return self if run is None or not run.is_open else self.with_devices(lanes_held(state, run))

    def with_devices(self, lanes: Collection[tuple[str, int]]) -> QueuePosition:
        """Return the run's place with these devices (see `lanes_held`)."""
        if not self.is_attended:
            return self
        beside = sum(lane == NO_DEVICE for _, lane in lanes)
        return replace(self, devices=len(lanes) - beside, without_device=beside)

    @property
    def position(self) -> str:
        """Whether it runs, or where it is in the queue, in words."""
        if self.has_to_wait:
            return "waits for a run of its experiment"
        if self.place:
            return f"{_ordinal(self.place)} in the queue"
        if not self.is_attended:
            return "begins in a moment"
        return "runs now" if self.devices or self.without_device or not self.reason else "waits for a device"

    @property
    def has(self) -> str:
        """What it has of the cluster now, in words."""
        found = f"{self.devices} of {self.of} device{'s' if self.of != 1 else ''}"
        number = self.without_device
        tasks = f"{number} task{'s' if number != 1 else ''} without a device" if number else ""
        return ", ".join(filter(None, [found, tasks]))

    @property
    def brief(self) -> str:
        """What it has and is due, in few words; empty until it is worked on."""
        return "" if self.due is None else f"{self.devices} of {self.of} devices (due {self.due:.0%})"

    @property
    def line(self) -> str:
        """Position, share and what it has, in words."""
        if self.due is None:
            return self.position
        rank = f", priority {self.priority}" if self.priority != "normal" else ""
        project = f", project {self.project}" if self.project else ""
        return f"{self.position}: due {self.due:.0%} of the cluster{rank}{project}, has {self.has}"


def queue_positions(queue: QueueAnswer) -> list[QueuePosition]:
    """Where each open run stands, oldest first."""
    queued = {(entry.experiment, entry.run) for entry in queue.runs}
    attended = {
        (each.experiment, each.run): each
        for each in queue.attended.runs
        if (each.experiment, each.run) in queued
    }
    due = due_shares({key: (each.project, weight_of(each.priority)) for key, each in attended.items()})
    found_attended = _attended(attended, due, queue.attended.devices)
    left, place, ahead, found = queue.open_runs - len(attended), 0, 0, []
    for entry in queue.runs:
        key = entry.experiment, entry.run
        if key in attended:
            found.append(found_attended[key])
        elif entry in queue.attended.waiting:
            found.append(
                QueuePosition(experiment=entry.experiment, run=entry.run, is_attended=False, has_to_wait=True)
            )
            continue
        elif left > 0:
            left -= 1
            found.append(QueuePosition(experiment=entry.experiment, run=entry.run, is_attended=False))
        else:
            place += 1
            found.append(_waiting(entry, place, ahead, queue.open_runs))
        ahead += 1
    return found


def queue_position_of(queue: QueueAnswer, experiment: str, run: str) -> QueuePosition | None:
    """Where one run stands; `None` if it is not in the queue."""
    return next((s for s in queue_positions(queue) if (s.experiment, s.run) == (experiment, run)), None)


def _attended(
    attended: Mapping[tuple[str, str], AttendedRun], due: Mapping[tuple[str, str], float], devices: int
) -> dict[tuple[str, str], QueuePosition]:
    """Of runs in the order of their turns."""
    ahead, taken, found = 0, sum(told.devices for told in attended.values()), {}
    for key, told in attended.items():
        found[key] = QueuePosition(
            experiment=told.experiment,
            run=told.run,
            is_attended=True,
            priority=shown(told.priority),
            project=told.project,
            due=due[key],
            devices=told.devices,
            of=devices,
            without_device=told.without_device,
            ahead=ahead if told.could_use_more else None,
            others_have=told.could_use_more and taken > told.devices,
            kept_s=told.kept_s,
        )
        ahead += told.could_use_more
    return found


def _waiting(entry: QueueEntry, place: int, ahead: int, most: int) -> QueuePosition:
    runs = f"{ahead} runs are" if ahead > 1 else "1 run is"
    reason = f"{runs} open before it; {most} may be open at once"
    return QueuePosition(
        experiment=entry.experiment, run=entry.run, is_attended=False, place=place, place_reason=reason
    )


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
