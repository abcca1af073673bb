"""Figures of one fit run, the same in notebooks and reports.

`FitFigures` and `report.py` call it. It selects and ranks models and passes them to `cerebro.figures`, which draws; the
web page selects in `dispatcher` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from cerebro import figures
from cerebro.contract.runs import FitRequest
from cerebro.errors import NotFoundError
from cerebro.figures import Axis, Curve, CurveSplit, Figure, ModelSummary, ProgressAxis, Theme
from cerebro.figures.models import ranked
from cerebro.state import ExperimentState, Run
from cerebro.state.runs.rungs import rungs


@dataclass(frozen=True, kw_only=True)
class Drawings:
    """Figures of a fit run.

    Attributes:
        state: state of the experiment.
        run: fit run.
        now: time of the drawing, in seconds of the store's clock.
        theme: ``"light"`` or ``"dark"``.
    """

    state: ExperimentState
    run: Run
    now: float
    theme: Theme = "light"

    @property
    def request(self) -> FitRequest:
        """Request of the run."""
        assert isinstance(self.run.request, FitRequest)
        return self.run.request

    @cached_property
    def rows(self) -> list[ModelSummary]:
        """All models, best first; models without a value last."""
        return ranked(figures.summaries(self.run), self.request.mode, self.run.final_means())

    def curves(
        self,
        *,
        metric: str = "",
        axis: Axis = "epoch",
        split: CurveSplit | Literal[""] = "",
        is_log: bool = False,
        smoothing: float = 0.0,
    ) -> Figure:
        """Draw learning curves, the best models first."""
        name = metric or self.request.metric
        curves = figures.epoch_curves(self.run, name, split=split, axis=axis)
        ranking_split = figures.shown_split(self.run)
        return figures.curves(
            self._ranked(curves),
            metric=name,
            mode=self.request.mode,
            axis=axis,
            split=split or ranking_split,
            is_ranked=name == self.request.metric and split in ("", ranking_split),
            is_log=is_log,
            smoothing=smoothing,
            total=len(self.run.models),
            theme=self.theme,
        )

    def parallel(self, *, names: Sequence[str] = (), is_log: bool = False) -> Figure:
        """Draw parallel coordinates."""
        return figures.parallel(
            self.rows,
            metric=self.request.metric,
            mode=self.request.mode,
            names=self._checked_names(names),
            is_log=is_log,
            theme=self.theme,
        )

    def scatter(
        self, *, names: Sequence[str] = (), is_log: bool = False, epoch: int = 0, margin: int = 0
    ) -> Figure:
        """Draw the metric against hyperparameters, at the best epoch of each model or at `epoch`."""
        return figures.scatter(
            self.rows,
            metric=self.request.metric,
            mode=self.request.mode,
            names=self._checked_names(names),
            is_log=is_log,
            values=figures.values_at(self.run, epoch, margin=margin) if epoch else None,
            theme=self.theme,
        )

    def heatmap(self, *, x: str = "", y: str = "") -> Figure | None:
        """Draw the best metric for pairs of values of two hyperparameters.

        Default: the two most important hyperparameters.

        Returns:
            The figure; `None` without `x` and `y` if fewer than two hyperparameters vary.
        """
        axes = self._two_axes(x, y)
        if axes is None:
            return None
        return figures.heatmap(
            self.rows,
            metric=self.request.metric,
            mode=self.request.mode,
            x=axes[0],
            y=axes[1],
            theme=self.theme,
        )

    def contour(self, *, x: str = "", y: str = "") -> Figure | None:
        """Draw contours of the metric over two hyperparameters; see `heatmap` for the default and the result."""
        axes = self._two_axes(x, y)
        return (
            figures.contour(
                self.rows,
                metric=self.request.metric,
                mode=self.request.mode,
                x=axes[0],
                y=axes[1],
                theme=self.theme,
            )
            if axes
            else None
        )

    def pareto(self, *, x: str = "", y: str = "", is_log: bool = False) -> Figure | None:
        """Draw the Pareto front over two objectives or values in constraints; `None` for one without constraints.

        Raises:
            NotFoundError: the run does not compare `x` or `y`.
        """
        known = self.request.compared_names
        unknown = [name for name in (x, y) if name and name not in known]
        if unknown:
            raise NotFoundError(
                f"{self.run.id} does not compare {', '.join(unknown)}: choose among {', '.join(known)}"
            )
        if figures.pareto_axes(self.request) is None:
            return None
        return figures.pareto(self.rows, self.request, x=x, y=y, is_log=is_log, theme=self.theme)

    def best_so_far(self, *, axis: ProgressAxis = "model", is_log: bool = False) -> Figure:
        """Draw the best value so far over models, time or trained epochs."""
        return figures.best_so_far(
            figures.observations(self.run, axis),
            metric=self.request.metric,
            mode=self.request.mode,
            axis_unit=axis,
            is_log=is_log,
            theme=self.theme,
        )

    def hypervolume(self, *, axis: ProgressAxis = "model") -> Figure | None:
        """Draw the hypervolume over models, time or trained epochs; `None` for one objective."""
        if len(self.request.objectives) < 2:
            return None
        observations = figures.observations(self.run, axis)
        return figures.hypervolume(self.rows, self.request, observations, axis_unit=axis, theme=self.theme)

    def rungs(self, *, is_log: bool = False) -> Figure:
        """Draw the rungs of the run's search."""
        return figures.rungs(
            rungs(self.run),
            metric=self.request.metric,
            mode=self.request.mode,
            is_log=is_log,
            theme=self.theme,
        )

    def importance_values(self) -> figures.Importance:
        """Return the importance of each hyperparameter."""
        return figures.importance_of(self.rows, mode=self.request.mode)

    def importance(self) -> Figure:
        """Draw the importance of each hyperparameter as bars."""
        return figures.importance(self.importance_values(), theme=self.theme)

    def schedule(self, *, highlight: str = "") -> Figure:
        """Draw the schedule as a Gantt chart."""
        spans = figures.spans(self.run, self.now)
        workers = figures.worker_rows(self.state, spans)
        return figures.schedule(
            spans,
            workers=workers,
            models=tuple(self.run.models),
            landmarks=figures.landmarks(self.state, self.run, self.now),
            planned=figures.planned(self.run, self.now, devices=workers),
            other_tasks=figures.other_tasks(self.run, self.now),
            highlight=highlight,
            theme=self.theme,
        )

    def _two_axes(self, x: str, y: str) -> tuple[str, str] | None:
        shares = [share.name for share in self.importance_values().shares]
        candidates = dict.fromkeys([*shares, *figures.varying(self.rows)])
        unused = [name for name in candidates if name not in (x, y)]
        axes = x or (unused.pop(0) if unused else ""), y or (unused.pop(0) if unused else "")
        if not all(axes):
            return None
        self._checked_names(axes)
        return axes

    def _ranked(self, curves: list[Curve]) -> list[Curve]:
        rank = {row.id: index for index, row in enumerate(self.rows)}
        return sorted(curves, key=lambda curve: rank[curve.model])

    def _checked_names(self, names: Sequence[str]) -> Sequence[str]:
        known = {name for row in self.rows for name in row.hyperparams}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise NotFoundError(
                f"{self.run.id} has no hyperparameter {', '.join(unknown)}: choose among {', '.join(sorted(known))}"
            )
        return names
