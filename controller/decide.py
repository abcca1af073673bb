"""What to do next: the controller's pure core. State and world in, steps out; no I/O, no clock, no memory.

Everything is decided anew from the state at each call, so a controller that was restarted, or that reads an
event it did not expect, needs no special case. Steps are compare-and-set in the store: one that comes too
late is refused there, the next read of the log shows why, and the next call decides on that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cerebro.contract import api
from cerebro.contract.events import (
    EvaluatePlan,
    EvaluateRequest,
    FitPlan,
    FitRequest,
    RunFinished,
    RunPaused,
    RunResumed,
    WorkerJoined,
    WorkerLost,
)
from cerebro.contract.records import ExperimentRecord, Holding
from cerebro.contract.tasks import FailureKind
from cerebro.state import ExperimentState, Model, ModelState, Run, RunState, Task, TaskKey, TaskState, Worker
from cerebro.state.experiment import QUEUE_DEPTH
from controller import tasks
from controller.scheduling import POLICIES, Choice

Step = api.Assign | api.Revoke | api.Note


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A worker as it registered and last reported."""

    incarnation: str
    weight: float
    kinds: tuple[str, ...]
    holdings: tuple[Holding, ...]
    is_silent: bool
    """No report for longer than a lease."""
    free_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class World:
    """What the log does not tell: the workers as they are now."""

    workers: Mapping[str, Seen] = field(default_factory=dict)

    @property
    def free_bytes(self) -> int:
        """Room on the checkpoint volume, as the workers see it; 0 while nobody said."""
        told = (w.free_bytes for w in self.workers.values() if not w.is_silent and w.free_bytes is not None)
        return min(told, default=0)


def decide(record: ExperimentRecord, state: ExperimentState, world: World) -> list[Step]:
    """The steps to take now; empty when there is nothing to do but wait.

    A run that is still queued is planned by the loop, because that reads metadata.
    """
    run = state.active_run()
    if run is None:
        return []
    steps = list(_workers(state, world))
    if steps:
        # What workers can do has changed: decide on the rest once the log says so.
        return steps
    if run.state is RunState.STOPPING:
        return _end(run, "stopped", "")
    if run.state is RunState.QUEUED:
        return []
    if run.fatal is not None:
        return _end(run, "failed", _fatal_message(run))
    problem = _metric_problem(run)
    if problem:
        return _end(run, "failed", problem)
    doomed = list(_revoke_failed_models(run))
    if doomed:
        return doomed
    if run.is_complete():
        return [_finished(run)]
    if run.storage_full is not None and run.state is RunState.RUNNING:
        reason = run.storage_full.message
        return [_note(RunPaused(run=run.id, reason=reason, needs_bytes=run.storage_full.needs_bytes))]
    if run.state is RunState.PAUSED:
        has_room = run.needs_bytes and world.free_bytes >= run.needs_bytes
        return [_note(RunResumed(run=run.id))] if has_room else []
    return _assign(record, state, run)


# --- workers ------------------------------------------------------------------------------------


def _workers(state: ExperimentState, world: World) -> Iterator[Step]:
    for name, seen in world.workers.items():
        known = state.workers.get(name)
        is_replaced = known is not None and known.incarnation != seen.incarnation
        if known is not None and (is_replaced or seen.is_silent or not known.is_alive):
            reason = (
                "its process was started anew"
                if is_replaced
                else "it has not reported for longer than its lease"
            )
            # A live lease is respected unless its holder is known to be gone: then nobody could renew it.
            yield from (
                _revoke(state, key, known, f"{name}: {reason}", force=is_replaced) for key in known.open_tasks
            )
            if known.is_alive:
                yield _note(WorkerLost(worker=name, incarnation=known.incarnation, reason=reason))
        if not seen.is_silent and (
            known is None or is_replaced or (not known.is_alive and not known.open_tasks)
        ):
            yield _note(
                WorkerJoined(
                    worker=name,
                    incarnation=seen.incarnation,
                    weight=seen.weight,
                    kinds=seen.kinds,
                    holdings=seen.holdings,
                )
            )


# --- ends ---------------------------------------------------------------------------------------


def _end(run: Run, outcome: str, error: str) -> list[Step]:
    """Take back what is open; end once nothing is."""
    open_tasks = run.open_tasks()
    if open_tasks:
        reason = "the run was stopped" if outcome == "stopped" else "the run has failed"
        return [_revoke_task(task, reason, force=True) for task in open_tasks]
    return [_note(RunFinished.model_validate({"run": run.id, "outcome": outcome, "error": error}))]


def _finished(run: Run) -> Step:
    failed = [model for model in run.models.values() if model.state is ModelState.FAILED]
    if run.kind == "fit" and len(failed) == len(run.models):
        reasons = "\n".join(f"{m.id}: {m.failure.message}" for m in failed if m.failure)
        return _note(
            RunFinished(run=run.id, outcome="failed", error=f"all {len(failed)} models failed:\n{reasons}")
        )
    return _note(RunFinished(run=run.id, outcome="finished"))


def _fatal_message(run: Run) -> str:
    failure = run.fatal
    if failure is None:
        return ""
    if failure.kind is FailureKind.CHECKPOINT:
        # The way out of it is of more use than where the code noticed.
        return f"{failure.message}. Choose another model with models=..., or train again with run_fit"
    return f"{failure.message}\n{failure.traceback}".rstrip()


def _metric_problem(run: Run) -> str:
    """Why the run's metric cannot be used, told as soon as a model shows that it lacks it."""
    if not isinstance(run.request, FitRequest):
        return ""
    name = run.request.metric
    for model in run.models.values():
        known = model.validations.get(1) if run.is_validated else None
        if not run.is_validated and model.visits:
            known = model.visits[0].metrics
        if known is not None and name not in known:
            source = "test" if run.is_validated else "train"
            told = ", ".join(sorted(known)) or "nothing"
            return (
                f"metric {name!r} was not returned by SubEpochSpec.{source}() of model {model.id}, which "
                f"returned: {told}. Choose one of them as `metric`, or return {name!r}"
            )
    return ""


def _revoke_failed_models(run: Run) -> Iterator[Step]:
    """Queued units of a model that was given up meanwhile; a running one is left to end by itself."""
    for model in run.models.values():
        if (
            model.state is ModelState.FAILED
            and model.busy
            and run.tasks[model.busy].state is TaskState.ASSIGNED
        ):
            yield _revoke_task(run.tasks[model.busy], "its model has failed", force=True)


# --- assignments --------------------------------------------------------------------------------


def _assign(record: ExperimentRecord, state: ExperimentState, run: Run) -> list[Step]:
    assigner = _Assigner(record, state, run)
    assigner.fill(depth=1)
    taken_back = list(_take_back(state, run, assigner))
    if taken_back:
        return [*assigner.steps, *taken_back]
    assigner.fill(depth=QUEUE_DEPTH)
    return assigner.steps


def _take_back(state: ExperimentState, run: Run, assigner: _Assigner) -> Iterator[Step]:
    """Queued units that an idle worker could run now: prefetching must never make anybody wait."""
    idle = [w for w in assigner.alive if assigner.load[w.name] == 0]
    for worker in idle:
        for other in assigner.alive:
            for key in other.open_tasks[1:]:
                task = run.tasks.get(key)
                if task and task.state is TaskState.ASSIGNED and _can_run(state, run, worker, task.key):
                    yield _revoke_task(task, f"{worker.name} is idle and can run it now")
                    return


def _can_run(state: ExperimentState, run: Run, worker: Worker, key: TaskKey) -> bool:
    if key.kind == "train" and isinstance(run.plan, FitPlan) and key.partition is not None:
        # The unit itself, or another one of its model, which is held up by being queued.
        model = run.models[key.model or ""]
        return any((run.plan.dataset, partition) in worker.holdings for partition in model.remaining)
    return key.kind in worker.kinds and key.kind != "etl" and _holds(worker, run, key)


def _holds(worker: Worker, run: Run, key: TaskKey) -> bool:
    """Whether the data of a test or prediction is there: that of `train` lies on the worker that made it."""
    if not isinstance(run.plan, EvaluatePlan) or not isinstance(run.request, EvaluateRequest):
        return True
    return run.request.split != "train" or (run.plan.dataset, key.partition or 0) in worker.holdings


class _Assigner:
    """Collects assignments of one decision; keeps count of what they use up."""

    def __init__(self, record: ExperimentRecord, state: ExperimentState, run: Run) -> None:
        self._record, self._state, self._run = record, state, run
        self.alive = [w for w in state.workers.values() if w.is_alive]
        self.load = {w.name: len(w.open_tasks) for w in self.alive}
        self._taken: set[str] = set()
        self._busy: set[str] = set()
        # Seeded by the log's length: the same state decides the same, and two decisions are independent.
        seed = run.request.seed if isinstance(run.request, FitRequest) else 0
        self._rng = random.Random(f"{seed}/{run.id}/{state.seq}")
        self.steps: list[Step] = []

    def fill(self, *, depth: int) -> None:
        """Assign until every worker has `depth` open tasks or nothing is eligible."""
        free = [w for w in self.alive if self.load[w.name] < depth]
        if not free:
            return
        for key in self._ready():
            worker = next((w for w in free if self._fits(w, key)), None)
            if worker is not None:
                self._give(worker.name, key)
                free = [w for w in free if self.load[w.name] < depth]
        if self._run.kind == "fit":
            self._fill_units(depth)

    def _fits(self, worker: Worker, key: TaskKey) -> bool:
        if key.kind not in worker.kinds:
            return False
        if key.kind != "etl":
            return _holds(worker, self._run, key)
        plan = self._state.datasets[self._run.plan.dataset].plan if self._run.plan else None
        parts = plan.splits.get(key.split or "", ()) if plan else ()
        return any(part.partition == key.partition and part.worker == worker.name for part in parts)

    def _ready(self) -> Iterator[TaskKey]:
        """Tasks that need no model to be idle: ETL, validation, test, prediction."""
        if self._run.kind != "fit":
            yield from (t.key for t in self._run.tasks.values() if self._is_pending(t))
        elif self._run.is_validated:
            for model in self._run.models.values():
                if model.state is ModelState.ACTIVE:
                    yield from self._validations(model)

    def _validations(self, model: Model) -> Iterator[TaskKey]:
        for epoch in range(1, model.completed_epochs + 1):
            task = self._run.validation(model, epoch)
            is_wanted = epoch not in model.validations and epoch not in model.unreadable
            if is_wanted and self._is_pending(task):
                yield task.key

    def _is_pending(self, task: Task) -> bool:
        return task.state is TaskState.PENDING and str(task.key) not in self._taken

    def _fill_units(self, depth: int) -> None:
        policy = POLICIES[self._run.request.scheduler] if isinstance(self._run.request, FitRequest) else None
        eligible = self._eligible(depth) if policy else {}
        while policy and (chosen := policy.choose(eligible, self._rng)):
            worker, choice = chosen
            model = self._run.models[choice.model]
            self._busy.add(model.id)
            key = TaskKey(
                run=self._run.id, kind="train", model=model.id, epoch=model.epoch, partition=choice.partition
            )
            self._give(worker, key)
            eligible = {
                name: others
                for name, choices in eligible.items()
                if self.load[name] < depth and (others := [c for c in choices if c.model != model.id])
            }

    def _eligible(self, depth: int) -> dict[str, list[Choice]]:
        plan = self._run.plan
        if not isinstance(plan, FitPlan):
            return {}
        held = {
            worker.name: {partition for dataset, partition in worker.holdings if dataset == plan.dataset}
            for worker in self.alive
            if self.load[worker.name] < depth and "train" in worker.kinds
        }
        found: dict[str, list[Choice]] = {name: [] for name in held}
        for model in self._run.models.values() if held else ():
            if self._is_idle(model):
                remaining = model.remaining
                for name, partitions in held.items():
                    found[name] += [Choice(model=model.id, partition=p) for p in remaining if p in partitions]
        return {name: choices for name, choices in found.items() if choices}

    def _is_idle(self, model: Model) -> bool:
        return model.state is ModelState.ACTIVE and model.busy is None and model.id not in self._busy

    def _give(self, worker: str, key: TaskKey) -> None:
        task = self._run.task(key)
        self._taken.add(str(key))
        self.load[worker] += 1
        self.steps.append(
            api.Assign(
                task=str(key),
                attempt=task.attempt + 1,
                worker=worker,
                incarnation=self._state.workers[worker].incarnation,
                body=tasks.body(self._record, self._state, self._run, key),
            )
        )


# --- steps --------------------------------------------------------------------------------------


def _revoke(state: ExperimentState, key: str, worker: Worker, reason: str, *, force: bool) -> Step:
    task = state.runs[TaskKey.parse(key).run].tasks[key]
    return api.Revoke(
        task=key, attempt=task.attempt, worker=worker.name, reason=reason, force=force, is_loss=True
    )


def _revoke_task(task: Task, reason: str, *, force: bool = False) -> Step:
    return api.Revoke(
        task=str(task.key), attempt=task.attempt, worker=task.worker or "", reason=reason, force=force
    )


def _note(event: RunPaused | RunResumed | RunFinished | WorkerJoined | WorkerLost) -> api.Note:
    return api.Note(event=event)
