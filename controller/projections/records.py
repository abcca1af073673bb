"""What each event adds to TensorBoard's files. Pure: a log always gives the same records in order.

`controller.projections.tensorboard` calls `additions` and writes the files. A model's file begins with its
hyperparameters. After its last epoch it ends with the status 'success'. Both are records of the HParams plugin. A
failed or stopped model gets no end, because a user may resume it in the same file, and TensorBoard keeps the first
end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cerebro.contract.events import EpochCompleted, Event, TaskCommitted, TaskFailed, TaskRevoked
from cerebro.figures.downsample import FEWEST, kept_indices
from cerebro.state import ExperimentState, Model, ModelState, Run, TaskKey
from cerebro.state.reports.committed_values import Committed, Values, committed_values
from controller.projections.event_file import Last, Record, Scalar, SessionEnd, SessionStart

LIVE_VALUES = 500
"""Approximate number of values of each live metric of a model: the width of a chart in pixels.

Each sub-epoch gets a share, and keeps the extremes and the last value. With very many sub-epochs, only one in
several has live values.
"""

LIVE = "live"
"""Prefix of the names of live metrics."""


class Reported(NamedTuple):
    """One report of an attempt: time by the store's clock, rows read, and values by metric."""

    time: float
    rows: int
    values: Mapping[str, float]


class Ended(NamedTuple):
    """The end of an attempt, at `time` by the store's clock.

    All reports of this attempt and of earlier ones precede it.
    """

    experiment: str
    task: str
    attempt: int
    time: float

    @property
    def key(self) -> str:
        """Unique key in the experiment."""
        return f"{self.task}#{self.attempt}"


class Addition(NamedTuple):
    """Records to append to one file: a model's, or the run's without a model.

    They are computed on demand: in a long log, most are already in the files.

    Attributes:
        key: unique key in the experiment.
        time: time of the event.
        content: values in order, or a single session record.
        rows_before: rows that the model had seen before the task.
        live_values: maximum number of live values per metric, written before the other records.
        ended: the attempt that reported them, for a commit.
        is_sub_epoch: True for sub-epochs: they are too many to remember for detecting duplicates.
    """

    experiment: str
    run: str
    model: str
    key: str
    time: float
    content: tuple[Values, ...] | SessionStart | SessionEnd
    rows_before: int = 0
    live_values: int = 0
    ended: Ended | None = None
    is_sub_epoch: bool = False

    def records(self, points: Sequence[Reported] = ()) -> Iterator[Record]:
        """Yield live values, then the others; `points` are the attempt's reports in order."""
        if self.live_values:
            yield from self._live(points)
        if not isinstance(self.content, tuple):
            yield self.content
            return
        for prefix, step, values in self.content:
            for name in sorted(values):
                yield Scalar(tag=f"{prefix}/{name}", step=step, time=self.time, value=values[name])

    def contains(self, last: Last) -> bool:
        """True if the record is one of `records`, except live values."""
        if not isinstance(self.content, tuple):
            return last.tag == self.content.tag
        return any(
            last.step == step and last.tag.removeprefix(f"{prefix}/") in values
            for prefix, step, values in self.content
        )

    def _live(self, points: Sequence[Reported]) -> Iterator[Record]:
        wanted: set[tuple[int, str]] = set()
        for name in {name for point in points for name in point.values}:
            having = [position for position, point in enumerate(points) if name in point.values]
            values = [points[position].values[name] for position in having]
            wanted |= {(having[index], name) for index in kept_indices(values, self.live_values)}
        for position, point in enumerate(points):
            for name in sorted(point.values):
                if (position, name) in wanted:
                    yield Scalar(
                        tag=f"{LIVE}/{name}",
                        step=self.rows_before + point.rows,
                        time=point.time,
                        value=point.values[name],
                    )


EVENTS_WITH_RECORDS = (TaskCommitted, TaskFailed, TaskRevoked, EpochCompleted)
"""Events that may add records."""


def additions(state: ExperimentState, event: Event) -> Iterator[Addition | Ended]:
    """Yield the additions of `event`, which `state` has just applied.

    The caller must skip additions whose key it has seen. Each end of an attempt is yielded as a bare `Ended`, too: the
    writer then forgets the attempt's live points, even if nothing is added. A sub-epoch repeated after the loss of
    its checkpoint adds nothing.
    """
    committed = committed_values(state, event)
    if isinstance(event, EpochCompleted):
        assert committed is not None
        yield Addition(state.name, event.run, "", committed.key, event.time, committed.values)
    elif isinstance(event, EVENTS_WITH_RECORDS):
        key = TaskKey.parse(event.task)
        ended = Ended(state.name, event.task, event.attempt, event.time)
        if key.kind not in ("train", "valid") or key.model is None:
            yield ended
            return
        model = state.runs[key.run].models[key.model]
        if isinstance(event, TaskCommitted):
            if model.own_sub_epochs == 1:
                yield _start(state, key.run, model)
            if committed is not None:
                yield _commit(state, committed, model, ended)
        yield ended
        if _is_at_end(state.runs[key.run], model):
            key_of_end = f"{key.run}/{model.id}/end"
            end = SessionEnd(time=event.time)
            yield Addition(state.name, key.run, model.id, key_of_end, event.time, end)


def keys_of(state: ExperimentState) -> set[str]:
    """Return the keys of all additions of the log, except sub-epochs (`Addition.is_sub_epoch`)."""
    found: set[str] = set()
    for run in state.runs.values():
        found |= {f"{run.id}/epochs/e{each.epoch}" for each in run.scheduling.epochs}
        for model in run.models.values():
            found |= {
                str(TaskKey(run=run.id, kind="valid", model=model.id, epoch=epoch))
                for epoch in model.validation.metrics
            }
            if model.own_sub_epochs:
                found.add(f"{run.id}/{model.id}/start")
            # An extended model may have a second end: TensorBoard keeps the first.
            if _is_at_end(run, model):
                found.add(f"{run.id}/{model.id}/end")
    return found


def _is_at_end(run: Run, model: Model) -> bool:
    """True if the model finished its last epoch. Finished at a rung isn't the end: a search may continue it."""
    is_final = run.search is None or model.epochs >= run.fit_request.epochs
    return model.state is ModelState.FINISHED and is_final


def _start(state: ExperimentState, run: str, model: Model) -> Addition:
    start = SessionStart(
        time=state.runs[run].clock.started, hyperparams=model.hyperparams_of(model.lineage.sub_epochs)
    )
    return Addition(state.name, run, model.id, f"{run}/{model.id}/start", start.time, start)


def _commit(state: ExperimentState, committed: Committed, model: Model, ended: Ended) -> Addition:
    sub_epoch = len(model.sub_epochs) - 1
    epochs = max(model.epochs, state.runs[committed.run].fit_request.epochs)
    return Addition(
        state.name,
        committed.run,
        model.id,
        committed.key,
        ended.time,
        committed.values,
        # A model's curves continue its parent's.
        rows_before=model.lineage.rows + model.effort.rows - model.sub_epochs[-1].rows,
        live_values=live_share(sub_epoch, epochs * len(model.partitions)),
        ended=ended,
        is_sub_epoch=committed.is_sub_epoch,
    )


def live_share(sub_epoch: int, sub_epochs: int) -> int:
    """Return the number of values of each live metric for this sub-epoch, numbered from 0."""
    share = LIVE_VALUES // sub_epochs
    if share >= FEWEST:
        return share
    every = -(-FEWEST * sub_epochs // LIVE_VALUES)
    return 0 if sub_epoch % every else FEWEST
