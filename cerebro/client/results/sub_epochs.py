"""Table of committed sub-epochs for `FitResult.sub_epochs`, from the state and, for long runs, from the log.

The state keeps the newest sub-epochs; older ones are compacted and read from the log, with about two epochs of each
model in memory besides the table.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, groupby
from typing import Any

import pandas as pd

from cerebro.client.results.tables import merge_columns
from cerebro.contract.parallel_plans import SINGLE
from cerebro.errors import DataError, LostEventsError
from cerebro.state import CompletedSubEpoch, Model, Run, TaskKey
from cerebro.state.log_pages import PAGE, Log, LogPages
from cerebro.state.reports.timeline import TaskAttempt
from cerebro.state.tasks.past_attempts import PastAttempts

_FRAME_ROWS = 20_000
"""Rows per data frame. Python objects need ten times the memory, so they are converted in parts."""
_ROUNDING_S = 6e-7
"""The table rounds times to microseconds. With this margin a time from the table selects its own row."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Filter of sub-epochs: end time in seconds of the store's clock, and epochs."""

    since: float = -math.inf
    until: float = math.inf
    epochs: Collection[int] | None = None

    @classmethod
    def between(
        cls, since: datetime | None, until: datetime | None, epochs: Collection[int] | int | None
    ) -> Selection:
        """Return the filter for a time range of timezone-aware datetimes; `None` is no limit.

        Raises:
            DataError: a time has no time zone.
        """
        return cls(
            since=-math.inf if since is None else _timestamp("since", since) - _ROUNDING_S,
            until=math.inf if until is None else _timestamp("until", until) + _ROUNDING_S,
            epochs=(epochs,) if isinstance(epochs, int) else epochs,
        )

    def contains(self, sub_epoch: CompletedSubEpoch) -> bool:
        """True if the sub-epoch passes the filter."""
        return self.since <= sub_epoch.ended <= self.until and (
            self.epochs is None or sub_epoch.epoch in self.epochs
        )


def sub_epoch_table(run: Run, selection: Selection, pages: LogPages | None, log: Log) -> pd.DataFrame:
    """Return one row per selected sub-epoch, ordered by end.

    Args:
        run: fit run.
        selection: filter.
        pages: reader of the log; `None` if it is not accessible.
        log: identity of the log.

    Raises:
        LostEventsError: a required part of the log cannot be read.
    """
    frames: list[pd.DataFrame] = []
    rows: list[dict[str, Any]] = []
    for name, sub_epoch, completed in chain(_from_state(run), _from_log(run, selection, pages, log)):
        if selection.contains(completed):
            rows.append(_row(name, sub_epoch, completed))
        if len(rows) == _FRAME_ROWS:
            frames.append(pd.DataFrame(rows))
            rows = []
    if rows or not frames:
        frames.append(pd.DataFrame(rows))
    frame = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    for name in ("peak_bytes", "peak_gpu_bytes") if len(frames) > 1 else ():
        frame[name] = pd.to_numeric(frame[name])  # a frame without numbers has dtype object
    if "sub_epoch" in frame and frame["sub_epoch"].isna().any():
        frame["sub_epoch"] = frame["sub_epoch"].astype("Int64")
    if not len(frame):
        return frame
    frame = frame.sort_values("ended", kind="stable", ignore_index=True)
    for name in ("started", "ended"):
        frame[name] = pd.to_datetime(frame[name], unit="s", utc=True).dt.round("us")
    return frame


def _timestamp(name: str, moment: object) -> float:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise DataError(
            f"{name} is {moment!r}, expected a datetime with a time zone, such as datetime.now(UTC)"
        )
    return moment.timestamp()


_Numbered = tuple[str, int | None, CompletedSubEpoch]


def _from_state(run: Run) -> Iterator[_Numbered]:
    for model in run.models.values():
        sub_epochs = model.kept_sub_epochs
        for sub_epoch, completed in enumerate(sub_epochs, start=len(model.sub_epochs) - len(sub_epochs)):
            yield model.id, sub_epoch, completed


def _from_log(run: Run, selection: Selection, pages: LogPages | None, log: Log) -> Iterator[_Numbered]:
    since, until = _time_range(run, selection)
    if not run.compaction.until or since > until:
        return
    if pages is None:
        reason = (
            f"sub-epochs of {run.id} before {until:.0f} are only in the log, which is not accessible here"
        )
        raise LostEventsError.for_event(log.experiment, 1, f"{reason}: use Experiment.attach(...).result()")
    reader = _LogReader(run=run, since=since)
    last = -1
    for begin, end in ((since, until), (until, None)):
        # A lost checkpoint revokes earlier sub-epochs. The events may follow the time range, so read on until its last
        # epochs are final.
        reach = reader.revocable_until() if end is None else end
        for page in pages.through(log, begin, reach) if reach >= begin else ():
            if page.problem:
                raise LostEventsError.for_event(log.experiment, page.number * PAGE + 1, page.problem)
            if page.number > last:
                last = page.number
                reader.past.take(page.attempt_events)
                yield from reader.final()
    yield from reader.remaining()


def _time_range(run: Run, selection: Selection) -> tuple[float, float]:
    """Return the time range of selected sub-epochs that only the log has. An end before the start means none."""
    since, until = max(selection.since, run.clock.first_start), min(selection.until, run.compaction.until)
    if selection.epochs is None:
        return since, until
    starts, ends = [math.inf], [-math.inf]
    for model in run.models.values():
        epochs = [
            epoch for epoch in selection.epochs if model.inherited_epochs < epoch <= model.compacted_epochs
        ]
        if epochs:
            starts.append(_end_of(model, min(epochs) - 1))
            ends.append(_end_of(model, max(epochs)))
    return max(since, min(starts)), min(until, max(ends))


def _end_of(model: Model, epoch: int) -> float:
    """Return when the last sub-epoch of an epoch ended, or the last inherited one before."""
    sub_epoch = max(model.sub_epochs_until(epoch), model.lineage.sub_epochs) - 1
    return model.sub_epochs[sub_epoch].ended if sub_epoch >= 0 else -math.inf


@dataclass(kw_only=True)
class _LogReader:
    """Reads sub-epochs from log pages and yields them once no later event can revoke them.

    A lost checkpoint revokes a sub-epoch or two, and never reaches behind the previous epoch. So attempts of two epochs
    per model stay in memory. Epochs with a revoked sub-epoch stay in memory to the end, because before a run counted as
    long the revocation may have reached further.
    """

    run: Run
    since: float
    past: PastAttempts = field(init=False)
    _next_check: int = 0
    """Number of attempts in memory at the next check for final ones."""
    _revoked_epochs: set[tuple[str, int]] = field(init=False)
    """(model, epoch) of revoked sub-epochs."""

    def __post_init__(self) -> None:
        self._revoked_epochs = {
            (model.id, epoch) for model in self.run.models.values() for epoch, _ in model.checkpoints.undone
        }
        self.past = PastAttempts(run=self.run.id, chosen=lambda key: key.kind == "train")

    def final(self) -> Iterator[_Numbered]:
        if len(self.past) < self._next_check:
            return
        newest = self.past.epochs()
        yield from self._numbered(self.past.pop_final(lambda key: self._is_final(key, newest)))
        # A check visits all attempts in memory, so wait until their number has grown by a quarter.
        self._next_check = len(self.past) * 5 // 4 + PAGE

    def _is_final(self, key: TaskKey, newest: Mapping[str, int]) -> bool:
        model, epoch = _model_epoch(key)
        return epoch + 2 <= newest.get(model, 0) and (model, epoch) not in self._revoked_epochs

    def revocable_until(self) -> float:
        """Return when the last epoch ended whose sub-epochs are known to have been revoked once."""
        ends = [-math.inf]
        for tried in self.past.window(-math.inf, math.inf):
            model, epoch = self.run.models[tried.key.model or ""], tried.key.epoch or 0
            if tried.sub_epoch and (epoch, tried.key.partitions) in model.checkpoints.undone:
                ends.append(_end_of(model, epoch))
        return min(max(ends), self.run.compaction.until)

    def remaining(self) -> Iterator[_Numbered]:
        yield from self._numbered(self.past.pop_final(lambda key: True))

    def _numbered(self, task_attempts: list[TaskAttempt]) -> Iterator[_Numbered]:
        ordered = sorted(task_attempts, key=lambda tried: (_model_epoch(tried.key), tried.attempt.ended))
        for (name, epoch), group in groupby(ordered, key=lambda tried: _model_epoch(tried.key)):
            model = self.run.models[name]
            if epoch <= model.compacted_epochs:
                sub_epochs = [tried.sub_epoch for tried in group if tried.sub_epoch is not None]
                first = self._first(model, epoch, sub_epochs)
                for offset, sub_epoch in enumerate(sub_epochs):
                    yield name, None if first is None else first + offset, sub_epoch

    def _first(self, model: Model, epoch: int, sub_epochs: list[CompletedSubEpoch]) -> int | None:
        """Return the number of the first sub-epoch; `None` if the range is within the epoch."""
        first, last = (
            max(model.sub_epochs_until(epoch - 1), model.lineage.sub_epochs),
            model.sub_epochs_until(epoch),
        )
        if len(sub_epochs) == last - first or _end_of(model, epoch - 1) >= self.since:
            return first
        return last - len(sub_epochs) if sub_epochs[-1].ended == model.sub_epochs[last - 1].ended else None


def _model_epoch(key: TaskKey) -> tuple[str, int]:
    return key.model or "", key.epoch or 0


def _row(model: str, sub_epoch: int | None, completed: CompletedSubEpoch) -> dict[str, Any]:
    return merge_columns(
        {
            "model": model,
            "sub_epoch": sub_epoch,
            "epoch": completed.epoch,
            "partition": completed.partition,
            "worker": completed.worker,
            "attempt": completed.attempt,
            "rows": completed.rows,
            "started": completed.started,
            "ended": completed.ended,
            "process_start": completed.timings.start_s,
            "devices": completed.devices,
            "parallel_plan": (completed.parallel_plan or SINGLE).label,
            "partitions": completed.partitions,
            "workers": (completed.worker, *(member.worker for member in completed.other_members)),
            "peak_bytes": completed.peak_bytes or None,
            "peak_gpu_bytes": completed.peak_gpu_bytes or None,
        },
        completed.returned.metrics,
        "metric",
    )
