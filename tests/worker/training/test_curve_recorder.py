"""The curve of values reported during a sub-epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.tasks.bodies import Position, TrainTask
from cerebro.contract.tasks.results import MAX_POINTS, Curve
from cerebro.spec import Checkpoint, DataLoader
from cerebro.worker.training.curve_recorder import CurveRecorder
from tests.state.stories import DATASET, SHA
from tests.worker.training.handlers import ROWS, Linear, handler_of, volumes_in, write_split


def recorded(*values: Any, name: str = "loss") -> Curve | None:
    """Record one value per second."""
    seconds = count(1.0)
    recorder = CurveRecorder(0.0, lambda: next(seconds))
    for value in values:
        recorder.record({name: value})
    return recorder.curve()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300))
def test_all_reported_values_are_in_the_curve(values: list[float]) -> None:
    """Values are merged in order."""
    found = recorded(*values)
    assert found is not None
    assert len(found.points) <= MAX_POINTS
    assert sum(point.number for point in found.points) == len(values)
    begin = 0
    for point in found.points:
        part = values[begin : begin + point.number]
        assert point.mean == pytest.approx(sum(part) / len(part), abs=1e-6)
        assert point.seconds == pytest.approx(begin + (len(part) + 1) / 2)
        begin += point.number


def test_a_tensor_changed_later_keeps_its_recorded_value() -> None:
    """Users accumulate losses in one tensor, which may require a gradient."""
    running = torch.zeros(1, requires_grad=True)
    recorder = CurveRecorder(0.0, lambda: 1.0)
    for _ in range(3):
        with torch.no_grad():
            running += 1
        recorder.record({"loss": running})
    found = recorder.curve()
    assert found is not None
    assert [point.mean for point in found.points] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("value", ["none", None, torch.zeros(3)])
def test_without_a_number_there_is_no_curve(value: Any) -> None:
    assert recorded(value) is None


@pytest.mark.parametrize("value", [math.nan, -math.inf, torch.tensor(math.nan), 1.7e308])
def test_a_curve_reports_divergence(value: Any) -> None:
    """Divergence may start at the first or last value, including overflowing sums."""
    throughout, late = recorded(*[value] * 100), recorded(2.0, 1.0, math.nan)
    assert throughout == Curve(name="loss", points=(), has_diverged=True)
    assert late is not None
    assert (late.has_diverged, [point.mean for point in late.points]) == (True, [2.0, 1.0])
    for curve in (throughout, late):
        assert Curve.model_validate_json(curve.model_dump_json()) == curve


class Reporting(Linear):
    """Reports a number for each batch."""

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        for number, _ in enumerate(dataloader):
            dataloader.report(loss=float(number))
        return {"loss": 0.0}


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_sub_epoch_reports_its_curve_if_requested(tmp_path: Path, *, is_wanted: bool) -> None:
    """Its times are within the training time."""
    volumes = volumes_in(tmp_path)
    write_split(volumes, "train", 1)
    task = TrainTask(
        key="fit-1/train/m00/e1/p0",
        experiment="one",
        run="fit-1",
        model="m00",
        hyperparams={"batch_size": 7},
        code=SHA,
        dataset=DATASET,
        seed=0,
        hang_timeout_s=60,
        epoch=1,
        partition=0,
        sub_epoch=0,
        position=Position(),
        checkpoint=None,
        with_curve=is_wanted,
    )
    with handler_of(Reporting(), volumes) as handler:
        result = handler.handle(task, 1)
    if not is_wanted:
        assert result.curve is None
        return
    assert result.curve is not None
    assert [point.mean for point in result.curve.points] == [float(n) for n in range(-(-ROWS // 7))]
    assert result.curve.points[-1].seconds <= result.timings.compute_s
