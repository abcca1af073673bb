"""An open experiment: its state, runs and results. It only reads.

Commands (`commands.py`), registered models (`models/registry.py`), tests and predictions (`evaluation.py`), and
`cerebro.Experiment` derive from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from cerebro.client.connection import Connection
from cerebro.client.files import cache_folder
from cerebro.client.session import Session
from cerebro.contract.records import Locators
from cerebro.state import ExperimentState, QueuePosition, Run
from cerebro.usercode.fitted import read_fitted
from cerebro.usercode.in_process import UserCode

if TYPE_CHECKING:
    import pandas as pd

    from cerebro.client.results import FitResult


class OpenExperiment:
    """State, runs and results of an experiment."""

    _session: Session

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
            number of all failed rows; ``attrs["notes"]`` explains missing ones.

        Raises:
            NotFoundError: the run does not exist.
        """
        from cerebro.client.results import failed_table

        chosen, plan = self._session.chosen_etl(run)
        return failed_table(plan, self.connection.files, experiment=self._session.name, run=chosen)

    def _fit_result(self, run: Run, result_of: Callable[[Run], FitResult] | None = None) -> FitResult:
        from cerebro.client.results import FitResult

        kvs, record = self.connection.kvs, self._session.record
        dataset = self._session.state().datasets.get(run.plan.dataset) if run.plan is not None else None
        reference = dataset.fitted if dataset is not None else None
        files = self.connection.files
        user_code = UserCode(
            record=record,
            archive=kvs.archive,
            folder=lambda: cache_folder(os.environ),
            fitted=None
            if reference is None
            else lambda: read_fitted(files.shared(reference.name), reference),
        )
        result = FitResult(
            self._session.state(),
            run,
            self.connection.files,
            record,
            kvs.code,
            user_code=user_code,
            events=kvs,
            result_of=result_of,
        )
        result.page = self.connection.page_of(record.name, run.id)
        return result

    def __repr__(self) -> str:
        page = self.connection.page_of(self.name)
        return f"<Experiment {self.name!r} at {page or self.connection.kvs.address}>"

    def _repr_html_(self) -> str:
        page = escape(self.connection.page_of(self.name))
        return f'Experiment {self.name}: <a href="{page}">{page}</a>' if page else escape(repr(self))
