"""The exclusions of one decision, by worker, device slot and task. Pure.

`controller.decisions.assignment_draft` makes and fills one `Exclusions` per run and decision; it and the task sources
look up a worker before they place a task. The other modules of this folder find the exclusions; this one only collects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from cerebro.state import TaskKey
from cerebro.state.exclusions import Exclusion, Scope
from cerebro.state.workers import NO_DEVICE
from controller.sharing.arbiter import DeviceSlot


class Exclusions:
    """Exclusions that apply to the tasks of one run during one decision.

    Args:
        found: the first exclusions.
        slots: device slots of the run's workers that other runs use or get next. There may be thousands, so
            `feasible` builds their exclusions on demand.

    Attributes:
        slots: see the argument.
    """

    def __init__(self, found: Iterable[Exclusion] = (), *, slots: Set[DeviceSlot] = frozenset()) -> None:
        self.slots = slots
        self._of_workers: dict[str, Exclusion] = {}
        """Worker -> exclusion of all tasks of the run; looked up for each worker in each pass."""
        self._narrow: dict[str, list[Exclusion]] = {}
        """Worker -> exclusions of some tasks."""
        self.add(*found)

    def __iter__(self) -> Iterator[Exclusion]:
        yield from self._of_workers.values()
        for exclusions in self._narrow.values():
            yield from exclusions

    def add(self, *found: Exclusion) -> None:
        """Add exclusions. The first one of a worker and scope gives the reason."""
        for each in found:
            if each.device is None and each.scope in _OF_ALL_TASKS:
                self._of_workers.setdefault(each.worker, each)
            else:
                self._narrow.setdefault(each.worker, []).append(each)

    def stops_all(self, worker: str) -> bool:
        """True if the worker gets no task of the run."""
        return worker in self._of_workers

    def workers(self, scope: Scope) -> set[str]:
        """Return the workers with an exclusion of this scope."""
        return {each.worker for each in self if each.scope is scope}

    def feasible(self, key: TaskKey, worker: str, devices: Iterable[int] | None = None) -> Exclusion | None:
        """Return why the worker may not run the task; `None` if it may.

        Args:
            key: key of the task.
            worker: name of the worker.
            devices: its devices for the task; none for a task without a device; `None` for any.
        """
        found = self._of_workers.get(worker)
        if found is not None:
            return found
        narrow = next((each for each in self._narrow.get(worker, ()) if each.stops(key)), None)
        if narrow is not None or devices is None:
            return narrow
        slots = (DeviceSlot(worker, device) for device in (*devices,) or (NO_DEVICE,))
        return next((of_slot(slot) for slot in slots if slot in self.slots), None)


def of_slot(slot: DeviceSlot) -> Exclusion:
    """Return the exclusion of a run from a device slot of another run."""
    return Exclusion(
        slot.worker, Scope.NEW_TASKS, "another run has this device or gets it next", device=slot.device
    )


_OF_ALL_TASKS = (Scope.EVERYTHING, Scope.NEW_TASKS, Scope.RUN)
