"""The next steps of one run, from state, dispatch state and snapshot. No I/O, no clock, no memory.

Every call decides from the whole state, so a restarted controller and an unexpected event need no special
case. The store checks each step atomically. It refuses a late step, the next read of the log shows the
reason, and the next call decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cerebro.contract.events import (
    ModelsRepeated,
    ParallelPlansRuledOut,
    RunFinished,
    RunPaused,
    RunResumed,
    SearchDecided,
)
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.rest import api
from cerebro.state import ExperimentState, ModelState, Run, RunState, Task, TaskKey, TaskState, Worker
from cerebro.state.reports.schedule_report import epoch_report
from cerebro.state.reports.wait_reasons import KIND
from cerebro.state.runs.goals import spent, waited_too_long
from controller.decisions.assignment import assign
from controller.decisions.fit_dispatch import FitDispatch
from controller.decisions.preemption import release, revoke_task
from controller.decisions.run_ends import end, fatal_message, finished, mixed_parts
from controller.exclusions.memory_needs import hopeless
from controller.scaling.cluster_decision import ENDING
from controller.scaling.cluster_snapshot import (
    REMOVED,
    SILENT,
    Absence,
    ClusterSnapshot,
    Liveness,
    WorkerView,
)
from controller.scaling.orchestrator import Exit
from controller.sources.gangs import out_of_gangs
from controller.sources.measurement import Measurements
from controller.sources.parallel_plans import out_of_reach
from controller.sources.pruning import Pruning
from controller.sources.replication import Replicas, unmakable, volume_failure
from controller.sources.search import Searching
from controller.sources.search_tasks import SearchRequests
from controller.sources.task_source import RevocableTasks
from controller.sources.verification import Reexecutions, is_awaited

Step = api.Assign | api.Revoke | api.Preempt | api.Note | api.Dequeue


def decide(
    record: ExperimentRecord,
    state: ExperimentState,
    run: Run,
    snapshot: ClusterSnapshot,
    fit: FitDispatch | None,
    *,
    search: Searching | None = None,
    pruning: Pruning | None = None,
) -> list[Step]:
    """Return the steps to take now for an open run that waits for no other.

    The loop plans queued runs, because that reads metadata.

    Args:
        fit: dispatch state of the experiment's started fit run, which may be another run. It ends unchanged.
        search: the run's search, if it has one.
        pruning: removes the run's checkpoints, if enabled.
    """
    if not run.is_open:
        return []
    steps = _Decision(record=record, state=state, run=run, snapshot=snapshot, fit=fit, search=search).steps()
    if pruning is None:
        return steps
    events = [step.event for step in steps if isinstance(step, api.Note)]
    if any(isinstance(event, SearchDecided) for event in events):
        return steps  # it may extend the model that has just reached a rung
    is_last = any(isinstance(event, RunFinished) for event in events)
    pruned = pruning.step(state.runs, run, is_last=is_last or run.state is RunState.PAUSED)
    if pruned is None:
        return steps
    return [api.Note(event=pruned)] if is_last else [api.Note(event=pruned), *steps]


@dataclass(frozen=True, kw_only=True)
class _Decision:
    """One decision of one open run.

    Each phase returns its steps; `None` continues with the next phase.
    """

    record: ExperimentRecord
    state: ExperimentState
    run: Run
    snapshot: ClusterSnapshot
    fit: FitDispatch | None
    search: Searching | None

    def steps(self) -> list[Step]:
        steps = _first(self.lost_workers, self.stop, self.planning, self.failure, self.cancellations)
        if steps is not None:
            return steps
        epoch = _completed_epoch(self.run)
        report = [api.Note(event=epoch_report(self.state, self.run, epoch))] if epoch else []
        if report and self.run.is_complete():
            return [*report]  # more epochs may be complete if they waited for a model that has failed
        steps = _first(
            self.repeats, self.run_end, self.search_actions, self.pause, self.hopeless_tasks, self.sources
        )
        return [*report, *(steps or ())]

    def lost_workers(self) -> list[Step] | None:
        """Take back the tasks of absent and excluded workers; the rest follows once the log records it."""
        return [*_workers(self.state, self.snapshot)] or None

    def stop(self) -> list[Step] | None:
        """End a run that a user stopped."""
        is_stopping = self.run.state is RunState.STOPPING
        return [*end(self.run, "stopped", now=self.snapshot.now)] if is_stopping else None

    def planning(self) -> list[Step] | None:
        """Wait for the plan, unless no worker came in time."""
        if self.run.plan is not None:
            return None
        reason = waited_too_long(self.state, self.run, self.snapshot.now, self.snapshot.excluded)
        paused: list[Step] = [api.Note(event=RunPaused(run=self.run.id, reason=reason))] if reason else []
        return paused or _resumed(self.run, self.snapshot)

    def failure(self) -> list[Step] | None:
        """End a run that cannot succeed."""
        problem = fatal_message(self.run) or mixed_parts(self.run) or unmakable(self.state, self.run)
        return [*end(self.run, "failed", problem, now=self.snapshot.now)] if problem else None

    def cancellations(self) -> list[Step] | None:
        """Take back sub-epochs of ended models, and tasks with unneeded results."""
        cut_short = _revoke_cut_short(self.run, self.snapshot.now)
        return [*cut_short, *_revoke_unneeded(self.record, self.state, self.run)] or None

    def repeats(self) -> list[Step] | None:
        """Repeat the best models with new seeds, once all models have ended."""
        if self.run.state is not RunState.RUNNING or not (due := self.run.due_repeats()):
            return None
        return [api.Note(event=ModelsRepeated(run=self.run.id, models=tuple(model.id for model in due)))]

    def run_end(self) -> list[Step] | None:
        """Finish a complete run, after its verifications."""
        run, snapshot = self.run, self.snapshot
        if not run.is_complete():
            return None
        reexecutions = _reexecutions(self.record, self.state, run, snapshot, self.fit)
        waits = not reexecutions and is_awaited(self.state, run, snapshot.cordoned, snapshot.workers)
        return reexecutions or ([] if waits else [finished(run)])

    def search_actions(self) -> list[Step] | None:
        """Add, extend and stop models of a search."""
        if self.search is None or self.run.state is not RunState.RUNNING:
            return None
        return [api.Note(event=event) for event in self.search.steps(self.run)] or None

    def pause(self) -> list[Step] | None:
        """Pause a run with a full volume, a spent budget or no workers; resume it once its volume has space."""
        run = self.run
        if run.state is RunState.PAUSED:
            return _resumed(run, self.snapshot)
        if run.state is not RunState.RUNNING:
            return None
        full = run.pause.volume_failure or volume_failure(self.state, run)
        if full is not None:
            volume = full.volume or "unknown"
            event = RunPaused(run=run.id, reason=full.message, needs_bytes=full.needs_bytes, volume=volume)
            return [api.Note(event=event)]
        now = self.snapshot.now
        reason = spent(self.state, run, now) or waited_too_long(self.state, run, now, self.snapshot.excluded)
        return [api.Note(event=RunPaused(run=run.id, reason=reason))] if reason else None

    def hopeless_tasks(self) -> list[Step] | None:
        """Fail tasks and rule out parallel plans that no worker can run."""
        run, fit = self.run, self.fit
        given_up = [*hopeless(self.state, run, self.snapshot)] if run.tasks.exhausted else []
        if given_up:
            return [api.Note(event=event) for event in given_up]
        if fit is None or fit.run != run.id:
            return None
        return [api.Note(event=event) for event in _out_of_reach(self.state, run, fit)] or None

    def sources(self) -> list[Step] | None:
        """Assign the tasks that the sources propose, in order."""
        return [*assign(self.record, self.state, self.run, self.fit, self.snapshot, search=self.search)]


def _first(*phases: Callable[[], list[Step] | None]) -> list[Step] | None:
    """Return the steps of the first phase that has some."""
    return next((steps for phase in phases if (steps := phase()) is not None), None)


def _resumed(run: Run, snapshot: ClusterSnapshot) -> list[Step]:
    is_paused = run.state is RunState.PAUSED
    return [api.Note(event=RunResumed(run=run.id))] if is_paused and _may_try_volume(run, snapshot) else []


def _may_try_volume(run: Run, snapshot: ClusterSnapshot) -> bool:
    """True if a run that is paused for a volume should try it again.

    Workers report free space of the checkpoint volume only. Other volumes and errors need a new attempt:
    after 15 s, then after pauses that double up to two minutes.
    """
    if not run.pause.needs_bytes and not run.pause.volume:
        return False
    if snapshot.free_bytes < run.pause.needs_bytes:
        return False
    if run.pause.needs_bytes and run.pause.volume_pauses <= 1:
        return True
    pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(10, max(0, run.pause.volume_pauses - 1)))
    return bool(snapshot.now >= run.clock.pauses[-1][0] + pause_s)


def _reexecutions(
    record: ExperimentRecord,
    state: ExperimentState,
    run: Run,
    snapshot: ClusterSnapshot,
    fit: FitDispatch | None,
) -> list[Step]:
    """Assign verifications of a trained fit to devices that are free now."""
    steps = assign(record, state, run, fit, snapshot) if any(run.verifications.due()) else []
    return [step for step in steps if isinstance(step, api.Assign) and step.body.kind == "verify"]


def _out_of_reach(state: ExperimentState, run: Run, fit: FitDispatch) -> Sequence[ParallelPlansRuledOut]:
    """Return models that no remaining parallel plan can train on the workers with their partitions."""

    def find_ruled_out(models: Iterable[str]) -> list[ParallelPlansRuledOut]:
        return [*out_of_reach(state, run, models), *out_of_gangs(state, run, models)]

    return fit.of_doubtful(run, find_ruled_out)


# --- workers ------------------------------------------------------------------------------------


def _workers(state: ExperimentState, snapshot: ClusterSnapshot) -> Iterator[Step]:
    """Revoke or release open tasks of absent and excluded workers.

    Requires that the cluster log has been read completely.
    """
    for name, known in state.workers.items():
        view, exclusion = snapshot.workers.get(name), snapshot.excluded.get(name)
        loss = _loss(known, view)
        if exclusion is not None:
            yield from _release_tasks(state, known, f"{name}: {exclusion.reason}", snapshot.now)
        elif loss is not None:
            yield from _revoke_tasks(state, known, loss.exit, loss.how)
        elif known.stale_tasks and view is not None:
            yield from _revoke_tasks(state, known, view.previous_exit, Liveness.GONE, known.stale_tasks)


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 120.0
"""Seconds until a paused run tries its volume again: the first pause and the longest."""


def _loss(known: Worker, view: WorkerView | None) -> Absence | None:
    """Return the reason and certainty of a worker's absence; `None` if it is present."""
    if view is None:
        return Absence(how=Liveness.GONE, exit=REMOVED)
    if known.incarnation != view.incarnation:
        return Absence(how=Liveness.GONE, exit=view.previous_exit)
    if view.absence is not None:
        return view.absence
    if known.is_ending:
        return Absence(how=Liveness.LEAVING, exit=ENDING)
    return None if known.is_alive else Absence(how=Liveness.SILENT, exit=SILENT)


def _revoke_tasks(
    state: ExperimentState, worker: Worker, exit: Exit, how: Liveness, tasks: Collection[str] | None = None
) -> Iterator[Step]:
    """Revoke a worker's tasks where allowed.

    A live lease is respected unless its holder is known to be gone and cannot renew it. A leaving worker
    finishes its running tasks itself.

    Args:
        tasks: keys of its tasks; all by default.
    """
    for key in worker.open_tasks if tasks is None else sorted(tasks):
        task = state.runs[TaskKey.parse(key).run].tasks.by_key[key]
        if how is not Liveness.LEAVING or task.state is TaskState.ASSIGNED:
            yield api.Revoke(
                task=key,
                attempt=task.attempt,
                worker=task.worker or worker.name,  # a gang's leader
                reason=f"{worker.name}: {exit.reason}",
                # A live lease of a gang's leader says nothing about a lost member, without which the gang
                # cannot continue.
                force=how is Liveness.GONE or task.worker != worker.name,
                loss=exit.kind,
                limit_bytes=exit.limit_bytes,
            )


def _release_tasks(state: ExperimentState, worker: Worker, reason: str, now: float) -> Iterator[Step]:
    """Release the tasks of an excluded worker: it is present and may have healthy devices."""
    for key in list(worker.open_tasks):
        yield from release(state.runs[TaskKey.parse(key).run].tasks.by_key[key], reason, now)


# --- tasks ------------------------------------------------------------------------------------


def _completed_epoch(run: Run) -> int:
    """Return the next unreported epoch that all remaining models have trained, or 0."""
    epoch, reached = len(run.scheduling.epochs) + 1, run.counts.reached
    return epoch if run.has_known_models and reached and min(reached) >= epoch else 0


def _revoke_cut_short(run: Run, now: float) -> Iterator[Step]:
    """Revoke sub-epochs of stopped models, and queued ones of failed or changed models.

    A running sub-epoch of a failed model ends by itself.
    """
    for task in run.tasks.open.values():
        if task.key.kind != "train":
            continue
        model = run.models[task.key.model or ""]
        if model.state is ModelState.STOPPED:
            yield from release(task, "its model was stopped", now)
        elif model.state is ModelState.FAILED and task.state is TaskState.ASSIGNED:
            yield revoke_task(task, "its model has failed", force=True)
        elif task.state is TaskState.ASSIGNED and model.is_outdated:
            # If it has started by then, it runs to completion with its old config, and replays use that
            # config too.
            yield revoke_task(task, "its model was changed")


def _revoke_unneeded(record: ExperimentRecord, state: ExperimentState, run: Run) -> Iterator[Step]:
    """Revoke tasks with unneeded results, so that the run can end.

    These are ETL tasks of partitions without remaining readers, trials and verifications after the last
    sub-epoch, tasks of a finished search, and queued ETL of a partition that returned with its worker.
    """
    sources: tuple[RevocableTasks, ...] = (
        Replicas(state, run),
        SearchRequests(record, run),
        Measurements(record, run),
        Reexecutions(record, state, run),
    )
    by_kind = {kind: source for source in sources for kind in source.kinds}
    for task in run.tasks.open.values():
        source = by_kind.get(task.key.kind)
        if source is not None and not source.is_still_needed(task):
            yield revoke_task(task, source.reason, force=True)
        elif task.state is TaskState.ASSIGNED and _is_back(state, run, task):
            yield revoke_task(task, "a worker holds this partition again")


def _is_back(state: ExperimentState, run: Run, task: Task) -> bool:
    """True if an alive worker holds the partition of a queued ETL task. Replica copies are never queued."""
    if task.key.kind != "etl" or run.kind == "etl":
        return False
    is_queued = not state.workers[task.worker or ""].is_next(str(task.key))
    assert run.plan is not None
    holders = state.holders(run.plan.dataset, task.key.partition or 0)
    return is_queued and any(worker.is_alive and KIND[run.kind] in worker.kinds for worker in holders)
