"""The autoscaler on a run: its reports and size requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cerebro.contract.events import ForecastMade, RunResumed
from cerebro.contract.runs import FitRequest, Goal
from cerebro.state import RunState
from cerebro.state.experiment import fold
from cerebro.state.runs.goals import forecast_lines, worker_hours
from controller.scaling.autoscaler.autoscaler import Autoscaler, Rules, SizeHistory
from research.simulation.cluster import Simulation
from research.simulation.inline import InlinePlanner
from research.simulation.scenario import EXPERIMENT, Scenario, WorkerOutage
from tests.controller.test_core import assert_exclusive, own_partition, plan, request
from tests.controller.test_workers_change import at_speed, remade

SUB_EPOCH_S, ETL_S = 60.0, 5.0


def goal_request(goal: Goal, models: int = 8, epochs: int = 4) -> FitRequest:
    return request(models, epochs).model_copy(update={"goal": goal})


def simulated(
    goal: Goal = Goal(),  # noqa: B008 - it is immutable
    *,
    rules: Rules = Rules(),  # noqa: B008
    process: InlinePlanner | None = None,
    workers: int = 4,
    steps: int | None = None,
    **scenario: Any,
) -> Simulation:
    """Simulate a run in pods with an autoscaler, until it finishes or for `steps` steps."""
    scene = Scenario(
        replicas=own_partition(workers),
        sub_epoch_time=at_speed(etl_s=ETL_S, sub_epoch_s=SUB_EPOCH_S),
        has_pods=True,
        lease_s=30.0,
        **scenario,
    )
    autoscaler = Autoscaler(process or InlinePlanner(), rules)
    simulation = Simulation(scene, goal_request(goal), plan(8, workers), autoscaler=autoscaler)
    if steps is None:
        simulation.run()
    else:
        with pytest.raises(RuntimeError, match="no end"):
            simulation.run(limit=steps)
    return simulation


@pytest.fixture(scope="module")
def finished() -> Simulation:
    """An undisturbed run."""
    return simulated()


def forecasts(simulation: Simulation) -> list[ForecastMade]:
    return [event for event in simulation.log if isinstance(event, ForecastMade)]


@pytest.mark.slow
def test_forecasts_of_the_end_are_reported_and_accurate(finished: Simulation) -> None:
    """At most six events, because unchanged forecasts are not repeated. The first forecast assumes noise that
    is absent."""
    forecast_events = forecasts(finished)
    assert 1 <= len(forecast_events) <= 6
    for each in forecast_events:
        assert each.time + each.end.p50_s == pytest.approx(
            finished.now, rel=0.05 if each is not forecast_events[0] else 0.08
        )
    run = fold(EXPERIMENT, finished.log).runs["fit-1"]
    assert run.scheduling.forecasts == forecast_events
    (line,) = forecast_lines(run, finished.now)
    assert line.startswith("forecast: was to end at")
    assert "; it ended at " in line


def test_a_late_forecast_is_not_reported() -> None:
    """The answer arrives after half of the run, when the question is too old."""

    class Late(InlinePlanner):
        looks = 0

        def answer(self) -> dict[str, Any] | None:
            self.looks += 1
            return super().answer() if self.looks % 300 == 0 else None

    process = Late()
    assert forecasts(simulated(process=process)) == []
    assert len(process.requests) > 1


@pytest.mark.slow
def test_the_requirements_of_a_goal_are_reported_after_the_first_sub_epochs() -> None:
    """The required workers, the feasible deadline, and the permitted number of workers."""
    simulation = simulated(Goal(finish_by=600.0, workers=(1, 4)), steps=60)
    first = forecasts(simulation)[0]
    assert first.allowed_workers == 4
    state = fold(EXPERIMENT, [e for e in simulation.log if e.seq <= first.seq])
    lines = forecast_lines(state.runs["fit-1"], first.time)
    assert any("needs " in line or "cannot be had" in line for line in lines)
    assert any("4 are allowed" in line for line in lines)


def test_a_spent_budget_pauses_the_run_once() -> None:
    """The pause has a reason, and a resumed run continues."""
    hours = 4 * 600 / 3600
    simulation = Simulation(
        Scenario(
            replicas=own_partition(4),
            sub_epoch_time=at_speed(etl_s=ETL_S, sub_epoch_s=SUB_EPOCH_S),
            has_pods=True,
            lease_s=30,
        ),
        goal_request(Goal(worker_hours=hours)),
        plan(8, 4),
    )
    with pytest.raises(RuntimeError, match="no end"):
        simulation.run(limit=1000)
    state = fold(EXPERIMENT, simulation.log)
    run = state.runs["fit-1"]
    assert run.state is RunState.PAUSED
    assert "its budget of 0.666667 worker-hours is spent. Resume it" in run.pause.reason
    assert worker_hours(state, run, simulation.now) == pytest.approx(hours, rel=0.15)
    simulation.store.append(EXPERIMENT, RunResumed(run="fit-1", by="ada"))
    assert simulation.run(is_begun=True).runs["fit-1"].state is RunState.FINISHED


class Answering:
    """A planner process with fixed answers."""

    def __init__(self, ends: Mapping[int, float]) -> None:
        self.ends, self.num_requests = ends, 0
        self._is_asked = False

    def send(self, message: Mapping[str, Any]) -> None:
        json.dumps(message)
        self.num_requests += 1
        self._is_asked = True

    def answer(self) -> dict[str, Any] | None:
        was_asked, self._is_asked = self._is_asked, False
        return {"ends": [[n, s, 1.05 * s] for n, s in self.ends.items()]} if was_asked else None

    def stop(self) -> None:
        self._is_asked = False


ACTING = Rules(mode="act", most=8, can_act=True, join_s=1.0)


def half_way(workers: int = 4) -> Simulation:
    """A half-finished run with known sub-epoch times."""
    scene = Scenario(
        replicas=own_partition(workers),
        sub_epoch_time=at_speed(etl_s=ETL_S, sub_epoch_s=SUB_EPOCH_S),
        has_pods=True,
        lease_s=30,
    )
    simulation = Simulation(scene, goal_request(Goal(finish_by=20_000.0), epochs=20), plan(8, workers))
    with pytest.raises(RuntimeError, match="no end"):
        simulation.run(limit=400)
    return simulation


def next_forecast(
    simulation: Simulation,
    autoscaler: Autoscaler,
    size_history: SizeHistory = SizeHistory(),  # noqa: B008
) -> ForecastMade | None:
    """Send the question, then read the answer."""
    return autoscaler.update(simulation.core, simulation.now, lambda: size_history) or autoscaler.update(
        simulation.core, simulation.now, lambda: size_history
    )


def test_more_workers_are_requested_if_the_run_would_be_late() -> None:
    """The autoscaler needs permission, no recent user choice, and a cluster manager."""
    simulation = half_way()
    ends = {4: 40_000.0, 8: 15_000.0}
    actions = next_forecast(simulation, Autoscaler(Answering(ends), ACTING))
    assert actions is not None
    assert (actions.workers, actions.recommended_workers, actions.requested_workers) == (4, 8, 8)
    for rules in (
        Rules(most=8, can_act=True),
        replace(ACTING, can_act=False),
        replace(ACTING, most=0),
    ):
        recommended_workers = next_forecast(simulation, Autoscaler(Answering(ends), rules))
        assert recommended_workers is not None
        assert (recommended_workers.recommended_workers, recommended_workers.requested_workers) == (8, None)
    held = next_forecast(
        simulation, Autoscaler(Answering(ends), ACTING), SizeHistory(chosen_at=simulation.now)
    )
    assert held is not None
    assert (held.recommended_workers, held.requested_workers) == (8, None)


@pytest.mark.slow
def test_a_brief_worker_loss_keeps_the_forecast() -> None:
    """It will return with its partition, so the forecast keeps the number of workers and nearly the same finish."""
    calm = forecasts(simulated())
    gap = WorkerOutage(worker="worker-3", start=calm[0].time - 3.0, length=60.0)
    forecast_events = forecasts(simulated(outages=[gap], rules=Rules(join_s=60.0)))
    forecast = next(each for each in forecast_events if each.time < gap.start + gap.length)
    assert forecast.workers == 4
    assert forecast.time + forecast.end.p50_s == pytest.approx(calm[0].time + calm[0].end.p50_s, rel=0.1)


def test_workers_leave_only_after_others_have_their_partitions() -> None:
    """Remaining workers first make replicas during training; then the autoscaler requests the smaller size."""
    simulation = half_way()
    autoscaler = Autoscaler(Answering({4: 4_000.0, 2: 5_000.0}), ACTING)
    assert next_forecast(simulation, autoscaler) is None
    released = autoscaler.released(simulation.core.state)
    assert {each.worker for each in released} == {"worker-2", "worker-3", "worker-2-etl", "worker-3-etl"}
    before = Simulation.snapshot

    def snapshot(self: Simulation):  # type: ignore[no-untyped-def]
        return replace(before(self), exclusions=released)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "snapshot", snapshot)
        with pytest.raises(RuntimeError, match="no end"):
            simulation.run(limit=60, is_begun=True)
    rebuilt_events = remade(simulation.log)
    assert {partition for partition, _ in rebuilt_events} == {"p2", "p3"}
    assert {worker for _, worker in rebuilt_events} <= {"worker-0-etl", "worker-1-etl"}
    requested_workers = autoscaler.update(simulation.core, simulation.now, SizeHistory)
    assert requested_workers is not None
    assert requested_workers.requested_workers == 2
    assert_exclusive(simulation)
