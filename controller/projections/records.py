"""What each event of a log adds to TensorBoard's files. Pure: the same log gives the same records in the same order.

A model's file begins with its hyper-parameters and, once it has trained all of its epochs, ends with its success: the
messages of TensorBoard's HParams plugin, whose table shows them beside the newest values. A model that failed or was
stopped gets no end, because a user may let it go on at any time, in the same file, and TensorBoard keeps the first end
that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cerebro.contract.events import EpochCompleted, Event, TaskCommitted, TaskFailed, TaskRevoked
from cerebro.figures.downsample import FEWEST, kept_indices
from cerebro.state import ExperimentState, Model, ModelState, Run, TaskKey
from cerebro.state.committed import Values, values_of_commit, values_of_epoch
from controller.projections.event_file import Last, Record, Scalar, SessionEnd, SessionStart

LIVE_VALUES = 500
"""Of each live metric of a model, about so many values in all of its run: as many as a chart has pixels, and little to
load for hundreds of models. A sub-epoch gets its share; of what it reported, extremes and the last value are kept.
Where a share would say nothing, because a model has so many sub-epochs, only one sub-epoch in so many has live
values."""

LIVE = "live"
"""Before the names of live metrics."""


class Reported(NamedTuple):
    """What an attempt reported at once: when (the store's clock), after how many rows, and its values by metric."""

    time: float
    rows: int
    values: Mapping[str, float]


class Ended(NamedTuple):
    """An attempt has ended: what it reported came before, by `time`, which is the store's clock. With it goes all that
    it and the attempts before it had reported."""

    experiment: str
    task: str
    attempt: int
    time: float

    @property
    def key(self) -> str:
        """What it tells of, once per experiment."""
        return f"{self.task}#{self.attempt}"


class Addition(NamedTuple):
    """What comes to the end of one file: a model's, or without one the run's.

    Its records are made when they are asked for: of a long log most are in the files already.

    Attributes:
        key: what they tell of, once per experiment.
        time: when that was.
        parts: in their order; the record of a session stands alone.
        rows_before: rows that the model had seen before that task.
        live_values: how many values of each live metric come before the records; 0: none.
        ended: the attempt that reported them, if it is a commit.
        is_sub_epoch: it is of a sub-epoch, of which there are millions: nobody need remember it to leave out what is
            told twice.
    """

    experiment: str
    run: str
    model: str
    key: str
    time: float
    parts: tuple[Values, ...] | SessionStart | SessionEnd
    rows_before: int = 0
    live_values: int = 0
    ended: Ended | None = None
    is_sub_epoch: bool = False

    def records(self, points: Sequence[Reported] = ()) -> Iterator[Record]:
        """Live values, then the others; `points` are those of the attempt, in order."""
        if self.live_values:
            yield from self._live(points)
        if not isinstance(self.parts, tuple):
            yield self.parts
            return
        for prefix, step, values in self.parts:
            for name in sorted(values):
                yield Scalar(tag=f"{prefix}/{name}", step=step, time=self.time, value=values[name])

    def has(self, last: Last) -> bool:
        """Whether that record is one of `records`, but for live values."""
        if not isinstance(self.parts, tuple):
            return last.tag == self.parts.tag
        return any(
            last.step == step and last.tag.removeprefix(f"{prefix}/") in values
            for prefix, step, values in self.parts
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


ADDING = (TaskCommitted, TaskFailed, TaskRevoked, EpochCompleted)
"""Events that may add something."""


def additions(state: ExperimentState, event: Event) -> Iterator[Addition | Ended]:
    """What `event`, which was just applied to `state`, adds; what was added under the same key before is to be left
    out. A sub-epoch that is done again, because its checkpoint was lost, adds nothing."""
    if isinstance(event, EpochCompleted):
        yield _epoch(state, event)
    elif isinstance(event, ADDING):
        key = TaskKey.parse(event.task)
        ended = Ended(state.name, event.task, event.attempt, event.time)
        if key.kind not in ("train", "valid") or key.model is None:
            yield ended
            return
        model = state.runs[key.run].models[key.model]
        if isinstance(event, TaskCommitted):
            if model.own_sub_epochs == 1:
                yield _start(state, key.run, model)
            # Of a sub-epoch that was taken back once, the first commit has told.
            if key.kind == "valid" or (key.epoch, key.partitions) not in model.taken_back:
                yield _commit(state, event, key, model, ended)
        yield ended
        if _is_at_end(state.runs[key.run], model):
            key_of_end = f"{key.run}/{model.id}/end"
            end = SessionEnd(time=event.time)
            yield Addition(state.name, key.run, model.id, key_of_end, event.time, end)


def keys_of(state: ExperimentState) -> set[str]:
    """Keys of all that the log so far has added, but for sub-epochs (`Addition.is_sub_epoch`)."""
    found: set[str] = set()
    for run in state.runs.values():
        found |= {f"{run.id}/epochs/e{each.epoch}" for each in run.epochs}
        for model in run.models.values():
            found |= {str(run.validation(model, epoch).key) for epoch in model.validations}
            if model.own_sub_epochs:
                found.add(f"{run.id}/{model.id}/start")
            # Of one that was extended since, there may be a second end: TensorBoard keeps the first.
            if _is_at_end(run, model):
                found.add(f"{run.id}/{model.id}/end")
    return found


def _is_at_end(run: Run, model: Model) -> bool:
    """Whether all is trained; a search may have a model trained on from a rung."""
    is_final = run.search is None or model.epochs >= run.fit_request.epochs
    return model.state is ModelState.FINISHED and is_final


def _start(state: ExperimentState, run: str, model: Model) -> Addition:
    start = SessionStart(time=state.runs[run].started, hyperparams=model.hyperparams_of(model.inherited))
    return Addition(state.name, run, model.id, f"{run}/{model.id}/start", start.time, start)


def _commit(
    state: ExperimentState, event: TaskCommitted, key: TaskKey, model: Model, ended: Ended
) -> Addition:
    sub_epoch = len(model.visits) - 1
    epochs = max(model.epochs, state.runs[key.run].fit_request.epochs)
    return Addition(
        state.name,
        key.run,
        model.id,
        event.task,
        event.time,
        values_of_commit(event, key, model),
        # Curves of a model go on where those of its parent were left.
        rows_before=model.inherited_rows + model.rows - model.visits[-1].rows,
        live_values=live_share(sub_epoch, epochs * len(model.partitions)),
        ended=ended,
        is_sub_epoch=key.kind == "train",
    )


def live_share(sub_epoch: int, sub_epochs: int) -> int:
    """How many values of each live metric the sub-epoch with that number, from 0, may add to its model's file."""
    share = LIVE_VALUES // sub_epochs
    if share >= FEWEST:
        return share
    every = -(-FEWEST * sub_epochs // LIVE_VALUES)
    return 0 if sub_epoch % every else FEWEST


def _epoch(state: ExperimentState, event: EpochCompleted) -> Addition:
    key = f"{event.run}/epochs/e{event.epoch}"
    return Addition(state.name, event.run, "", key, event.time, (values_of_epoch(event),))
