"""The assignments of one decision as they are collected, and what they use up. Pure.

A task out of memory gets its next attempt alone: nothing else runs on the worker, or is loaded there, because all of
its devices share one memory. Until then the worker is given nothing more.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from cerebro.contract import api
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest, FitRequest
from cerebro.state import ExperimentState, Run, TaskKey, TaskState, Worker
from controller import tasks
from controller.places import Places


class Assigner:
    """Collects the assignments of one decision and keeps count of what they use up.

    Attributes:
        alive: workers that can be given tasks.
        places: what they have, and are given now.
        barred: names of those that are given nothing more: they have a task that must be alone, or are kept free for
            one.
    """

    def __init__(self, record: ExperimentRecord, state: ExperimentState, run: Run) -> None:
        self._record, self._state, self.run = record, state, run
        self.alive = [w for w in state.workers.values() if w.is_alive]
        self.places = Places(self.alive)
        self.barred = {
            task.worker or "" for task in run.open.values() if task.exhausted and task.key.kind != "train"
        }
        self._taken: set[str] = set()
        self.steps: list[api.Assign] = []
        request = run.request
        seed = request.seed if isinstance(request, FitRequest) else 0
        # Seeded by the log's length: the same state decides the same, and two decisions are independent.
        self.rng = random.Random(f"{seed}/{run.id}/{state.seq}")

    def give(self, worker: str, key: TaskKey, devices: tuple[int, ...]) -> None:
        """Assign a task."""
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
                body=tasks.body(self._record, self._state, self.run, key),
            )
        )

    def give_ready(
        self,
        depth: int,
        order: Sequence[Worker] | None = None,
        among: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Assign what needs no model to be idle (ETL, validation, test, prediction) to lanes with fewer than `depth`
        open tasks.

        Args:
            depth: see above.
            order: of the workers, who come first.
            among: worker -> its devices that may be given something; all if left out.
        """
        if self.run.kind == "fit" and not self.run.counts.unvalidated:
            return
        free = [w for w in (self.alive if order is None else order) if self._has_place(w, depth, among)]
        if not free:
            return
        for key in (key for key in ready(self.run) if str(key) not in self._taken):
            worker = self._worker_for(key, free)
            if worker is None:
                continue
            self.give(worker.name, key, self._place(worker, depth, among))
            if self.run.task(key).exhausted:
                self.barred.add(worker.name)
            free = [w for w in free if self._has_place(w, depth, among)]
            if not free:
                return

    def _worker_for(self, key: TaskKey, free: Sequence[Worker]) -> Worker | None:
        """The first that can do it. For a task that must be alone, one that has nothing to do is kept free."""
        fitting = (w for w in free if w.name not in self.barred and self._fits(w, key))
        if not self.run.task(key).exhausted:
            return next(fitting, None)
        able = [w for w in self.alive if w.name not in self.barred and self._fits(w, key)]
        calmest = min(able, key=lambda w: self.places.load(w.name), default=None)
        if calmest is not None and self.places.load(calmest.name):
            self.barred.add(calmest.name)
            return None
        return calmest if calmest in free else None

    def _has_place(self, worker: Worker, depth: int, among: Mapping[str, Sequence[int]] | None) -> bool:
        """Whether the worker can take one more of the run's own tasks."""
        if worker.name in self.barred:
            return False
        if self.run.kind == "etl":
            return self.places.beside(worker.name) < depth
        return self.places.num_free(worker.name, depth, among[worker.name] if among else None) > 0

    def _place(
        self, worker: Worker, depth: int, among: Mapping[str, Sequence[int]] | None
    ) -> tuple[int, ...]:
        """On which devices."""
        if self.run.kind == "etl":
            return ()
        return (self.places.free(worker.name, depth, among[worker.name] if among else None),)

    def _fits(self, worker: Worker, key: TaskKey) -> bool:
        if key.kind not in worker.kinds:
            return False
        plan = self.run.plan
        if key.kind == "etl":
            made = self._state.datasets[plan.dataset].plan if plan else None
            parts = made.splits.get(key.split or "", ()) if made else ()
            owner = next((part.worker for part in parts if part.partition == key.partition), "")
            return owner == worker.name or self._is_gone(owner)
        if not isinstance(plan, EvaluatePlan) or not isinstance(self.run.request, EvaluateRequest):
            return True
        # The data of a test or prediction on `train` lies on the worker that made it; the other splits are shared.
        return self.run.request.split != "train" or (plan.dataset, key.partition or 0) in worker.holdings

    def _is_gone(self, worker: str) -> bool:
        """Whether what was given to the worker is anybody's who has the time."""
        return worker not in self._state.workers or self._state.workers[worker].is_removed


def ready(run: Run) -> Iterator[TaskKey]:
    """What is to be done and needs no model to be idle: ETL, validation, test, prediction."""
    if run.kind != "fit":
        yield from (task.key for task in run.counts.pending.values() if task.state is TaskState.PENDING)
    for name in run.counts.in_order(run.counts.unvalidated):
        model = run.models[name]
        for epoch in range(1, model.completed_epochs + 1):
            if epoch not in model.validations and epoch not in model.unreadable:
                task = run.validation(model, epoch)
                if task.state is TaskState.PENDING:
                    yield task.key
