"""Forecasts of a fit on a real cluster, compared with the actual end."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cerebro import Budget, Limits
from cerebro.contract.events import ForecastMade, RunPaused
from cerebro.state import RunState
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining


class Slow(TinyTraining):
    """A sub-epoch takes a second while the file `brake` exists."""

    def __init__(self, brake: Path) -> None:
        super().__init__()
        self.brake = str(brake)
        brake.touch()

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        if Path(self.brake).exists():
            time.sleep(1)
        return super().train(models, checkpoint, dataloader, hyperparams)


@pytest.fixture
def brake(tmp_path: Path) -> Path:
    return tmp_path / "brake"


@pytest.mark.slow
def test_a_fit_has_a_forecast_of_its_end_and_goal(lab: Lab, prepared: str, brake: Path) -> None:
    """The log and the status show the forecast during the fit; the status compares it with the end.

    A goal that cannot be kept is reported. The fit is long enough that the forecast comes first.
    """
    experiment = lab.attach(prepared)
    log = lab.log(experiment)
    log.skip()
    limits = Limits(finish_by=timedelta(seconds=15), workers=(1, 2))
    fit = lab.fit(experiment, Slow(brake), tags="abcdef", epochs=200, limits=limits)
    event = log.until_type("ForecastMade")
    assert isinstance(event, ForecastMade)
    assert event.workers == 2
    said = experiment.status()
    assert "forecast: ends at" in said
    assert "the goal cannot be kept: to end by" in said
    assert "2 are allowed" in said
    experiment.stop()
    with pytest.warns(UserWarning, match="was stopped by"):
        lab.result(fit, experiment)
    run = log.state().runs[event.run]
    assert "forecast: was to end at" in experiment.status()
    # Accuracy is tested in virtual time, since this machine may have become busier.
    assert run.clock.started < event.time < event.time + event.end.p50_s


@pytest.mark.slow
def test_a_spent_budget_pauses_a_fit_until_a_user_resumes_it(lab: Lab, prepared: str, brake: Path) -> None:
    """The status has the reason; the resumed fit loses no work."""
    experiment = lab.attach(prepared)
    log = lab.log(experiment)
    log.skip()
    fit = lab.fit(
        experiment, Slow(brake), tags="abcdef", epochs=4, limits=Limits(budget=Budget(worker_hours=4 / 3600))
    )
    paused = log.until_type("RunPaused")
    assert isinstance(paused, RunPaused)
    assert log.state().runs[paused.run].state is RunState.PAUSED
    assert "worker-hours is spent" in experiment.status()
    brake.unlink()
    experiment.resume()
    assert lab.result(fit, experiment).failures() == {}
    lab.check(experiment)
