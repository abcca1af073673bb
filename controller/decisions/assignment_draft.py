"""The assignments of one decision, and their effect on device slots and dispatch state. Pure.

The next attempt of a task that ran out of memory runs alone on a worker
(`controller.exclusions.memory_retries`). Until then the worker gets no other task.
"""

from __future__ import annotations

import random

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.rest import api
from cerebro.contract.runs import FitRequest
from cerebro.contract.steps import AssignedMember, FusedAssignment
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.gangs import Gang
from cerebro.scheduling.remaining_work import NEVER
from cerebro.scheduling.schedule import Placement
from cerebro.state import ExperimentState, Run, TaskKey, Worker
from controller.decisions import tasks
from controller.decisions.device_slots import DeviceSlots
from controller.decisions.fit_dispatch import FitDispatch
from controller.exclusions import memory_retries
from controller.exclusions.collection import Exclusions
from controller.exclusions.memory_needs import without_memory
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.sources.task_source import Offer, Proposal, TaskSource


class AssignmentDraft:
    """Collects the assignments of one decision and counts the device slots they use.

    Attributes:
        alive: workers that can get tasks.
        slots: device slots, with the open tasks and the new assignments.
        views: current worker views, by name.
        fitted: return value of `ETLSpec.fit` for the run's data set, or `None`.
        exclusions: where the run's tasks may not run; sources add to them.
        snapshot: the present workers.
    """

    def __init__(
        self,
        record: ExperimentRecord,
        state: ExperimentState,
        run: Run,
        fit: FitDispatch | None,
        snapshot: ClusterSnapshot,
    ) -> None:
        self._record, self._state, self.run, self.snapshot = record, state, run, snapshot
        self.views = snapshot.workers
        self.alive = [w for w in state.workers.values() if w.is_alive]
        self.slots = DeviceSlots(self.alive)
        self.exclusions = Exclusions(
            memory_retries.exclusions(state, run, fit, self.slots, snapshot), slots=snapshot.excluded_slots
        )
        self.exclusions.add(*snapshot.exclusions, *snapshot.without_room())
        for slot in snapshot.excluded_slots:
            self.slots.close(slot.worker, slot.device)
        if run.tasks.exhausted:
            self.exclusions.add(*without_memory(run, snapshot.workers))
        plan = run.plan
        dataset = state.datasets.get(plan.dataset) if plan is not None else None
        self.fitted = dataset.fitted if dataset is not None else None
        self._taken: set[str] = set()
        self.steps: list[api.Assign] = []
        request = run.request
        seed = request.seed if isinstance(request, FitRequest) else 0
        # Seeded by the log's length: equal states decide equally, and two decisions are independent.
        self.rng = random.Random(f"{seed}/{run.id}/{state.seq}")

    def accept(self, source: TaskSource, offer: Offer = Offer()) -> None:  # noqa: B008
        """Assign the tasks that a source proposes for the offered slots."""
        for proposal in source.propose(self, offer):
            if proposal.gang is None:
                self._assign(proposal)
            else:
                self._assign_gang(proposal, proposal.gang)

    def has(self, key: TaskKey) -> bool:
        """True if this decision assigns the task."""
        return str(key) in self._taken

    def given_to(self, worker: str) -> list[str]:
        """Return the keys of the tasks that this decision assigns to `worker`."""
        return [task for step in self.steps if step.worker == worker for task in step.tasks]

    def worker(self, name: str) -> Worker:
        """Return an alive worker by name."""
        return self._state.workers[name]

    def _assign(self, proposal: Proposal) -> None:
        key, worker, devices, parallel_plan, body, _, fused = proposal
        task = self.run.task(key)
        self._taken |= {str(key), *map(str, fused)}
        self.slots.take(worker, devices)
        self.steps.append(
            api.Assign(
                task=str(key),
                attempt=task.attempt + 1,
                worker=worker,
                incarnation=self._state.workers[worker].incarnation,
                devices=devices,
                config_version=self._config_version(key),
                fused=tuple(self._fused(other, parallel_plan) for other in fused),
                body=body or self._body(worker, key, parallel_plan),
            )
        )

    def _fused(self, key: TaskKey, parallel_plan: ParallelPlan | None) -> FusedAssignment:
        body = tasks.body(self._record, self._state, self.run, key, parallel_plan)
        assert isinstance(body, TrainTask)
        return FusedAssignment(
            task=str(key),
            attempt=self.run.task(key).attempt + 1,
            config_version=self._config_version(key),
            body=body,
        )

    def _body(self, worker: str, key: TaskKey, parallel_plan: ParallelPlan | None) -> TaskBody:
        body = tasks.body(self._record, self._state, self.run, key, parallel_plan)
        if key.kind == "etl":
            return body.model_copy(update={"shortages": self.run.task(key).shortages})
        return body

    def _assign_gang(self, proposal: Proposal, gang: Gang) -> None:
        key, parallel_plan = proposal.key, proposal.parallel_plan
        task, (first, *other_members) = self.run.task(key), gang.members
        self._taken.add(str(key))
        for member in gang.members:
            self.slots.take(member.worker, member.devices)
        self.steps.append(
            api.Assign(
                task=str(key),
                attempt=task.attempt + 1,
                worker=first.worker,
                incarnation=self._state.workers[first.worker].incarnation,
                devices=first.devices,
                config_version=self._config_version(key),
                other_members=tuple(
                    AssignedMember(
                        worker=member.worker,
                        incarnation=self._state.workers[member.worker].incarnation,
                        partition=member.partition,
                        devices=member.devices,
                    )
                    for member in other_members
                ),
                body=tasks.body(self._record, self._state, self.run, key, parallel_plan, gang=gang),
            )
        )

    def _config_version(self, key: TaskKey) -> int:
        """Return the version of the training config for a sub-epoch; `tasks.body` uses the same one."""
        return self.run.models[key.model or ""].version_for(str(key)) if key.kind == "train" else 0


class DispatchDraft:
    """Applies the assignments of one decision to the dispatch state, until `undo`."""

    def __init__(self, fit: FitDispatch) -> None:
        self._state = fit.dispatch_state
        self._free = list(self._state.free)
        self._started: list[int] = []
        self._excluded: list[tuple[int, int, float]] = []
        """(model, worker, estimated seconds)."""

    @property
    def has_excluded(self) -> bool:
        """True if a model is excluded from a worker that the run's plan may have chosen for it."""
        return bool(self._excluded)

    def start(self, choice: Placement) -> None:
        """Mark the model and devices of a chosen sub-epoch as busy."""
        self._state.start(choice)
        self._started.append(choice.model)

    def exclude(self, model: int, worker: int) -> None:
        """Exclude this pair of model and worker for the rest of this decision."""
        times = self._state.work.time[model]
        self._excluded.append((model, worker, times[worker]))
        times[worker] = NEVER

    def undo(self) -> None:
        """Restore the dispatch state. The log will report the steps that took effect."""
        for model in reversed(self._started):
            self._state.release(model)
        self._state.free = self._free
        for model, worker, seconds in reversed(self._excluded):
            self._state.work.time[model][worker] = seconds
