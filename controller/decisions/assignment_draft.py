"""The assignments of one decision, and their effect on device slots and dispatch state. Pure.

The next attempt of a task that ran out of memory runs alone on a worker
(`controller.exclusions.memory_retries`). Until then the worker gets no other task.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.rest import api
from cerebro.contract.runs import FitRequest
from cerebro.contract.steps import AssignedMember
from cerebro.contract.tasks import Gang, TaskBody
from cerebro.scheduling.dispatch_state import NEVER, Choice, GangMember
from cerebro.state import ExperimentState, Run, TaskKey, Worker
from controller.decisions import tasks
from controller.decisions.fit_dispatch import FitDispatch
from controller.decisions.places import Places
from controller.exclusions import memory_retries
from controller.exclusions.collection import Exclusions
from controller.exclusions.memory_needs import without_memory
from controller.exclusions.memory_retries import calmest, reserved, runs_alone
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.sources.ready_tasks import made_elsewhere, may_run, ready


class AssignmentDraft:
    """Collects the assignments of one decision and counts the device slots they use.

    Attributes:
        alive: workers that can get tasks.
        places: device slots, with the open tasks and the new assignments.
        views: current worker views, by name.
        fitted: return value of `ETLSpec.fit` for the run's data set, or `None`.
        exclusions: where the run's tasks may not run; `give` and the sources add to them.
    """

    def __init__(
        self,
        record: ExperimentRecord,
        state: ExperimentState,
        run: Run,
        fit: FitDispatch | None,
        snapshot: ClusterSnapshot,
    ) -> None:
        self._record, self._state, self.run = record, state, run
        self.views = snapshot.workers
        self.alive = [w for w in state.workers.values() if w.is_alive]
        self.places = Places(self.alive)
        self.exclusions = Exclusions(
            memory_retries.exclusions(state, run, fit, self.places, snapshot), slots=snapshot.closed
        )
        self.exclusions.add(*snapshot.exclusions, *snapshot.without_room())
        for slot in snapshot.closed:
            self.places.close(slot.worker, slot.device)
        if run.exhausted:
            self.exclusions.add(*without_memory(run, snapshot.workers))
        plan = run.plan
        made = state.datasets.get(plan.dataset) if plan is not None else None
        self.fitted = made.fitted if made is not None else None
        self._taken: set[str] = set()
        self._fit = fit if fit is not None and fit.run == run.id else None
        self.steps: list[api.Assign] = []
        request = run.request
        seed = request.seed if isinstance(request, FitRequest) else 0
        # Seeded by the log's length: equal states decide equally, and two decisions are independent.
        self.rng = random.Random(f"{seed}/{run.id}/{state.seq}")

    def given_to(self, worker: str) -> list[str]:
        """Return the keys of the tasks that this decision assigns to `worker`."""
        return [step.task for step in self.steps if step.worker == worker]

    def worker(self, name: str) -> Worker:
        """Return an alive worker by name."""
        return self._state.workers[name]

    def give(
        self,
        worker: str,
        key: TaskKey,
        devices: tuple[int, ...],
        parallel_plan: ParallelPlan | None = None,
        body: TaskBody | None = None,
    ) -> None:
        """Assign a task.

        Args:
            worker: name of the worker.
            key: key of the task.
            devices: devices the task takes.
            parallel_plan: plan of a sub-epoch.
            body: task body, if the key does not determine it.
        """
        task = self.run.task(key)
        self._taken.add(str(key))
        self.places.take(worker, devices)
        self.steps.append(
            api.Assign(
                task=str(key),
                attempt=task.attempt + 1,
                worker=worker,
                incarnation=self._state.workers[worker].incarnation,
                devices=devices,
                terms=self._terms(key),
                body=body or self._body(worker, key, parallel_plan),
            )
        )

    def _body(self, worker: str, key: TaskKey, parallel_plan: ParallelPlan | None) -> TaskBody:
        body = tasks.body(self._record, self._state, self.run, key, parallel_plan)
        if key.kind == "etl":
            return body.model_copy(update={"shortages": self.run.task(key).shortages})
        return body

    def give_gang(self, key: TaskKey, gang: Gang, parallel_plan: ParallelPlan) -> None:
        """Assign a sub-epoch on a set of partitions to all members of the gang."""
        task, (first, *others) = self.run.task(key), gang.members
        self._taken.add(str(key))
        for member in gang.members:
            self.places.take(member.worker, member.devices)
        self.steps.append(
            api.Assign(
                task=str(key),
                attempt=task.attempt + 1,
                worker=first.worker,
                incarnation=self._state.workers[first.worker].incarnation,
                devices=first.devices,
                terms=self._terms(key),
                others=tuple(
                    AssignedMember(
                        worker=member.worker,
                        incarnation=self._state.workers[member.worker].incarnation,
                        partition=member.partition,
                        devices=member.devices,
                    )
                    for member in others
                ),
                body=tasks.body(self._record, self._state, self.run, key, parallel_plan, gang=gang),
            )
        )

    def _terms(self, key: TaskKey) -> int:
        """Return the version of the training config for a sub-epoch; `tasks.body` uses the same one."""
        return self.run.models[key.model or ""].terms_for(str(key)) if key.kind == "train" else 0

    def give_ready(
        self,
        depth: int,
        order: Sequence[Worker] | None = None,
        among: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Assign tasks that need no idle model: ETL, validation, test and prediction.

        Args:
            depth: slots with fewer open tasks than this get one.
            order: workers, the preferred first.
            among: worker -> devices that may get a task; all by default.
        """
        if self.run.kind == "fit" and not self.run.counts.unvalidated:
            return
        free = [w for w in (self.alive if order is None else order) if self._has_place(w, depth, among)]
        if not free:
            return
        elsewhere = made_elsewhere(self._state, self.run)
        for key in (key for key in ready(self.run) if str(key) not in self._taken and key not in elsewhere):
            worker = self._worker_for(key, free)
            if worker is None:
                continue
            self.give(worker.name, key, self._place(worker, depth, among))
            if self.run.task(key).exhausted:
                self.exclusions.add(runs_alone(worker.name, key))
            free = [w for w in free if self._has_place(w, depth, among)]
            if not free:
                return

    def _worker_for(self, key: TaskKey, free: Sequence[Worker]) -> Worker | None:
        """Return the first suitable worker. A task that must run alone reserves an idle or the least loaded one."""
        is_exhausted = self.run.task(key).exhausted
        among = self.alive if is_exhausted else free
        fitting = (
            w
            for w in among
            if self.exclusions.feasible(key, w.name) is None and may_run(self._state, self.run, w, key)
        )
        if not is_exhausted:
            failed_at = self.run.task(key).failed_at
            return (
                min(fitting, key=lambda w: w.name in failed_at, default=None)
                if failed_at
                else next(fitting, None)
            )
        name = calmest(fitting, self.places)
        if name and self.places.load(name):
            self.exclusions.add(reserved(name, key))
            return None
        return next((w for w in free if w.name == name), None)

    def _has_place(self, worker: Worker, depth: int, among: Mapping[str, Sequence[int]] | None) -> bool:
        """True if the worker can take one more of the run's own tasks."""
        if self.exclusions.stops_all(worker.name):
            return False
        if self.run.kind == "etl":
            return self.places.beside(worker.name) < depth
        return self.places.num_free(worker.name, depth, among[worker.name] if among else None) > 0

    def _place(
        self, worker: Worker, depth: int, among: Mapping[str, Sequence[int]] | None
    ) -> tuple[int, ...]:
        if self.run.kind == "etl":
            return ()
        return (self.places.free(worker.name, depth, among[worker.name] if among else None),)


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

    def start(self, choice: Choice) -> None:
        """Mark the model and devices of a chosen sub-epoch as busy."""
        self._state.start(choice)
        self._started.append(choice.model)

    def start_gang(self, model: int, members: Sequence[GangMember]) -> None:
        """Mark the model and devices of a gang's sub-epoch as busy."""
        self._state.start_gang(model, members)
        self._started.append(model)

    def exclude(self, model: int, worker: int) -> None:
        """Exclude this pair of model and worker for the rest of this decision."""
        times = self._state.time[model]
        self._excluded.append((model, worker, times[worker]))
        times[worker] = NEVER

    def undo(self) -> None:
        """Restore the dispatch state. The log will report the steps that took effect."""
        for model in reversed(self._started):
            self._state.release(model)
        self._state.free = self._free
        for model, worker, seconds in reversed(self._excluded):
            self._state.time[model][worker] = seconds
