"""What runs return: objects and data frames made from the state. The only importer of pandas."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import EvaluatePlan, FitRequest
from cerebro.contract.tasks import CheckpointRef
from cerebro.data.tables import read_columns
from cerebro.errors import RunFailedError
from cerebro.files import Files
from cerebro.scheduling.gantt import Drawing
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule
from cerebro.state import Dataset, ExperimentState, Model, Run, chart, gap, schedule_of

_DRAWN = 10_000
"""Most units of a chart: more make a notebook slow."""


@dataclass(frozen=True, kw_only=True)
class EtlResult:
    """What `run_etl` made.

    Attributes:
        dataset: id of the data set; the same call gives the same one.
        rows: per split, rows in; `rows == kept + failed`, always.
        kept, failed: per split, rows preprocessed and rows whose function raised.
        seconds: from request to end.
    """

    dataset: str
    rows: dict[str, int]
    kept: dict[str, int]
    failed: dict[str, int]
    seconds: float

    @classmethod
    def of(cls, dataset: Dataset, run: Run) -> EtlResult:
        """The result of a finished ETL run."""
        splits = dataset.plan.splits
        kept = {s: sum(dataset.rows.get((s, p.partition), 0) for p in parts) for s, parts in splits.items()}
        failed = {
            s: sum(dataset.failed_rows.get((s, p.partition), 0) for p in parts) for s, parts in splits.items()
        }
        rows = {split: sum(p.rows for p in parts) for split, parts in splits.items()}
        return cls(dataset=dataset.id, rows=rows, kept=kept, failed=failed, seconds=run.ended - run.requested)


@dataclass(frozen=True, kw_only=True)
class BestModel:
    """The model with the best metric, at its best epoch."""

    id: str
    hyperparams: Hyperparameters
    epoch: int
    metric: str
    value: float
    checkpoint: CheckpointRef
    files: Files = field(repr=False)

    @property
    def path(self) -> Path:
        """The checkpoint's file; fetched first where the cluster's volumes are not mounted.

        Raises:
            CheckpointCorruptError, NotFoundError, StoreUnavailableError: it cannot be had.
        """
        return self.files.checkpoints(self.checkpoint) / self.checkpoint.name

    def load(self) -> dict[str, Any]:
        """``{"models": [state_dict, ...], "checkpoint": {...}}`` on the CPU, its bytes checked."""
        from cerebro.training.checkpoint import load

        return load(self.files.checkpoints(self.checkpoint), self.checkpoint, "cpu")


class FitResult:
    """What `run_fit` found. A view of the state: made anew, it shows what has happened since."""

    def __init__(self, state: ExperimentState, run: Run, files: Files) -> None:
        if not isinstance(run.request, FitRequest):
            raise RunFailedError(f"{run.id} is no fit run")
        self._state, self._run, self._files = state, run, files
        self._request = run.request

    @property
    def run(self) -> str:
        """Run id, such as ``fit-1``."""
        return self._run.id

    @property
    def best(self) -> BestModel:
        """The best model.

        Raises:
            RunFailedError: no model finished an epoch.
        """
        model = self._run.best_model()
        if model is None:
            raise RunFailedError(f"{self._run.id} has no best model: no model finished an epoch")
        epoch = self._best_epoch(model)
        checkpoint = model.epoch_checkpoint(epoch or 0) if epoch else None
        assert epoch is not None
        assert checkpoint is not None
        value = model.metric(self._request.metric, epoch, validated=self._run.is_validated)
        assert value is not None
        return BestModel(
            id=model.id,
            hyperparams=model.hyperparams,
            epoch=epoch,
            metric=self._request.metric,
            value=value,
            checkpoint=checkpoint,
            files=self._files,
        )

    def leaderboard(self) -> pd.DataFrame:
        """One row per model, best first: rank, state, best metric and its epoch, epochs done, hyper-
        parameters, failure.
        """
        rows = []
        for model in self._run.models.values():
            epoch = self._best_epoch(model)
            value = (
                model.metric(self._request.metric, epoch, validated=self._run.is_validated) if epoch else None
            )
            facts = {
                "model": model.id,
                "state": str(model.state),
                self._request.metric: value,
                "best_epoch": epoch,
                "epochs": model.completed_epochs,
                "failure": model.failure.message if model.failure else "",
            }
            hyperparams = {name: _cell(value) for name, value in model.hyperparams.items()}
            row = _beside(facts, hyperparams, "hyper-parameter")
            row["failure"] = row.pop("failure")
            rows.append(row)
        columns = ["model", "state", self._request.metric, "best_epoch", "epochs", "failure"]
        frame = pd.DataFrame(rows, columns=None if rows else columns).astype(
            {"best_epoch": "Int64", self._request.metric: "float64"}
        )
        frame = frame.sort_values(
            self._request.metric, ascending=self._request.mode == "min", na_position="last", kind="stable"
        )
        frame.index = pd.RangeIndex(1, len(frame) + 1, name="rank")
        return frame

    def history(self) -> pd.DataFrame:
        """One row per model, epoch and split (``train``: means over the epoch's units, weighted by rows; ``valid``)."""
        rows: list[dict[str, Any]] = []
        for model in self._run.models.values():
            for epoch in range(1, model.completed_epochs + 1):
                visits = model.epoch_visits(epoch)
                facts = {"model": model.id, "epoch": epoch, "split": "train"}
                facts["seconds"] = sum(visit.compute_s for visit in visits)
                rows.append(_beside(facts, model.training_metrics(epoch), "metric"))
                if epoch in model.validations:
                    facts |= {"split": "valid", "seconds": None}
                    rows.append(_beside(facts, model.validations[epoch], "metric"))
        return pd.DataFrame(rows, columns=None if rows else ["model", "epoch", "split"])

    def visits(self) -> pd.DataFrame:
        """The log of visits, one row per committed unit in order: enough to replay the run."""
        rows = [
            _beside(
                {
                    "model": model.id,
                    "unit": unit,
                    "epoch": visit.epoch,
                    "partition": visit.partition,
                    "worker": visit.worker,
                    "attempt": visit.attempt,
                    "rows": visit.rows,
                    "started": visit.started,
                    "ended": visit.ended,
                },
                visit.metrics,
                "metric",
            )
            for model in self._run.models.values()
            for unit, visit in enumerate(model.visits)
        ]
        frame = pd.DataFrame(rows)
        return frame.sort_values("ended", kind="stable", ignore_index=True) if rows else frame

    def epochs(self) -> pd.DataFrame:
        """How well each epoch was scheduled, once all models have trained it: makespan and lower bound of all units up
        to it, the gap between them, and the workers' idle time since the epoch before (seconds, in all and of each)."""
        rows = [
            {
                "epoch": report.epoch,
                "makespan": report.makespan_s,
                "lower_bound": report.lower_bound_s,
                "gap": gap(report.makespan_s, report.lower_bound_s),
                "idle": sum(report.idle_s.values()),
            }
            | {f"idle {worker}": seconds for worker, seconds in report.idle_s.items()}
            for report in self._run.epochs
        ]
        columns = None if rows else ["epoch", "makespan", "lower_bound", "gap", "idle"]
        return pd.DataFrame(rows, columns=columns).set_index("epoch")

    def schedule(self) -> tuple[Problem, Schedule]:
        """The visits as a schedule, with the problem it solves: ``validate(*result.schedule(), actual=True)`` of
        `cerebro.scheduling.validator` judges it.

        Raises:
            InstanceError: nothing is committed yet.
        """
        return schedule_of(self._run)

    def failures(self) -> dict[str, str]:
        """Model id -> message and traceback of models that were given up."""
        return {
            model.id: f"{model.failure.message}\n{model.failure.traceback}".rstrip()
            for model in self._run.models.values()
            if model.failure
        }

    def plot_curves(self, path: Path | str | None = None, *, metric: str | None = None) -> Any:
        """Learning curves as a matplotlib figure; written to `path` if one is given."""
        from cerebro.figures import learning_curves

        return learning_curves(self.history(), metric or self._request.metric, path)

    def plot_schedule(self, path: Path | str | None = None) -> Drawing:
        """Which model was where when, as an SVG that a notebook shows; written to `path` if one is given.

        A colour per model, a bar per unit; the dashed line is the lower bound. Of a very long run, its newest units.

        Raises:
            ValueError: `path` does not end in ``.svg``.
        """
        if path is not None and Path(path).suffix != ".svg":
            raise ValueError(
                f"a schedule is drawn as SVG: give a path that ends in .svg instead of {str(path)!r}"
            )
        drawing = chart(self._state, self._run, time.time(), newest=_DRAWN)
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(drawing, encoding="utf-8")
        return drawing

    def _best_epoch(self, model: Model) -> int | None:
        return model.best_epoch(self._request.metric, self._request.mode, validated=self._run.is_validated)

    def __repr__(self) -> str:
        return f"<FitResult {self._state.name}/{self._run.id}: {len(self._run.models)} models, {self._run.state}>"

    def _repr_html_(self) -> str:
        return str(self.leaderboard().to_html())


def test_table(run: Run) -> pd.DataFrame:
    """Metrics of a test run, one row per model: means over the partitions, weighted by rows."""
    assert isinstance(run.plan, EvaluatePlan)
    rows = []
    for model, epoch in run.plan.models.items():
        results = [t.result for t in run.tasks.values() if t.key.model == model and t.result is not None]
        total = sum(result.rows for result in results)
        names = sorted(set.intersection(*(set(result.metrics) for result in results)) if results else set())
        means = {name: sum(r.metrics[name] * r.rows for r in results) / total for name in names}
        rows.append(_beside({"model": model, "epoch": epoch, "rows": total}, means, "metric"))
    return pd.DataFrame(rows).set_index("model")


def prediction_table(run: Run, files: Files) -> pd.DataFrame:
    """Predictions of a run as one table keyed by row id; with several models, keyed by (model, id)."""
    assert isinstance(run.plan, EvaluatePlan)
    frames = []
    for task in run.tasks.values():
        if task.result is not None:
            frame = pd.DataFrame(read_columns(files.shared(task.result.output)))
            frames.append(frame.assign(model=task.key.model))
    table = pd.concat(frames, ignore_index=True)
    if len(run.plan.models) == 1:
        return table.drop(columns="model").set_index("id").sort_index()
    return table.set_index(["model", "id"]).sort_index()


def _beside(facts: dict[str, Any], values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A row: the facts, and a user's values beside them, whatever the user called them."""
    return facts | {f"{name} ({what})" if name in facts else name: value for name, value in values.items()}


def _cell(value: object) -> object:
    return str(value) if isinstance(value, list | dict) else value
