"""What each event of a log adds to TensorBoard's files. Pure: the same log gives the same records in the same order.

A model's file begins with its hyper-parameters and, once it has trained all of its epochs, ends with its success: the
messages of TensorBoard's HParams plugin, whose table shows them beside the newest values. A model that failed or was
stopped gets no end, because a user may let it go on at any time, in the same file, and TensorBoard keeps the first end
that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cerebro.analysis.downsample import FEWEST, kept
from cerebro.contract.events import EpochCompleted, Event, TaskCommitted, TaskFailed, TaskRevoked
from cerebro.state import ExperimentState, Model, ModelState, TaskKey, gap
from controller.event_file import Record, Scalar, SessionEnd, SessionStart

LIVE_VALUES = 500
"""Of each live metric of a model, about so many values in all of its run: as many as a chart has pixels, and little to
load for hundreds of models. A unit gets its share; of what it reported, extremes and the last value are kept. Where a
share would say nothing, because a model has so many units, only one unit in so many has live values."""


class Reported(NamedTuple):
    """What an attempt reported at once: when (the store's clock), after how many rows, and its values by metric."""

    time: float
    rows: int
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Addition:
    """Records for the end of one file: a model's, or without one the run's.

    Attributes:
        key: what they tell of, once per experiment.
        rows_before: rows that the model had seen before that task.
        live_values: how many values of each live metric come before the records; 0: none.
        ended: the attempt that reported them, if it is a commit.
    """

    experiment: str
    run: str
    key: str
    records: tuple[Record, ...]
    model: str = ""
    rows_before: int = 0
    live_values: int = 0
    ended: Ended | None = None

    def all_records(self, points: Sequence[Reported]) -> Iterator[Record]:
        """Live values, then the records; `points` are those of the attempt, in order."""
        wanted: set[tuple[int, str]] = set()
        for name in {name for point in points for name in point.values} if self.live_values else ():
            having = [position for position, point in enumerate(points) if name in point.values]
            values = [points[position].values[name] for position in having]
            wanted |= {(having[index], name) for index in kept(values, self.live_values)}
        for position, point in enumerate(points):
            for name in sorted(point.values):
                if (position, name) in wanted:
                    yield Scalar(
                        tag=f"live/{name}",
                        step=self.rows_before + point.rows,
                        time=point.time,
                        value=point.values[name],
                    )
        yield from self.records


@dataclass(frozen=True, kw_only=True)
class Ended:
    """An attempt has ended: what it reported came before, by `time`, which is the store's clock. With it goes all that
    it and the attempts before it had reported."""

    experiment: str
    task: str
    attempt: int
    time: float

    @property
    def key(self) -> str:
        """See `Addition`."""
        return f"{self.task}#{self.attempt}"


def additions(state: ExperimentState, event: Event) -> Iterator[Addition | Ended]:
    """What `event`, which was just applied to `state`, adds; what was added under the same key before is to be left
    out, as for a unit that is done again because its checkpoint was lost."""
    if isinstance(event, EpochCompleted):
        yield _epoch(state, event)
    elif isinstance(event, TaskCommitted | TaskFailed | TaskRevoked):
        key = TaskKey.parse(event.task)
        ended = Ended(experiment=state.name, task=event.task, attempt=event.attempt, time=event.time)
        if key.kind not in ("train", "valid") or key.model is None:
            yield ended
            return
        model = state.runs[key.run].models[key.model]
        if isinstance(event, TaskCommitted):
            if len(model.visits) == 1:
                yield _start(state, key.run, model)
            yield _commit(state, event, key, model, ended)
        yield ended
        if model.state is ModelState.FINISHED:
            end = SessionEnd(time=event.time)
            yield Addition(
                experiment=state.name,
                run=key.run,
                model=model.id,
                key=f"{key.run}/{model.id}/end",
                records=(end,),
            )


def _start(state: ExperimentState, run: str, model: Model) -> Addition:
    start = SessionStart(time=state.runs[run].started, hyperparams=model.hyperparams)
    return Addition(
        experiment=state.name, run=run, model=model.id, key=f"{run}/{model.id}/start", records=(start,)
    )


def _commit(
    state: ExperimentState, event: TaskCommitted, key: TaskKey, model: Model, ended: Ended
) -> Addition:
    assert key.epoch is not None, "training and validation are of an epoch"
    scalars: list[Scalar] = []
    unit = len(model.visits) - 1
    if key.kind == "train":
        scalars += _scalars("unit/train", unit + 1, event.time, event.result.metrics)
        if (unit + 1) % len(model.partitions) == 0:
            scalars += _scalars("epoch/train", key.epoch, event.time, model.training_metrics(key.epoch))
    else:
        scalars += _scalars("epoch/valid", key.epoch, event.time, event.result.metrics)
    return Addition(
        experiment=state.name,
        run=key.run,
        model=model.id,
        key=event.task,
        ended=ended,
        rows_before=model.rows - model.visits[-1].rows,
        live_values=live_share(unit, model.epochs * len(model.partitions)),
        records=tuple(scalars),
    )


def live_share(unit: int, units: int) -> int:
    """How many values of each live metric the unit with that number, from 0, may add to its model's file."""
    share = LIVE_VALUES // units
    if share >= FEWEST:
        return share
    every = -(-FEWEST * units // LIVE_VALUES)
    return 0 if unit % every else FEWEST


def _epoch(state: ExperimentState, event: EpochCompleted) -> Addition:
    values = {
        "makespan_s": event.makespan_s,
        "lower_bound_s": event.lower_bound_s,
        "gap": gap(event.makespan_s, event.lower_bound_s),
        "idle_s": sum(event.idle_s.values()),
    }
    return Addition(
        experiment=state.name,
        run=event.run,
        key=f"{event.run}/epochs/e{event.epoch}",
        records=tuple(_scalars("schedule", event.epoch, event.time, values)),
    )


def _scalars(prefix: str, step: int, time: float, metrics: Mapping[str, float]) -> Iterator[Scalar]:
    for name in sorted(metrics):
        yield Scalar(tag=f"{prefix}/{name}", step=step, time=time, value=metrics[name])
