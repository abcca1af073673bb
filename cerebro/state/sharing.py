"""How the runs that are open share the cluster, as users see it: what each is due and has, its place in the queue, and
why it waits. Pure.

The controller says which runs it works on and what they have (`cerebro.contract.api.Attended`), because only it knows
all of them; page, notebook and command line say the same of it. Weights are owned here, for the arbiter too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from cerebro.contract.api import AttendedRun, QueueAnswer, QueueEntry

WEIGHTS = {"low": 0.25, "normal": 1.0, "high": 4.0}
"""Weight of a run by its priority."""

_Key = TypeVar("_Key", bound=Hashable)


def due_shares(runs: Mapping[_Key, tuple[str, float]]) -> dict[_Key, float]:
    """Share of the cluster, 0 to 1, that each run is due while all of them want more than they have.

    A project is due as much as the mean of its runs' weights says, and each of its runs its part of that by its own:
    so the runs of one project count as one, and a priority counts within a project and beside others.

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


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where an open run stands.

    Attributes:
        is_attended: the controller works on it.
        place: its place among those that wait for that, from 1; 0: it does not wait, or for a moment only, or
            `has_to_wait`: for another run of its experiment, however much room there is.
        due: its share of the cluster, 0 to 1, while all want more than they have; `None` until it is worked on.
        devices: on which it has tasks, `of` so many of the cluster.
        without_device: workers that have a task of it that takes no device.
        reason: why it waits; empty if it does not, or not for runs of other experiments. See `reason_to_wait`.
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
    reason: str = ""

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
    def line(self) -> str:
        """Position, share and what it has, in words."""
        if self.due is None:
            return self.position
        rank = f", priority {self.priority}" if self.priority != "normal" else ""
        project = f", project {self.project}" if self.project else ""
        return f"{self.position}: due {self.due:.0%} of the cluster{rank}{project}, has {self.has}"


def standings(queue: QueueAnswer) -> list[Standing]:
    """Where each open run stands, oldest first."""
    queued = {(entry.experiment, entry.run) for entry in queue.runs}
    attended = {
        (each.experiment, each.run): each
        for each in queue.attended.runs
        if (each.experiment, each.run) in queued
    }
    due = due_shares({key: (each.project, WEIGHTS[each.priority]) for key, each in attended.items()})
    reasons = dict(zip(attended, _reasons(attended, due, queue.attended.devices), strict=True))
    left, place, ahead, found = queue.open_runs - len(attended), 0, 0, []
    for entry in queue.runs:
        key = entry.experiment, entry.run
        if key in attended:
            found.append(_attended(attended[key], due[key], queue.attended.devices, reasons[key]))
        elif entry in queue.attended.waiting:
            found.append(
                Standing(experiment=entry.experiment, run=entry.run, is_attended=False, has_to_wait=True)
            )
            continue
        elif left > 0:
            left -= 1
            found.append(Standing(experiment=entry.experiment, run=entry.run, is_attended=False))
        else:
            place += 1
            found.append(_waiting(entry, place, ahead, queue.open_runs))
        ahead += 1
    return found


def standing_of(queue: QueueAnswer, experiment: str, run: str) -> Standing | None:
    """Where one run stands; `None` if it is not in the queue."""
    return next((s for s in standings(queue) if (s.experiment, s.run) == (experiment, run)), None)


def _attended(told: AttendedRun, due: float, devices: int, reason: str) -> Standing:
    return Standing(
        experiment=told.experiment,
        run=told.run,
        is_attended=True,
        priority=told.priority,
        project=told.project,
        due=due,
        devices=told.devices,
        of=devices,
        without_device=told.without_device,
        reason=reason,
    )


def _waiting(entry: QueueEntry, place: int, ahead: int, most: int) -> Standing:
    runs = f"{ahead} runs are" if ahead > 1 else "1 run is"
    reason = f"{runs} open before it; {most} may be open at once"
    return Standing(experiment=entry.experiment, run=entry.run, is_attended=False, place=place, reason=reason)


def _reasons(
    attended: Mapping[tuple[str, str], AttendedRun], due: Mapping[tuple[str, str], float], devices: int
) -> Iterator[str]:
    """Of runs in the order of their turns."""
    ahead = 0
    for key, told in attended.items():
        # What runs without a device is due none.
        has_less = not told.without_device and (told.devices < due[key] * devices or not told.devices)
        if not told.could_use_more or not has_less:
            yield ""
        else:
            have = "it has fewer devices than it is due" if told.devices else "other runs have the devices"
            others = f"{ahead} other{'s are' if ahead > 1 else ' is'} before it" if ahead else "it is next"
            yield f"{have}, and {others} in turn"
        ahead += told.could_use_more


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
