"""Exclusions: why a worker or a device slot gets no task. Pure.

Producers return them, for example `cerebro.state.worker_quarantine.machine_exclusions`. The controller collects
them for each decision (`controller.exclusions.collection`). `cerebro status`, pages and logs print the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from cerebro.state.tasks.keys import TaskKey


class Scope(StrEnum):
    """The tasks that an exclusion stops."""

    EVERYTHING = "everything"
    """All tasks; open ones are released."""
    NEW_TASKS = "new tasks"
    """All tasks that are not assigned yet."""
    REPLICAS = "new replicas"
    """ETL tasks that make lost partitions or copies."""
    COPIES = "new copies"
    """Copies of partitions that other workers hold. The worker still makes lost partitions."""
    RUN = "run"
    MODEL = "model"
    """Sub-epochs of a model."""
    TASK = "task"
    """One sub-epoch, or one task of another kind."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a worker, or one of its device slots, gets no task.

    Attributes:
        worker: name of the worker.
        scope: tasks that it stops.
        reason: for people.
        until: its end, in seconds since the epoch; `None` if it ends with its cause.
        name: the run, model or task of the scope; empty for the wider scopes.
        device: number of the device slot; `None` for the whole worker.
    """

    worker: str
    scope: Scope
    reason: str
    until: float | None = None
    name: str = ""
    device: int | None = None

    def stops(self, key: TaskKey) -> bool:
        """True if the exclusion stops a new task with this key.

        False for `REPLICAS` and `COPIES`: who makes partitions again asks for the scope.

        >>> key = TaskKey(run="fit-1", kind="train", model="m-0", epoch=1, partition=0)
        >>> Exclusion("worker-0", Scope.MODEL, "too little memory", name="m-0").stops(key)
        True
        >>> Exclusion("worker-0", Scope.REPLICAS, "its volume is full").stops(key)
        False
        """
        match self.scope:
            case Scope.EVERYTHING | Scope.NEW_TASKS:
                return True
            case Scope.REPLICAS | Scope.COPIES:
                return False
            case Scope.RUN:
                return key.run == self.name
            case Scope.MODEL:
                return key.kind == "train" and key.model == self.name
            case Scope.TASK:
                return str(key) == self.name


def excluded_workers(exclusions: Iterable[Exclusion]) -> dict[str, Exclusion]:
    """Return the workers that are excluded from everything."""
    return {each.worker: each for each in exclusions if each.scope is Scope.EVERYTHING}
