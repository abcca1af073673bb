"""Task sources: who proposes tasks, in order of priority. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.gangs import Gang
from cerebro.state import Task, TaskKey, Worker

if TYPE_CHECKING:
    from controller.decisions.assignment_draft import AssignmentDraft


class Proposal(NamedTuple):
    """A task for a worker.

    Attributes:
        key: key of the task.
        worker: name of the worker.
        devices: devices that the task takes.
        parallel_plan: plan of a sub-epoch; `None` for one device.
        body: task body, if the key does not determine it.
        gang: the workers of a sub-epoch on a set of partitions.
        fused: keys of further sub-epochs that train with it as one stack.
    """

    key: TaskKey
    worker: str
    devices: tuple[int, ...] = ()
    parallel_plan: ParallelPlan | None = None
    body: TaskBody | None = None
    gang: Gang | None = None
    fused: tuple[TaskKey, ...] = ()


class Offer(NamedTuple):
    """The device slots that one pass fills.

    Attributes:
        depth: slots with fewer open tasks than this get one.
        offered_devices: worker -> devices that may get a task; all by default.
        order: workers, the preferred first; all alive ones by default.
    """

    depth: int = 1
    offered_devices: Mapping[str, Sequence[int]] | None = None
    order: Sequence[Worker] | None = None

    def devices(self, worker: str) -> Sequence[int] | None:
        """Return the devices of a worker that may get a task; `None` for all."""
        return None if self.offered_devices is None else self.offered_devices.get(worker, ())


class TaskSource(Protocol):
    """Proposes tasks for one run."""

    def propose(self, view: AssignmentDraft, offer: Offer) -> Iterable[Proposal]:
        """Yield tasks for the offered slots.

        The caller assigns each proposal before it requests the next one, so `view.slots` counts it.
        """
        ...


class RevocableTasks(TaskSource, Protocol):
    """Proposes the tasks of some kinds, whose results can become unneeded.

    Attributes:
        kinds: kinds of its tasks.
        reason: why an open task is revoked that is not needed.
    """

    kinds: frozenset[str]
    reason: str

    def is_still_needed(self, task: Task) -> bool:
        """True if the result of an open task of these kinds is still needed."""
        ...
