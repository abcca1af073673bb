"""Test and prediction runs of `cerebro.Experiment`, as a mixin.

A call starts a run on the cluster, follows it and returns a data frame. `ranking` compares tested models, and `rows`
returns the rows that they get wrong or disagree on.
`cerebro.client.session` sends the request; workers compute the metrics and predictions.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Literal

from cerebro.client.limits import wait_limit_s
from cerebro.client.open_experiment import OpenExperiment
from cerebro.contract.base import SPLITS
from cerebro.contract.runs import EvaluateRequest
from cerebro.errors import DataError
from cerebro.figures import averaged, tested
from cerebro.figures.ranking.results import CONFIDENCE, Ranking, chosen_test, ranking_request
from cerebro.figures.ranking.rows import require_two

if TYPE_CHECKING:
    import pandas as pd

    from cerebro.client.results import TestResult

_Split = Literal["train", "valid", "test", "predict"]


class EvaluationMixin(OpenExperiment):
    """Tests and predictions with trained models."""

    def run_test(
        self,
        models: str | Sequence[str] | None = None,
        *,
        fit: str | None = None,
        split: _Split = "test",
        wait_limit: str | float | timedelta | None = None,
        priority: str | int = "normal",
        project: str = "",
        progress: bool = True,
    ) -> TestResult:
        """Compute metrics of trained models on a split, each model at its best epoch.

        It reads the data set of the newest finished ETL run. Models are tested in parallel on all workers. Each one
        gets the whole split in a single call of `SubEpochSpec.test`, so any metric is possible.

        Args:
            models: model id or ids. Default: the best model.
            fit: fit run. Default: the newest.
            split: split to test on. Default ``"test"``. With ``"train"`` each worker tests its own partition: a
                `cerebro.Ratio` is exact for all rows, numbers are averages weighted by rows.
            wait_limit: time that the run may wait for workers before it pauses, such as ``"2h"``; see `Limits`.
                Default: no limit.
            priority: share of the cluster relative to other open runs: ``"low"``, ``"normal"`` (default), ``"high"`` or
                an integer from -9 to 9; see `prioritize`.
            project: fair share group. The runs of one project share the cluster as one run. Default: none.
            progress: True to draw progress bars. Default True.

        Returns:
            A data frame with one row per model: epoch, number of rows and metrics. With ``split="train"``, a column
            ``parts`` has the number of partitions. Its method `ranking` ranks the models, and its method `rows`
            returns rows with values per model; see `ranking` and `rows`.

        Raises:
            NotFoundError: the fit run or a model does not exist.
            DataError: the split was not preprocessed, `wait_limit` is no time span above 0, or another ETL spec,
                other `misc` files or another result of `ETLSpec.fit` prepared the newest data set.
            RunFailedError: the run failed or was stopped.

        Warns:
            UserWarning: metrics are averages over partitions.

        Example::

            experiment.run_test(["m03", "m07"])
        """
        run = self._session.complete(
            self._evaluation("test", models, fit, split, wait_limit),
            progress=progress,
            priority=priority,
            project=project,
        )
        from cerebro.client.results import test_table

        if note := averaged(tested(run)):
            warnings.warn(f"the metrics of {run.id} on the split {split!r} are {note}", stacklevel=2)
        return test_table(run, partial(self.ranking, run.id), partial(self.rows, run.id))

    def ranking(
        self,
        run: str | None = None,
        *,
        metric: str = "",
        mode: Literal["max", "min", ""] = "",
        confidence: float = CONFIDENCE,
        seed: int = 0,
    ) -> Ranking:
        """Rank the models of a test run that has ended.

        The rows cannot separate models that share a rank. Models of different ranks may also be too close to call:
        ``better_than`` has the number of models that a model is significantly better than.

        Compares all pairs of models by a paired bootstrap over rows with 10,000 resamples, corrected by Holm's
        procedure. `test` must return the metric as a `cerebro.PerRow`, or `validation_step` one value per row.

        Args:
            run: test run. Default: the newest with values per row.
            metric: metric to rank by. Default: the metric of the fit run.
            mode: ``"max"`` if higher is better, or ``"min"``. Default: the fit run's, for its metric.
            confidence: probability that no model is wrongly called better than another one. Default 0.95.
            seed: seed of the resamples. Equal seeds give equal rankings.

        Returns:
            Rank, mean and interval of each model. It prints as a table, with sentences about ties and models without
            values.

        Raises:
            NotFoundError: the run is no test run, or there is none yet.
            DataError: the run has not ended, the metric has no values per row or no known direction, the rows are
                fewer than 20, the models are more than 2,000, or an argument is invalid.

        Example::

            experiment.run_test(["m03", "m07", "m11"])
            print(experiment.ranking())
        """
        from cerebro.figures.ranking.models import rank_models

        state = self.state()
        request = ranking_request(
            state, chosen_test(state, run or ""), metric=metric, mode=mode, confidence=confidence, seed=seed
        )
        return rank_models(request, self._open_shared)

    def rows(
        self,
        run: str | None = None,
        *,
        hardest: int | None = None,
        disagree: tuple[str, str] | None = None,
        models: Sequence[str] | None = None,
        metric: str = "",
        mode: Literal["max", "min", ""] = "",
    ) -> pd.DataFrame:
        """Return rows of a test run that has ended, with the metric per row of each model.

        `test` must return the metric as a `cerebro.PerRow`, or `validation_step` one value per row. If it also returns
        a ``label`` or a ``prediction`` per row, the table has these too.

        Args:
            run: test run. Default: the newest with values per row.
            hardest: number of rows to return: those with the worst mean over the models, worst first.
            disagree: two models. Only rows where they differ, largest difference first.
            models: models of the table. Default: all tested models; with `disagree`, these two.
            metric: metric per row. Default: the metric of the fit run.
            mode: ``"max"`` if higher is better, or ``"min"``. Default: the fit run's, for its metric. Only `hardest`
                needs it.

        Returns:
            One row per tested row, indexed by its id: a column for each model, ``mean`` over these models; with
            `disagree` also ``difference``, the first model minus the second.

        Raises:
            NotFoundError: the run is no test run, or there is none yet.
            DataError: the run has not ended, the metric has no values per row or no known direction, a model has no
                values, the table would have more than 20 million values, or an argument is invalid.

        Example::

            experiment.run_test(["m03", "m07"])
            experiment.rows(hardest=20)
            experiment.rows(disagree=("m03", "m07"))
        """
        from cerebro.client.results import rows_table

        state, pair = self.state(), tuple(disagree or ())
        if hardest is not None and (disagree is not None or hardest < 1):
            raise DataError(
                "pass hardest or disagree, not both" if pair else f"hardest is {hardest}, expected 1 or more"
            )
        require_two(pair)
        request = ranking_request(state, chosen_test(state, run or ""), metric=metric, mode=mode)
        return rows_table(request, self._open_shared, hardest=hardest, disagree=pair, models=models)

    def run_predict(
        self,
        models: str | Sequence[str] | None = None,
        *,
        fit: str | None = None,
        split: _Split = "predict",
        wait_limit: str | float | timedelta | None = None,
        priority: str | int = "normal",
        project: str = "",
        progress: bool = True,
    ) -> pd.DataFrame:
        """Predict the outputs of a split with trained models, each at its best epoch.

        It reads the data set of the newest finished ETL run.

        Args:
            models: model id or ids. Default: the best model.
            fit: fit run. Default: the newest.
            split: split to predict. Default ``"predict"``.
            wait_limit: time that the run may wait for workers before it pauses, such as ``"2h"``; see `Limits`.
                Default: no limit.
            priority: share of the cluster relative to other open runs: ``"low"``, ``"normal"`` (default), ``"high"`` or
                an integer from -9 to 9; see `prioritize`.
            project: fair share group. The runs of one project share the cluster as one run. Default: none.
            progress: True to draw progress bars. Default True.

        Returns:
            One row per prediction, indexed by row id; by model and row id for several models.

        Raises:
            NotFoundError: the fit run or a model does not exist.
            DataError: the split was not preprocessed, `wait_limit` is no time span above 0, or another ETL spec,
                other `misc` files or another result of `ETLSpec.fit` prepared the newest data set.
            RunFailedError: the run failed or was stopped.

        Example::

            experiment.run_predict().to_csv("predictions.csv")
        """
        run = self._session.complete(
            self._evaluation("predict", models, fit, split, wait_limit),
            progress=progress,
            priority=priority,
            project=project,
        )
        from cerebro.client.results import prediction_table

        return prediction_table(run, self.connection.files)

    def _open_shared(self, name: str) -> BinaryIO:
        return self.connection.files.shared(name).open("rb")

    def _evaluation(
        self,
        kind: Literal["test", "predict"],
        models: str | Sequence[str] | None,
        fit: str | None,
        split: _Split,
        wait_limit: str | float | timedelta | None,
    ) -> EvaluateRequest:
        names = (models,) if isinstance(models, str) else tuple(models or ())
        if split not in SPLITS:
            raise DataError(f"split is {split!r}, expected one of {', '.join(SPLITS)}")
        return EvaluateRequest(
            kind=kind,
            fit=self._session.chosen_fit(fit).id,
            models=names,
            split=split,
            wait_limit_s=wait_limit_s(wait_limit),
        )
