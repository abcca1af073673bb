"""Live metrics as series: bounded, without superseded points, and with every spike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest

from cerebro.contract.events import LivePoint
from dispatcher.read_models import live_series as live
from dispatcher.read_models.live_series import LiveSeries

TASK = "fit-1/train/m00/e1/p0"


def points(task: str, values: list[float], *, attempt: int = 1, name: str = "loss") -> Iterator[LivePoint]:
    for batch, value in enumerate(values, start=1):
        yield LivePoint(
            seq=batch, time=100.0 + batch, task=task, attempt=attempt, rows=10 * batch, values={name: value}
        )


def values(series: LiveSeries, model: str = "m00", name: str = "loss") -> list[float]:
    return [point.value for point in series.line("fit-1", model, name)]


def test_points_of_a_model_form_one_line_over_its_sub_epochs() -> None:
    series = LiveSeries()
    series.add(points(TASK, [3.0, 2.0]))
    series.add(points("fit-1/train/m00/e1/p1", [1.0]))
    assert values(series) == [3.0, 2.0, 1.0]
    assert [point.span.partition for point in series.line("fit-1", "m00", "loss")] == [0, 0, 1]
    assert [point.rows for point in series.line("fit-1", "m00", "loss")] == [10, 20, 10]
    assert series.metrics("fit-1") == ("loss",)
    assert series.metrics("fit-2") == ()


def test_points_of_a_superseded_attempt_are_dropped() -> None:
    series = LiveSeries()
    series.add(points("fit-1/train/m00/e1/p1", [5.0]))
    series.add(points(TASK, [4.0, 3.0]))
    series.add(points(TASK, [2.0], attempt=2))
    assert values(series) == [5.0, 2.0]
    assert len(series) == 2


def test_a_late_point_of_an_earlier_attempt_is_ignored() -> None:
    series = LiveSeries()
    series.add(points(TASK, [2.0], attempt=2))
    series.add(points(TASK, [9.0], attempt=1))
    assert values(series) == [2.0]
    assert series.newest[TASK].attempt == 2


def test_non_finite_values_are_located_but_not_drawn() -> None:
    series = LiveSeries()
    series.add(points(TASK, [1.0, math.nan, math.inf, 0.5]))
    broke = series.broke("fit-1", "m00", "loss")
    assert values(series) == [1.0, 0.5]
    assert broke is not None
    assert broke.rows == 20
    series.add(points(TASK, [1.0], attempt=2))
    assert series.broke("fit-1", "m00", "loss") is None


def test_a_long_line_is_downsampled_and_keeps_spikes_and_end() -> None:
    series = LiveSeries()
    line_values = [0.5] * (3 * live.MAX_LINE_POINTS)
    line_values[777], line_values[888], line_values[-1] = 9.0, -9.0, 0.25
    series.add(points(TASK, line_values))
    kept = values(series)
    assert len(kept) <= 2 * live.MAX_LINE_POINTS
    assert max(kept) == 9.0
    assert min(kept) == -9.0
    assert kept[-1] == 0.25


def test_all_lines_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_POINTS", 2_000)
    monkeypatch.setattr(live, "MAX_LINES", 20)
    series = LiveSeries()
    for chunk, model in itertools.product(range(40), range(30)):
        series.add(points(f"fit-1/train/m{model:02}/e1/p0", [float(chunk)] * 10))
    assert len(series) <= 2_000 + 30 * 10
    assert values(series, "m25") == []  # m25 is beyond the limit of series
    assert values(series, "m00")[-1] == 39.0
