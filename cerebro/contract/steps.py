"""Steps: decisions of the controller (`Decision`) and reports of workers (`Report`) that change the store. Types only.

`KvsClient.decide` and `report` send them; `kvs_api.store.steps` and the script apply them.

A step is one compare-and-set on ``(task, attempt)`` with its event. The store applies a list of steps
atomically. For each it answers `done`, `already` (applied before, so a retry is harmless) or `refused` with a
reason (another attempt owns the task).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cerebro.contract.base import Contract, Devices, LateContract, Name
from cerebro.contract.events import ControllerEvent
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.records import QUEUE_DEPTH
from cerebro.contract.tasks.bodies import FusedMember, FusedTask, TaskBody, TrainTask
from cerebro.contract.tasks.checkpoints import Savepoint
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.fused import FusedGroup
from cerebro.contract.tasks.results import TaskResult


class AssignedMember(Contract):
    """A `Member` of a gang, with its incarnation."""

    worker: Name
    incarnation: str
    partition: int = Field(ge=0)
    devices: Devices = (0,)


class FusedAssignment(LateContract):
    """Another task of a fused group. Attributes as in `Assign`."""

    task: str
    attempt: int = Field(ge=1)
    config_version: int = Field(0, ge=0, exclude_if=lambda value: not value)
    body: TrainTask


class Assign(LateContract):
    """Controller: put `attempt` of a task into the inbox of a worker's present incarnation.

    Refused if one of the devices does not exist or has `depth` open attempts already.
    """

    op: Literal["assign"] = "assign"
    task: str
    attempt: int = Field(ge=1)
    worker: Name
    incarnation: str
    devices: Devices = (0,)
    """The worker's devices for the attempt. Without devices it waits in the queue for such tasks."""
    other_members: tuple[AssignedMember, ...] = Field((), exclude_if=lambda members: not members)
    """Other workers of a gang. The store assigns the attempt to all workers or to no worker."""
    fused: tuple[FusedAssignment, ...] = Field((), exclude_if=lambda tasks: not tasks)
    """Other tasks of a fused group, which share the devices. The store assigns all tasks or no task."""
    config_version: int = Field(0, ge=0, exclude_if=lambda value: not value)
    """As in `TaskAssigned`."""
    body: TaskBody

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks that it assigns."""
        return (self.task, *(other.task for other in self.fused)) if self.fused else (self.task,)

    @property
    def group(self) -> FusedGroup | None:
        """Its fused group, or `None`."""
        return FusedGroup.led_by(self.task, self.attempt, 1 + len(self.fused))

    @property
    def inbox_body(self) -> TaskBody:
        """Body of the inbox entry: of one task, or of the members of a fused group."""
        if not self.fused or not isinstance(self.body, TrainTask):
            return self.body
        first = FusedMember(task=self.task, attempt=self.attempt, body=self.body)
        members = (FusedMember(task=each.task, attempt=each.attempt, body=each.body) for each in self.fused)
        return FusedTask(members=(first, *members))

    @property
    def depth(self) -> int:
        """Maximum number of open attempts per device, including this one; 1 for a gang, which starts at once."""
        return 1 if self.other_members else QUEUE_DEPTH

    @property
    def parallel_plan(self) -> ParallelPlan | None:
        """Parallel plan of the body; `None`: one device, as user code is written."""
        return getattr(self.body, "parallel_plan", None)


class Revoke(Contract):
    """Controller: revoke an attempt from all its workers. An unexpired lease is respected unless `force`."""

    op: Literal["revoke"] = "revoke"
    task: str
    attempt: int
    worker: Name
    reason: str
    force: bool = False
    loss: FailureKind | None = None
    """How the worker was lost; `None` if it was not lost.

    For a running attempt, `OUT_OF_MEMORY` counts as a failed attempt of that kind, `PREEMPTED` does not count, and
    other kinds count as a lost worker.
    """
    limit_bytes: int = Field(0, ge=0, exclude_if=lambda number: number == 0)
    """As in `TaskRevoked`."""


class Preempt(Contract):
    """Controller: preempt a running attempt at its next batch. Its child process and savepoint remain."""

    op: Literal["preempt"] = "preempt"
    task: str
    attempt: int
    worker: Name
    reason: str = Field(min_length=1)


class Dequeue(Contract):
    """Controller: remove a run from the queue that is not open in the log, as after a command that came too late."""

    op: Literal["dequeue"] = "dequeue"
    run: Name


class Note(Contract):
    """Controller: append an event that changes no task.

    The store refuses to end a run while the log has events the controller has not read: a user may have
    reopened the run.
    """

    op: Literal["note"] = "note"
    event: ControllerEvent


class Start(Contract):
    """Worker: take the lease of an assigned attempt. Refused while an older attempt is open on one of its devices."""

    op: Literal["start"] = "start"
    experiment: Name
    task: str
    attempt: int


class Renew(Contract):
    """Worker: keep the lease of a running attempt."""

    op: Literal["renew"] = "renew"
    experiment: Name
    task: str
    attempt: int


class Save(Contract):
    """Worker: a savepoint of a running attempt is durable. Renews its lease, too."""

    op: Literal["save"] = "save"
    experiment: Name
    task: str
    attempt: int
    savepoint: Savepoint


class Commit(Contract):
    """Worker: the attempt's result is durable."""

    op: Literal["commit"] = "commit"
    experiment: Name
    task: str
    attempt: int
    result: TaskResult


class Fail(Contract):
    """Worker: the attempt ended without a result, or was released before it started."""

    op: Literal["fail"] = "fail"
    experiment: Name
    task: str
    attempt: int
    failure: Failure


Decision = Annotated[Assign | Revoke | Preempt | Note | Dequeue, Field(discriminator="op")]
Report = Annotated[Start | Renew | Save | Commit | Fail, Field(discriminator="op")]


class StepOutcome(Contract):
    """Outcome of one step."""

    outcome: Literal["done", "already", "refused"]
    reason: str = ""
