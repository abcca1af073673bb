"""Training partitions to make again: lost ones, and replica copies for workers. Pure.

The code of the ETL run builds a partition from its rows on the shared volume, so it is the same everywhere.
The task is part of the run that needs it (``fit-2/etl/train/p1``). Per partition, at most one run of the
experiment has an open attempt. These tasks use the slots without a device, in parallel with the workers'
devices.

*Lost*: no registered worker holds the partition. An ETL worker makes it on the volume with the fewest
partitions whose worker can use it. Partitions of absent workers are not lost. The controller also waits up to
a minute for starting pods, which may bring it back. A queued task is revoked if a worker holds the partition
again.

*New workers*: a worker that trains and holds nothing of the data set, or joined after its preprocessing.
It gets the partition with the busiest holders, if its least busy holder is busier than the new worker by
twice the partition's making time; then possibly another one. Only idle ETL workers make these copies, one at
a time, so they never delay training.

*Slow workers* (`controller.sources.relief`): any training worker with room on its volume that makes nothing
else gets a copy. If it also does ETL, making the copy slows its training, so a copy must save a multiple of
its making time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from cerebro.contract.records import QUEUE_DEPTH
from cerebro.contract.tasks.failures import Failure
from cerebro.state import ExperimentState, Run, Task, TaskKey, TaskState, Worker
from cerebro.state.exclusions import Scope
from cerebro.state.reports.wait_reasons import KIND, needed_partitions
from controller.decisions.device_slots import DeviceSlots
from controller.decisions.fit_dispatch import FitDispatch
from controller.exclusions.collection import Exclusions
from controller.exclusions.memory_retries import reserved
from controller.sources.relief import relief
from controller.sources.task_source import Offer, Proposal

if TYPE_CHECKING:
    from controller.decisions.assignment_draft import AssignmentDraft

_WORTH = 2.0
"""A copy must save more than its making time: afterwards both holders share the rest of the work."""


class Replicas:
    """Proposes ETL tasks for lost partitions and for copies."""

    kinds = frozenset({"etl"})
    reason = "this partition needs no more work"

    def __init__(self, state: ExperimentState, run: Run, fit: FitDispatch | None = None) -> None:
        self._state, self._run, self._fit = state, run, fit

    def propose(self, view: AssignmentDraft, offer: Offer) -> Iterator[Proposal]:
        """Yield tasks for the slots without a device."""
        found = replica_tasks(
            self._state,
            self._run,
            self._fit,
            view.slots,
            view.exclusions,
            is_filling=view.snapshot.is_filling,
        )
        for worker, key in found:
            yield Proposal(key, worker)

    def is_still_needed(self, task: Task) -> bool:
        """True while the run reads the partition."""
        return self._run.kind == "etl" or task.key.partition in self._needed

    @cached_property
    def _needed(self) -> set[int]:
        return needed_partitions(self._state, self._run)


def replica_tasks(
    state: ExperimentState,
    run: Run,
    fit: FitDispatch | None,
    slots: DeviceSlots,
    exclusions: Exclusions,
    *,
    is_filling: bool = False,
) -> list[tuple[str, TaskKey]]:
    """Return the ETL tasks to assign now, each with its worker.

    Args:
        run: any run; an ETL run makes its own partitions and gets none here.
        fit: dispatch state of a fit run.
        slots: device slots of the alive workers; unchanged.
        exclusions: workers that get no tasks. Workers reserved for a task that ran out of memory are added.
        is_filling: True if workers are starting (`ClusterSnapshot.is_filling`); lost partitions then wait for
            them.
    """
    if run.kind == "etl" or run.plan is None:
        return []
    replicas = _Replicas(state, run, slots, exclusions)
    lost, newcomers = _lost(state, run, fit), replicas.newcomers(fit)
    relieving = replicas.relieving(fit, newcomers) if fit is not None else None
    leaving = exclusions.workers(Scope.REPLICAS)  # they will be released
    if not lost and not newcomers and relieving is None and not leaving:
        return []
    replicas.begin()
    needed = needed_partitions(state, run)
    if is_filling:
        needed.difference_update(lost)
    parting = _parting(state, run, leaving) if leaving else []
    steps = list(replicas.make_lost([p for p in lost if p in needed]))
    steps += replicas.make_parting([p for p in parting if p in needed])
    if fit is not None:
        steps += replicas.make_copies(fit, newcomers, needed)
        if not steps and relieving is not None and relieving[1] in needed:
            steps += replicas.make_copy(*relieving)
    return steps


def unmakable(state: ExperimentState, run: Run) -> str:
    """Return why a partition that the run needs cannot be made again, or ""."""
    for partition, failure in _failed_partitions(state, run):
        if not failure.is_of_volume:
            return (
                f"training partition {partition} is no longer on any worker, and could not be preprocessed again: "
                f"{failure.text}"
            )
    return ""


def volume_failure(state: ExperimentState, run: Run) -> Failure | None:
    """Return the failure of a volume that blocks a partition the run needs, if any."""
    return next((failure for _, failure in _failed_partitions(state, run) if failure.is_of_volume), None)


def _failed_partitions(state: ExperimentState, run: Run) -> Iterator[tuple[int, Failure]]:
    """Yield each partition that the run needs, that no worker holds, and whose task failed, with the failure."""
    if run.kind == "etl" or run.plan is None:
        return
    for task in run.tasks.replicas.values():
        if task.state is not TaskState.FAILED or task.failure is None:
            continue
        partition = task.key.partition or 0
        if partition in needed_partitions(state, run) and not state.holders(run.plan.dataset, partition):
            yield partition, task.failure


def remaking(state: ExperimentState, run: Run, fit: FitDispatch | None) -> tuple[list[Worker], int]:
    """Return workers able to make the run's lost partitions, and the number of these partitions.

    Args:
        fit: dispatch state of a fit run.
    """
    if run.kind == "etl" or run.plan is None or not (lost := _lost(state, run, fit)):
        return [], 0
    needed = needed_partitions(state, run)
    keys = [_key(run, partition) for partition in lost if partition in needed]
    count = sum(run.task(key).state is TaskState.PENDING for key in keys)
    return _useful_makers(state, run) if count else [], count


def making_s(state: ExperimentState, run: Run) -> float:
    """Return the median seconds to make a partition of the run's data set; 0 if unknown.

    The median limits the influence of slow workers.
    """
    dataset = state.datasets.get(run.plan.dataset) if run.plan is not None else None
    parts = dataset.plan.splits.get("train", ()) if dataset is not None else ()
    known = [_took_s(state, run, part.partition) for part in parts]
    return statistics.median(known) if known else 0.0


def _took_s(state: ExperimentState, run: Run, partition: int) -> float:
    """Return the newest known seconds to make the partition; 0 if unknown."""
    for each in reversed(state.runs.values()):
        if each.plan is not None and run.plan is not None and each.plan.dataset == run.plan.dataset:
            task = each.task(_key(run, partition)._replace(run=each.id))
            durations_s = [a.ended - a.started for a in task.attempts if a.outcome == "committed"]
            if durations_s:
                return durations_s[-1]
    return 0.0


class _Replicas:
    """Volumes for new replicas, and the replicas there or in preparation."""

    def __init__(
        self,
        state: ExperimentState,
        run: Run,
        slots: DeviceSlots,
        exclusions: Exclusions,
    ) -> None:
        assert run.plan is not None
        self._state, self._run, self._exclusions = state, run, exclusions
        self._slots = slots
        self._dataset = run.plan.dataset
        self._alive = [worker for worker in state.workers.values() if worker.is_alive]
        self._coming = {
            task.key.partition or 0: state.workers[task.attempts[-1].worker].volume
            for each in state.open_runs()
            if each.plan is not None and each.plan.dataset == self._dataset
            for task in each.tasks.open.values()
            if task.key.kind == "etl" and task.key.split == "train"
        }

    def begin(self) -> None:
        """Copy the device slots before assigning: the caller counts its own."""
        self._slots = self._slots.copy()

    def newcomers(self, fit: FitDispatch | None) -> list[Worker]:
        """Return workers that train but hold nothing of the data set, or joined after its preprocessing."""
        dataset = self._state.datasets.get(self._dataset)
        if fit is None or dataset is None:
            return []
        workers = self._state.workers
        names = {part.worker for part in dataset.plan.splits.get("train", ())}
        original_volumes = {workers[name].volume for name in names if name in workers}
        return [
            w
            for w in self._alive
            if w.trains
            and (
                w.volume not in original_volumes
                or not fit.dispatch_state.holders.held[fit.names.worker(w.name)]
            )
        ]

    def make_lost(self, partitions: list[int]) -> Iterator[tuple[str, TaskKey]]:
        useful = {worker.name for worker in _useful_makers(self._state, self._run)}
        for partition in partitions:
            if not self._is_makable(partition):
                continue
            key = _key(self._run, partition)
            failed_at = {attempt.worker for attempt in self._run.task(key).attempts}
            makers = [w for w in self._makers(is_idle=False) if w.name in useful]
            if not makers:
                continue
            maker = min(
                makers, key=lambda w: (w.name in failed_at, self._slots.load(w.name), self._held(w), w.name)
            )
            if self._run.task(key).exhausted:
                maker = min(makers, key=lambda w: (self._slots.load(w.name), w.name in failed_at, w.name))
                self._exclusions.add(reserved(maker.name, key))
                if self._slots.load(maker.name):
                    continue
            yield self._assign(maker, key, partition)

    def make_parting(self, partitions: list[int]) -> Iterator[tuple[str, TaskKey]]:
        """Assign partitions of leaving workers, only to makers without another task: they still exist."""
        for partition in partitions:
            makers = [w for w in self._makers(is_idle=False) if not self._slots.num_deviceless(w.name)]
            if makers and self._is_makable(partition):
                maker = min(makers, key=lambda w: (self._held(w), self._slots.load(w.name), w.name))
                yield self._assign(maker, _key(self._run, partition), partition)

    def make_copies(
        self, fit: FitDispatch, newcomers: list[Worker], needed: set[int]
    ) -> Iterator[tuple[str, TaskKey]]:
        for worker in newcomers:
            makers = [w for w in self._makers(is_idle=True) if w.volume == worker.volume]
            if not makers or worker.volume in self._coming.values():
                continue
            partitions = [p for p in sorted(needed) if self._is_makable(p) and self._pays(fit, p, worker)]
            if partitions:
                chosen = max(partitions, key=lambda p: (_busy_s(fit, p), -len(_holders(fit, p)), -p))
                yield self._assign(makers[0], _key(self._run, chosen), chosen)

    def relieving(self, fit: FitDispatch, newcomers: list[Worker]) -> tuple[str, int] | None:
        """Return the volume and partition of the most useful copy for a slow worker.

        Costs a pass over all models, workers and partitions, so it is cached until times, workers or replicas
        change.
        """
        if fit.gang_size > 1 or any(w.volume in self._coming.values() for w in newcomers):
            return None  # wait for the new worker's copy first
        making = {w.volume for w in self._alive if "etl" in w.kinds and self._slots.num_deviceless(w.name)}
        full = (self._state.workers[name].volume for name in self._exclusions.workers(Scope.COPIES))
        able = {w.volume for w in self._able()} - making.union(self._coming.values(), full)
        helpers = {fit.names.worker(w.name): w for w in self._alive if w.trains and w.volume in able}
        for newcomer in newcomers:
            helpers.pop(fit.names.worker(newcomer.name), None)
        if not helpers:
            return None
        coming = {
            fit.names.partitions.index(partition): fit.names.worker(w.name)
            for partition, volume in self._coming.items()
            for w in self._alive
            if w.trains and w.volume == volume and partition in fit.rows
        }

        def find_relief() -> tuple[str, int] | None:
            found = relief(
                fit,
                coming,
                helpers,
                making_s(self._state, self._run),
                lambda index: self._is_makable(fit.names.partitions[index]),
            )
            return (helpers[found.worker].volume, fit.names.partitions[found.partition]) if found else None

        known = fit.times.settled, (*fit.dispatch_state.holders.held,), (*helpers,), (*coming.items(),)
        return fit.again("copies", known, find_relief)

    def make_copy(self, volume: str, partition: int) -> Iterator[tuple[str, TaskKey]]:
        """Assign the copy to an ETL worker on that volume."""
        makers = [w for w in self._makers(is_idle=False) if w.volume == volume]
        if makers and self._is_makable(partition):
            yield self._assign(makers[0], _key(self._run, partition), partition)

    def _makers(self, *, is_idle: bool) -> list[Worker]:
        able = self._able()
        if is_idle:
            return [w for w in able if not self._slots.load(w.name)]
        return [w for w in able if self._slots.num_deviceless(w.name) < QUEUE_DEPTH]

    def _able(self) -> Iterator[Worker]:
        leaving = self._exclusions.workers(Scope.REPLICAS)
        for worker in self._alive:
            is_excluded = worker.name in leaving or self._exclusions.stops_all(worker.name)
            if "etl" in worker.kinds and not is_excluded:
                yield worker

    def _is_makable(self, partition: int) -> bool:
        state = self._run.task(_key(self._run, partition)).state
        return partition not in self._coming and state is TaskState.PENDING

    def _pays(self, fit: FitDispatch, partition: int, helper: Worker) -> bool:
        if (self._dataset, partition) in helper.replicas:
            return False
        index = fit.names.worker(helper.name)
        if not fit.times.estimates.observations:
            return not fit.dispatch_state.holders.held[index]
        gap_s = _busy_s(fit, partition) - fit.dispatch_state.work.worker_left[index]
        return gap_s > _WORTH * _took_s(self._state, self._run, partition)

    def _held(self, worker: Worker) -> int:
        """Return the data set's partitions on the worker's volume, including those being made."""
        coming = sum(volume == worker.volume for volume in self._coming.values())
        return coming + sum(dataset == self._dataset for dataset, _ in worker.replicas)

    def _assign(self, maker: Worker, key: TaskKey, partition: int) -> tuple[str, TaskKey]:
        self._slots.take(maker.name, ())
        self._coming[partition] = maker.volume
        return maker.name, key


def _lost(state: ExperimentState, run: Run, fit: FitDispatch | None) -> list[int]:
    """Return the run's partitions that no registered worker holds."""
    assert run.plan is not None
    dataset = run.plan.dataset
    if fit is not None:
        numbered = enumerate(fit.names.partitions)
        partitions = [number for index, number in numbered if not fit.dispatch_state.holders.of[index]]
    else:
        known_dataset = state.datasets.get(dataset)
        partitions = (
            [part.partition for part in known_dataset.plan.splits.get("train", ())] if known_dataset else []
        )
    return [p for p in partitions if not state.holders(dataset, p)]


def _parting(state: ExperimentState, run: Run, leaving: Collection[str]) -> list[int]:
    """Return the run's partitions that only leaving workers hold."""
    assert run.plan is not None
    dataset = state.datasets.get(run.plan.dataset)
    found = []
    for part in dataset.plan.splits.get("train", ()) if dataset else ():
        here = [w for w in state.holders(run.plan.dataset, part.partition) if w.is_alive and w.trains]
        if here and all(w.name in leaving for w in here):
            found.append(part.partition)
    return found


def _useful_makers(state: ExperimentState, run: Run) -> list[Worker]:
    """Return ETL workers on the volumes of workers that can run the run's tasks."""
    alive = [worker for worker in state.workers.values() if worker.is_alive]
    volumes = {worker.volume for worker in alive if KIND[run.kind] in worker.kinds}
    return [worker for worker in alive if "etl" in worker.kinds and worker.volume in volumes]


def _key(run: Run, partition: int) -> TaskKey:
    return TaskKey(run=run.id, kind="etl", split="train", partition=partition)


def _holders(fit: FitDispatch, partition: int) -> tuple[int, ...]:
    return fit.dispatch_state.holders.of[fit.names.partitions.index(partition)]


def _busy_s(fit: FitDispatch, partition: int) -> float:
    """Return the least remaining training of the partition's holders, in seconds; infinity without holders."""
    remaining_s = fit.dispatch_state.work.worker_left
    return min((remaining_s[worker] for worker in _holders(fit, partition)), default=math.inf)
