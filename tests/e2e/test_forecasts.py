"""A forecast on a real cluster, beside what came true."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from cerebro import Budget
from cerebro.contract.events import ForecastMade
from cerebro.state import RunState
from tests.e2e.conftest import MakeLab
from tests.e2e.specs import TinyTraining

_SUB_EPOCH_S = 0.5


class Slow(TinyTraining):
    """A sub-epoch takes half a second."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """See `SubEpochSpec`."""
        time.sleep(_SUB_EPOCH_S)
        return super().train(models, checkpoint, dataloader, hyperparams)


@pytest.mark.slow
def test_a_fit_is_told_when_it_ends_and_what_its_goal_takes(own_lab: MakeLab) -> None:
    """In the log and in the status while it runs, and beside the truth once it has ended; a goal that cannot be kept is
    told with what it takes."""
    lab = own_lab()
    experiment = lab.prepared()
    log = lab.log(experiment)
    fit = lab.fit(
        experiment, Slow(), tags="abcdef", epochs=8, finish_by=timedelta(seconds=15), workers=(1, 2)
    )
    made = log.until_type("ForecastMade")
    assert isinstance(made, ForecastMade)
    assert made.workers == 2
    said = experiment.status()
    assert "forecast: ends at" in said
    assert "the goal cannot be kept: to end by" in said
    assert "2 are allowed" in said
    assert lab.result(fit, experiment).failures() == {}
    run = log.state().runs["fit-1"]
    assert "forecast: was to end at" in experiment.status()
    # How near it comes is shown in virtual time: here the machine may have become busier since.
    assert run.started < made.time < made.time + made.end.p50_s


@pytest.mark.slow
def test_a_spent_budget_pauses_a_fit_until_somebody_resumes_it(own_lab: MakeLab) -> None:
    """The reason is in the status; nothing is lost by it."""
    lab = own_lab()
    experiment = lab.prepared()
    log = lab.log(experiment)
    budget = Budget(worker_hours=2 * 6 / 3600)
    fit = lab.fit(experiment, Slow(), tags="abcdef", epochs=4, budget=budget)
    log.until_type("RunPaused")
    assert log.state().runs["fit-1"].state is RunState.PAUSED
    assert "worker-hours is spent" in experiment.status()
    experiment.resume()
    assert lab.result(fit, experiment).failures() == {}
    lab.check(experiment)
