"""`Experiment`, the entry point of notebooks and scripts.

It validates arguments, sends requests to the cluster, follows runs and returns results. Runs belong to the cluster:
they continue when the notebook closes, and several notebooks may attach to one experiment. Commands such as `stop` are
in `commands.py`, registered models in `registry.py`, the protocol with the store in `session.py`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cerebro.client.commands import CommandsMixin
from cerebro.client.connection import Connection, connect
from cerebro.client.failure_rules import FailureRule
from cerebro.client.files import cache_folder
from cerebro.client.limits import Limits
from cerebro.client.models.registry import RegistryMixin
from cerebro.client.requests.creation import open_or_create, pack_code
from cerebro.client.requests.run_requests import (
    FitOptions,
    Scheduling,
    check_dry_run,
    check_etl,
    check_group,
    checked_failure_rules,
    fit_request,
    resolve_fit,
)
from cerebro.client.requests.techniques import Parallelism, dry_run_plans, resolve_techniques
from cerebro.client.search import SearchSpace
from cerebro.client.search.requests import Search, UserProcedure
from cerebro.client.session import Session, author
from cerebro.commands.rules import stopped_text
from cerebro.contract.base import SPLITS
from cerebro.contract.records import Locators
from cerebro.contract.runs import EtlPlan, EtlRequest, EvaluateRequest
from cerebro.data.tables.locators import absolute, parse_locators
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
    """An experiment on a cluster: create one, or open an existing one by name.

    If an experiment with this name exists, it is opened; locators and code must be equal. Locators may change until
    data were preprocessed with them.

    Without `server` and ``CEREBRO_SERVER``, the experiment uses the local cluster, and starts it if necessary.

    Args:
        name: lower-case letters, digits and dashes, at most 50 characters.
        locators: for each split a metadata table and a root folder of objects, and optionally further files:
            ``{"train": {"metadata": "train.csv", "objects": "images/"}, ..., "misc": ["vocabulary.txt"]}``. Addresses
            are paths, ``file://`` or ``s3://``. Splits are ``train``, ``valid``, ``test`` and ``predict``.
        code: folder or archive (zip, tar) of files that user code imports, optionally with a requirements.txt. Default:
            none.
        folder: base folder of relative paths in `locators`. Default: the working directory.
        project: project whose members may change the experiment, on clusters with users. Default: the user's project.
        server: address of the cluster's web page, or of kvs_api. Default: ``CEREBRO_SERVER``.
        token: access token for `server`. Default: ``CEREBRO_TOKEN``.

    Raises:
        LocatorError: the locators are malformed, or name files that do not exist or that workers cannot read.
        ConflictError: the experiment exists with other code, or with other locators and preprocessed data.
        ClusterError: the local cluster does not start, or `server` does not answer.

    Example::

        experiment = Experiment(
            "digits",
            locators={
                "train": {"metadata": "s3://bucket/train.csv", "objects": "s3://bucket/images"},
                "valid": {"metadata": "s3://bucket/valid.csv", "objects": "s3://bucket/images"},
            },
        )
        experiment.run_etl(MyETLSpec())
        result = experiment.run_fit(
            MySubEpochSpec(), {"lr": [0.003, 0.01], "batch_size": [32]}, epochs=4, metric="accuracy", mode="max"
        )
        print(result.leaderboard())
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
        original = parse_locators(locators)
        resolved = absolute(original, Path(folder))
        archive = pack_code(Path(code)) if code is not None else None
        connection = connect(server, token)
        record = open_or_create(connection, name, resolved, original, archive, project=project)
        self._session = Session(connection, record)

    @classmethod
    def attach(cls, name: str, *, server: str | None = None, token: str | None = None) -> Experiment:
        """Open an existing experiment by name, for example from another notebook.

        Args:
            name: name of the experiment.
            server: as of `Experiment`.
            token: as of `Experiment`.

        Returns:
            The experiment. Its runs are not affected.

        Raises:
            NotFoundError: no experiment has this name.

        Example::

            Experiment.attach("digits").watch()
        """
        experiment = cls.__new__(cls)
        connection = connect(server, token)
        experiment._session = Session(connection, connection.kvs.experiment(name))
        return experiment

    # --- properties and state --------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self._session.name

    @property
    def locators(self) -> Locators:
        """Dataset locators with absolute paths."""
        return self._session.record.locators

    @property
    def connection(self) -> Connection:
        """Connection to the cluster, with the addresses of its web page and TensorBoard."""
        return self._session.connection

    def state(self) -> ExperimentState:
        """Return the current state: data sets, runs, models and workers.

        Returns:
            The state after the newest event of the log. Later calls update and return the same object.

        Raises:
            UnreadableError: the log has an event that cannot be read.
        """
        return self._session.state()

    def status(self) -> str:
        """Return a short text about runs, the best model and workers; `cerebro status NAME` also lists all models."""
        return self._session.status()

    def queue_position(self, run: str | None = None) -> QueuePosition | None:
        """Return where a run stands among all open runs of the cluster.

        Args:
            run: run id, such as ``"fit-1"``. Default: the open run, or the newest.

        Returns:
            Queue position, fair share, current devices and the reason for waiting; `None` if the run has ended.

        Raises:
            NotFoundError: the run does not exist.
        """
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
        """Preprocess all splits on the workers, and return when done.

        A call with the same spec, locators, seed and fraction reuses the data set. An interrupted run continues where
        it stopped.

        Args:
            spec: your `ETLSpec`.
            fraction: fraction of the rows of each split to use, sampled with `seed`; above 0, at most 1. Default 1.
            seed: seed of the shuffle that assigns rows to workers. Default 0.
            max_failed: fraction of rows that may fail before the run stops, 0 to 1. Default 0. Failed rows are
                recorded; see `failed_rows`.
            failure_rules: reactions to patterns in the log of a failed partition; see `FailureRule`.
            priority: share of the cluster relative to other open runs: ``"low"``, ``"normal"`` (default), ``"high"`` or
                an integer from -9 to 9; see `prioritize`.
            project: fair share group. The runs of one project share the cluster as one run. Default: none.
            progress: True to draw progress bars. Default True.

        Returns:
            Row counts of each split.

        Raises:
            SpecError: `spec` is not an `ETLSpec`, lacks a method, names unknown columns, or cannot be pickled.
            DataError: a number is out of range, or a failure rule is invalid.
            ConflictError: an open run of the experiment prevents this one.
            RunFailedError: the run failed; the message has the reason.

        Example::

            etl = experiment.run_etl(MyETLSpec(), fraction=0.1, max_failed=0.01)
            print(etl.kept, etl.failed)
        """
        check_etl(
            spec,
            self.locators,
            fraction=fraction,
            max_failed=max_failed,
            is_remote=self.connection.is_remote,
            failure_rules=failure_rules,
        )
        code = self.connection.kvs.put_code(encode(spec, author=author()))
        request = EtlRequest(
            code=code.sha256,
            code_fingerprint=code.fingerprint,
            seed=seed,
            fraction=fraction,
            max_failed=max_failed,
            fits=fits(spec),
            failure_rules=checked_failure_rules(failure_rules),
        )
        run = self._session.complete(request, progress=progress, priority=priority, project=project)
        from cerebro.client.results import EtlResult

        assert isinstance(run.plan, EtlPlan)
        return EtlResult.from_run(self.state().datasets[run.plan.dataset], run, self.connection.files)

    def run_fit(  # noqa: PLR0913 - all options of a run, by keyword
        self,
        spec: SubEpochSpec,
        search_space: SearchSpace,
        *,
        epochs: int = 1,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        seed: int = 0,
        samples: int | None = None,
        search: UserProcedure | Search | None = None,
        verify: float = 0.0,
        failure_rules: Sequence[FailureRule] = (),
        scheduling: Scheduling | None = None,
        limits: Limits | None = None,
        parallelism: Parallelism | None = None,
        priority: str | int = "normal",
        project: str = "",
        progress: bool = True,
    ) -> FitResult:
        """Train all models of a search space by hopping, and return when done.

        A failed model does not fail the run; see `FitResult.failures`. If the kernel is interrupted, the run continues
        in the cluster; `watch` follows it and `stop` ends it.

        Args:
            spec: your `SubEpochSpec`.
            search_space: hyperparameters of the models: a dict of lists (a grid), a dict with `choice`, `uniform`,
                `loguniform` or `randint` (random search), or a list of dicts. Must have ``batch_size``.
            epochs: epochs for each model; with `search`, the maximum. Default 1.
            metric: metric that ranks the models, as returned by `SubEpochSpec.test` (by `train` without a split
                ``valid``). Required.
            mode: ``"max"`` if larger is better, ``"min"`` if smaller is better. Required.
            seed: seed of weights, shuffles and schedule. Default 0.
            samples: number of models to sample if the search space has distributions; with `search`, the maximum.
            search: search procedure: ``ASHA()``, ``Hyperband()``, ``PBT()`` or ``Random()``, each with an optional
                ``sampler=``, your own `cerebro.search.Procedure`, or a `Search` with stop rules. Default: train all
                configurations for all epochs.
            verify: fraction of sub-epochs to compute again on a second worker, to detect faulty hardware. Default 0.
                See `FitResult.verifications`.
            failure_rules: reactions to patterns in the log of a failed attempt, such as ``FailureRule("solver",
                "cusolver.*failed", "retry_elsewhere")``.
            scheduling: order in which models train; see `Scheduling`.
            limits: limits on time, cost, workers and attempts; see `Limits`.
            parallelism: parallel plans that a sub-epoch may use; see `Parallelism`.
            priority: share of the cluster relative to other open runs: ``"low"``, ``"normal"`` (default), ``"high"`` or
                an integer from -9 to 9; see `prioritize`.
            project: fair share group. The runs of one project share the cluster as one run. Default: none.
            progress: True to draw progress bars. Default True.

        Returns:
            Leaderboard, learning curves, best model and figures.

        Raises:
            SearchSpaceError: the search space is empty or has an invalid value.
            SearchError: the arguments of the search are invalid.
            SpecError: `spec` lacks a method or cannot be pickled, or a technique is invalid.
            MetricError: `metric` or `mode` is missing, or `spec` does not return the metric.
            DataError: no data set exists, or an option is invalid.
            ConflictError: an open run of the experiment prevents this one.
            RunFailedError: the run failed as a whole.

        Warns:
            UserWarning: the run was stopped, so the models are not fully trained.

        Example::

            result = experiment.run_fit(
                MySubEpochSpec(),
                {"lr": loguniform(1e-4, 1e-1), "batch_size": choice([16, 32])},
                search=Search(ASHA(), stop=Plateau(epochs=3)),
                samples=50,
                epochs=9,
                metric="accuracy",
                mode="max",
                limits=Limits(hours=12),
            )
            best = result.best
        """
        dataset = self.state().newest_dataset()
        has_validation_split = dataset is not None and bool(dataset.partitions("valid"))
        options = FitOptions(
            epochs=epochs,
            metric=metric,
            mode=mode,
            seed=seed,
            samples=samples,
            search=search,
            verify=verify,
            failure_rules=failure_rules,
            scheduling=Scheduling() if scheduling is None else scheduling,
            limits=Limits() if limits is None else limits,
            parallelism=Parallelism() if parallelism is None else parallelism,
        )
        goal = self._session.goal(options.limits)
        kvs = self.connection.kvs
        search_request, models = resolve_fit(
            spec, search_space, options, has_validation_split=has_validation_split, put_code=kvs.put_code
        )
        technique_fields = resolve_techniques(
            options.parallelism,
            workers=self._session.devices(),
            solo_workers=self._session.solo_workers() if options.parallelism.gang > 1 else (),
            put_code=kvs.put_code,
        )
        code = kvs.put_code(encode(spec, author=author()))
        request = fit_request(
            code.sha256, search_request, models, options, technique_fields=technique_fields, goal=goal
        )
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
        """Compute metrics of trained models on a split, each model at its best epoch.

        Models are tested in parallel on all workers. Each one gets the whole split in a single call of
        `SubEpochSpec.test`, so any metric is possible.

        Args:
            models: model id or ids. Default: the best model.
            fit: fit run. Default: the newest.
            split: split to test on. Default ``"test"``. With ``"train"`` each worker tests its own partition: a
                `cerebro.Ratio` is exact for all rows, numbers are averages weighted by rows.
            priority: share of the cluster relative to other open runs: ``"low"``, ``"normal"`` (default), ``"high"`` or
                an integer from -9 to 9; see `prioritize`.
            project: fair share group. The runs of one project share the cluster as one run. Default: none.
            progress: True to draw progress bars. Default True.

        Returns:
            One row per model: epoch, number of rows and metrics. With ``split="train"``, a column ``parts`` has the
                number of
            partitions.

        Raises:
            NotFoundError: the fit run or a model does not exist.
            DataError: the split was not preprocessed.
            RunFailedError: the run failed or was stopped.

        Warns:
            UserWarning: metrics are averages over partitions.

        Example::

            experiment.run_test(["m03", "m07"])
        """
        run = self._session.complete(
            self._evaluation("test", models, fit, split),
            progress=progress,
            priority=priority,
            project=project,
        )
        from cerebro.client.results import test_table

        if note := averaged(tested(run)):
            warnings.warn(f"the metrics of {run.id} on the split {split!r} are {note}", stacklevel=2)
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
        """Predict the outputs of a split with trained models, each at its best epoch.

        Args:
            models: model id or ids. Default: the best model.
            fit: fit run. Default: the newest.
            split: split to predict. Default ``"predict"``.
            priority: share of the cluster relative to other open runs: ``"low"``, ``"normal"`` (default), ``"high"`` or
                an integer from -9 to 9; see `prioritize`.
            project: fair share group. The runs of one project share the cluster as one run. Default: none.
            progress: True to draw progress bars. Default True.

        Returns:
            One row per prediction, indexed by row id; by model and row id for several models.

        Raises:
            NotFoundError: the fit run or a model does not exist.
            DataError: the split was not preprocessed.
            RunFailedError: the run failed or was stopped.

        Example::

            experiment.run_predict().to_csv("predictions.csv")
        """
        run = self._session.complete(
            self._evaluation("predict", models, fit, split),
            progress=progress,
            priority=priority,
            project=project,
        )
        from cerebro.client.results import prediction_table

        return prediction_table(run, self.connection.files)

    # --- dry run ---------------------------------------------------------------------------------

    def dry_run(
        self,
        etl: ETLSpec,
        spec: SubEpochSpec | None = None,
        hyperparams: SearchSpace | None = None,
        *,
        rows: int = 8,
        parallelism: Parallelism | None = None,
    ) -> DryRun:
        """Try user code in this process: a few rows of each split and one batch.

        It runs the same code as workers: reads metadata, fetches objects, calls the row function, creates models,
        trains, saves and loads a checkpoint, trains again, tests and predicts. Nothing is sent to the cluster, no files
        remain, and global random states are restored.

        Args:
            etl: your `ETLSpec`.
            spec: your `SubEpochSpec`. Default: try only rows.
            hyperparams: one configuration, or a search space whose first configuration is tried. Required with `spec`.
            rows: maximum number of rows of each split. Default 8. The batch has at most ``batch_size`` rows.
            parallelism: parallel techniques to compare with training on one device, and their numbers of processes.
                They run on the CPU. `Parallelism.trials` and `Parallelism.gang` have no effect.

        Returns:
            Shapes, durations, metrics and warnings of each step.

        Raises:
            SpecError: a spec lacks a method, cannot be pickled, or a technique trains another model than one device.
            SearchSpaceError: `hyperparams` is missing or invalid.
            LocatorError: the data cannot be read.
            MetadataError: a metadata table is invalid.
            RowError: a row failed or has other fields than the others.
            MetricError: metrics are invalid.
            Exception: any exception of `create_models`, `train`, `test` or `predict`.

        Example::

            print(experiment.dry_run(MyETLSpec(), MySubEpochSpec(), {"lr": 0.01, "batch_size": 16}))
        """
        configuration = check_dry_run(
            etl, spec, hyperparams, rows=rows, has_validation_split=self.locators.valid is not None
        )
        if parallelism is not None:
            check_group("parallelism", parallelism, Parallelism)
        parallel_plans = dry_run_plans(parallelism or Parallelism())
        from cerebro.client.dry_run import dry_run

        record, kvs = self._session.record, self.connection.kvs
        return dry_run(
            record, kvs.archive, etl, spec, configuration, rows=rows, parallel_plans=parallel_plans
        )

    # --- open and past runs ----------------------------------------------------------------------

    def watch(self, run: str | None = None, *, progress: bool = True) -> Run:
        """Follow a run until it ends, from any notebook.

        Args:
            run: run id. Default: the open run, or the newest.
            progress: True to draw progress bars. Default True.

        Returns:
            The ended run.

        Raises:
            NotFoundError: the run does not exist.

        Example::

            Experiment.attach("digits").watch("fit-1")
        """
        return self._session.follow(self._session.chosen(run).id, progress=progress)

    def result(self, run: str | None = None) -> FitResult:
        """Return the current result of a fit run, also while it runs.

        Args:
            run: fit run. Default: the newest, whose result has the best model over all comparable fits; see
                `FitResult.best`.

        Raises:
            NotFoundError: the run does not exist.

        Example::

            experiment.result().leaderboard()
        """
        chosen = self._session.chosen_fit(run)
        return self._fit_result(chosen, result_of=self._fit_result if run is None else None)

    def failed_rows(self, run: str | None = None) -> pd.DataFrame:
        """Return the rows that failed in an ETL run, also if the run itself failed.

        Args:
            run: ETL run. Default: the newest.

        Returns:
            One row per failed row: split, id, error, traceback; at most 1,000 per partition. ``attrs["total"]`` is the
                number
            of all failed rows; ``attrs["notes"]`` explains missing ones.

        Raises:
            NotFoundError: the run does not exist.
        """
        from cerebro.client.results import failed_table

        chosen, plan = self._session.chosen_etl(run)
        return failed_table(plan, self.connection.files, experiment=self._session.name, run=chosen)

    # --- helpers ---------------------------------------------------------------------------------

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

    def _fit_result(self, run: Run, result_of: Callable[[Run], FitResult] | None = None) -> FitResult:
        from cerebro.client.results import FitResult

        kvs, record = self.connection.kvs, self._session.record
        dataset = self._session.state().datasets.get(run.plan.dataset) if run.plan is not None else None
        reference = dataset.fitted if dataset is not None else None
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
            result_of=result_of,
        )

    def __repr__(self) -> str:
        return f"<Experiment {self.name!r} at {self.connection.kvs.address}>"
