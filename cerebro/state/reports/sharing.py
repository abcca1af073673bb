"""How open runs share the cluster: fair share, devices, queue position and reason to wait. Pure.

Only the controller knows all attended runs and their devices (`cerebro.contract.rest.api.Attended`); page, notebook and
command line show its report. The report may be two seconds old. A reader of the run's log takes the devices from the
log (`QueuePosition.as_logged`, as the controller does with `held_slots`), so numbers match the tasks on display.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from cerebro.contract.priority import shown
from cerebro.contract.priority import weight as weight_of
from cerebro.contract.rest.api import AttendedRun, QueueAnswer, QueueEntry
from cerebro.state.workers import NO_DEVICE, slots_of

if TYPE_CHECKING:
    from cerebro.state.experiment import ExperimentState
    from cerebro.state.runs.run import Run
    from cerebro.state.tasks.task import Task

_Key = TypeVar("_Key", bound=Hashable)


def due_shares(runs: Mapping[_Key, tuple[str, float]]) -> dict[_Key, float]:
    """Return the fair share (0 to 1) of each run while all want more.

    A project's weight is the mean of its runs' weights; within a project, runs share by weight. A project counts as one
    run, and priority counts within and between projects.

    Args:
        runs: (project, weight above 0) of each run.
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


def held_slots(state: ExperimentState, run: Run) -> frozenset[tuple[str, int]]:
    """Return (worker, device) of the run's open tasks; `NO_DEVICE` for tasks without one.

    A task that runs alone after an out-of-memory failure holds its whole worker."""
    found = {slot for key, task in run.tasks.open.items() for slot in task_slots(state, key, task)}
    if run.tasks.exhausted:
        alone = {task.attempts[-1].worker for task in run.tasks.open.values() if task.exhausted}
        for name in alone:
            found.update((name, slot) for slot in (NO_DEVICE, *range(state.workers[name].devices)))
    return frozenset(found)


def task_slots(state: ExperimentState, key: str, task: Task) -> Iterator[tuple[str, int]]:
    """Yield (worker, device slot) of an open task."""
    for name, devices in task.attempts[-1].places:
        for slot in slots_of(devices):
            yield name, slot


@dataclass(frozen=True, kw_only=True)
class QueuePosition:
    """Queue position of an open run.

    Attributes:
        is_attended: True if the controller works on it.
        has_to_wait: True if it waits for another run of its experiment.
        place: place in the queue, from 1; 0 if it is not queued.
        due: fair share of the cluster, 0 to 1; `None` before it is attended.
        devices, of: devices with its tasks, and devices of the cluster.
        without_device: its tasks that need no device.
        ahead: earlier runs that could use more devices; `None` if this run could not.
        others_have: True if it could use more and other runs have devices.
        kept_s: seconds of minimum hold time left on devices it could use.
        place_reason: why it is queued.
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
        """Why it waits for other experiments' runs, or an empty string. See `reason_to_wait`."""
        # A run without device tasks is due no devices.
        has_less = not self.without_device and (self.devices < (self.due or 0) * self.of or not self.devices)
        if self.ahead is None or not self.others_have or not has_less:
            return self.place_reason
        have = "it has fewer devices than it is due" if self.devices else "other runs have the devices"
        ahead = (
            f"{self.ahead} other{'s are' if self.ahead > 1 else ' is'} before it"
            if self.ahead
            else "it is next"
        )
        hold_note = f"; they keep them for {self.kept_s:.0f} s yet" if self.kept_s else ""
        return f"{have}, and {ahead} in turn{hold_note}"

    def as_logged(self, state: ExperimentState) -> QueuePosition:
        """Return the position with devices from the experiment's log, which is newer than the report."""
        run = state.runs.get(self.run)
        return self if run is None or not run.is_open else self.with_devices(held_slots(state, run))

    def with_devices(self, slots: Collection[tuple[str, int]]) -> QueuePosition:
        """Return the position with these devices (see `held_slots`)."""
        if not self.is_attended:
            return self
        without_device = sum(slot == NO_DEVICE for _, slot in slots)
        return replace(self, devices=len(slots) - without_device, without_device=without_device)

    @property
    def position(self) -> str:
        """Its state or place in the queue, as text."""
        if self.has_to_wait:
            return "waits for a run of its experiment"
        if self.place:
            return f"{_ordinal(self.place)} in the queue"
        if not self.is_attended:
            return "begins in a moment"
        return "runs now" if self.devices or self.without_device or not self.reason else "waits for a device"

    @property
    def has(self) -> str:
        """Its devices and other tasks, as text."""
        found = f"{self.devices} of {self.of} device{'s' if self.of != 1 else ''}"
        number = self.without_device
        tasks = f"{number} task{'s' if number != 1 else ''} without a device" if number else ""
        return ", ".join(filter(None, [found, tasks]))

    @property
    def brief(self) -> str:
        """Its devices and fair share in few words; empty before it is attended."""
        return "" if self.due is None else f"{self.devices} of {self.of} devices (due {self.due:.0%})"

    @property
    def line(self) -> str:
        """Position, fair share and devices, as text."""
        if self.due is None:
            return self.position
        rank = f", priority {self.priority}" if self.priority != "normal" else ""
        project = f", project {self.project}" if self.project else ""
        return f"{self.position}: due {self.due:.0%} of the cluster{rank}{project}, has {self.has}"


def queue_positions(queue: QueueAnswer) -> list[QueuePosition]:
    """Return the queue position of each open run, oldest first."""
    queued = {(entry.experiment, entry.run) for entry in queue.runs}
    attended = {
        (each.experiment, each.run): each
        for each in queue.attended.runs
        if (each.experiment, each.run) in queued
    }
    due = due_shares({key: (each.project, weight_of(each.priority)) for key, each in attended.items()})
    found_attended = _attended(attended, due, queue.attended.devices)
    unattended_runs, place, ahead, found = queue.open_runs - len(attended), 0, 0, []
    for entry in queue.runs:
        key = entry.experiment, entry.run
        if key in attended:
            found.append(found_attended[key])
        elif entry in queue.attended.waiting:
            found.append(
                QueuePosition(experiment=entry.experiment, run=entry.run, is_attended=False, has_to_wait=True)
            )
            continue
        elif unattended_runs > 0:
            unattended_runs -= 1
            found.append(QueuePosition(experiment=entry.experiment, run=entry.run, is_attended=False))
        else:
            place += 1
            found.append(_waiting(entry, place, ahead, queue.open_runs))
        ahead += 1
    return found


def queue_position_of(queue: QueueAnswer, experiment: str, run: str) -> QueuePosition | None:
    """Return one run's queue position; `None` if it is not open."""
    return next((s for s in queue_positions(queue) if (s.experiment, s.run) == (experiment, run)), None)


def _attended(
    attended: Mapping[tuple[str, str], AttendedRun], due: Mapping[tuple[str, str], float], devices: int
) -> dict[tuple[str, str], QueuePosition]:
    """Positions of attended runs, in scheduling order."""
    ahead, taken, found = 0, sum(attended_run.devices for attended_run in attended.values()), {}
    for key, attended_run in attended.items():
        found[key] = QueuePosition(
            experiment=attended_run.experiment,
            run=attended_run.run,
            is_attended=True,
            priority=shown(attended_run.priority),
            project=attended_run.project,
            due=due[key],
            devices=attended_run.devices,
            of=devices,
            without_device=attended_run.without_device,
            ahead=ahead if attended_run.could_use_more else None,
            others_have=attended_run.could_use_more and taken > attended_run.devices,
            kept_s=attended_run.kept_s,
        )
        ahead += attended_run.could_use_more
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
