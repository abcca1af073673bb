"""Plot methods and the report of `FitResult`.

Each method draws with `cerebro.client.reporting`, converts the figure to Plotly and optionally writes an HTML file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cerebro.client.reporting import Drawings, report_html
from cerebro.client.results.plots import html_file, to_plotly
from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.errors import NotFoundError
from cerebro.figures import Axis, Figure, ProgressAxis, Theme
from cerebro.state import ExperimentState, Run

if TYPE_CHECKING:
    import plotly.graph_objects as go


class FitFigures:
    """Figures of a fit run, drawn from its state."""

    def __init__(
        self,
        state: ExperimentState,
        run: Run,
        record: ExperimentRecord | None,
        code: Callable[[str], CodeRecord] | None,
    ) -> None:
        self._state, self._run, self._record, self._code = state, run, record, code

    def plot_curves(
        self,
        path: Path | str | None = None,
        *,
        metric: str = "",
        axis: Axis = "epoch",
        split: Literal["train", "valid", ""] = "",
        log: bool = False,
        smoothing: float = 0.0,
        theme: Theme = "light",
    ) -> go.Figure:
        """Plot learning curves of the 100 best models.

        A diamond marks the best epoch of a model, a cross a value that is not finite.

        Args:
            path: ``.html`` file to write as well; it works offline. Default: none.
            metric: metric that user code returns. Default: the ranking metric.
            axis: ``"epoch"`` (default), ``"row"`` (trained rows) or ``"time"`` (seconds since the first sub-epoch).
            split: ``"train"`` or ``"valid"``. Default: the split of the ranking metric.
            log: True for a logarithmic metric axis. Default False.
            smoothing: weight of previous values, 0 (default) to below 1. The unsmoothed line stays visible.
            theme: ``"light"`` (default) or ``"dark"``.

        Raises:
            ValueError: `path` does not end in ``.html``.
        """
        figure = self._drawings(theme).curves(
            metric=metric, axis=axis, split=split, is_log=log, smoothing=smoothing
        )
        return to_plotly(figure, path)

    def plot_parallel(
        self,
        path: Path | str | None = None,
        *,
        names: Sequence[str] = (),
        log: bool = False,
        theme: Theme = "light",
    ) -> go.Figure:
        """Plot parallel coordinates: hyperparameters and metric of each model, best models on top.

        Args:
            path: ``.html`` file to write as well; it works offline. Default: none.
            names: hyperparameters from left to right. Default: all that vary.
            log: True for a logarithmic metric axis. Default False.
            theme: ``"light"`` (default) or ``"dark"``.

        Raises:
            NotFoundError: a hyperparameter does not exist.
            ValueError: `path` does not end in ``.html``.
        """
        return to_plotly(self._drawings(theme).parallel(names=names, is_log=log), path)

    def plot_scatter(
        self,
        path: Path | str | None = None,
        *,
        names: Sequence[str] = (),
        log: bool = False,
        epoch: int = 0,
        margin: int = 0,
        theme: Theme = "light",
    ) -> go.Figure:
        """Plot the metric against each hyperparameter, one dot per model.

        Args:
            path: ``.html`` file to write as well; it works offline. Default: none.
            names: hyperparameters. Default: all that vary, at most ten.
            log: True for a logarithmic metric axis. Default False.
            epoch: compare models at this epoch. Default 0: at the best epoch of each.
            margin: with `epoch`, use a value from up to this many epochs earlier if a model has none. Default 0.
            theme: ``"light"`` (default) or ``"dark"``.

        Raises:
            NotFoundError: a hyperparameter does not exist.
            ValueError: `path` does not end in ``.html``.
        """
        figure = self._drawings(theme).scatter(names=names, is_log=log, epoch=epoch, margin=margin)
        return to_plotly(figure, path)

    def plot_heatmap(
        self, x: str = "", y: str = "", path: Path | str | None = None, *, theme: Theme = "light"
    ) -> go.Figure:
        """Plot the best metric for each pair of values of two hyperparameters.

        Args:
            x: hyperparameter of the horizontal axis. Default: the most important one.
            y: hyperparameter of the vertical axis. Default: the next important one.
            path: ``.html`` file to write as well; it works offline. Default: none.
            theme: ``"light"`` (default) or ``"dark"``.

        Raises:
            NotFoundError: a hyperparameter does not exist, or fewer than two vary.
            ValueError: `path` does not end in ``.html``.
        """
        return to_plotly(self._required(self._drawings(theme).heatmap(x=x, y=y)), path)

    def plot_contour(
        self, x: str = "", y: str = "", path: Path | str | None = None, *, theme: Theme = "light"
    ) -> go.Figure:
        """Plot contours of the metric over two hyperparameters, with a dot per model.

        Args:
            x: hyperparameter of the horizontal axis. Default: the most important one.
            y: hyperparameter of the vertical axis. Default: the next important one.
            path: ``.html`` file to write as well; it works offline. Default: none.
            theme: ``"light"`` (default) or ``"dark"``.

        Raises:
            NotFoundError: a hyperparameter does not exist, or fewer than two vary.
            ValueError: `path` does not end in ``.html``.
        """
        return to_plotly(self._required(self._drawings(theme).contour(x=x, y=y)), path)

    def plot_pareto(
        self,
        path: Path | str | None = None,
        *,
        x: str = "",
        y: str = "",
        log: bool = False,
        theme: Theme = "light",
    ) -> go.Figure:
        """Plot the Pareto front: a dot for each model, and a line through the models that no other one dominates.

        Args:
            path: ``.html`` file to write as well; it works offline. Default: none.
            x: objective or value in a constraint. Default: the second one.
            y: objective or value in a constraint. Default: the first objective.
            log: True for logarithmic axes. Default False.
            theme: ``"light"`` (default) or ``"dark"``.

        Raises:
            NotFoundError: the run has one objective and no constraint, or does not compare `x` or `y`.
            ValueError: `path` does not end in ``.html``.
        """
        figure = self._drawings(theme).pareto(x=x, y=y, is_log=log)
        if figure is None:
            raise NotFoundError(
                f"{self._run.id} has one objective and no constraint, so it has no Pareto front: give `objectives` to "
                "run_fit"
            )
        return to_plotly(figure, path)

    def plot_best_so_far(
        self,
        path: Path | str | None = None,
        *,
        axis: ProgressAxis = "model",
        log: bool = False,
        theme: Theme = "light",
    ) -> go.Figure:
        """Plot the best value of the metric so far.

        Args:
            path: ``.html`` file to write as well; it works offline. Default: none.
            axis: ``"model"`` (default), ``"time"`` (since the first sub-epoch) or ``"epoch"`` (trained epochs).
            log: True for a logarithmic metric axis. Default False.
            theme: ``"light"`` (default) or ``"dark"``.

        Raises:
            ValueError: `path` does not end in ``.html``.
        """
        return to_plotly(self._drawings(theme).best_so_far(axis=axis, is_log=log), path)

    def plot_hypervolume(
        self, path: Path | str | None = None, *, axis: ProgressAxis = "model", theme: Theme = "light"
    ) -> go.Figure:
        """Plot how much of the objectives' ranges the models dominate, from 0 to 1.

        Args:
            path: ``.html`` file to write as well; it works offline. Default: none.
            axis: ``"model"`` (default), ``"time"``, or ``"epoch"`` for epochs trained over all models.
            theme: ``"light"`` (default) or ``"dark"``.

        Raises:
            NotFoundError: the run has one objective.
            ValueError: `path` does not end in ``.html``.
        """
        figure = self._drawings(theme).hypervolume(axis=axis)
        if figure is None:
            raise NotFoundError(f"{self._run.id} has one objective: pass objectives= to run_fit")
        return to_plotly(figure, path)

    def plot_rungs(
        self, path: Path | str | None = None, *, log: bool = False, theme: Theme = "light"
    ) -> go.Figure:
        """Plot the rungs of the search: promoted, stopped and waiting models with their metric.

        Args:
            path: ``.html`` file to write as well; it works offline. Default: none.
            log: True for a logarithmic metric axis. Default False.
            theme: ``"light"`` (default) or ``"dark"``.

        Raises:
            NotFoundError: the run has no search.
            ValueError: `path` does not end in ``.html``.
        """
        if self._run.search is None:
            raise NotFoundError(
                f"{self._run.id} has no search, so it has no rungs: pass search= to run_fit, such as search=ASHA()"
            )
        return to_plotly(self._drawings(theme).rungs(is_log=log), path)

    def plot_importance(self, path: Path | str | None = None, *, theme: Theme = "light") -> go.Figure:
        """Plot the importance of each hyperparameter for the best models.

        The method is PED-ANOVA; see `cerebro.figures.importance`.

        Args:
            path: ``.html`` file to write as well; it works offline. Default: none.
            theme: ``"light"`` (default) or ``"dark"``.

        Raises:
            ValueError: `path` does not end in ``.html``.
        """
        return to_plotly(self._drawings(theme).importance(), path)

    def plot_schedule(
        self, path: Path | str | None = None, *, model: str = "", theme: Theme = "light"
    ) -> go.Figure:
        """Plot the schedule as a Gantt chart: one row per device, one bar per attempt.

        Hollow bars are planned. The dashed line is a lower bound of the end.

        Args:
            path: ``.html`` file to write as well; it works offline. Default: none.
            model: model to highlight. Default: none.
            theme: ``"light"`` (default) or ``"dark"``.

        Raises:
            ValueError: `path` does not end in ``.html``.
        """
        return to_plotly(self._drawings(theme).schedule(highlight=model), path)

    def report(self, path: Path | str) -> Path:
        """Write a report with tables and figures as one HTML file, which works offline.

        Args:
            path: file to write, ending in ``.html``.

        Returns:
            Path of the file.

        Raises:
            ValueError: `path` does not end in ``.html``.

        Example::

            experiment.result().report("report.html")
        """
        target = html_file(path)
        document = report_html(self._state, self._run, record=self._record, now=time.time(), code=self._code)
        target.write_text(document, encoding="utf-8")
        return target

    def _required(self, figure: Figure | None) -> Figure:
        if figure is None:
            raise NotFoundError(
                f"fewer than two hyperparameters of {self._run.id} vary: name two, such as x='lr', y='width'"
            )
        return figure

    def _drawings(self, theme: Theme) -> Drawings:
        return Drawings(state=self._state, run=self._run, now=time.time(), theme=theme)
