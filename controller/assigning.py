"""Which task goes to which worker now: the assignments of one decision. Pure.

Each worker is first given something to run; then units that are queued behind others are taken back if the policy would
have an idle worker run them; then workers that are about to end a unit are given the next one, so that its model is
loaded meanwhile (docs/decisions/0005-prefetched-units-are-soft.md). Which unit is the policy's choice, but for one:

A unit whose worker was lost or taken away while it ran goes before all others, as soon as its model is idle and a
holder of its partition has room; while such a holder is there the model goes nowhere else. It is one unit of a run's
hundreds and has to be done anyway, so the makespan hardly changes; who sees a worker go sees its work go on at once,
and not whenever its model's turn comes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from cerebro.contract import api
from cerebro.contract.records import QUEUE_DEPTH, ExperimentRecord
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest, FitRequest
from cerebro.scheduling.dispatch_state import NEVER, Choice
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES, CriticalFirst, Policy
from cerebro.state import ExperimentState, Model, Run, Task, TaskKey, TaskState, Worker
from controller import replication, tasks
from controller.cluster_snapshot import ClusterSnapshot
from controller.fit_dispatch import FitDispatch

LOOKAHEAD_S = 1.0
"""The next task is given so long, and the time to load a model, before the present one is expected to end. Earlier, and
a model would be held up in a queue while another worker could train it; later, and the worker would wait for it."""

_SOON_S = 1e-3
"""Sooner than this is now: a wait so short may be lost in the rounding of large clocks."""


def assign(
    record: ExperimentRecord,
    state: ExperimentState,
    run: Run,
    fit: FitDispatch | None,
    snapshot: ClusterSnapshot,
) -> list[api.Assign | api.Revoke]:
    """Assignments, and queued units to take back. `fit`, needed for fit runs, is left as it was."""
    assigner = _Assigner(record, state, run)
    for worker, key in replication.making(state, run, fit, assigner.load, is_filling=snapshot.is_filling):
        assigner.give(worker, key)
    if run.kind != "fit" or fit is None:
        for depth in range(1, QUEUE_DEPTH + 1):
            assigner.give_ready(depth)
        return [*assigner.steps]
    units = _Units(assigner, fit, snapshot.now)
    try:
        return units.decide()
    finally:
        units.undo()


def revoke_task(task: Task, reason: str, *, force: bool = False) -> api.Revoke:
    """Take a task's open attempt back."""
    return api.Revoke(
        task=str(task.key), attempt=task.attempt, worker=task.worker or "", reason=reason, force=force
    )


def due_s(fit: FitDispatch, worker: Worker, now: float) -> float:
    """Seconds until the worker is to be given the task after its present one; 0: now."""
    present = fit.present(worker)
    due_s = present - now - LOOKAHEAD_S - fit.times.load_s if present is not None else 0.0
    return due_s if due_s > _SOON_S else 0.0


class _Assigner:
    """Collects the assignments of one decision and keeps count of what they use up."""

    def __init__(self, record: ExperimentRecord, state: ExperimentState, run: Run) -> None:
        self._record, self._state, self.run = record, state, run
        self.alive = [w for w in state.workers.values() if w.is_alive]
        self.load = {w.name: len(w.open_tasks) for w in self.alive}
        self._taken: set[str] = set()
        self.steps: list[api.Assign] = []
        request = run.request
        seed = request.seed if isinstance(request, FitRequest) else 0
        # Seeded by the log's length: the same state decides the same, and two decisions are independent.
        self.rng = random.Random(f"{seed}/{run.id}/{state.seq}")

    def give(self, worker: str, key: TaskKey) -> None:
        """Assign a task."""
        task = self.run.task(key)
        self._taken.add(str(key))
        self.load[worker] += 1
        self.steps.append(
            api.Assign(
                task=str(key),
                attempt=task.attempt + 1,
                worker=worker,
                incarnation=self._state.workers[worker].incarnation,
                body=tasks.body(self._record, self._state, self.run, key),
            )
        )

    def give_ready(self, depth: int, order: list[Worker] | None = None) -> None:
        """Assign what needs no model to be idle (ETL, validation, test, prediction) to workers with fewer than `depth`
        open tasks, in the order given."""
        free = [w for w in (self.alive if order is None else order) if self.load[w.name] < depth]
        if not free:
            return
        for key in self._ready():
            worker = next((w for w in free if self._fits(w, key)), None)
            if worker is not None:
                self.give(worker.name, key)
                free = [w for w in free if self.load[w.name] < depth]
                if not free:
                    return

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

    def _ready(self) -> Iterator[TaskKey]:
        if self.run.kind != "fit":
            yield from (task.key for task in self.run.counts.pending.values() if self._is_pending(task))
        for name in self.run.counts.in_order(self.run.counts.unvalidated):
            yield from self._validations(self.run.models[name])

    def _validations(self, model: Model) -> Iterator[TaskKey]:
        for epoch in range(1, model.completed_epochs + 1):
            if epoch in model.validations or epoch in model.unreadable:
                continue
            task = self.run.validation(model, epoch)
            if self._is_pending(task):
                yield task.key

    def _is_pending(self, task: Task) -> bool:
        return task.state is TaskState.PENDING and str(task.key) not in self._taken


class _Units:
    """Lets the policy choose training units, tentatively on the dispatch state."""

    def __init__(self, assigner: _Assigner, fit: FitDispatch, now: float) -> None:
        self._assigner, self._fit = assigner, fit
        self._training_workers = [w for w in assigner.alive if w.trains]
        self._barred = self._bar()
        self._soon = [w for w in self._training_workers if not due_s(fit, w, now)]
        self._started: list[int] = []
        self._freed = list(fit.dispatch_state.free)

    def decide(self) -> list[api.Assign | api.Revoke]:
        """The steps that `assign` returns for an open fit run."""
        left = self._fit.dispatch_state.worker_left
        self._fill(1, self._training_workers, self._interrupted)
        # Validation delays training: it goes where least is left to train.
        calmest_first = sorted(
            self._assigner.alive, key=lambda w: left[self._fit.worker(w.name)] if w.trains else 0.0
        )
        self._assigner.give_ready(1, calmest_first)
        self._fill(1, self._training_workers, self._in_turn())
        taken_back = self._taken_back()
        if taken_back is not None:
            return [*self._assigner.steps, taken_back]
        soon = {w.name: w for w in self._soon if not self._is_to_be_alone(w)}
        self._assigner.give_ready(QUEUE_DEPTH, [w for w in calmest_first if w.name in soon])
        self._fill(QUEUE_DEPTH, [*soon.values()], self._in_turn())
        return [*self._assigner.steps]

    def undo(self) -> None:
        """Leave the dispatch state as it was: the log will tell it of what took effect."""
        for model in reversed(self._started):
            self._fit.dispatch_state.release(model)
        self._fit.dispatch_state.free = self._freed
        for model, worker, seconds in self._barred:
            self._fit.dispatch_state.time[model][worker] = seconds

    def _bar(self) -> list[tuple[int, int, float]]:
        """Keep models off the workers where a unit of theirs ran out of memory, while another one could take it; and
        one whose interrupted unit has a holder again off all others, so that it is idle when the holder is.

        Returns:
            What to put back: (model, worker, estimated seconds).
        """
        dispatch_state, barred = self._fit.dispatch_state, []
        for model, (partition, exhausted) in self._fit.memory_retries.items():
            if model not in dispatch_state.running and not exhausted.issuperset(
                dispatch_state.holders(partition)
            ):
                for worker in exhausted:
                    barred.append((model, worker, dispatch_state.time[model][worker]))
                    dispatch_state.time[model][worker] = NEVER
        for model, _, holders in self._bound():
            times = dispatch_state.time[model]
            others = [w for w, s in enumerate(times) if w not in holders and s != NEVER]
            barred += [(model, w, times[w]) for w in others]
            for worker in others:
                times[worker] = NEVER
        return barred

    def _is_to_be_alone(self, worker: Worker) -> bool:
        """Whether it has a unit that ran out of memory before: then no other model may be loaded meanwhile."""
        index, running = self._fit.worker(worker.name), self._fit.dispatch_state.running
        return any(model in running and running[model].worker == index for model in self._fit.memory_retries)

    def _fill(self, depth: int, among: list[Worker], choose: Callable[[list[int]], Choice | None]) -> None:
        dispatch_state, load = self._fit.dispatch_state, self._assigner.load
        # A worker takes one unit at a time; queued ones count as running, so their place is free for the next.
        dispatch_state.free = [max(1, free) for free in dispatch_state.free]
        workers = sorted(self._fit.worker(w.name) for w in among if load[w.name] < depth)
        while workers and (choice := choose(workers)):
            if depth > 1 and choice.model in self._fit.memory_retries:
                # It would be loaded beside the running one: the worker is to become idle first.
                workers.remove(choice.worker)
                continue
            key, name = self._fit.key(choice), self._fit.workers[choice.worker]
            dispatch_state.start(choice)
            self._started.append(choice.model)
            dispatch_state.free[choice.worker] = 1
            self._assigner.give(name, key)
            if load[name] >= depth:
                workers.remove(choice.worker)

    def _choose(self, workers: list[int]) -> Choice | None:
        return self._interrupted(workers) or self._by_policy(workers)

    def _in_turn(self) -> Callable[[list[int]], Choice | None]:
        """`_choose`, to be asked again and again with the workers that are left."""
        policy = self._policy()
        if not isinstance(policy, CriticalFirst):
            return self._choose
        dispatch_state = self._fit.dispatch_state
        ahead: Iterator[Choice] = iter(())

        def choose(workers: list[int]) -> Choice | None:
            nonlocal ahead
            interrupted = self._interrupted(workers)
            if interrupted is not None:
                return interrupted
            for choice in ahead:
                if choice.worker in workers and choice.model not in dispatch_state.running:
                    return choice
            ahead = policy.choices(dispatch_state, tuple(workers))
            return next(ahead, None)

        return choose

    def _interrupted(self, workers: list[int]) -> Choice | None:
        """A unit that was interrupted, at the worker that has least left to do of those that can take it."""
        dispatch_state = self._fit.dispatch_state
        for model, partition, holders in self._bound():
            able = [w for w in holders if w in workers]
            if able:
                return Choice(min(able, key=lambda w: (dispatch_state.worker_left[w], w)), model, partition)
        return None

    def _bound(self) -> Iterator[tuple[int, int, list[int]]]:
        """(model, partition, holders that can run it) of each interrupted unit that is still to be done, has such a
        holder, and whose model is idle."""
        dispatch_state = self._fit.dispatch_state
        for model, epoch, partition in sorted(self._fit.interrupted):
            is_open = dispatch_state.epoch[model] == epoch and dispatch_state.open[model] >> partition & 1
            holders = [w for w in dispatch_state.holders(partition) if dispatch_state.time[model][w] != NEVER]
            if is_open and holders and model not in dispatch_state.running:
                yield model, partition, holders

    def _by_policy(self, workers: list[int]) -> Choice | None:
        dispatch_state, rng = self._fit.dispatch_state, self._assigner.rng
        choice = self._policy().choose(dispatch_state, workers, rng)
        if choice is None and not dispatch_state.running:
            # Nothing runs whose end the policy could be waiting for.
            return POLICIES[DEFAULT_POLICY].choose(dispatch_state, workers, rng)
        return choice

    def _policy(self) -> Policy:
        # A plan knows nothing of workers that a model is kept off.
        return self._fit.dispatch if self._barred else self._fit.policy

    def _taken_back(self) -> api.Revoke | None:
        """A queued unit that an idle worker should rather run now: prefetching must never make anybody wait."""
        run, idle = (
            self._assigner.run,
            [w for w in self._training_workers if self._assigner.load[w.name] == 0],
        )
        if not idle:
            return None
        listed = (run.open.get(key) for other in self._assigner.alive for key in other.open_tasks[1:])
        queued = [task for task in listed if task and task.state is TaskState.ASSIGNED]
        for worker in idle:
            for task in queued:
                if self._is_wanted(worker, task.key):
                    return revoke_task(task, f"{worker.name} is idle and can run it now")
        return None

    def _is_wanted(self, worker: Worker, key: TaskKey) -> bool:
        if key.kind != "train":
            return key.kind in worker.kinds and key.kind != "etl"
        dispatch_state, index = self._fit.dispatch_state, self._fit.worker(worker.name)
        model = self._fit.model(key.model or "")
        if not dispatch_state.open[model] & dispatch_state.held[index] or model not in dispatch_state.running:
            return False
        queued = dispatch_state.running.pop(model)
        free, dispatch_state.free[index] = dispatch_state.free[index], 1
        try:
            # The model may be bound to the holders of its interrupted unit: it would only be queued there again.
            is_bound = any(m == model and index not in holders for m, _, holders in self._bound())
            choice = None if is_bound else self._choose([index])
        finally:
            dispatch_state.running[model] = queued
            dispatch_state.free[index] = free
        # The unit itself, or another one of its model, which is held up by being queued.
        return choice is not None and choice.model == model
