"""Progress of preprocessing per split, partition and worker, with failed rows. Pure.

Called by the tabs Data and Overview and by the read API. Combines the event log with live points, which count rows of
running tasks. Only the newest data set of an experiment is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from cerebro.contract.base import Split
from cerebro.contract.runs import EtlPlan, PartitionPlan
from cerebro.contract.tasks.failures import Failure
from cerebro.figures import partition_rows
from cerebro.state import Dataset, Run, Task, TaskKey, TaskState
from dispatcher.read_models.read_model import ReadModel


@dataclass(frozen=True, kw_only=True)
class PartitionRow:
    """One partition: ``rows_in = rows + failed`` after its commit; before, `done` rows are processed.

    Attributes:
        state: state of its task; ``stopped`` if the run ended before the task ran.
        seconds: duration of the newest attempt so far.
        task: key of its task, or an empty text if this run did not need to make the partition.
        failure: last error, if the task failed for good.
    """

    partition: int
    worker: str
    state: str
    rows_in: int
    rows: int
    failed: int
    done: int
    rows_per_s: float
    seconds: float | None
    task: str
    failure: Failure | None


@dataclass(frozen=True, kw_only=True)
class SplitRow:
    """One split: ``rows_in = rows + failed`` when complete; before, `done` rows are processed.

    Attributes:
        rows_per_s: rate of running partitions, else mean rate of completed ones.
        left_s: estimated seconds until completion.
    """

    split: str
    partitions_done: int
    partitions: int
    rows_in: int
    rows: int
    failed: int
    done: int
    is_complete: bool
    rows_per_s: float
    left_s: float | None
    parts: tuple[PartitionRow, ...]


@dataclass(frozen=True, kw_only=True)
class EtlWorkerRow:
    """Rows that one worker has preprocessed, over all splits."""

    worker: str
    partitions_done: int
    partitions: int
    rows: int
    failed: int
    rows_per_s: float


@dataclass(frozen=True, kw_only=True)
class DataView:
    """Newest data set of an experiment.

    Attributes:
        run: id of the ETL run that makes it.
        is_open: True while that run makes it.
        error: error of that run, or an empty text.
        broken: partitions that failed for good.
    """

    dataset: str
    run: str
    is_open: bool
    error: str
    broken: tuple[PartitionRow, ...]
    splits: tuple[SplitRow, ...]
    workers: tuple[EtlWorkerRow, ...]


@dataclass(frozen=True, kw_only=True)
class FailedRowView:
    """A row that failed: its id, the error in one line, and the traceback."""

    id: str | int
    error: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class FailedRowsView:
    """The first of `total` failed rows of a partition."""

    dataset: str
    split: str
    partition: int
    rows: tuple[FailedRowView, ...]
    total: int


def data(read_model: ReadModel, *, now: float) -> DataView | None:
    """Return the newest data set at `now` (seconds since the epoch); `None` without any."""
    dataset = newest_dataset(read_model)
    if dataset is None:
        return None
    splits = split_rows(read_model, dataset, now)
    run = _etl_run(read_model, dataset)
    return DataView(
        dataset=dataset.id,
        run=run.id if run else "",
        is_open=run is not None and run.is_open,
        error=run.failures.error if run else "",
        broken=tuple(part for split in splits for part in split.parts if part.failure is not None),
        splits=splits,
        workers=tuple(_workers(splits)),
    )


@dataclass(frozen=True, kw_only=True)
class CompleteDataset:
    """A data set whose partitions are complete since the time `ended`."""

    plan: EtlPlan
    ended: float


def complete_dataset(read_model: ReadModel) -> CompleteDataset | None:
    """Return the newest data set; `None` if it is incomplete."""
    dataset = newest_dataset(read_model)
    run = _etl_run(read_model, dataset) if dataset else None
    if dataset is None or run is None or run.is_open:
        return None
    parts = [(split, part.partition) for split, parts in dataset.plan.splits.items() for part in parts]
    if any(part not in dataset.rows for part in parts):
        return None
    return CompleteDataset(plan=dataset.plan, ended=run.clock.ended)


def newest_dataset(read_model: ReadModel) -> Dataset | None:
    """Return the data set that was planned last."""
    return next(reversed(read_model.state.datasets.values()), None)


def split_rows(read_model: ReadModel, dataset: Dataset, now: float) -> tuple[SplitRow, ...]:
    """Return the splits of a data set, with their partitions."""
    run = _etl_run(read_model, dataset)
    return tuple(
        _split(split, [_partition(read_model, dataset, run, split, part, now=now) for part in parts])
        for split, parts in dataset.plan.splits.items()
    )


def _etl_run(read_model: ReadModel, dataset: Dataset) -> Run | None:
    """Return the newest ETL run for the data set."""
    runs = [
        run
        for run in read_model.state.runs.values()
        if run.kind == "etl" and run.plan is not None and run.plan.dataset == dataset.id
    ]
    return runs[-1] if runs else None


def _partition(
    read_model: ReadModel, dataset: Dataset, run: Run | None, split: Split, part: PartitionPlan, *, now: float
) -> PartitionRow:
    key = str(TaskKey(run=run.id, kind="etl", split=split, partition=part.partition)) if run else ""
    task = run.tasks.by_key.get(key) if run else None
    point = read_model.live.newest.get(key)
    seconds = _seconds(task, now, point.start_s if point else 0.0)
    rows, failed, done = partition_rows(dataset, split, part, task, point.rows if point else 0)
    if task is not None and task.state is TaskState.RUNNING and point is not None:
        failed = point.rows_failed
    # A partition without a task exists since before this run.
    state = task.state if task else (TaskState.COMMITTED if rows else TaskState.PENDING)
    is_stopped = state is TaskState.PENDING and run is not None and not run.is_open
    return PartitionRow(
        partition=part.partition,
        worker=task.attempts[-1].worker if task and task.attempts else part.worker,
        state="stopped" if is_stopped else state.value,
        rows_in=part.rows,
        rows=rows,
        failed=failed,
        done=done,
        rows_per_s=done / seconds if seconds else 0.0,
        seconds=seconds,
        task=key if task else "",
        failure=task.failure if task and task.state is TaskState.FAILED else None,
    )


def _seconds(task: Task | None, now: float, start_s: float) -> float | None:
    """Return the seconds of preprocessing, without the `start_s` that the task waited for its process."""
    newest = task.attempts[-1] if task and task.attempts else None
    if newest is None or not newest.started:
        return None
    ended = newest.ended or max(now, newest.started)
    return max(0.0, ended - newest.started - (newest.start_s or start_s))


def _split(split: str, parts: list[PartitionRow]) -> SplitRow:
    running = [part for part in parts if part.state == "running"]
    rate = sum(part.rows_per_s for part in running)
    rows_in, done = sum(part.rows_in for part in parts), sum(part.done for part in parts)
    complete = [part for part in parts if part.state == "committed"]
    seconds = sum(part.seconds or 0.0 for part in complete)
    return SplitRow(
        split=split,
        partitions_done=len(complete),
        partitions=len(parts),
        rows_in=rows_in,
        rows=sum(part.rows for part in parts),
        failed=sum(part.failed for part in parts),
        done=done,
        is_complete=len(complete) == len(parts),
        rows_per_s=rate or (sum(part.done for part in complete) / seconds if seconds else 0.0),
        left_s=(rows_in - done) / rate if rate else None,
        parts=tuple(parts),
    )


def _workers(splits: tuple[SplitRow, ...]) -> Iterator[EtlWorkerRow]:
    found: defaultdict[str, list[PartitionRow]] = defaultdict(list)
    for split in splits:
        for part in split.parts:
            found[part.worker].append(part)
    for worker, parts in sorted(found.items()):
        seconds = sum(part.seconds or 0.0 for part in parts)
        yield EtlWorkerRow(
            worker=worker,
            partitions_done=sum(part.state == "committed" for part in parts),
            partitions=len(parts),
            rows=sum(part.rows for part in parts),
            failed=sum(part.failed for part in parts),
            rows_per_s=sum(part.done for part in parts) / seconds if seconds else 0.0,
        )
