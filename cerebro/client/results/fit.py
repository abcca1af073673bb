"""What `run_fit` returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import pandas as pd

from cerebro.client.files import Files
from cerebro.client.results.fit_figures import FitFigures
from cerebro.client.results.model import TrainedModel
from cerebro.client.results.sub_epochs import Selection, sub_epoch_table
from cerebro.client.results.tables import beside, cell
from cerebro.commands.chosen import find_model
from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.contract.runs import FitRequest
from cerebro.errors import NotFoundError, RunFailedError
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule
from cerebro.state import (
    ExperimentState,
    Model,
    ModelState,
    Run,
    audit_wording,
    gap,
    parallel_plans,
    schedule_of,
    wording,
)
from cerebro.state.log_pages import EventStore, Log, LogPages
from cerebro.state.pruning import gone_text
from cerebro.usercode.in_process import UserCode


class FitResult(FitFigures):
    """What `run_fit` found. A view of the state: made anew, it shows what has happened since."""

    def __init__(
        self,
        state: ExperimentState,
        run: Run,
        files: Files,
        record: ExperimentRecord | None = None,
        code: Callable[[str], CodeRecord] | None = None,
        *,
        user_code: UserCode | None = None,
        events: EventStore | None = None,
    ) -> None:
        if not isinstance(run.request, FitRequest):
            raise RunFailedError(f"{run.id} is not a fit run")
        super().__init__(state, run, record, code)
        self._files, self._user_code, self._events = files, user_code, events
        self._request = run.request

    @property
    def run(self) -> str:
        """Run id, such as ``fit-1``."""
        return self._run.id

    @property
    def best(self) -> TrainedModel:
        """The best model.

        Raises:
            RunFailedError: no model finished an epoch.
        """
        model = self._run.best_model()
        if model is None:
            raise RunFailedError(f"{self._run.id} has no best model: no model finished an epoch")
        return self._trained(model, self._best_epoch(model))

    @property
    def user_code(self) -> tuple[UserCode | None, str | None]:
        """The environment of this run's user code, and its encoded spec; `None` if unknown."""
        encoded = self._code(self._request.code).encoded if self._code is not None else None
        return self._user_code, encoded

    def model(self, name: str, epoch: int | None = None) -> TrainedModel:
        """Any model, to be loaded: at its best epoch, else (without a metric to tell which) at its newest state.

        If the search removed the checkpoint, the other attributes stay available and `load` raises.

        Args:
            name: its id, such as ``m04``.
            epoch: another completed epoch. Checkpoints that nobody needs any more are removed while a model trains;
                those of its last epoch and its best one stay, but for models of a search that are not among its
                best.

        Raises:
            NotFoundError: unknown model or epoch, or a model without a trained sub-epoch.
        """
        model = find_model(self._run, name)
        if epoch is not None and not 1 <= epoch <= model.completed_epochs:
            raise NotFoundError(
                f"model {name} of {self._run.id} has completed {model.completed_epochs} epochs, so there is no "
                f"checkpoint of epoch {epoch}"
            )
        if not model.visits:
            raise NotFoundError(
                f"model {name} of {self._run.id} has no checkpoint: it has not trained a sub-epoch"
            )
        return self._trained(model, epoch or self._best_epoch(model) or model.completed_epochs)

    def _trained(self, model: Model, epoch: int | None) -> TrainedModel:
        assert epoch is not None
        reference = model.epoch_checkpoint(epoch) if epoch else model.visits[-1].checkpoint
        assert reference is not None
        gone = ""
        if reference.name in model.removed:
            gone = f"{gone_text(self._run, model, epoch)}: name a model that has its checkpoints"
        code, request = self._code, self._request
        return TrainedModel(
            id=model.id,
            hyperparams=(
                model.hyperparams_at(epoch) if epoch else model.hyperparams_of(len(model.visits) - 1)
            ),
            epoch=epoch,
            metric=request.metric,
            value=model.metric(request.metric, epoch, validated=self._run.is_validated) if epoch else None,
            checkpoint=reference,
            files=self._files,
            code=self._user_code,
            encoded=(lambda: code(request.code).encoded) if code is not None else None,
            gone=gone,
        )

    def leaderboard(self) -> pd.DataFrame:
        """One row per model, best first: rank, state, best metric and its epoch, epochs done, hyper-
        parameters, failure. Where models were made from others, `parent` is the one and `branch` the epoch of it after
        which a model continues from there (missing: it began with new weights). A
        column `warning` has the warnings of sub-epochs, such as training without effect.

        The metric is that of validation, on the whole split; without validation data it is that of the sub-epochs of an
        epoch together: the mean weighted by rows, or the ratio over all rows.
        """
        rows = []
        has_warnings = any(model.warnings for model in self._run.models.values())
        has_parents = any(model.parent for model in self._run.models.values())
        for model in self._run.models.values():
            epoch = self._best_epoch(model)
            value = (
                model.metric(self._request.metric, epoch, validated=self._run.is_validated) if epoch else None
            )
            facts = {
                "model": model.id,
                "state": wording.model(model, self._run),
                self._request.metric: value,
                "best_epoch": epoch,
                "epochs": model.completed_epochs,
                "failure": model.failure.line if model.failure else "",
            }
            if has_parents:
                facts |= {
                    "parent": model.parent,
                    "branch": model.inherited_epochs if model.inherited else None,
                }
            hyperparams = {name: cell(value) for name, value in model.hyperparams_shown(epoch).items()}
            row = beside(facts, hyperparams, "hyper-parameter")
            row["failure"] = row.pop("failure")
            if has_warnings:
                row["warning"] = model.warning
            rows.append(row)
        columns = ["model", "state", self._request.metric, "best_epoch", "epochs", "failure"]
        frame = pd.DataFrame(rows, columns=None if rows else columns).astype(
            {"best_epoch": "Int64", self._request.metric: "float64"}
            | ({"branch": "Int64"} if has_parents else {})
        )
        frame = frame.sort_values(
            self._request.metric, ascending=self._request.mode == "min", na_position="last", kind="stable"
        )
        frame.index = pd.RangeIndex(1, len(frame) + 1, name="rank")
        return frame

    def history(self) -> pd.DataFrame:
        """One row per model, epoch and split (``train``: the epoch's sub-epochs together; ``valid``).

        Of a model that goes on from another one, epochs before it did are that one's alone.
        """
        rows: list[dict[str, Any]] = []
        for model in self._run.models.values():
            for epoch in range(model.inherited_epochs + 1, model.completed_epochs + 1):
                facts = {"model": model.id, "epoch": epoch, "split": "train"}
                facts["seconds"] = model.epoch_totals(epoch).compute_s
                rows.append(beside(facts, model.training_metrics(epoch), "metric"))
                if epoch in model.validations:
                    facts |= {"split": "valid", "seconds": None}
                    rows.append(beside(facts, model.validations[epoch], "metric"))
        return pd.DataFrame(rows, columns=None if rows else ["model", "epoch", "split"])

    def sub_epochs(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        epochs: Collection[int] | int | None = None,
    ) -> pd.DataFrame:
        """The log of visits, one row per committed sub-epoch in order: enough to replay the run. `process_start` are
        the seconds after `started` that the sub-epoch waited for its process to start and to import; `devices` those of
        the worker that it took, and `parallel_plan` how it used them; `partitions` and `workers` all that a sub-epoch
        of a gang visited and was trained by, of which `partition` and `worker` are the first; `peak_bytes` and
        `peak_gpu_bytes` the most memory that its process, and torch on its GPUs, had at once (missing where that is not
        known). Of a model that goes on from another one, `sub_epoch` counts on from that one's.

        Of a run of more than some thousand sub-epochs the older ones are read from its log, which takes about a minute
        per million of events (three of them a sub-epoch), and memory for two epochs of all models beside the table. A
        window
        costs what is in it: there `sub_epoch` is missing where neither the beginning nor the end of its epoch is, and
        of a sub-epoch that began long before the window `started` is when its own work began, and `devices` is not
        known.

        Args:
            since, until: only sub-epochs that ended between the two, seconds as in the column `ended`.
            epochs: only those of these, such as ``range(10, 20)``, or of one.

        Raises:
            LostEventsError: a part of the log that is needed cannot be read.
        """
        selection = Selection(
            since=-math.inf if since is None else since,
            until=math.inf if until is None else until,
            epochs=(epochs,) if isinstance(epochs, int) else epochs,
        )
        created = self._record.created if self._record is not None else 0.0
        pages = LogPages(self._events, kept=0) if self._events is not None else None
        return sub_epoch_table(self._run, selection, pages, Log(self._state.name, created, self._state.seq))

    def parallel_plans(self) -> pd.DataFrame:
        """The ways to train each model, those first that are tried first: how many sub-epochs ran so, the mean time of
        one in seconds, and why a way is ruled out for the model (empty: it is not). Of a trial, `batch` are seconds of
        a batch, and `verified` tells whether the gradient is that of one device (missing where none was made)."""
        rows = [
            {
                "model": model.id,
                "parallel_plan": told.parallel_plan.label,
                "devices": told.parallel_plan.size,
                "sub_epochs": told.sub_epochs,
                "seconds": told.seconds,
                "ruled out": told.ruled_out,
                "batch": told.batch_s or None,
                "verified": told.is_verified,
            }
            for model in self._run.models.values()
            for told in parallel_plans.told(self._run, model)
        ]
        return pd.DataFrame(rows)

    def epochs(self) -> pd.DataFrame:
        """How well each epoch was scheduled, once all models have trained it: makespan and lower bound of all
        sub-epochs up to it, the gap between them, and since the epoch before the time that workers waited for processes
        to start and to import, which is no time of a sub-epoch, and their idle time (seconds, in all and of each)."""
        rows = [
            {
                "epoch": report.epoch,
                "makespan": report.makespan_s,
                "lower_bound": report.lower_bound_s,
                "gap": gap(report.makespan_s, report.lower_bound_s),
                "process_start": report.start_s,
                "idle": sum(report.idle_s.values()),
            }
            | {f"idle {worker}": seconds for worker, seconds in report.idle_s.items()}
            for report in self._run.epochs
        ]
        columns = None if rows else ["epoch", "makespan", "lower_bound", "gap", "process_start", "idle"]
        return pd.DataFrame(rows, columns=columns).set_index("epoch")

    def verifications(self) -> pd.DataFrame:
        """One row per sub-epoch that was done once more to compare it: the worker that trained it, those that did it
        again (`redone_by`), whether states were compared to the bit (`exact`; else metrics to 1e-3), what came of it
        (``waiting``, ``equal``, ``differs``, ``judged``, ``dropped``), the worker that computed wrongly, if that was
        found (`wrong`), and all of it in words. Which sub-epochs were drawn and not audited, and why, is in
        ``attrs["unverified"]``."""
        rows = [
            {
                "model": audit.sub_epoch.model,
                "sub_epoch": audit.number,
                "epoch": audit.visit.epoch,
                "partition": audit.visit.partition,
                "worker": audit.visit.worker,
                "reexecuted_by": tuple(redo.worker for redo in audit.redos),
                "exact": audit.redos[0].is_exact if audit.redos else None,
                "state": str(audit.state),
                "wrong": audit.wrong,
                "note": audit_wording.told(audit),
            }
            for audit in self._run.audits.known.values()
        ]
        columns = [
            "model",
            "sub_epoch",
            "epoch",
            "partition",
            "worker",
            "reexecuted_by",
            "exact",
            "state",
            "wrong",
            "note",
        ]
        frame = pd.DataFrame(rows, columns=columns)
        frame.attrs["unverified"] = dict(self._run.audits.unaudited)
        return frame

    def schedule(self) -> tuple[Problem, Schedule]:
        """The visits as a schedule, with the problem it solves: ``validate(*result.schedule(), actual=True)`` of
        `cerebro.scheduling.validator` judges it.

        Raises:
            InstanceError: nothing is committed yet, or models were trained for different numbers of epochs.
        """
        return schedule_of(self._run, {w.name: w.most_devices for w in self._state.workers.values()})

    def failures(self) -> dict[str, str]:
        """Model id -> message and traceback of models that were given up."""
        return {model.id: model.failure.text for model in self._run.models.values() if model.failure}

    def _best_epoch(self, model: Model) -> int | None:
        return model.best_epoch(self._request.metric, self._request.mode, validated=self._run.is_validated)

    def __repr__(self) -> str:
        failed = sum(model.state is ModelState.FAILED for model in self._run.models.values())
        told = f"{len(self._run.models)} models, {f'{failed} failed, ' if failed else ''}{self._run.state}"
        return f"<FitResult {self._state.name}/{self._run.id}: {told}>"

    def _repr_html_(self) -> str:
        return str(self.leaderboard().to_html())
