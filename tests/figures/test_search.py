"""Figures of searches: best value so far, rungs and contours."""

from __future__ import annotations

import math

import pytest

from cerebro import figures
from cerebro.figures import Figure, ModelSummary, ProgressAxis, table
from cerebro.state.experiment import fold
from cerebro.state.runs.rungs import rungs
from tests.dispatcher.search_logs import log_of
from tests.figures.samples import row


@pytest.mark.parametrize("name", ["asha", "pbt"])
@pytest.mark.parametrize("axis", ["model", "time", "epoch"])
def test_the_best_so_far_ends_at_the_best_value_of_the_run(name: str, axis: ProgressAxis) -> None:
    """The line only improves, and inherited epochs count once."""
    run = fold(name, log_of(name)).runs["fit-1"]
    mode = run.fit_request.mode
    found = figures.observations(run, axis)
    assert [each.x for each in found] == sorted(each.x for each in found)
    best = (max if mode == "max" else min)(
        each.best for each in figures.summaries(run) if each.best is not None
    )
    drawn = figures.best_so_far(found, metric="loss", mode=mode, axis_unit=axis)
    steps = drawn["data"][1]["y"]
    assert steps == sorted(steps, reverse=mode == "min")
    assert steps[-1] == pytest.approx(best)
    if axis == "epoch":
        assert found[-1].x <= sum(model.own_epochs for model in run.models.values())


def test_rungs_show_each_outcome_once_per_model_and_rung() -> None:
    """Dots at rungs equal the rows of the rung tables."""
    run = fold("asha", log_of("asha")).runs["fit-1"]
    found = rungs(run)
    drawn = figures.rungs(found, metric="loss", mode="min")
    dots = [trace for trace in drawn["data"] if trace["mode"] == "markers"]
    valued = [each for rung in found for each in rung.models if each.value is not None]
    assert sum(len(trace["x"]) for trace in dots) == len(valued)
    promoted = next(trace for trace in dots if trace["name"] == "promoted")
    assert len(promoted["x"]) == sum(rung.count("goes on") for rung in found)


def contour(rows: list[ModelSummary], y: str = "y") -> Figure:
    return figures.contour(rows, metric="loss", mode="min", x="lr", y=y)


def test_contours_use_logarithmic_axes_and_a_row_for_absent_values() -> None:
    """A conditional hyperparameter has the category "(absent)"."""
    rows = [
        row(index, float(index), {"lr": 10.0**-index, **({"y": index} if index % 2 else {})})
        for index in range(6)
    ]
    drawn = contour(rows)
    assert drawn["layout"]["xaxis"]["type"] == "log"
    assert drawn["layout"]["yaxis"]["ticktext"][-1] == "(absent)"
    assert len(table(drawn).rows) == 6


def test_contours_equal_the_values_at_models_and_stay_between_them() -> None:
    """The surface passes through models on the grid and never exceeds their range."""
    rows = [row(index, float(value), {"lr": x, "y": y}) for index, (x, y, value) in enumerate(
        [(0.0, 0.0, 3), (1.0, 0.0, 1), (0.0, 1.0, 2), (1.0, 1.0, 8)]
    )]  # fmt: skip
    z = contour(rows)["data"][0]["z"]
    assert z[0][0] == pytest.approx(3, rel=0.01)
    assert z[-1][-1] == pytest.approx(8, rel=0.01)
    assert all(1 <= value <= 8 and math.isfinite(value) for level in z for value in level)


def test_contours_of_models_without_a_value_or_with_equal_values_are_drawn_without_a_surface() -> None:
    """Models without a value are not drawn; two models are too few for a surface."""
    drawn = contour([row(0, 1.0, {"lr": 1.0, "y": 2.0}), row(1, None, {"lr": 2.0, "y": 2.0})])
    assert [trace["type"] for trace in drawn["data"]] == ["scatter"]
    assert contour([row(0, None)])["layout"]["meta"]["empty"] == "no model has a value of loss yet"


def test_contours_over_many_categories_are_drawn_without_a_surface() -> None:
    """A surface would take categories x categories x models steps."""
    rows = [row(index, float(index), {"lr": f"a{index}", "y": f"b{index}"}) for index in range(30)]
    assert [trace["type"] for trace in contour(rows)["data"]] == ["scatter"]
