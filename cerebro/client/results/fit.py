"""`FitResult`, the result of `Experiment.run_fit`: tables, models and figures.

All values come from the experiment's state; only `sub_epochs` of long runs reads the log. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from html import escape
from typing import Any

import pandas as pd

from cerebro.client.files import Files
from cerebro.client.results.fit_figures import FitFigures
from cerebro.client.results.model import TrainedModel
from cerebro.client.results.pareto import pareto_table, value_columns, value_types
from cerebro.client.results.sub_epochs import Selection, sub_epoch_table
from cerebro.client.results.tables import cell, compared_cells, fold_table, merge_columns, repeat_table
from cerebro.commands.selection import find_model
from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.contract.runs import FitRequest
from cerebro.errors import NotFoundError, RunFailedError
from cerebro.figures.ranking.folds import FoldRow, fold_rows
from cerebro.figures.ranking.repeats import RepeatRow, repeat_rows
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule
from cerebro.state import ExperimentState, Model, ModelState, Run, gap, schedule_of
from cerebro.state.log_pages import EventStore, Log, LogPages
from cerebro.state.models import parallel_plans
from cerebro.state.models.best import best_in, best_model, ranked_models
from cerebro.state.reports import state_words
from cerebro.state.runs.pruning import removal_text
from cerebro.state.tasks import verification_texts
from cerebro.usercode.in_process import UserCode


class FitResult(FitFigures):
    """Result of a fit run: leaderboard, learning curves, models, schedule and figures.

    It describes the state at the time of the call. Call `Experiment.result` for newer results of a running fit.

    Example::

        result = experiment.run_fit(MySubEpochSpec(), {"batch_size": [16, 32]}, metric="loss", mode="min")
        print(result.leaderboard())
        (network,) = result.best.modules()
        result.report("report.html")
    """

    page: str = ""
    """Address of the run on the web page; empty if unknown."""

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
        result_of: Callable[[Run], FitResult] | None = None,
    ) -> None:
        if not isinstance(run.request, FitRequest):
            raise RunFailedError(f"{run.id} is not a fit run")
        super().__init__(state, run, record, code)
        self._files, self._user_code, self._events = files, user_code, events
        self._request, self._result_of = run.request, result_of

    @property
    def run(self) -> str:
        """Run id, such as ``fit-1``."""
        return self._run.id

    @property
    def best(self) -> TrainedModel:
        """The best model at its best epoch.

        In a result of `run_fit` or of a named run, it is the best model of that fit. In ``experiment.result()`` it is
        the best over all fits with the newest fit's metric, mode, split and data set, as on the web page.

        Raises:
            RunFailedError: no model has finished an epoch.
        """
        found = best_in(self._run) if self._result_of is None else best_model(self._state)
        if found is None:
            raise RunFailedError(f"{self._run.id} has no best model: no model finished an epoch")
        if self._result_of is not None and found.run.id != self._run.id:
            return self._result_of(found.run).best
        return self._trained(found.model, found.epoch)

    @property
    def user_code(self) -> tuple[UserCode | None, str | None]:
        """Environment of the run's user code, and its encoded spec; `None` if unknown."""
        encoded = self._code(self._request.code).encoded if self._code is not None else None
        return self._user_code, encoded

    def model(self, name: str, epoch: int | None = None) -> TrainedModel:
        """Return a model at its best epoch, or at its newest state.

        If the checkpoint was deleted by the search, only `load`, `path` and `modules` of the result fail.

        Args:
            name: model id, such as ``"m04"``.
            epoch: completed epoch. Default: the best one. During training, checkpoints that are no longer needed are
                deleted; the last and the best epoch of a model keep theirs, except for pruned models of a search.

        Raises:
            NotFoundError: the model or epoch does not exist, or the model has no trained sub-epoch.

        Example::

            experiment.result().model("m04", epoch=2).load()
        """
        model = find_model(self._run, name)
        if epoch is not None and not 1 <= epoch <= model.completed_epochs:
            raise NotFoundError(
                f"model {name} of {self._run.id} has completed {model.completed_epochs} epochs, so there is no "
                f"checkpoint of epoch {epoch}"
            )
        if not model.sub_epochs:
            raise NotFoundError(
                f"model {name} of {self._run.id} has no checkpoint: it has not trained a sub-epoch"
            )
        return self._trained(model, epoch or self._best_epoch(model) or model.completed_epochs)

    def _trained(self, model: Model, epoch: int | None) -> TrainedModel:
        assert epoch is not None
        reference = model.epoch_checkpoint(epoch) if epoch else model.sub_epochs[-1].checkpoint.ref()
        assert reference is not None
        removal = ""
        if reference.name in model.checkpoints.removed:
            removal = f"{removal_text(self._run, model, epoch)}: choose a model whose checkpoints exist"
        code, request = self._code, self._request
        return TrainedModel(
            id=model.id,
            run=self._run.id,
            hyperparams=(
                model.hyperparams_at(epoch) if epoch else model.hyperparams_of(len(model.sub_epochs) - 1)
            ),
            epoch=epoch,
            metric=request.metric,
            value=model.metric(request.metric, epoch, validated=self._run.is_validated) if epoch else None,
            checkpoint=reference,
            files=self._files,
            code=self._user_code,
            encoded=(lambda: code(request.code).encoded) if code is not None else None,
            removal_text=removal,
        )

    def leaderboard(self) -> pd.DataFrame:
        """Return one row per model, best first; of models with equal values, the earlier one is first.

        The metric is the one of the whole validation split. Without a validation split it is the training metric of the
        epoch: the mean weighted by rows, or the exact `Ratio`.

        Returns:
            Columns ``model``, ``state``, the metric, ``best_epoch``, ``epochs`` (completed), hyperparameters and
            ``failure``, indexed by rank. If there are clones, ``parent`` and ``branch``, the last inherited epoch
            (missing for new weights). If a sub-epoch had warnings, ``warning``. With several objectives or constraints,
            instead of the metric: all objectives and values in constraints, ``front`` (non-dominated rank, from 1) and
            ``feasible`` (True if all constraints are met). The order is then: feasible models, front, objectives.
            With repeats, ``tied_rank``, ``METRIC mean`` and ``METRIC std``, as in `repeats`; repeats themselves have
            no row. With folds, the same columns, as in `folds`; the model of the first fold stands for its
            configuration.
        """
        compared: dict[str, RepeatRow | FoldRow] = {row.model: row for row in repeat_rows(self._run)}
        compared |= {row.model: row for row in fold_rows(self._run)}
        rows = []
        has_warnings = any(model.failures.warnings for model in self._run.models.values())
        has_parents = any(model.lineage.parent for model in self._run.models.values())
        for ranked in ranked_models(self._run):
            model, epoch = ranked.model, ranked.epoch
            facts = {
                "model": model.id,
                "state": state_words.model(model, self._run),
                **value_columns(self._run, ranked),
                "best_epoch": epoch,
                "epochs": model.completed_epochs,
                "failure": model.failures.final.line if model.failures.final else "",
            }
            if compared:
                facts |= compared_cells(self._request.metric, compared.get(model.id))
            if has_parents:
                facts |= {
                    "parent": model.lineage.parent,
                    "branch": model.inherited_epochs if model.lineage.sub_epochs else None,
                }
            hyperparams = {name: cell(value) for name, value in model.hyperparams_shown(epoch).items()}
            row = merge_columns(facts, hyperparams, "hyperparameter")
            row["failure"] = row.pop("failure")
            if has_warnings:
                row["warning"] = model.failures.warning(model.own_sub_epochs)
            rows.append(row)
        types = value_types(self._request)
        columns = ["model", "state", *types, "best_epoch", "epochs", "failure"]
        frame = pd.DataFrame(rows, columns=None if rows else columns).astype(
            {"best_epoch": "Int64", **types}
            | ({"branch": "Int64"} if has_parents else {})
            | ({"tied_rank": "Int64"} if compared else {})
        )
        frame.index = pd.RangeIndex(1, len(frame) + 1, name="rank")
        return frame

    def pareto(self) -> pd.DataFrame:
        """Return the models that no other model dominates.

        A model dominates another one if it is at least as good in every objective and better in one. Models that meet
        all constraints come first; below, the others that no model of their kind dominates.

        Returns:
            Columns ``model``, ``feasible`` (True if all constraints are met), the objectives, other values in
            constraints, ``best_epoch`` and hyperparameters. The values are of the best epoch by the first objective.

        Example::

            front = experiment.result().pareto()
            front[front["feasible"]]
        """
        return pareto_table(self._run)

    def repeats(self) -> pd.DataFrame:
        """Return one row per model that was trained again with new seeds, best mean first.

        Ranks include the variance between seeds: a model has a worse rank only if Welch's t-test, corrected for all
        pairs, finds it worse with 95 % confidence. Models that the seeds cannot separate share a rank.

        Returns:
            Columns ``tied_rank`` (1 more than the number of significantly better models), the metric (the model's own
            value, for which it was chosen; not part of the mean), ``METRIC mean`` and ``METRIC std`` over the repeats,
            ``seeds`` (repeats with a value) and ``seed N`` (value with this seed, missing if the repeat failed),
            indexed by model. Without repeats, no row.

        Example::

            result = experiment.run_fit(MySubEpochSpec(), space, repeats=Repeat(top=3, seeds=5), ...)
            result.repeats()
        """
        return repeat_table(self._run)

    def folds(self) -> pd.DataFrame:
        """Return one row per configuration of a cross-validation, best mean first.

        All values are of one epoch: the one with the best mean over the folds. Values of folds are correlated, because
        their models share training rows. So a configuration has a worse rank only if the corrected resampled t-test
        (Nadeau and Bengio, 2003), corrected for all pairs, finds it worse with 95 % confidence. Configurations that
        the folds cannot separate share a rank; with two or three folds only very large differences count.

        Returns:
            Columns ``tied_rank`` (1 more than the number of significantly better configurations), ``METRIC mean`` and
            ``METRIC std`` over the folds, ``best_epoch``, ``fold N`` (value of the model ``CONFIGURATION-fN``),
            ``state`` and hyperparameters, indexed by configuration. Means are missing until each fold has a value.
            Without folds, no row.

        Example::

            result = experiment.run_fit(MySubEpochSpec(), {"lr": [0.1, 0.01], "batch_size": 32}, folds=5, ...)
            result.folds()
        """
        return fold_table(self._run)

    def history(self) -> pd.DataFrame:
        """Return one row per model, epoch and split: duration and all metrics.

        Rows with split ``train`` combine the sub-epochs of the epoch, rows with ``valid`` are validations. Inherited
        epochs of a clone appear only at its parent.
        """
        rows: list[dict[str, Any]] = []
        for model in self._run.models.values():
            for epoch in range(model.inherited_epochs + 1, model.completed_epochs + 1):
                facts = {"model": model.id, "epoch": epoch, "split": "train"}
                facts["seconds"] = model.epoch_totals(epoch).compute_s
                rows.append(merge_columns(facts, model.training_metrics(epoch), "metric"))
                if epoch in model.validation.metrics:
                    facts |= {"split": "valid", "seconds": None}
                    rows.append(merge_columns(facts, model.validation.metrics[epoch], "metric"))
        return pd.DataFrame(rows, columns=None if rows else ["model", "epoch", "split"])

    def sub_epochs(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        epochs: Collection[int] | int | None = None,
    ) -> pd.DataFrame:
        """Return one row per committed sub-epoch, in order of their ends.

        This is enough to replay the run. Large runs keep old sub-epochs only in the log: reading them takes about a
        minute per million events (three per sub-epoch), and memory for two epochs of all models besides the table.
        Limit the time range or the epochs to read less.

        Args:
            since: earliest end, as a timezone-aware datetime. Default: no limit.
            until: latest end, as a timezone-aware datetime. Default: no limit.
            epochs: epoch number or collection, such as ``range(10, 20)``. Default: all.

        Returns:
            Columns ``model``, ``sub_epoch`` (counted over all epochs; for a clone, from its parent's start), ``epoch``,
            ``partition``, ``worker``, ``attempt``, ``rows``, ``started`` and ``ended`` (timezone-aware, UTC),
            ``process_start`` (seconds of process start and imports), ``devices`` (of the worker), ``parallel_plan``,
            ``partitions`` and ``workers`` (all, for a gang), ``peak_bytes`` and ``peak_gpu_bytes`` (maximum memory,
            missing if unknown), and the metrics. In a time range, ``sub_epoch`` is missing if the range contains
            neither the begin nor the end of the epoch, and ``devices`` and the exact ``started`` are unknown for
            sub-epochs that began long before.

        Raises:
            DataError: `since` or `until` has no time zone.
            LostEventsError: a required part of the log cannot be read.

        Example::

            result.sub_epochs(epochs=range(10, 20))
            result.sub_epochs(since=datetime.now(UTC) - timedelta(hours=1))
        """
        selection = Selection.between(since, until, epochs)
        created = self._record.created if self._record is not None else 0.0
        pages = LogPages(self._events, cache_size=0) if self._events is not None else None
        return sub_epoch_table(self._run, selection, pages, Log(self._state.name, created, self._state.seq))

    def parallel_plans(self) -> pd.DataFrame:
        """Return the parallel plans of each model, in the order of preference.

        Returns:
            Columns ``model``, ``parallel_plan``, ``devices``, ``sub_epochs`` (number trained), ``seconds`` (mean of
            one; in a stack, the model's share; of similar models, if the model has none and the run measured both
            ``single`` and ``fused``), ``ruled out`` (reason, or empty), ``batch`` (seconds of a batch in the trial) and
            ``verified`` (True if the trial's gradient is equal on one device; missing without a trial).
        """
        rows = [
            {
                "model": model.id,
                "parallel_plan": usage.parallel_plan.label,
                "devices": usage.parallel_plan.size,
                "sub_epochs": usage.sub_epochs,
                "seconds": usage.seconds,
                "ruled out": usage.ruled_out,
                "batch": usage.batch_s or None,
                "verified": usage.is_verified,
            }
            for model in self._run.models.values()
            for usage in parallel_plans.describe_plans(self._run, model)
        ]
        return pd.DataFrame(rows)

    def epochs(self) -> pd.DataFrame:
        """Return the scheduling quality of each epoch that all models have completed.

        Returns:
            Indexed by epoch, in seconds: ``makespan`` and ``lower_bound`` of all sub-epochs until then, their ``gap``
                (fraction),
            and since the previous epoch ``process_start`` (process start and imports) and ``idle`` time of all workers,
            plus ``idle WORKER`` of each.
        """
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
            for report in self._run.scheduling.epochs
        ]
        columns = None if rows else ["epoch", "makespan", "lower_bound", "gap", "process_start", "idle"]
        return pd.DataFrame(rows, columns=columns).set_index("epoch")

    def verifications(self) -> pd.DataFrame:
        """Return one row per sub-epoch that a second worker computed again.

        See `verify` of `Experiment.run_fit`.

        Returns:
            Columns ``model``, ``sub_epoch``, ``epoch``, ``partition``, ``worker``, ``reexecuted_by`` (workers),
            ``exact`` (True if compared to the bit, False if metrics were compared to 1e-3), ``state`` (``waiting``,
            ``equal``, ``differs``, ``judged`` or ``dropped``), ``wrong`` (faulty worker, if found) and ``note``.
            ``attrs["unverified"]`` counts selected sub-epochs without a verification, by reason.
        """
        rows = [
            {
                "model": verification.sub_epoch.model,
                "sub_epoch": verification.number,
                "epoch": verification.completed.epoch,
                "partition": verification.completed.partition,
                "worker": verification.completed.worker,
                "reexecuted_by": tuple(reexecution.worker for reexecution in verification.reexecutions),
                "exact": verification.reexecutions[0].is_exact if verification.reexecutions else None,
                "state": str(verification.state),
                "wrong": verification.wrong,
                "note": verification_texts.result_text(verification),
            }
            for verification in self._run.verifications.known.values()
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
        frame.attrs["unverified"] = dict(self._run.verifications.unverified)
        return frame

    def schedule(self) -> tuple[Problem, Schedule]:
        """Return the executed schedule and its scheduling problem.

        ``cerebro.scheduling.validator.validate(*result.schedule(), actual=True)`` checks it.

        Raises:
            InstanceError: nothing is committed, the models train for different numbers of epochs, or old sub-epochs are
                compacted.
        """
        return schedule_of(self._run, {w.name: w.most_devices for w in self._state.workers.values()})

    def failures(self) -> dict[str, str]:
        """Return message and traceback of each failed model, by model id."""
        return {
            model.id: model.failures.final.text for model in self._run.models.values() if model.failures.final
        }

    def _best_epoch(self, model: Model) -> int | None:
        return model.best_epoch(self._request.metric, self._request.mode, validated=self._run.is_validated)

    def __repr__(self) -> str:
        failed = sum(model.state is ModelState.FAILED for model in self._run.models.values())
        summary = f"{len(self._run.models)} models, {f'{failed} failed, ' if failed else ''}{self._run.state}"
        at = f", {self.page}" if self.page else ""
        return f"<FitResult {self._state.name}/{self._run.id}: {summary}{at}>"

    def _repr_html_(self) -> str:
        page = escape(self.page)
        link = f'<p>{self._run.id} of {self._state.name}: <a href="{page}">{page}</a></p>' if page else ""
        return f"{link}{self.leaderboard().to_html()}"
