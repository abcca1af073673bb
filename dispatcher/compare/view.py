"""Comparison of models of several experiments: values, hyperparameters and curves.

`pick` of the address names models as ``EXPERIMENT/MODEL`` (newest fit with this model) or ``EXPERIMENT/RUN/MODEL``.
Reads each experiment once, under its lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from cerebro import figures
from cerebro.contract.base import Contract
from cerebro.errors import CerebroError
from cerebro.figures import Axis, Curve, Figure, ModelSummary, Theme
from cerebro.figures.curves import epoch_curves, shown_split
from dispatcher.models.comparison import MAX_MODELS, Comparison, comparison
from dispatcher.pages.drawing import empty_drawing
from dispatcher.read_models.read_model import ReadModel
from dispatcher.read_models.reader import Reader

_READ_S = 2.0
"""Maximum seconds to wait for the log of each experiment."""


class CompareQuery(Contract):
    """`pick`: models separated by commas, at most 50. `metric`: default: the objective of the first model."""

    pick: str = Field("", max_length=8000)
    metric: str = Field("", max_length=200)


class CompareFigureQuery(CompareQuery):
    """Curves of the compared models. `log`: logarithmic y axis. `smoothing`: weight of earlier values."""

    axis: Axis = "epoch"
    log: bool = False
    smoothing: float = Field(0.0, ge=0, lt=1)
    theme: Theme = "light"


@dataclass(frozen=True, kw_only=True)
class ComparedModel:
    """A model with its run. `reference`: ``EXPERIMENT/RUN/MODEL``."""

    experiment: str
    run: str
    summary: ModelSummary
    metric: str
    mode: str
    curve: Curve | None

    @property
    def reference(self) -> str:
        """The model's name in `pick`."""
        return f"{self.experiment}/{self.run}/{self.summary.id}"

    @property
    def label(self) -> str:
        """Short name, as the legend shows it."""
        return f"{self.experiment}/{self.summary.id}"


@dataclass(frozen=True, kw_only=True)
class CompareView:
    """The compared models.

    Attributes:
        missing: (name in `pick`, reason) of each model that was not found.
        metric, mode: metric of the curves and its direction.
        metrics: all metrics, for a choice.
        winners: references of the best models, if all have the same objective.
    """

    models: tuple[ComparedModel, ...]
    missing: tuple[tuple[str, str], ...]
    lines: Comparison
    metric: str
    mode: str
    metrics: tuple[str, ...]
    winners: frozenset[str]


def picked(pick: str) -> tuple[str, ...]:
    """Return the names in `pick` without duplicates, at most `MAX_MODELS`."""
    names = (name.strip().strip("/") for name in pick.split(","))
    return tuple(dict.fromkeys(name for name in names if name))[:MAX_MODELS]


def compare(reader: Reader, query: CompareQuery, *, axis: Axis = "epoch") -> CompareView:
    """Read and compare the models of `query`."""
    found: dict[str, ComparedModel] = {}
    missing: list[tuple[str, str]] = []
    metric = query.metric
    for name in picked(query.pick):
        experiment, _, rest = name.partition("/")
        try:
            one = reader.read(
                experiment,
                lambda read_model, rest=rest, metric=metric: _find(read_model, rest, metric, axis),  # type: ignore[misc]
                timeout_s=_READ_S,
            )
        except CerebroError as error:
            missing.append((name, str(error)))
            continue
        if one is None:
            missing.append((name, f"experiment {experiment!r} has no model {rest!r}"))
        else:
            found.setdefault(one.reference, one)
            metric = metric or one.metric
    models = tuple(found.values())
    first = models[0] if models else None
    return CompareView(
        models=models,
        missing=tuple(missing),
        lines=comparison([each.summary for each in models]),
        metric=metric,
        mode=first.mode if first else "min",
        metrics=tuple(
            dict.fromkeys(name for each in models for name in (each.metric, *each.summary.metrics))
        ),
        winners=_winners(models),
    )


def compare_figure(view: CompareView, query: CompareFigureQuery) -> Figure:
    """Draw the curves of the compared models over each other; colours follow the order of selection."""
    curves = [
        replace(each.curve, model=each.label, index=index, parent="", branch=None)
        for index, each in enumerate(view.models)
        if each.curve is not None
    ]
    if not view.models:
        return empty_drawing("Select models to compare.")()
    return figures.curves(
        curves,
        metric=view.metric,
        mode="max" if view.mode == "max" else "min",
        axis=query.axis,
        is_log=query.log,
        smoothing=query.smoothing,
        total=len(view.models),
        is_ranked=all((each.metric, each.mode) == (view.metric, view.mode) for each in view.models),
        theme=query.theme,
    )


def _find(read_model: ReadModel, rest: str, metric: str, axis: Axis) -> ComparedModel | None:
    name, _, model = rest.partition("/")
    fits = read_model.fits()
    candidates = [(name, model)] if model and name in fits else [(fit, rest) for fit in reversed([*fits])]
    for fit, wanted in candidates:
        run = read_model.fit(fit)
        row = read_model.table(run).row(wanted) if run is not None else None
        if run is None or row is None:
            continue
        request = run.fit_request
        curves = epoch_curves(
            run, metric or request.metric, models={row.id}, split=shown_split(run), axis=axis
        )
        return ComparedModel(
            experiment=read_model.record.name,
            run=run.id,
            summary=row,
            metric=request.metric,
            mode=request.mode,
            curve=curves[0] if curves else None,
        )
    return None


def _winners(models: Sequence[ComparedModel]) -> frozenset[str]:
    values = [each.summary.best for each in models if each.summary.best is not None]
    if not values or len({(each.metric, each.mode) for each in models}) > 1:
        return frozenset()
    best = (max if models[0].mode == "max" else min)(values)
    return frozenset(each.reference for each in models if each.summary.best == best)
