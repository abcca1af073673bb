"""The user's handle on an experiment: a notebook's whole vocabulary.

Checks what the user gave and shapes what comes back. Runs belong to the cluster: any number of notebooks may attach.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cerebro.client.asking import asked_fit, check_dry_run, check_etl, fit_request, rules_of_run
from cerebro.client.commands import CommandsMixin
from cerebro.client.connection import Connection, connect
from cerebro.client.creation import created, packed_code
from cerebro.client.failure_rules import FailureRule
from cerebro.client.files import cache_folder
from cerebro.client.goals import Budget
from cerebro.client.registry import RegistryMixin
from cerebro.client.search import SearchSpace
from cerebro.client.search.requests import KEEP, ProcedureOfUser, RuleOfUser
from cerebro.client.session import Session, author
from cerebro.client.techniques import Named, chosen, to_try
from cerebro.commands.rules import stopped_text
from cerebro.contract.base import SPLITS
from cerebro.contract.records import Locators
from cerebro.contract.runs import EtlPlan, EtlRequest, EvaluateRequest
from cerebro.data.locators import absolute, parse_locators
from cerebro.errors import DataError
from cerebro.figures import averaged, tested
from cerebro.spec import ETLSpec, SubEpochSpec
from cerebro.state import ExperimentState, QueuePosition, Run, RunState
from cerebro.usercode.checks import fits
from cerebro.usercode.encoding import encode
from cerebro.usercode.fitted import read_fitted
from cerebro.usercode.in_process import UserCode

if TYPE_CHECKING:
    import pandas as pd

    from cerebro.client.dry_run import DryRun
    from cerebro.client.results import EtlResult, FitResult

_Split = Literal["train", "valid", "test", "predict"]


class Experiment(CommandsMixin, RegistryMixin):
    """An experiment on a cluster: created, or found again if one with the same name, locators and code exists.

    One whose locators never led to a data set may be given other ones under the same name.

    Without `server` (and without ``CEREBRO_SERVER``) the local cluster is joined, and started if it does not run.

    Args:
        name: lower-case letters, digits and dashes, at most 50.
        locators: per split a metadata file and an object root, and optionally miscellaneous files:
            ``{"train": {"metadata": "train.csv", "objects": "images/"}, ..., "misc": ["vocabulary.txt"]}``.
            Addresses are paths, ``file://`` or ``s3://``.
        code: a folder, or an archive (zip, tar), with files that user code may import, and perhaps a requirements.txt.
        folder: that relative paths of the locators are in; left out: the working directory.
        project: whose members steer it, where there are users; by default the one that you are in, or none.
        server, token: of a cluster elsewhere: the address of its web page, or of its kvs_api.

    Raises:
        LocatorError: the locators are malformed, or name what does not exist or workers cannot see.
        ConflictError: an experiment of this name has other locators, with which data were preprocessed, or other code.
        ClusterError: the local cluster does not start.
    """

    def __init__(
        self,
        name: str,
        *,
        locators: Locators | Mapping[str, Any],
        code: str | Path | None = None,
        folder: str | Path = "",
        project: str = "",
        server: str | None = None,
        token: str | None = None,
    ) -> None:
        given = parse_locators(locators)
        parsed = absolute(given, Path(folder))
        packed = packed_code(Path(code)) if code is not None else None
        connection = connect(server, token)
        self._session = Session(connection, created(connection, name, parsed, given, packed, project=project))

    @classmethod
    def attach(cls, name: str, *, server: str | None = None, token: str | None = None) -> Experiment:
        """An existing experiment, by name, from any kernel: its runs go on meanwhile.

        Raises:
            NotFoundError: there is none.
        """
        experiment = cls.__new__(cls)
        connection = connect(server, token)
        experiment._session = Session(connection, connection.kvs.experiment(name))
        return experiment

    # --- what it is ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its name."""
        return self._session.name

    @property
    def locators(self) -> Locators:
        """Its dataset locators."""
        return self._session.record.locators

    @property
    def connection(self) -> Connection:
        """The cluster it lives on, with the addresses of page and TensorBoard."""
        return self._session.connection

    def state(self) -> ExperimentState:
        """Everything that has happened, up to now."""
        return self._session.state()

    def status(self) -> str:
        """What happens now, in a few lines."""
        return self._session.status()

    def queue_position(self, run: str | None = None) -> QueuePosition | None:
        """Where a run (the open one) stands beside all that are open: its share of the cluster, what it has of it now,
        its place in the queue, and why it waits. `None` of a run that has ended."""
        return self._session.queue_position(self._session.chosen(run))

    # --- runs ------------------------------------------------------------------------------------

    def run_etl(
        self,
        spec: ETLSpec,
        *,
        fraction: float = 1.0,
        seed: int = 0,
        max_failed: float = 0.0,
        failure_rules: Sequence[FailureRule] = (),
        priority: str | int = "normal",
        project: str = "",
        progress: bool = True,
    ) -> EtlResult:
        """Preprocess every located split over all workers; returns when done.

        The same spec, locators, seed and fraction again recompute nothing; an interrupted run goes on where it was.

        Args:
            fraction: share of each split's rows to use, drawn by `seed`.
            seed: of the shuffle that deals rows to workers.
            max_failed: share of rows whose function may raise before the run stops; those rows are recorded.
            failure_rules: as of `run_fit`: what follows when the log of a partition that failed has something in it.
            priority: how much of the cluster the run gets beside other open runs: ``low``, ``normal``, ``high`` or a
                number, as in `prioritize`.
            project: a name; the runs of one project share the cluster as one.
            progress: whether bars are drawn, one per split.

        Raises:
            SpecError: the spec is no ETLSpec object, lacks a method or has one with other parameters, names columns
                that the metadata has not, or cannot be sent.
            DataError: a number is out of range, or a failure rule cannot be.
            RunFailedError: the run failed; the message says why.
        """
        check_etl(
            spec,
            self.locators,
            fraction=fraction,
            max_failed=max_failed,
            is_outside=self.connection.is_outside,
            rules=failure_rules,
        )
        code = self.connection.kvs.put_code(encode(spec, author=author()))
        request = EtlRequest(
            code=code.sha256,
            code_fingerprint=code.fingerprint,
            seed=seed,
            fraction=fraction,
            max_failed=max_failed,
            fits=fits(spec),
            failure_rules=rules_of_run(failure_rules),
        )
        run = self._session.complete(request, progress=progress, priority=priority, project=project)
        from cerebro.client.results import EtlResult

        assert isinstance(run.plan, EtlPlan)
        return EtlResult.of(self.state().datasets[run.plan.dataset], run, self.connection.files)

    def run_fit(  # noqa: PLR0913 - the user's whole vocabulary, by keyword
        self,
        spec: SubEpochSpec,
        search_space: SearchSpace,
        *,
        epochs: int = 1,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        seed: int = 0,
        samples: int | None = None,
        search: ProcedureOfUser | None = None,
        stop: RuleOfUser | Sequence[RuleOfUser] = (),
        hours: float | None = None,
        keep: int | None = KEEP,
        finish_by: datetime | timedelta | None = None,
        budget: Budget | None = None,
        workers: tuple[int, int] | None = None,
        scheduler: str = "lrptw",
        planner: bool = True,
        hang_timeout_s: float = 600.0,
        max_attempts: int = 3,
        verify: float = 0.0,
        failure_rules: Sequence[FailureRule] = (),
        techniques: Named | None = None,
        gpus: Sequence[int] | None = None,
        trials: Literal["auto", "never"] = "auto",
        gang: int = 1,
        priority: str | int = "normal",
        project: str = "",
        progress: bool = True,
    ) -> FitResult:
        """Train every configuration of a search space by hopping; returns when done.

        Args:
            search_space: see `cerebro.client.search`; must name ``batch_size``.
            epochs: passes over all partitions, for each model; of a search: at most.
            metric: what models are ranked by: a name that `SubEpochSpec.test` returns (`train` without
            validation data).
            mode: ``"max"`` if more is better, ``"min"`` if less is.
            seed: of weights, shuffles and the schedule.
            samples: configurations to draw where the search space has distributions; of a search: at most.
            search: which models are drawn and how far each is trained: ``ASHA()``, ``Hyperband()``, ``PBT()`` or
            ``Random()``, with a ``sampler=``, or a `cerebro.search.Procedure` of your own; see docs/search.md. Left
            out: the whole search space, to the end.
            stop: rules by which models are stopped early, such as ``Plateau(epochs=3)``.
            hours: after so long all models are stopped where they are.
            keep: of a search, so many of the best models keep their checkpoints, and those that may yet be trained on;
            ``None``: all do. Without ``search`` all do.
            finish_by: when it is to have ended: a datetime with its zone, or a timedelta from now; see
            docs/forecasts.md. What it takes is told as soon as the first sub-epochs have run.
            budget: such as ``Budget(worker_hours=40)``: then the run is paused.
            workers: fewest and most that it may have, where the cluster may change their number for it.
            scheduler: dispatch policy: ``lrptw`` (critical first), ``random`` (the seed paper's), ``fifo``, ``cyclic``
            or ``monte-carlo``; ``promising`` has the best models early, as ``hermes``, ``slaq`` and ``rr`` try to; see
            docs/scheduling.md.
            planner: whether a planner and an exact solver may look for a better order beside training; their plan is
            followed only if it is simulated to be better. Has a meaning with ``lrptw`` only.
            hang_timeout_s: a sub-epoch without a batch for so long, or for 20 times its slow ones (at least 60 s and a
            tenth of this), is ended if its processes are idle, tried once more, and given up with its model. One that
            computes has three times as long, and at least this.
            max_attempts: attempts of a sub-epoch whose process crashes.
            audit: so large a share of the sub-epochs, such as 0.01, is done once more by another worker that holds the
            partition, and compared: wrong arithmetic of a machine shows. See `FitResult.audits`.
            failure_rules: such as ``FailureRule("solver", "cusolver.*failed", "retry_elsewhere")``: what follows when
            the log of a failed attempt has the pattern in it.
            techniques: how a sub-epoch may use devices of its worker: names (``"single"``, ``"ddp"``, ...) or objects
            of `cerebro.techniques`, your own among them. Left out: one device, and what a model needs that does not
            fit.
            gpus: numbers of devices that a sub-epoch may take, such as ``[1, 2]``.
            trials: whether ways to train may be measured before one is chosen: ``"auto"`` or ``"never"``.
            gang: so many workers train each sub-epoch together, each on a partition of its own. For fewer models than
            workers; see docs/techniques.md.
            priority, project: how much of the cluster the run gets beside other open runs; see `run_etl`.

        Raises:
            SearchSpaceError, SpecError, MetricError: what is wrong with the arguments.
            DataError: no data were preprocessed yet.
            RunFailedError: the run failed as a whole. A model that fails does not fail the run: see
            `FitResult.failures`.

        Warns:
            UserWarning: a user stopped the run: what comes back are models that are not trained to their end.
        """
        dataset = self.state().newest_dataset()
        is_validated = dataset is not None and bool(dataset.partitions("valid"))
        options: dict[str, Any] = {
            "epochs": epochs,
            "metric": metric or "",
            "mode": mode,
            "seed": seed,
            "scheduler": scheduler,
            "planner": planner,
            "hang_timeout_s": hang_timeout_s,
            "max_attempts": max_attempts,
            "verify": verify,
            "failure_rules": failure_rules,
            "search": search,
            "stop": stop,
            "samples": samples,
            "hours": hours,
            "keep": keep,
            "goal": self._session.goal(finish_by, budget, workers),
        }
        kvs = self.connection.kvs
        searched, models = asked_fit(
            spec, search_space, options, is_validated=is_validated, put_code=kvs.put_code
        )
        named = chosen(
            techniques,
            gpus,
            trials,
            gang,
            workers=self._session.devices(),
            apart=self._session.apart() if gang != 1 else (),
            put_code=kvs.put_code,
        )
        code = kvs.put_code(encode(spec, author=author()))
        request = fit_request(code.sha256, searched, models, options, named)
        run = self._session.complete(request, progress=progress, priority=priority, project=project)
        if run.state is RunState.STOPPED:
            warnings.warn(stopped_text(self.state(), run), stacklevel=2)
        return self._fit_result(run)

    def run_test(
        self,
        models: str | Sequence[str] | None = None,
        *,
        fit: str | None = None,
        split: _Split = "test",
        priority: str | int = "normal",
        project: str = "",
        progress: bool = True,
    ) -> pd.DataFrame:
        """Metrics on a split: one row per model, each at its best epoch.

        Models are tested beside each other on all workers, and each one by a single call of `SubEpochSpec.test` with
        the whole split, so a metric may be of any kind.

        Args:
            models: model ids; the best model if left out.
            fit: the fit run; the newest if left out.
            split: of ``"train"`` each worker has a part, which is tested for itself. Of all parts together, a
                `cerebro.Ratio` is that of all rows; numbers are means weighted by rows, and a warning says so. A column
                ``parts`` says how many there are.
        """
        run = self._session.complete(
            self._evaluation("test", models, fit, split),
            progress=progress,
            priority=priority,
            project=project,
        )
        from cerebro.client.results import test_table

        if told := averaged(tested(run)):
            warnings.warn(f"the metrics of {run.id} on the split {split!r} are {told}", stacklevel=2)
        return test_table(run)

    def run_predict(
        self,
        models: str | Sequence[str] | None = None,
        *,
        fit: str | None = None,
        split: _Split = "predict",
        priority: str | int = "normal",
        project: str = "",
        progress: bool = True,
    ) -> pd.DataFrame:
        """Predictions for a split, by all workers: one table keyed by row id (by model and id for several models)."""
        run = self._session.complete(
            self._evaluation("predict", models, fit, split),
            progress=progress,
            priority=priority,
            project=project,
        )
        from cerebro.client.results import prediction_table

        return prediction_table(run, self.connection.files)

    # --- without the cluster ---------------------------------------------------------------------

    def dry_run(
        self,
        etl: ETLSpec,
        spec: SubEpochSpec | None = None,
        hyperparams: SearchSpace | None = None,
        *,
        rows: int = 8,
        techniques: Named | None = None,
        gpus: Sequence[int] | None = None,
    ) -> DryRun:
        """A dry run in this process: the first rows of each split, and one batch of them through the models.

        It does what workers do, by the same code: reads metadata, fetches objects, calls `row_preprocessor`, makes a
        batch, calls `create_models` and `train`, saves and loads the checkpoint, trains on from it, calls `test` and
        `predict`. Nothing is sent to the cluster and nothing stays; the global random generators are put back.

        Args:
            spec: left out, only rows are tried.
            hyperparams: one configuration, or a search space, of which the first is tried.
            rows: of each split at most; a batch has so many, or as many as ``batch_size`` says.
            techniques, gpus: as of `run_fit`. Each is tried on the CPU in as many processes as it takes: whether it
            trains the model that one device trains.

        Raises:
            SpecError, SearchSpaceError, LocatorError, MetadataError, RowError, MetricError: as the cluster would say.
            Whatever `create_models`, `train`, `test` and `predict` raise.
        """
        configuration = check_dry_run(
            etl, spec, hyperparams, rows=rows, is_validated=self.locators.valid is not None
        )
        parallel_plans = to_try(techniques, gpus)
        from cerebro.client.dry_run import dry_run

        record, kvs = self._session.record, self.connection.kvs
        return dry_run(
            record, kvs.archive, etl, spec, configuration, rows=rows, parallel_plans=parallel_plans
        )

    # --- a run that goes on ----------------------------------------------------------------------

    def watch(self, run: str | None = None, *, progress: bool = True) -> Run:
        """Follow a run (the open one, or the newest) until it ends, from any kernel."""
        return self._session.follow(self._session.chosen(run).id, progress=progress)

    def result(self, run: str | None = None) -> FitResult:
        """The result, so far, of a fit run; the newest if none is named."""
        return self._fit_result(self._session.chosen_fit(run))

    def failed_rows(self, run: str | None = None) -> pd.DataFrame:
        """Rows whose function raised in an ETL run, the newest if none is named, also in one that failed for them.

        Returns:
            A table: split, id, error, traceback. Of a run that failed, those that were found until it ended;
            ``attrs["notes"]`` says what is missing.

        Raises:
            NotFoundError: there is no such ETL run.
        """
        from cerebro.client.results import failed_table

        chosen, plan = self._session.chosen_etl(run)
        return failed_table(plan, self.connection.files, experiment=self._session.name, run=chosen)

    # --- mechanism -------------------------------------------------------------------------------

    def _evaluation(
        self,
        kind: Literal["test", "predict"],
        models: str | Sequence[str] | None,
        fit: str | None,
        split: _Split,
    ) -> EvaluateRequest:
        names = (models,) if isinstance(models, str) else tuple(models or ())
        if split not in SPLITS:
            raise DataError(f"split is {split!r}, expected one of {', '.join(SPLITS)}")
        return EvaluateRequest(kind=kind, fit=self.result(fit).run, models=names, split=split)

    def _fit_result(self, run: Run) -> FitResult:
        from cerebro.client.results import FitResult

        kvs, record = self.connection.kvs, self._session.record
        made = self._session.state().datasets.get(run.plan.dataset) if run.plan is not None else None
        reference = made.fitted if made is not None else None
        files = self.connection.files
        user_code = UserCode(
            record=record,
            archive=kvs.archive,
            folder=cache_folder(os.environ),
            fitted=None
            if reference is None
            else lambda: read_fitted(files.shared(reference.name), reference),
        )
        return FitResult(
            self._session.state(),
            run,
            self.connection.files,
            record,
            kvs.code,
            user_code=user_code,
            events=kvs,
        )

    def __repr__(self) -> str:
        return f"<Experiment {self.name!r} at {self.connection.kvs.address}>"
