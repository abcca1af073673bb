"""Curves, parallel coordinates, scatter plot, heat map and importance show their data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from pydantic import JsonValue

from cerebro import figures
from cerebro.contract.records import Hyperparameters
from cerebro.figures import Curve, Figure, description, table
from cerebro.figures.curves import MAX_LINES
from cerebro.figures.parallel import MAX_LINES as MAX_PARALLEL
from cerebro.figures.parallel_axes import hyperparameter_axis, objective_axis
from tests.figures.samples import curve, row


def title(figure: Figure) -> str:
    return str(figure["layout"]["title"]["text"])


def traces(figure: Figure, role: str) -> list[dict[str, Any]]:
    return [trace for trace in figure["data"] if trace.get("meta", {}).get("role") == role]


def lines(figure: Figure) -> list[dict[str, Any]]:
    return [trace for trace in figure["data"] if "model" in trace.get("meta", {})]


# --- curves ------------------------------------------------------------------------------------------


def test_a_hundred_curves_are_drawn_and_the_title_states_the_limit() -> None:
    """The first ones; the caller ranks the models."""
    given = [curve(i, 3) for i in range(MAX_LINES + 5)]
    found = figures.curves(given, metric="loss", mode="min", total=10_000)
    assert {line["meta"]["model"] for line in lines(found)} == {c.model for c in given[:MAX_LINES]}
    assert title(found) == "loss: 100 of 10,000 models"


def test_models_of_a_figure_have_different_colours() -> None:
    """Positions in a large plan may share a colour; those drawn together don't. Without a conflict they keep theirs."""
    given = [curve(i, 3) for i in (0, 8, 16, 32, 40)]
    drawn = lines(figures.curves(given, metric="loss", mode="min"))
    assert len({line["line"]["color"] for line in drawn}) == len(given)
    (kept,) = (
        line
        for line in lines(figures.curves([curve(2), curve(3)], metric="l", mode="min"))
        if line["name"] == "m03"
    )
    (alone,) = lines(figures.curves([curve(3)], metric="l", mode="min"))
    assert kept["line"]["color"] == alone["line"]["color"]


def test_the_best_model_is_thick_and_labelled() -> None:
    given = [
        Curve(model=f"m0{i}", index=i, x=(1.0, 2.0), y=(value, 0.5))
        for i, value in enumerate((0.7, 0.9, 0.6))
    ]
    found = figures.curves(given, metric="accuracy", mode="max")
    widths = {line["name"]: line["line"]["width"] for line in lines(found)}
    assert [name for name, width in widths.items() if width == max(widths.values())] == ["m01"]
    (label,) = traces(found, "label")
    assert (label["text"], label["x"], label["y"]) == (["m01"], [2.0], [0.5])
    assert not traces(figures.curves(given[:1], metric="accuracy", mode="max"), "label")


@pytest.mark.parametrize("weight", [1.0, -0.1])
def test_smoothing_beyond_its_range_is_refused(weight: float) -> None:
    """With a weight of one the curve would never move."""
    with pytest.raises(ValueError, match="expected 0"):
        figures.curves([curve(0)], metric="loss", mode="min", smoothing=weight)


def test_a_cross_has_a_position_on_a_logarithmic_axis() -> None:
    """Zero and negative values have no position, so the cross is at the last positive value, or below all curves."""
    given = [
        Curve(model="m00", index=0, x=(1.0, 2.0), y=(0.5, 0.0), broke_at=3.0),
        Curve(model="m01", index=1, x=(), y=(), broke_at=1.0),
        Curve(model="m02", index=2, x=(1.0,), y=(-7.0,)),
    ]
    (log,) = traces(figures.curves(given, metric="loss", mode="min", is_log=True), "broke")
    assert log["y"] == [0.5, 0.25]
    (linear,) = traces(figures.curves(given, metric="loss", mode="min"), "broke")
    assert linear["y"] == [0.0, -7.375]
    (nothing,) = traces(figures.curves(given[2:] + given[1:2], metric="l", mode="min", is_log=True), "broke")
    assert nothing["y"] == [1.0]


def test_the_cross_of_a_model_without_a_value_is_on_no_curve() -> None:
    """In its model's colour, below all values, on both kinds of axes."""
    given = [curve(0, 5), curve(1, 5), curve(2, 0, broke_at=3.0)]
    for is_log in (False, True):
        (broke,) = traces(figures.curves(given, metric="loss", mode="min", is_log=is_log), "broke")
        assert broke["y"][0] < min(y for each in given for y in each.y)
        assert broke["marker"]["color"] == [figures.colour(2, "light")]
        assert not is_log or broke["y"][0] > 0


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_description_names_the_first_of_equal_models(mode: Literal["min", "max"]) -> None:
    """As in tables and reports; the id does not matter."""
    given = [
        Curve(model=name, index=index, x=(1.0,), y=(0.5,), best_at=0)
        for index, name in enumerate(("m10", "m09", "m11"))
    ]
    for drawn in (given, given[::-1]):
        said = figures.curves(drawn, metric="loss", mode=mode)
        assert "The best value is 0.5, of m10." in description(said)


# --- parallel coordinates ----------------------------------------------------------------------------


def test_with_thousands_of_models_the_best_and_a_stated_sample_are_drawn() -> None:
    """The best 800, and a regular sample of the others."""
    given = [row(i, float(i), {"lr": 0.001 * (i + 1), "n": i % 7}) for i in range(5000)]
    found = figures.parallel(given, metric="loss", mode="min")
    drawn = {model for trace in traces(found, "scored") for (model,) in trace["customdata"]}
    assert len(drawn) <= MAX_PARALLEL
    assert {f"m{i:02}" for i in range(800)} <= drawn
    assert title(found).startswith("Hyperparameters and loss: 1,000 of 5,000 models, the best and every 21th")


@pytest.mark.parametrize(
    "unseen",
    [{"lr": 0.1, "opt": "rmsprop"}, {"lr": 0.0, "opt": "adam"}, {"lr": -1.0, "opt": "sgd"}, {"opt": "adam"}],
)
def test_a_failed_model_with_a_unique_value_is_drawn(unseen: Hyperparameters) -> None:
    """The axes include every drawn model, for any number of models."""
    given = [row(i, float(i), {"lr": 10.0 ** -(i % 5), "opt": ("adam", "sgd")[i % 2]}) for i in range(1200)]
    failed = [row(2000 + i, None, unseen, is_failed=True) for i in range(300)]
    found = figures.parallel([*given, *failed], metric="loss", mode="min")
    dashed = {model for trace in traces(found, "failed") for (model,) in trace["customdata"]}
    scored = {model for trace in traces(found, "scored") for (model,) in trace["customdata"]}
    assert len(dashed) >= 100
    assert dashed == {model.id for model in failed[: len(dashed)]}
    assert len(scored) + len(dashed) <= MAX_PARALLEL
    assert f"{len(scored) + len(dashed):,} of 1,500 models" in title(found)


@pytest.mark.parametrize(
    ("low", "high"), [(1.1012, 1.1284), (0.99999991, 0.99999993), (0.0, 1e-300), (-1.7e308, 1.7e308)]
)
def test_tick_labels_of_an_axis_are_distinct(low: float, high: float) -> None:
    """With as many digits as needed, in axis order, for any finite values."""
    axis = objective_axis("loss", [low, high], "min", is_log=False)
    ticks = axis.ticks()
    assert [place for place, _ in ticks] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])
    assert len({label for _, label in ticks}) == 5
    assert [float(label) for _, label in ticks] == sorted(float(label) for _, label in ticks)


@pytest.mark.parametrize(("values", "kind"), [(range(1, 12), "linear"), ([2**i for i in range(9)], "log")])
def test_ticks_of_integers_are_integers(values: Sequence[int], kind: str) -> None:
    """Layer counts have no fractions."""
    axis = hyperparameter_axis("layers", list(values))
    assert axis.scale.kind == kind
    for place, label in axis.ticks():
        assert axis.position(int(label)) == pytest.approx(place)
    few = hyperparameter_axis("layers", [1, 2, 1])
    assert few.ticks() == [(0.0, "1"), (1.0, "2")]


def test_similar_values_have_their_own_positions() -> None:
    """With six digits they look the same; axis, panel and cell distinguish them."""
    kinds: list[JsonValue] = [1, "1", 2]
    given = [row(i, float(i), {"seed": 1_000_001.0 + i, "kind": kind}) for i, kind in enumerate(kinds)]
    for name, labels in (("seed", ["1000001", "1000002", "1000003"]), ("kind", ["1", "2", '"1"'])):
        axis = hyperparameter_axis(name, [model.hyperparams[name] for model in given])
        assert [label for _, label in axis.ticks()] == labels
    found = figures.scatter(given, metric="loss", mode="min")
    assert found["layout"]["xaxis"]["ticktext"] == ["1000001", "1000002", "1000003"]
    assert found["data"][1]["x"] == [0, 2, 1]
    cells = figures.heatmap(given, metric="loss", mode="min", x="seed", y="kind")
    assert [len([z for z in level if z is not None]) for level in cells["data"][0]["z"]] == [1, 1, 1]


# --- scatter, heat map, importance -------------------------------------------------------------------


def test_all_figures_choose_the_same_axis_for_a_hyperparameter() -> None:
    """From all tried values, though a figure shows only models with a result."""
    scored = [row(i, float(i), {"lr": lr}) for i, lr in enumerate([0.04, 0.05, 0.1])]
    failed = [row(3 + i, None, {"lr": lr}, is_failed=True) for i, lr in enumerate([0.0001, 0.001, 0.01])]
    running = [row(6 + i, None, {"lr": lr}) for i, lr in enumerate([0.0001, 0.001, 0.01])]
    for given in ([*scored, *failed], [*scored, *failed, *running], [*scored, *running]):
        scatter = figures.scatter(given, metric="loss", mode="min")["layout"]["xaxis"]["type"]
        parallel = figures.parallel(given, metric="loss", mode="min")["layout"]["meta"]["axes"][0]["kind"]
        assert (scatter, parallel) == ("log", "log")


def test_a_cell_has_the_best_of_its_models() -> None:
    """With their number; an untried pair is empty."""
    given = [
        row(0, 3.0, {"a": 1, "b": "x"}),
        row(1, 1.0, {"a": 1, "b": "x"}),
        row(2, 7.0, {"a": 2, "b": "y"}),
    ]
    found = figures.heatmap(given, metric="loss", mode="min", x="a", y="b")
    assert found["data"][0]["z"] == [[1.0, None], [None, 7.0]]
    assert found["data"][0]["customdata"][0][0] == ["m01"]
    assert "2 models" in found["data"][0]["hovertext"][0][0]
    assert [list(line) for line in table(found).rows] == [
        ["1", "x", 1.0, "m01", 2],
        ["2", "y", 7.0, "m02", 1],
    ]
    best = figures.heatmap(given, metric="loss", mode="max", x="a", y="b")
    assert best["data"][0]["z"][0][0] == 3.0
    assert best["data"][0]["colorscale"] != found["data"][0]["colorscale"]
