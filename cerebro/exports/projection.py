"""`Projection`: an experiment's pages and rows for a tracker, computed from its log event by event. Pure.

`export_loop` feeds it; the exporters read pages and send rows.

A *page* becomes one run of the tracker. Each fit has a page, and each of its models has a page below it. Rows are
added when sub-epochs commit. A sub-epoch that is repeated because its checkpoint was lost adds no rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cerebro.contract.events import Event
from cerebro.contract.records import ExperimentRecord, Hyperparameters
from cerebro.contract.runs import MEASURES, FitRequest
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.errors import IllegalEventError, UnreadableError
from cerebro.state import ExperimentState, Model, ModelState, Run, RunState, TaskKey
from cerebro.state.models.best import pareto_front
from cerebro.state.reports import state_words
from cerebro.state.reports.committed_values import committed_values
from cerebro.state.runs.compared_values import compared_values

Status = Literal["running", "finished", "failed", "stopped"]

_RUN_STATUS: dict[RunState, Status] = {
    RunState.FINISHED: "finished",
    RunState.FAILED: "failed",
    RunState.STOPPED: "stopped",
}


class PageKey(NamedTuple):
    """Key of a page; `model` is empty for a fit's page."""

    run: str
    model: str = ""


class Row(NamedTuple):
    """One value of a metric.

    Attributes:
        seq: number of the event with the value.
        name: such as ``epoch/valid/accuracy``.
        step: number of the sub-epoch (``sub_epoch/``) or of the epoch, from 1.
        time: time of the event, in seconds since 1970.
    """

    seq: int
    name: str
    step: int
    time: float
    value: float


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page without its rows.

    Attributes:
        id: stable and unique id.
        ended: time of the event that ended it; 0 while it is running.
        checkpoint: checkpoint of the best epoch of a model that has ended, or its newest one.
    """

    key: PageKey
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
    """Pages and rows of one experiment, updated event by event."""

    def __init__(self, record: ExperimentRecord) -> None:
        self.record = record
        self.state = ExperimentState(name=record.name)
        self._with_rows: set[str] = set()
        """Validations and epochs with rows. The state tracks repeated sub-epochs."""
        self._changed: dict[PageKey, float] = {}
        """Time of the last event of each model's page."""

    @property
    def identity(self) -> str:
        """Identity of the experiment; a later one with the same name differs."""
        return f"{self.record.name}@{self.record.created:.6f}"

    def apply(self, event: Event) -> Iterator[tuple[PageKey, Row]]:
        """Apply the next event and yield its rows.

        Raises:
            UnreadableError: the event does not fit the log before it.
        """
        try:
            self.state.apply(event)
        except IllegalEventError as cause:
            raise UnreadableError.for_event(self.record.name, event.seq, str(cause)) from cause
        self._note_change(event)
        committed = committed_values(self.state, event)
        if committed is None or committed.key in self._with_rows:
            return
        if not committed.is_sub_epoch:
            self._with_rows.add(committed.key)
        page_key = PageKey(committed.run, committed.model)
        for prefix, step, values in committed.values:
            for name in sorted(values):
                yield page_key, Row(event.seq, f"{prefix}/{name}", step, event.time, values[name])

    def _note_change(self, event: Event) -> None:
        run, model = getattr(event, "run", ""), getattr(event, "model", "")
        if task := getattr(event, "task", ""):
            key = TaskKey.parse(task)
            run, model = key.run, key.model if key.kind in ("train", "valid") else ""
        if run and model:
            self._changed[PageKey(run, model)] = event.time

    # --- pages -----------------------------------------------------------------------------------

    def pages(self) -> Iterator[Page]:
        """Yield the pages of all started fits and their models; a fit precedes its models.

        A model gets a page with its first event.
        """
        for run in self.state.runs.values():
            if isinstance(run.request, FitRequest) and run.plan is not None:
                yield self._run_page(run, run.request)
                for model in run.models.values():
                    if PageKey(run.id, model.id) in self._changed:
                        yield self._model_page(run, model)

    def page(self, page_key: PageKey) -> Page:
        """Return the page of a key that `apply` has yielded."""
        run = self.state.runs[page_key.run]
        return (
            self._model_page(run, run.models[page_key.model])
            if page_key.model
            else self._run_page(run, run.fit_request)
        )

    def id_of(self, page_key: PageKey) -> str:
        """Return the id of a page."""
        return hashlib.sha256(f"{self.identity}/{page_key.run}/{page_key.model}".encode()).hexdigest()[:32]

    def _run_page(self, run: Run, request: FitRequest) -> Page:
        request_values = request.model_dump(
            mode="json", exclude={"kind", "models", "code", "search", "techniques"}
        )
        status = _RUN_STATUS.get(run.state, "running")
        tags = self._tags(run)
        if run.failures.error:
            tags["cerebro.error"] = run.failures.error
        if status != "running" and (front := pareto_front(run)):
            tags["cerebro.pareto_front"] = ", ".join(row.model.id for row in front)
        return Page(
            key=PageKey(run.id),
            id=self.id_of(PageKey(run.id)),
            name=f"{self.record.name}/{run.id}",
            author=run.author,
            started=run.clock.started,
            ended=run.clock.ended if status != "running" else 0.0,
            status=status,
            params=params(request_values),
            tags=tags,
        )

    def _model_page(self, run: Run, model: Model) -> Page:
        page_key, status = PageKey(run.id, model.id), _status(run, model)
        tags = self._tags(run) | {"cerebro.model": model.id}
        # "Waiting" and "training" would change with every sub-epoch.
        tags["cerebro.state"] = status if status == "running" else state_words.model(model, run)
        if model.lineage.parent:
            tags["cerebro.parent"] = model.lineage.parent
        if model.failures.final:
            tags["cerebro.failure"] = model.failures.final.line
        first = model.hyperparams_of(model.lineage.sub_epochs)
        if changed := {
            name: value
            for name, value in model.hyperparams.items()
            if name not in first or first[name] != value
        }:
            tags["cerebro.changed"] = json.dumps(changed)
        epoch = run.best_epoch(model)
        if epoch is not None:
            tags["cerebro.best_epoch"] = str(epoch)
            if status != "running" and run.fit_request.is_multi_objective:
                values = compared_values(run, model, epoch)
                tags |= {
                    f"cerebro.{name}": f"{value:g}" for name, value in values.items() if name in MEASURES
                }
        return Page(
            key=page_key,
            id=self.id_of(page_key),
            name=f"{run.id}/{model.id}",
            author=run.author,
            started=run.clock.started,
            ended=self._changed.get(page_key, run.clock.ended) if status != "running" else 0.0,
            status=status,
            params=params(first),
            tags=tags,
            checkpoint=None if status == "running" else _checkpoint(model, epoch),
        )

    def _tags(self, run: Run) -> dict[str, str]:
        return {"cerebro.experiment": self.identity, "cerebro.run": run.id}


def params(values: Hyperparameters) -> dict[str, str]:
    """Convert values to text: strings unchanged, other values as JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in sorted(values.items())
    }


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
    if found is None and model.sub_epochs:
        found = model.sub_epochs[-1].checkpoint.ref()
    return None if found is None or found.name in model.checkpoints.removed else found
