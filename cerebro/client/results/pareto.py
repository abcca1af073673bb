"""Columns and tables of fits with several objectives or constraints."""

from __future__ import annotations

from typing import Any

import pandas as pd

from cerebro.client.results.tables import cell, merge_columns
from cerebro.contract.runs import FitRequest
from cerebro.state import Run
from cerebro.state.models.best import RankedModel, ranked_models
from cerebro.state.runs.compared_values import compared_values


def value_columns(run: Run, row: RankedModel) -> dict[str, Any]:
    """Return the metric's column; with several objectives or constraints, each one, ``front`` and ``feasible``."""
    request = run.fit_request
    if not request.is_multi_objective:
        return {request.metric: row.value}
    values = compared_values(run, row.model, row.epoch) if row.epoch else {}
    return {name: values.get(name) for name in request.compared_names} | {
        "front": row.rank or None,
        "feasible": row.point.is_feasible if row.rank else None,
    }


def value_types(request: FitRequest) -> dict[str, str]:
    """Return the dtypes of these columns."""
    if not request.is_multi_objective:
        return {request.metric: "float64"}
    return dict.fromkeys(request.compared_names, "float64") | {"front": "Int64", "feasible": "boolean"}


def pareto_table(run: Run) -> pd.DataFrame:
    """Return the models that no other one dominates; see `FitResult.pareto`."""
    request = run.fit_request
    objectives = request.objectives or {request.metric: request.mode}
    names = tuple(dict.fromkeys((*objectives, *(each.name for each in request.constraints))))
    first = {True: 0, False: 0}
    rows = []
    for row in _with_ranks(run):
        is_feasible = row.point.is_feasible
        first[is_feasible] = first[is_feasible] or row.rank
        if row.rank != first[is_feasible] or row.epoch is None:
            continue
        values = compared_values(run, row.model, row.epoch)
        facts = {"model": row.model.id, "feasible": is_feasible} | {name: values.get(name) for name in names}
        facts["best_epoch"] = row.epoch
        hyperparams = {name: cell(value) for name, value in row.model.hyperparams_shown(row.epoch).items()}
        rows.append(merge_columns(facts, hyperparams, "hyperparameter"))
    columns = None if rows else ["model", "feasible", *names, "best_epoch"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(names, "float64"))


def _with_ranks(run: Run) -> list[RankedModel]:
    """Return the models with a value, best first. With one objective, the first ones have its best value."""
    known = [row for row in ranked_models(run) if row.value is not None]
    if run.fit_request.is_multi_objective or not known:
        return known
    return [row for row in known if row.value == known[0].value]
