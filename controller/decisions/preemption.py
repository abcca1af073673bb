"""Preemption: take a running sub-epoch off its device. Pure.

The controller asks the worker to release the sub-epoch. The worker saves it at its next batch, reports it as preempted
and keeps the process. After `YIELD_S` seconds the controller revokes the sub-epoch instead.

Stopped models, stopped runs and cordoned workers use `release`. A run that has more devices than its fair share
releases one for a waiting run (`for_other_run`); the arbiter decides when, and such a sub-epoch is never revoked.
Policies that order models by priority score also preempt for a better model (`for_better_model`): the freed device goes
to the waiting model with the highest score.
This can't alternate between two models. A model preempts only models of at most half its score, scores change only
when a sub-epoch is committed, and a sub-epoch must save further progress before it can be preempted again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cerebro.contract.rest import api
from cerebro.scheduling.remaining_work import NEVER
from cerebro.state import Run, Task, TaskState, Worker
from controller.decisions.device_ends import end_of
from controller.decisions.fit_dispatch import FitDispatch
from controller.sharing.arbiter import DeviceSlot

MARGIN = 2.0
"""A waiting model preempts a running one if its priority score is this many times as high."""

MIN_REMAINING_S = 10.0
"""A sub-epoch that ends within this many seconds is not preempted. Equal to the first quantum of Hermes."""


def revoke_task(task: Task, reason: str, *, force: bool = False) -> api.Revoke:
    """Take a task's open attempt back."""
    return api.Revoke(
        task=str(task.key), attempt=task.attempt, worker=task.worker or "", reason=reason, force=force
    )


def release(task: Task, reason: str, now: float) -> Iterator[api.Preempt | api.Revoke]:
    """Take an open attempt back: a running sub-epoch at its next batch, any other task at once.

    A worker that does not release the sub-epoch in time loses it.
    """
    if task.state is TaskState.RUNNING and task.key.kind == "train":
        requested = task.attempts[-1].release_requested_at
        if requested is None:
            yield api.Preempt(
                task=str(task.key), attempt=task.attempt, worker=task.worker or "", reason=reason
            )
            return
        if now < requested + api.YIELD_S:
            return
    yield revoke_task(task, reason, force=True)


def is_clearly_better(waiting: float, running: float) -> bool:
    """True if a model with the score `waiting` should preempt one with the score `running`.

    >>> is_clearly_better(4.0, 2.0), is_clearly_better(3.0, 2.0)
    (True, False)
    """
    return waiting > max(running, 0.0) and waiting >= MARGIN * running


def for_better_model(
    run: Run, fit: FitDispatch, workers: Sequence[Worker], now: float, *, is_alone: bool
) -> Iterator[api.Preempt | api.Revoke]:
    """Free one device for the waiting model with the highest priority score.

    Only one sub-epoch at a time is preempted. It must have saved during its present attempt, so no work is lost.

    Args:
        workers: alive workers that train and may get tasks.
        now: time in seconds, by the store's clock.
        is_alone: True if no other run may take the freed device.
    """
    if not fit.preempts:
        return
    requested = [
        task for task in run.tasks.open.values() if task.attempts[-1].release_requested_at is not None
    ]
    for task in requested:
        yield from release(task, _REASON, now)
    if requested or not is_alone:
        return
    # A queued sub-epoch would start on the freed device.
    candidates = [each for each in preemptible(run, fit, workers, now) if not each.has_queue]
    if not candidates:
        return
    scores = fit.dispatch_state.priority_score
    lowest = min(scores[each.model] for each in candidates)
    freed_soon = {fit.names.worker(worker.name) for worker in workers if _is_free_soon(fit, worker, now)}
    for model in sorted(_waiting(fit), key=lambda model: -scores[model]):
        if not is_clearly_better(scores[model], lowest):
            return
        trainable_at = _workers_for(fit, model, workers)
        if trainable_at & freed_soon:
            continue
        worse = [
            each
            for each in candidates
            if each.worker in trainable_at and _may_preempt(fit, model, each.model)
        ]
        if worse:
            yield from release(min(worse, key=lambda each: scores[each.model]).task, _REASON, now)
            return


def for_other_run(run: Run, device: DeviceSlot, now: float) -> Iterator[api.Preempt | api.Revoke]:
    """Preempt the running sub-epoch on a device for another run, and revoke the tasks queued behind it."""
    reason = "another run has fewer devices than its fair share"
    for task in run.tasks.open.values():
        newest = task.attempts[-1]
        if newest.worker != device.worker or device.device not in newest.devices:
            continue
        if task.state is TaskState.ASSIGNED:
            yield revoke_task(task, reason)
        else:
            yield from release(task, reason, now)


_REASON = "a model with a much higher priority score waits"


class Candidate(NamedTuple):
    """A running sub-epoch that may be preempted.

    Attributes:
        model, worker: their indices.
        end: its expected end, by the store's clock.
        has_queue: True if another task waits for its device.
    """

    task: Task
    model: int
    worker: int
    end: float
    has_queue: bool


def preemptible(run: Run, fit: FitDispatch, workers: Sequence[Worker], now: float) -> Iterator[Candidate]:
    """Yield running sub-epochs on one device that have saved in their present attempt and won't end soon."""
    by_name = {worker.name: worker for worker in workers}
    for key, task in run.tasks.open.items():
        worker, attempt = by_name.get(task.worker or ""), task.attempts[-1]
        if worker is None or task.key.kind != "train" or task.state is not TaskState.RUNNING:
            continue
        saved, model = (
            run.models[task.key.model or ""].checkpoints.saved,
            fit.names.model(task.key.model or ""),
        )
        has_saved = saved is not None and (saved.task, saved.attempt) == (key, task.attempt)
        if (
            not has_saved
            or len(attempt.devices) != 1
            or task.key.other_partitions
            or attempt.group is not None
            or model in fit.retries.out_of_memory
        ):
            continue
        (device,) = attempt.devices
        end = end_of(fit, worker, device)
        tasks = worker.tasks_in(device)
        if tasks[:1] == [key] and end is not None and end >= now + MIN_REMAINING_S:
            yield Candidate(task, model, fit.names.worker(worker.name), end, has_queue=len(tasks) > 1)


def _waiting(fit: FitDispatch) -> Iterator[int]:
    """Idle models whose next sub-epoch takes one device and may share a worker."""
    state = fit.dispatch_state
    for model, remaining in enumerate(state.open):
        is_idle = remaining and model not in state.running and model not in fit.retries.out_of_memory
        if is_idle and max(state.work.need[model]) == 1:
            yield model


def _workers_for(fit: FitDispatch, model: int, workers: Sequence[Worker]) -> set[int]:
    state = fit.dispatch_state
    indices = (fit.names.worker(worker.name) for worker in workers)
    return {
        w for w in indices if state.holders.held[w] & state.open[model] and state.work.time[model][w] != NEVER
    }


def _may_preempt(fit: FitDispatch, waiting: int, running: int) -> bool:
    state = fit.dispatch_state
    is_better = is_clearly_better(state.priority_score[waiting], state.priority_score[running])
    return is_better and state.priority[waiting] >= state.priority[running]


def _is_free_soon(fit: FitDispatch, worker: Worker, now: float) -> bool:
    """True if a device of the worker is idle or will be within `MIN_REMAINING_S`."""
    ends = (end_of(fit, worker, device) for device in range(worker.devices))
    return any(end is None or end < now + MIN_REMAINING_S for end in ends)
