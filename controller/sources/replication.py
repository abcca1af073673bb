"""Which training partitions are to be made once more, and where: those that nobody holds any more, and copies for
workers that joined without any. Pure.

A partition is made from its rows on the shared volume by the ETL run's own code, so it is the same wherever it is made.
Its task belongs to the run that needs it (``fit-2/etl/train/p1``). Of all runs of the experiment at most one has an
attempt to make it open at a time.

Lost: a partition that no registered worker holds. It is made by a worker for ETL on the volume of a worker that can
read it, where least is held already. One whose holders are only away is waited for, and so are, for a minute, pods on
their way: after scaling down and up again they bring it back. It is taken out of a queue if somebody holds it by then.

All of it is done in the lane of tasks without a device, beside what the worker's devices do.

Copies for newcomers: one is a worker that trains and was not there when the data set was made, or that holds nothing
of it. It gets the partition whose holders have most left to do, if the least busy of them has more left than the
newcomer by over twice the time that the partition took to make; then perhaps another one. Only workers for ETL that
have nothing else to do make them, one at a time, so that nobody's training waits for one.

Copies that relieve slow workers (`controller.sources.relief`) go to any worker that trains, has room on its volume, and
makes nothing else just now. Where one worker does both ETL and training, making one slows its training down; so a copy
has to save a multiple of the time that it takes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator

from cerebro.contract.records import QUEUE_DEPTH
from cerebro.contract.tasks import Failure
from cerebro.state import ExperimentState, Run, TaskKey, TaskState, Worker
from cerebro.state.waiting import KIND, needed_partitions
from controller.decisions.fit_dispatch import FitDispatch
from controller.decisions.places import Places
from controller.sources.relief import relief

_WORTH = 2.0
"""A copy must save more than the time it takes; the rest of the work is shared once it is there."""


def making(
    state: ExperimentState,
    run: Run,
    fit: FitDispatch | None,
    places: Places,
    barred: set[str],
    *,
    is_filling: bool = False,
    cramped: Collection[str] = (),
    leaving: Collection[str] = (),
) -> list[tuple[str, TaskKey]]:
    """Tasks of ETL to assign now, each with its worker.

    Args:
        run: any run; an ETL run makes partitions of its own and gets none.
        fit: the dispatch state of a fit run.
        places: of the workers that are alive; left as they are.
        barred: workers that are given nothing. What ran out of memory is made where nothing else runs: its worker, or
            one that is kept free for it, is added.
        is_filling: workers are on their way (`ClusterSnapshot.is_filling`): what is lost may come with them, and is
            left alone.
        cramped: workers whose volume has no room for another copy.
        leaving: workers that are to go: what only they hold is made on others before.
    """
    if run.kind == "etl" or run.plan is None:
        return []
    replicas = _Replicas(state, run, places, barred, leaving)
    lost, newcomers = _lost(state, run, fit), replicas.newcomers(fit)
    relieving = replicas.relieving(fit, newcomers, cramped) if fit is not None else None
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
    """Why a partition that the run needs will never be there again; empty while there is hope."""
    for partition, failure in _unmade(state, run):
        if not failure.is_of_volume:
            return (
                f"training partition {partition} is held by no worker any more, and it could not be made anew: "
                f"{failure.text}"
            )
    return ""


def volume_failure(state: ExperimentState, run: Run) -> Failure | None:
    """Return the failure of a volume that blocks a partition the run needs, if any."""
    return next((failure for _, failure in _unmade(state, run) if failure.is_of_volume), None)


def _unmade(state: ExperimentState, run: Run) -> Iterator[tuple[int, Failure]]:
    """Yield each partition that the run needs, that no worker holds, and whose task failed, with the failure."""
    if run.kind == "etl" or run.plan is None:
        return
    for task in run.remade.values():
        if task.state is not TaskState.FAILED or task.failure is None:
            continue
        partition = task.key.partition or 0
        if partition in needed_partitions(state, run) and not state.holders(run.plan.dataset, partition):
            yield partition, task.failure


def remaking(state: ExperimentState, run: Run, fit: FitDispatch | None) -> tuple[list[Worker], int]:
    """Workers that could make what the run has lost and needs, and how many partitions that are.

    Args:
        fit: the dispatch state of a fit run.
    """
    if run.kind == "etl" or run.plan is None or not (lost := _lost(state, run, fit)):
        return [], 0
    needed = needed_partitions(state, run)
    keys = [_key(run, partition) for partition in lost if partition in needed]
    count = sum(run.task(key).state is TaskState.PENDING for key in keys)
    return _useful_makers(state, run) if count else [], count


def making_s(state: ExperimentState, run: Run) -> float:
    """How long it takes to make a partition of a run's data set, the median: a slow worker made its own slowly. 0: that
    is not known."""
    made = state.datasets.get(run.plan.dataset) if run.plan is not None else None
    parts = made.plan.splits.get("train", ()) if made is not None else ()
    known = [_took_s(state, run, part.partition) for part in parts]
    return statistics.median(known) if known else 0.0


def _took_s(state: ExperimentState, run: Run, partition: int) -> float:
    """How long it took to make the partition, the last time that is known; 0 if it is not."""
    for each in reversed(state.runs.values()):
        if each.plan is not None and run.plan is not None and each.plan.dataset == run.plan.dataset:
            task = each.task(_key(run, partition)._replace(run=each.id))
            made = [a.ended - a.started for a in task.attempts if a.outcome == "committed"]
            if made:
                return made[-1]
    return 0.0


class _Replicas:
    """The volumes partitions can be made on, and what is there or on its way."""

    def __init__(
        self,
        state: ExperimentState,
        run: Run,
        places: Places,
        barred: set[str],
        leaving: Collection[str] = (),
    ) -> None:
        assert run.plan is not None
        self._state, self._run, self._barred, self._leaving = state, run, barred, leaving
        self._places = places
        self._dataset = run.plan.dataset
        self._alive = [worker for worker in state.workers.values() if worker.is_alive]
        self._coming = {
            task.key.partition or 0: state.workers[task.attempts[-1].worker].volume
            for each in state.open_runs()
            if each.plan is not None and each.plan.dataset == self._dataset
            for task in each.open.values()
            if task.key.kind == "etl" and task.key.split == "train"
        }

    def begin(self) -> None:
        """Something may be given from now on: it is counted apart from what the caller counts."""
        self._places = self._places.copy()

    def newcomers(self, fit: FitDispatch | None) -> list[Worker]:
        """Workers that train and were not there when the data set was made, or that hold nothing of it."""
        made = self._state.datasets.get(self._dataset)
        if fit is None or made is None:
            return []
        workers = self._state.workers
        names = {part.worker for part in made.plan.splits.get("train", ())}
        given = {workers[name].volume for name in names if name in workers}
        return [
            w
            for w in self._alive
            if w.trains and (w.volume not in given or not fit.dispatch_state.held[fit.worker(w.name)])
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
                makers, key=lambda w: (w.name in failed_at, self._places.load(w.name), self._held(w), w.name)
            )
            if self._run.task(key).exhausted:
                maker = min(makers, key=lambda w: (self._places.load(w.name), w.name in failed_at, w.name))
                self._barred.add(maker.name)
                if self._places.load(maker.name):
                    continue
            yield self._give(maker, key, partition)

    def make_parting(self, partitions: list[int]) -> Iterator[tuple[str, TaskKey]]:
        """They are held yet, so nothing waits for them: only who makes nothing else is given one."""
        for partition in partitions:
            makers = [w for w in self._makers(is_idle=False) if not self._places.beside(w.name)]
            if makers and self._is_makable(partition):
                maker = min(makers, key=lambda w: (self._held(w), self._places.load(w.name), w.name))
                yield self._give(maker, _key(self._run, partition), partition)

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
                yield self._give(makers[0], _key(self._run, chosen), chosen)

    def relieving(
        self, fit: FitDispatch, newcomers: list[Worker], cramped: Collection[str]
    ) -> tuple[str, int] | None:
        """The copy that would relieve a slow worker most: the volume, and the partition. Costs a pass over all models,
        workers and partitions, so it is asked again only when more is known of sub-epoch times, or other workers are
        there, hold something else, or could make something."""
        if fit.gang_size > 1 or any(w.volume in self._coming.values() for w in newcomers):
            return None  # what a newcomer takes over is seen once it is there
        making = {w.volume for w in self._alive if "etl" in w.kinds and self._places.beside(w.name)}
        able = {
            w.volume
            for w in self._alive
            if "etl" in w.kinds and w.name not in self._barred and w.name not in self._leaving
        } - making.union(self._coming.values(), (self._state.workers[name].volume for name in cramped))
        helpers = {fit.worker(w.name): w for w in self._alive if w.trains and w.volume in able}
        for newcomer in newcomers:
            helpers.pop(fit.worker(newcomer.name), None)
        if not helpers:
            return None
        coming = {
            fit.partitions.index(partition): fit.worker(w.name)
            for partition, volume in self._coming.items()
            for w in self._alive
            if w.trains and w.volume == volume and partition in fit.rows
        }

        def ask() -> tuple[str, int] | None:
            found = relief(
                fit,
                coming,
                helpers,
                making_s(self._state, self._run),
                lambda index: self._is_makable(fit.partitions[index]),
            )
            return (helpers[found.worker].volume, fit.partitions[found.partition]) if found else None

        known = fit.times.settled, (*fit.dispatch_state.held,), (*helpers,), (*coming.items(),)
        return fit.again("copies", known, ask)

    def make_copy(self, volume: str, partition: int) -> Iterator[tuple[str, TaskKey]]:
        """It, by a worker for ETL on that volume."""
        makers = [w for w in self._makers(is_idle=False) if w.volume == volume]
        if makers and self._is_makable(partition):
            yield self._give(makers[0], _key(self._run, partition), partition)

    def _makers(self, *, is_idle: bool) -> list[Worker]:
        able = (
            w
            for w in self._alive
            if "etl" in w.kinds and w.name not in self._barred and w.name not in self._leaving
        )
        if is_idle:
            return [w for w in able if not self._places.load(w.name)]
        return [w for w in able if self._places.beside(w.name) < QUEUE_DEPTH]

    def _is_makable(self, partition: int) -> bool:
        state = self._run.task(_key(self._run, partition)).state
        return partition not in self._coming and state is TaskState.PENDING

    def _pays(self, fit: FitDispatch, partition: int, helper: Worker) -> bool:
        if (self._dataset, partition) in helper.replicas:
            return False
        index = fit.worker(helper.name)
        if not fit.times.estimates.observations:
            return not fit.dispatch_state.held[index]
        gap_s = _busy_s(fit, partition) - fit.dispatch_state.worker_left[index]
        return gap_s > _WORTH * _took_s(self._state, self._run, partition)

    def _held(self, worker: Worker) -> int:
        """Partitions of the data set on the worker's volume, and on their way there."""
        coming = sum(volume == worker.volume for volume in self._coming.values())
        return coming + sum(dataset == self._dataset for dataset, _ in worker.replicas)

    def _give(self, maker: Worker, key: TaskKey, partition: int) -> tuple[str, TaskKey]:
        self._places.take(maker.name, ())
        self._coming[partition] = maker.volume
        return maker.name, key


def _lost(state: ExperimentState, run: Run, fit: FitDispatch | None) -> list[int]:
    """Partitions of the run's data set that no registered worker holds."""
    assert run.plan is not None
    dataset = run.plan.dataset
    if fit is not None:
        numbered = enumerate(fit.partitions)
        partitions = [number for index, number in numbered if not fit.dispatch_state.holders(index)]
    else:
        made = state.datasets.get(dataset)
        partitions = [part.partition for part in made.plan.splits.get("train", ())] if made else []
    return [p for p in partitions if not state.holders(dataset, p)]


def _parting(state: ExperimentState, run: Run, leaving: Collection[str]) -> list[int]:
    """Partitions of the run's data set that workers hold which are to go, and no other one that is there."""
    assert run.plan is not None
    made = state.datasets.get(run.plan.dataset)
    found = []
    for part in made.plan.splits.get("train", ()) if made else ():
        here = [w for w in state.holders(run.plan.dataset, part.partition) if w.is_alive and w.trains]
        if here and all(w.name in leaving for w in here):
            found.append(part.partition)
    return found


def _useful_makers(state: ExperimentState, run: Run) -> list[Worker]:
    """Workers for ETL on the volumes of those that do the run's work."""
    alive = [worker for worker in state.workers.values() if worker.is_alive]
    volumes = {worker.volume for worker in alive if KIND[run.kind] in worker.kinds}
    return [worker for worker in alive if "etl" in worker.kinds and worker.volume in volumes]


def _key(run: Run, partition: int) -> TaskKey:
    return TaskKey(run=run.id, kind="etl", split="train", partition=partition)


def _holders(fit: FitDispatch, partition: int) -> tuple[int, ...]:
    return fit.dispatch_state.holders(fit.partitions.index(partition))


def _busy_s(fit: FitDispatch, partition: int) -> float:
    """How long the least busy of the partition's holders has to train; infinite while none is there."""
    left = fit.dispatch_state.worker_left
    return min((left[worker] for worker in _holders(fit, partition)), default=math.inf)
