"""Claims of open runs: the device slots they hold and could use. Pure.

Wanted slots are an upper estimate. A run that gets a slot it cannot use loses it in the same round
(`controller.sharing.rounds`). A lower estimate would leave a slot idle until the round's end.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator

from cerebro.contract.priority import weight
from cerebro.contract.records import QUEUE_DEPTH
from cerebro.contract.runs import EvaluatePlan, FitPlan
from cerebro.contract.tasks.bodies import MEASURING
from cerebro.state import ExperimentState, Run, RunState, Task, TaskState, Worker
from cerebro.state.reports.sharing import held_slots, task_slots
from cerebro.state.workers import NO_DEVICE
from controller.decisions.device_ends import due_s
from controller.decisions.fit_dispatch import FitDispatch
from controller.decisions.preemption import MIN_REMAINING_S, Candidate, preemptible
from controller.sharing.arbiter import Claim, DeviceSlot, RunRef
from controller.sources.ready_tasks import ready
from controller.sources.replication import remaking

_UNKNOWN_S = 60.0
"""Expected seconds of a task before one of its run has ended."""
_NEWEST = 8
"""Number of process starts that are averaged."""


def all_slots(state: ExperimentState) -> frozenset[DeviceSlot]:
    """Return all device slots of the alive workers."""
    alive = (worker for worker in state.workers.values() if worker.is_alive)
    return frozenset(slot for worker in alive for slot in worker_slots(worker))


def worker_slots(worker: Worker) -> tuple[DeviceSlot, ...]:
    """Return all slots of one worker."""
    return (*_devices(worker), _deviceless_slot(worker))


def training_slots(state: ExperimentState) -> frozenset[DeviceSlot]:
    """Return the devices of alive workers that train."""
    workers = (worker for worker in state.workers.values() if worker.is_alive and worker.trains)
    return frozenset(slot for worker in workers for slot in _devices(worker))


def used(state: ExperimentState, run: Run) -> frozenset[DeviceSlot]:
    """Return the slots that can run a run's tasks."""
    if run.kind != "etl":
        return training_slots(state)
    return frozenset(_deviceless_slot(w) for w in state.workers.values() if w.is_alive and "etl" in w.kinds)


def claim(state: ExperimentState, run: Run, fit: FitDispatch | None, now: float) -> Claim:
    """Return the slots that a run holds and wants.

    Args:
        fit: the dispatch state of a fit run that has started.
        now: the time that an event would have.
    """
    task_s = _task_s(run)
    wants, most = _wanted(state, run, fit)
    holds = held(state, run)
    return Claim(
        ref=RunRef(state.name, run.id),
        project=run.project,
        weight=weight(run.priority),
        holds=holds,
        wants=wants,
        most=most,
        sub_epoch_s=task_s,
        # Search tasks are short and sub-epochs continue during them, so they do not count.
        ahead_s=sum(
            _left_s(task, task_s, now) * _width(task) / task.attempts[-1].num_sharing
            for task in run.tasks.open.values()
            if task.key.kind != "search"
        ),
        start_s=_start_s(run),
        whole_s=math.inf if holds else _whole_s(state, run),
    )


def idle_claim(state: ExperimentState, run: Run) -> Claim:
    """Return a claim with the held slots only."""
    ref = RunRef(state.name, run.id)
    return Claim(ref=ref, project=run.project, weight=weight(run.priority), holds=held(state, run))


def held(state: ExperimentState, run: Run) -> frozenset[DeviceSlot]:
    """Return the slots with a run's open tasks; a task that must run alone holds its whole worker."""
    return frozenset(DeviceSlot(*slot) for slot in held_slots(state, run))


def ending(state: ExperimentState, run: Run, fit: FitDispatch | None, now: float) -> set[DeviceSlot]:
    """Return slots whose only task may be followed by a queued one now, so that its model loads."""
    counts = _occupants(state, run)
    found = {slot for slot, count in counts.items() if count == 1}
    if fit is None:
        return found
    workers = state.workers
    return {p for p in found if p.device == NO_DEVICE or not due_s(fit, workers[p.worker], p.device, now)}


def releasable(
    state: ExperimentState, run: Run, fit: FitDispatch | None, now: float
) -> dict[DeviceSlot, float]:
    """Return the devices with a preemptible sub-epoch, and the expected seconds until their tasks end.

    The least important models come first, then the latest ends.
    """
    if fit is None or run.state is not RunState.RUNNING:
        return {}
    workers = [worker for worker in state.workers.values() if worker.is_alive and worker.trains]
    dispatch_state, task_s = fit.dispatch_state, _task_s(run)

    def value(each: Candidate) -> tuple[float, float, float]:
        score = dispatch_state.priority_score[each.model] if fit.preempts else 0.0
        return dispatch_state.priority[each.model], score, -each.end

    found = {}
    for each in sorted(preemptible(run, fit, workers, now), key=value):
        if each.end == math.inf and 0 < _left_s(each.task, task_s, now) < MIN_REMAINING_S:
            continue  # the model has not run yet, but the run's other models have
        (device,), worker = each.task.attempts[-1].devices, state.workers[each.task.worker or ""]
        tasks = (run.tasks.open[key] for key in worker.tasks_in(device) if key in run.tasks.open)
        found[DeviceSlot(worker.name, device)] = sum(_left_s(task, task_s, now) for task in tasks)
    return found


def giving_way(state: ExperimentState, run: Run, fit: FitDispatch | None) -> set[DeviceSlot]:
    """Return full slots with a queued sub-epoch that a model of higher priority may replace."""
    if fit is None or not fit.dispatch_state.has_priorities:
        return set()
    counts = _occupants(state, run)
    queued = (task for task in _queued(state, run) if task.key.kind == "train")
    found = {DeviceSlot(*slot) for task in queued for slot in task_slots(state, str(task.key), task)}
    return {slot for slot in found if counts[slot] >= QUEUE_DEPTH}


# --- mechanism -----------------------------------------------------------------------------------


def _devices(worker: Worker) -> tuple[DeviceSlot, ...]:
    return tuple(DeviceSlot(worker.name, device) for device in range(worker.devices))


def _deviceless_slot(worker: Worker) -> DeviceSlot:
    return DeviceSlot(worker.name, NO_DEVICE)


def _wanted(state: ExperimentState, run: Run, fit: FitDispatch | None) -> tuple[frozenset[DeviceSlot], int]:
    """Return the wanted slots, and the maximum number of tasks for them."""
    if run.state is not RunState.RUNNING:
        return frozenset(), 0
    alive = [worker for worker in state.workers.values() if worker.is_alive]
    waiting = list(itertools.islice(ready(run), sum(worker.devices for worker in alive)))
    if run.kind == "etl":
        return frozenset(_deviceless_slot(worker) for worker in alive if "etl" in worker.kinds), len(waiting)
    queued = [task.key for task in _queued(state, run)]
    waiting += [key for key in queued if key.kind not in ("train", "etl", "search", *MEASURING)]
    kinds = {key.kind for key in waiting}
    able = {worker.name for worker in alive if not kinds.isdisjoint(worker.kinds)}
    count = len(waiting)
    if fit is not None and fit.run == run.id:
        remaining_masks = _remaining_masks(
            fit, {fit.names.model(key.model or "") for key in queued if key.kind == "train"}
        )
        wanted = functools.reduce(operator.or_, remaining_masks.values(), 0)
        able |= {
            w.name
            for w in alive
            if w.trains and fit.dispatch_state.holders.held[fit.names.worker(w.name)] & wanted
        }
        count += (
            len(remaining_masks)
            if fit.parallel_plans.is_plain
            else sum(fit.parallel_plans.size(model) for model in remaining_masks)
        )
    makers, lost = remaking(state, run, fit)
    wants = {slot for w in alive if w.name in able for slot in _devices(w)}
    return frozenset(wants.union(_deviceless_slot(worker) for worker in makers)), count + lost


def _occupants(state: ExperimentState, run: Run) -> Counter[DeviceSlot]:
    """Return slot -> number of the run's open tasks; those of a fused group count once."""
    found = {
        (task.attempts[-1].group.id if task.attempts[-1].group else key, DeviceSlot(*slot))
        for key, task in run.tasks.open.items()
        for slot in task_slots(state, key, task)
    }
    return Counter(slot for _, slot in found)


def _queued(state: ExperimentState, run: Run) -> Iterator[Task]:
    """Yield tasks that wait behind others: an idle device could run them, so they will be revoked."""
    for key, task in run.tasks.open.items():
        if task.state is TaskState.ASSIGNED and not state.workers[task.worker or ""].is_next(key):
            yield task


def _remaining_masks(fit: FitDispatch, queued: set[int]) -> dict[int, int]:
    """Return the models an idle device could train now -> mask of remaining partitions.

    Includes models with a sub-epoch in `queued`.
    """
    dispatch_state = fit.dispatch_state
    return {
        model: mask
        for model, mask in enumerate(dispatch_state.open)
        if mask and (model not in dispatch_state.running or model in queued)
    }


def _task_s(run: Run) -> float:
    """Return the mean seconds of a task of the run, as known; a fused group is one task."""
    return _mean_s(run, run.counts.device_uses)


def _sub_epoch_s(run: Run) -> float:
    """Return the mean device-seconds of a task of the run on each device, as known."""
    return _mean_s(run, run.counts.sub_epoch_devices)


def _mean_s(run: Run, sub_epochs: float) -> float:
    seconds = sum(run.device_time.trained_s.values()) if run.is_planned_fit else run.counts.committed_s
    count = sub_epochs if run.is_planned_fit else run.counts.committed
    return seconds / count if count else _UNKNOWN_S


def _whole_s(state: ExperimentState, run: Run) -> float:
    """Return the expected device-seconds of a run's remaining work; infinity if unknown."""
    if run.is_planned_fit:
        if not run.has_known_end:
            return math.inf
        done, total = run.progress()
        # The time of validations is unknown.
        return (
            (total - done) * _sub_epoch_s(run) if run.counts.sub_epoch_devices and done < total else math.inf
        )
    counts, plan = run.counts, run.plan
    if counts.committed:
        return counts.unfinished * _sub_epoch_s(run)
    if not isinstance(plan, EvaluatePlan):
        return math.inf
    fit = state.runs[plan.fit]
    if not fit.counts.sub_epoch_devices or not isinstance(fit.plan, FitPlan):
        return math.inf
    # To test a row takes no longer than to train on it.
    trained = sum(fit.plan.partitions.values()) / len(fit.plan.partitions)
    rows = len(plan.models) * sum(plan.partitions.values())
    return rows * _sub_epoch_s(fit) / max(1.0, trained)


def _width(task: Task) -> int:
    return max(1, len(task.attempts[-1].devices))


def _left_s(task: Task, task_s: float, now: float) -> float:
    if task.state is not TaskState.RUNNING:
        return task_s
    return max(0.0, task_s - (now - task.attempts[-1].started))


def _start_s(run: Run) -> float:
    newest = [start.ended - start.started for start in run.device_time.starts[-_NEWEST:]]
    return sum(newest) / len(newest) if newest else 0.0
