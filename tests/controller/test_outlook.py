"""Use of running sub-epochs in forecasts."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.scheduling.estimates import Estimates
from cerebro.state import TaskState
from controller.scaling.autoscaler.outlook import _running
from tests.state.stories import Story, sub_epoch


@pytest.mark.parametrize("slower", [1.0, 4.0])
def test_a_slow_worker_does_not_make_its_model_look_slow(slower: float) -> None:
    """Its run time is divided by the worker's slowness."""
    story, estimates = Story(workers=3), Estimates()
    story.fit(models=4, partitions=3, epochs=9)
    for number in range(90):
        worker = number % 3
        took = 10.0 * (slower if worker == 0 else 1.0)
        estimates.observe(f"m{number % 4:02}", f"worker-{worker}", rows=10, seconds=took, fixed_s=0.0)
    estimates.settle()
    key = sub_epoch(1, 0, "m00")
    story.start(key, 0)
    task = story.run.tasks.open[str(key)]
    assert task.state is TaskState.RUNNING
    fit: Any = SimpleNamespace(
        rows={0: 10},
        dispatch_state=SimpleNamespace(now=task.attempts[-1].started + 8.0 * slower),
        times=SimpleNamespace(estimates=estimates),
        names=SimpleNamespace(model=lambda name: int(name[1:])),
    )
    (found,) = _running(story.run, fit).values()
    # Estimates compare with the median of three workers, one of them slow.
    slowness = estimates.slowness("worker-0")[0]
    assert found == pytest.approx(math.log(0.8 * slower) - slowness)
    assert (slowness > 0.5) == (slower > 1.0)
