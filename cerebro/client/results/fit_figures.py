"""Figures and the report of a fit run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cerebro.client.reporting import Drawings, report_html
from cerebro.client.results.plots import html_file, plotted
from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.errors import NotFoundError
from cerebro.figures import Axis, Theme
from cerebro.state import ExperimentState, Run

if TYPE_CHECKING:
    import plotly.graph_objects as go


class FitFigures:
    """What can be drawn of a fit run, made anew at each call, so it shows what has happened since."""

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
        """Learning curves: a line per model, the best 100; a diamond marks a model's best epoch, a cross a value that
        is not finite.

        Args:
            path: file to write as well, ending in ``.html``: it shows the figure anywhere, offline.
            metric: a name that the training code returns; what models are ranked by if left out.
            axis: ``epoch``, ``row`` (rows trained) or ``time`` (seconds since the run's first sub-epoch).
            split: ``train`` or ``valid``; what models are ranked by if left out.
            log: logarithmic metric.
            smoothing: weight of the past, 0 to below 1; the line as it was stays, faint.

        Raises:
            ValueError: `path` does not end in ``.html``.
        """
        drawn = self._drawings(theme).curves(
            metric=metric, axis=axis, split=split, is_log=log, smoothing=smoothing
        )
        return plotted(drawn, path)

    def plot_parallel(
        self,
        path: Path | str | None = None,
        *,
        names: Sequence[str] = (),
        log: bool = False,
        theme: Theme = "light",
    ) -> go.Figure:
        """Parallel coordinates: a line per model over its hyper-parameters to the metric, the best on top.

        Args:
            path: see `plot_curves`.
            names: hyper-parameters from left to right; those that vary if left out.
            log: logarithmic metric.

        Raises:
            NotFoundError: there is no hyper-parameter of such a name.
        """
        return plotted(self._drawings(theme).parallel(names=names, is_log=log), path)

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
        """The metric over each hyper-parameter, a dot per model.

        Args:
            path: see `plot_curves`.
            names: hyper-parameters; those that vary if left out, at most ten.
            log: logarithmic metric.
            epoch: compare all models at this epoch, instead of each at its best.
            margin: where a model has no value at `epoch`, take one of at most so many epochs before.

        Raises:
            NotFoundError: there is no hyper-parameter of such a name.
        """
        drawn = self._drawings(theme).scatter(names=names, is_log=log, epoch=epoch, margin=margin)
        return plotted(drawn, path)

    def plot_heatmap(
        self, x: str = "", y: str = "", path: Path | str | None = None, *, theme: Theme = "light"
    ) -> go.Figure:
        """The best metric for each pair of values of two hyper-parameters: of those that matter most, where none are
        named.

        Raises:
            NotFoundError: there is no hyper-parameter of such a name, or fewer than two vary.
        """
        drawn = self._drawings(theme).heatmap(x=x, y=y)
        if drawn is None:
            raise NotFoundError(
                f"fewer than two hyper-parameters of {self._run.id} vary: name two, such as x='lr'"
            )
        return plotted(drawn, path)

    def plot_importance(self, path: Path | str | None = None, *, theme: Theme = "light") -> go.Figure:
        """How much each hyper-parameter tells the best models from the others (`cerebro.figures.importance`)."""
        return plotted(self._drawings(theme).importance(), path)

    def plot_schedule(
        self, path: Path | str | None = None, *, model: str = "", theme: Theme = "light"
    ) -> go.Figure:
        """Which model was on which worker when: a bar per sub-epoch, every attempt, the lower bound as a dashed line;
        hollow ones are still to come by the plan that is followed.

        Args:
            path: see `plot_curves`.
            model: one whose way across the workers stands out.
        """
        return plotted(self._drawings(theme).schedule(highlight=model), path)

    def report(self, path: Path | str) -> Path:
        """Write all of it as one HTML file to send around: it needs no network and no cluster, and prints. It is light
        or dark as its reader's system is.

        Returns:
            Where the file is.

        Raises:
            ValueError: `path` does not end in ``.html``.
        """
        target = html_file(path)
        document = report_html(self._state, self._run, record=self._record, now=time.time(), code=self._code)
        target.write_text(document, encoding="utf-8")
        return target

    def _drawings(self, theme: Theme) -> Drawings:
        return Drawings(state=self._state, run=self._run, now=time.time(), theme=theme)
