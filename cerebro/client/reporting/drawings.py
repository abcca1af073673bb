"""The figures of one fit run, made of what the log says: the same in a notebook and in a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from cerebro import figures
from cerebro.contract.runs import FitRequest
from cerebro.errors import NotFoundError
from cerebro.figures import Axis, Curve, CurveSplit, Figure, ModelSummary, Theme
from cerebro.state import ExperimentState, Run


@dataclass(frozen=True, kw_only=True)
class Drawings:
    """What can be drawn of a fit run, up to `now` (the store's clock, seconds)."""

    state: ExperimentState
    run: Run
    now: float
    theme: Theme = "light"

    @property
    def request(self) -> FitRequest:
        """What was asked for."""
        assert isinstance(self.run.request, FitRequest)
        return self.run.request

    @cached_property
    def rows(self) -> list[ModelSummary]:
        """All models, best first; those without a value last."""
        sign = 1 if self.request.mode == "min" else -1
        rows = list(figures.summaries(self.run))
        return sorted(rows, key=lambda row: (row.best is None, sign * (row.best or 0.0), row.index))

    def curves(
        self,
        *,
        metric: str = "",
        axis: Axis = "epoch",
        split: CurveSplit | Literal[""] = "",
        is_log: bool = False,
        smoothing: float = 0.0,
    ) -> Figure:
        """Learning curves, the best models first."""
        name = metric or self.request.metric
        found = figures.epoch_curves(self.run, name, split=split, axis=axis)
        return figures.curves(
            self._ranked(found),
            metric=name,
            mode=self.request.mode,
            axis=axis,
            split=split or figures.shown_split(self.run),
            is_log=is_log,
            smoothing=smoothing,
            total=len(self.run.models),
            theme=self.theme,
        )

    def parallel(self, *, names: Sequence[str] = (), is_log: bool = False) -> Figure:
        """Parallel coordinates."""
        return figures.parallel(
            self.rows,
            metric=self.request.metric,
            mode=self.request.mode,
            names=self._known(names),
            is_log=is_log,
            theme=self.theme,
        )

    def scatter(
        self, *, names: Sequence[str] = (), is_log: bool = False, epoch: int = 0, margin: int = 0
    ) -> Figure:
        """The objective over hyper-parameters: each model's best, or that of `epoch`."""
        return figures.scatter(
            self.rows,
            metric=self.request.metric,
            mode=self.request.mode,
            names=self._known(names),
            is_log=is_log,
            values=figures.values_at(self.run, epoch, margin=margin) if epoch else None,
            theme=self.theme,
        )

    def heatmap(self, *, x: str = "", y: str = "") -> Figure | None:
        """The best objective by two hyper-parameters: the two that matter most, where none are named.

        Returns:
            `None` if fewer than two vary and none are named.
        """
        shares = [share.name for share in self.importance_found().shares]
        likely = dict.fromkeys([*shares, *figures.varying(self.rows)])
        rest = [name for name in likely if name not in (x, y)]
        axes = [x or (rest.pop(0) if rest else ""), y or (rest.pop(0) if rest else "")]
        if not all(axes):
            return None
        self._known(axes)
        return figures.heatmap(
            self.rows,
            metric=self.request.metric,
            mode=self.request.mode,
            x=axes[0],
            y=axes[1],
            theme=self.theme,
        )

    def importance_found(self) -> figures.Importance:
        """How much each hyper-parameter matters."""
        return figures.importance_of(self.rows, mode=self.request.mode)

    def importance(self) -> Figure:
        """The same as bars."""
        return figures.importance(self.importance_found(), theme=self.theme)

    def schedule(self, *, highlight: str = "") -> Figure:
        """Which model was where when."""
        spans = figures.spans(self.run, self.now)
        workers = figures.worker_rows(self.state, spans)
        return figures.schedule(
            spans,
            workers=workers,
            models=tuple(self.run.models),
            landmarks=figures.landmarks(self.state, self.run, self.now),
            planned=figures.planned(self.run, self.now, devices=workers),
            beside=figures.beside_sub_epochs(self.run, self.now),
            highlight=highlight,
            theme=self.theme,
        )

    def _ranked(self, curves: list[Curve]) -> list[Curve]:
        rank = {row.id: place for place, row in enumerate(self.rows)}
        return sorted(curves, key=lambda curve: rank[curve.model])

    def _known(self, names: Sequence[str]) -> Sequence[str]:
        known = {name for row in self.rows for name in row.hyperparams}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise NotFoundError(
                f"{self.run.id} has no hyper-parameter {', '.join(unknown)}: there are {', '.join(sorted(known))}"
            )
        return names
