"""What a tracker is to show of an experiment: a function of its log, as TensorBoard's files are. Pure.

A run of a tracker, here a *page*, is that of a model, or that of a fit as the parent of its models' pages. Rows are
added as sub-epochs commit. A sub-epoch that is done again, because its checkpoint was lost, adds nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cerebro.contract.events import EpochCompleted, Event, TaskCommitted
from cerebro.contract.records import ExperimentRecord, Hyperparameters
from cerebro.contract.runs import FitRequest
from cerebro.contract.tasks import CheckpointRef
from cerebro.errors import IllegalEventError, UnreadableError
from cerebro.state import ExperimentState, Model, ModelState, Run, RunState, TaskKey, wording
from cerebro.state.committed import Values, values_of_commit, values_of_epoch

Status = Literal["running", "finished", "failed", "stopped"]

_OF_RUN: dict[RunState, Status] = {
    RunState.FINISHED: "finished",
    RunState.FAILED: "failed",
    RunState.STOPPED: "stopped",
}


class Place(NamedTuple):
    """Which page: of a model of a fit, or without a model of the fit itself."""

    run: str
    model: str = ""


class Row(NamedTuple):
    """A value of a metric.

    Attributes:
        seq: number of the event that it is of.
        name: such as ``epoch/valid/accuracy``.
        step: number of the sub-epoch (``sub_epoch/``) or of the epoch, from 1.
        time: of the event, seconds since the epoch.
    """

    seq: int
    name: str
    step: int
    time: float
    value: float


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a page says beside its rows.

    Attributes:
        id: the same for the same page at any time, and for no other one.
        ended: when its status was last told by an event; 0 while it is running.
        checkpoint: of a model that has ended: its best epoch's, or its newest.
    """

    place: Place
    id: str
    name: str
    author: str
    started: float
    ended: float
    status: Status
    params: dict[str, str]
    tags: dict[str, str]
    checkpoint: CheckpointRef | None = None


class Projection:
    """Follows the log of one experiment."""

    def __init__(self, record: ExperimentRecord) -> None:
        self.record = record
        self.state = ExperimentState(name=record.name)
        self._told: set[str] = set()
        """Validations and epochs whose values were added. Of sub-epochs, of which there are most, the fold knows."""
        self._changed: dict[Place, float] = {}
        """When something last happened to a page."""

    @property
    def identity(self) -> str:
        """Of the experiment: one that is made later under its name has another."""
        return f"{self.record.name}@{self.record.created:.6f}"

    def apply(self, event: Event) -> Iterator[tuple[Place, Row]]:
        """Take the next event in; what it adds.

        Raises:
            UnreadableError: it does not fit the log before it.
        """
        try:
            self.state.apply(event)
        except IllegalEventError as cause:
            raise UnreadableError.for_event(self.record.name, event.seq, str(cause)) from cause
        if isinstance(event, EpochCompleted):
            place = Place(event.run)
            yield from self._rows(place, f"{event.run}/e{event.epoch}", event, (values_of_epoch(event),))
            return
        task = getattr(event, "task", "")
        if not task:
            if run := getattr(event, "run", ""):
                self._changed[Place(run)] = event.time
                if model := getattr(event, "model", ""):
                    self._changed[Place(run, model)] = event.time
            return
        key = TaskKey.parse(task)
        if key.kind not in ("train", "valid") or key.model is None:
            return
        place = Place(key.run, key.model)
        self._changed[place] = event.time
        if isinstance(event, TaskCommitted):
            model = self.state.runs[key.run].models[key.model]
            values = values_of_commit(event, key, model)
            if key.kind == "valid":
                yield from self._rows(place, task, event, values)
            elif (key.epoch, key.partitions) not in model.taken_back:
                yield from _rows(place, event, values)

    def _rows(
        self, place: Place, what: str, event: Event, parts: tuple[Values, ...]
    ) -> Iterator[tuple[Place, Row]]:
        if what in self._told:
            return
        self._told.add(what)
        yield from _rows(place, event, parts)

    # --- pages -----------------------------------------------------------------------------------

    def pages(self) -> Iterator[Page]:
        """All that there are to be now: of each fit that has started, and below it of each model that something has
        happened to; a fit before its models."""
        for run in self.state.runs.values():
            if isinstance(run.request, FitRequest) and run.plan is not None:
                yield self._of_run(run, run.request)
                for model in run.models.values():
                    if Place(run.id, model.id) in self._changed:
                        yield self._of_model(run, model)

    def page(self, place: Place) -> Page:
        """One of them, whose rows were added."""
        run = self.state.runs[place.run]
        return (
            self._of_model(run, run.models[place.model])
            if place.model
            else self._of_run(run, run.fit_request)
        )

    def id_of(self, place: Place) -> str:
        """Of a page."""
        return hashlib.sha256(f"{self.identity}/{place.run}/{place.model}".encode()).hexdigest()[:32]

    def _of_run(self, run: Run, request: FitRequest) -> Page:
        asked = request.model_dump(mode="json", exclude={"kind", "models", "code", "search", "techniques"})
        status = _OF_RUN.get(run.state, "running")
        return Page(
            place=Place(run.id),
            id=self.id_of(Place(run.id)),
            name=f"{self.record.name}/{run.id}",
            author=run.author,
            started=run.started,
            ended=run.ended if status != "running" else 0.0,
            status=status,
            params=params(asked),
            tags=self._tags(run) | ({"cerebro.error": run.error} if run.error else {}),
        )

    def _of_model(self, run: Run, model: Model) -> Page:
        place, status = Place(run.id, model.id), _status(run, model)
        tags = self._tags(run) | {"cerebro.model": model.id}
        # Not whether it waits or trains just now: that changes with every sub-epoch.
        tags["cerebro.state"] = status if status == "running" else wording.model(model, run)
        if model.parent:
            tags["cerebro.parent"] = model.parent
        if model.failure:
            tags["cerebro.failure"] = model.failure.line
        first = model.hyperparams_of(model.inherited)
        if changed := {
            name: value
            for name, value in model.hyperparams.items()
            if name not in first or first[name] != value
        }:
            tags["cerebro.changed"] = json.dumps(changed)
        epoch = run.best_epoch(model)
        if epoch is not None:
            tags["cerebro.best_epoch"] = str(epoch)
        return Page(
            place=place,
            id=self.id_of(place),
            name=f"{run.id}/{model.id}",
            author=run.author,
            started=run.started,
            ended=self._changed.get(place, run.ended) if status != "running" else 0.0,
            status=status,
            params=params(first),
            tags=tags,
            checkpoint=None if status == "running" else _checkpoint(model, epoch),
        )

    def _tags(self, run: Run) -> dict[str, str]:
        return {"cerebro.experiment": self.identity, "cerebro.run": run.id}


def params(values: Hyperparameters) -> dict[str, str]:
    """Values as text: texts as they are, all else as JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in sorted(values.items())
    }


def _rows(place: Place, event: Event, parts: tuple[Values, ...]) -> Iterator[tuple[Place, Row]]:
    for prefix, step, values in parts:
        for name in sorted(values):
            yield place, Row(event.seq, f"{prefix}/{name}", step, event.time, values[name])


def _status(run: Run, model: Model) -> Status:
    match model.state:
        case ModelState.FAILED:
            return "failed"
        case ModelState.STOPPED:
            return "stopped"
        case ModelState.FINISHED:
            return "running" if run.is_open and run.waits_at_rung(model) else "finished"
    return "running" if run.is_open else "stopped"


def _checkpoint(model: Model, epoch: int | None) -> CheckpointRef | None:
    found = model.epoch_checkpoint(epoch) if epoch else None
    if found is None and model.visits:
        found = model.visits[-1].checkpoint
    return None if found is None or found.name in model.removed else found
