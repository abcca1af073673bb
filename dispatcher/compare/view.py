"""Comparison of models of several experiments: values, hyperparameters and curves.

`pick` of the address names models as ``EXPERIMENT/MODEL`` (newest fit with this model) or ``EXPERIMENT/RUN/MODEL``.
Reads each experiment once, under its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

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
"""Maximum seconds to wait for all logs together."""


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
        is_complete: False while a log with a missing model is still being read.
        metric, mode: metric of the curves and its direction.
        metrics: all metrics, for a choice.
        winners: references of the best models, if all have the same objective.
    """

    models: tuple[ComparedModel, ...]
    missing: tuple[tuple[str, str], ...]
    is_complete: bool
    lines: Comparison
    metric: str
    mode: str
    metrics: tuple[str, ...]
    winners: frozenset[str]


def picked(pick: str) -> tuple[str, ...]:
    """Return the names in `pick` without duplicates, at most `MAX_MODELS`."""
    names = (name.strip().strip("/") for name in pick.split(","))
    return tuple(dict.fromkeys(name for name in names if name))[:MAX_MODELS]


def compared_version(reader: Reader, pick: str) -> Callable[[], object]:
    """Return a function whose result changes whenever the compared models change."""
    experiments = list(dict.fromkeys(name.partition("/")[0] for name in picked(pick)))

    def version_of(experiment: str) -> object:
        try:
            return reader.version(experiment)
        except CerebroError as error:
            return str(error)

    return lambda: tuple(map(version_of, experiments))


def compare(reader: Reader, query: CompareQuery, *, axis: Axis = "epoch") -> CompareView:
    """Read and compare the models of `query`."""
    names = picked(query.pick)
    by_experiment: dict[str, list[str]] = {}
    for name in names:
        by_experiment.setdefault(name.partition("/")[0], []).append(name)
    found: dict[str, ComparedModel] = {}
    reasons: dict[str, str] = {}
    metric, is_complete = query.metric, True
    deadline = reader.monotonic() + _READ_S
    for experiment, picks in by_experiment.items():
        try:
            read_models, is_read = reader.read(
                experiment,
                partial(_find_all, picks=picks, metric=metric, axis=axis),
                timeout_s=max(0.0, deadline - reader.monotonic()),
            )
        except CerebroError as error:
            reasons |= dict.fromkeys(picks, str(error))
            continue
        found |= read_models
        metric = metric or next((model.metric for model in read_models.values()), "")
        for name in picks:
            if name not in read_models:
                is_complete &= is_read
                reasons[name] = (
                    f"experiment {experiment!r} has no model {name.partition('/')[2]!r}"
                    if is_read
                    else f"the log of {experiment!r} is still being read"
                )
    models = tuple({found[name].reference: found[name] for name in names if name in found}.values())
    return CompareView(
        models=models,
        missing=tuple((name, reasons[name]) for name in names if name in reasons),
        is_complete=is_complete,
        lines=comparison([each.summary for each in models]),
        metric=metric,
        mode=next(
            (each.mode for each in models if each.metric == metric), models[0].mode if models else "min"
        ),
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


def _find_all(
    read_model: ReadModel, *, picks: Sequence[str], metric: str, axis: Axis
) -> tuple[dict[str, ComparedModel], bool]:
    """Return the picked models of one experiment by name, and whether its whole log was read."""
    found: dict[str, ComparedModel] = {}
    for name in picks:
        one = _find(read_model, name.partition("/")[2], metric, axis)
        if one is not None:
            found[name] = one
            metric = metric or one.metric
    return found, read_model.is_complete


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
