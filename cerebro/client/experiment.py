"""`Experiment`, the entry point of notebooks and scripts: create or attach, preprocess, train, dry run.

It validates arguments, sends requests to the cluster, follows runs and returns results. Runs belong to the cluster:
they continue when the notebook closes, and several notebooks may attach to one experiment. State and results are in
`open_experiment.py`, tests and predictions in `evaluation.py`, commands such as `stop` in `commands.py`, registered
models in `models/registry.py`, the protocol with the store in `session.py`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cerebro.client.commands import CommandsMixin
from cerebro.client.connection import author, connect
from cerebro.client.evaluation import EvaluationMixin
from cerebro.client.failure_rules import FailureRule
from cerebro.client.limits import Limits, wait_limit_s
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
from cerebro.client.session import Session
from cerebro.commands.rules import stopped_text
from cerebro.contract.records import Locators
from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.contract.search import Repeat
from cerebro.data.tables.locators import absolute, parse_locators
from cerebro.spec import ETLSpec, SubEpochSpec
from cerebro.state import RunState
from cerebro.usercode.checks import fits
from cerebro.usercode.encoding import encode

if TYPE_CHECKING:
    from cerebro.client.dry_run import DryRun
    from cerebro.client.results import EtlResult, FitResult


class Experiment(CommandsMixin, RegistryMixin, EvaluationMixin):
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

    def run_etl(  # noqa: PLR0913 - all options of a run, by keyword
        self,
        spec: ETLSpec,
        *,
        fraction: float = 1.0,
        seed: int = 0,
        stratify: str = "",
        group: str = "",
        max_failed: float = 0.0,
        failure_rules: Sequence[FailureRule] = (),
        wait_limit: str | float | timedelta | None = None,
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
            stratify: column of the training rows, such as ``"label"``: each partition has the same share of each of its
                values, as far as possible. Default: none. Useful for cross-validation; see ``run_fit(folds=...)``.
            group: column of the training rows, such as ``"patient"``: rows with the same value are in one partition, so
                in one fold. Default: none.
            max_failed: fraction of rows that may fail before the run stops, 0 to 1. Default 0. Failed rows are
                recorded; see `failed_rows`.
            failure_rules: reactions to patterns in the log of a failed partition; see `FailureRule`.
            wait_limit: time that the run may wait for workers before it pauses, such as ``"2h"``; see `Limits`.
                Default: no limit.
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
            print(etl.kept_rows, etl.failed)
        """
        check_etl(
            spec,
            self.locators,
            stratify=stratify,
            group=group,
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
            stratify=stratify,
            group=group,
            fits=fits(spec),
            failure_rules=checked_failure_rules(failure_rules),
            wait_limit_s=wait_limit_s(wait_limit),
        )
        run = self._session.complete(request, progress=progress, priority=priority, project=project)
        from cerebro.client.results import EtlResult, warning_line

        assert isinstance(run.plan, EtlPlan)
        if progress and (line := warning_line(run.plan, self.connection.files)):
            sys.stderr.write(f"{line}\n")
        page = self.connection.page_of(self.name)
        return EtlResult.from_run(self.state().datasets[run.plan.dataset], run, self.connection.files, page)

    def run_fit(  # noqa: PLR0913 - all options of a run, by keyword
        self,
        spec: SubEpochSpec,
        search_space: SearchSpace,
        *,
        epochs: int = 1,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        objectives: Mapping[str, Literal["min", "max"]] | None = None,
        constraints: Sequence[str] = (),
        seed: int = 0,
        samples: int | None = None,
        search: UserProcedure | Search | None = None,
        repeats: Repeat | None = None,
        folds: int | None = None,
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
                ``valid``). Required without `objectives`.
            mode: ``"max"`` if larger is better, ``"min"`` if smaller is better. Required without `objectives`.
            objectives: several objectives instead of `metric` and `mode`: names and directions, such as
                ``{"accuracy": "max", "train_s": "min"}``. The first is a metric of the spec and chooses each model's
                best epoch; others may be measures of the platform: ``train_s``, ``model_bytes``, ``peak_bytes``,
                ``peak_gpu_bytes``, ``test_row_s``. See `FitResult.pareto`.
            constraints: limits on metrics or measures, such as ``["latency_ms <= 20"]``. Models that meet all rank
                before the others.
            seed: seed of weights, shuffles and schedule. Default 0.
            samples: number of models to sample if the search space has distributions; with `search`, the maximum.
            search: search procedure: ``ASHA()``, ``Hyperband()``, ``PBT()`` or ``Random()``, each with an optional
                ``sampler=``, your own `cerebro.search.Procedure`, or a `Search` with stop rules. Default: train all
                configurations for all epochs.
            repeats: after the search, train the best models again with new seeds, such as ``Repeat(top=3, seeds=5)``.
                See `FitResult.repeats`.
            folds: number of folds of a cross-validation, from 2, without copies of the data. Each configuration has one
                model for each fold, which trains on the other folds and validates on this one. See `FitResult.folds`.
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
            MetricError: `metric` or `mode` is missing, `spec` does not return a metric, or an objective or constraint
                is invalid.
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
            objectives=objectives,
            constraints=constraints,
            seed=seed,
            samples=samples,
            search=search,
            repeats=repeats,
            folds=folds,
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
            code.sha256,
            search_request,
            models,
            options,
            space=search_space,
            technique_fields=technique_fields,
            goal=goal,
        )
        run = self._session.complete(request, progress=progress, priority=priority, project=project)
        if run.state is RunState.STOPPED:
            warnings.warn(stopped_text(self.state(), run), stacklevel=2)
        return self._fit_result(run)

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
