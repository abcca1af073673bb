"""Questions of searches: assignment to workers, timing and waiting runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cerebro.contract.events import (
    RunPaused,
    RunStarted,
    SearchDecided,
    TaskAssigned,
    TaskCommitted,
    ValuesSuggested,
)
from cerebro.contract.search import ASHA, TPE, Random
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import RunState, TaskKey
from cerebro.state.experiment import fold
from cerebro.state.reports.wait_reasons import waiting_for
from controller.decisions.core import Core
from research.simulation.scenario import EXPERIMENT, WorkerOutage
from tests.controller.searches import WORKERS, fit_of, loss, search_of, simulation, story
from tests.controller.side_by_side import neighbour
from tests.controller.test_own_procedure import OWN, raising, searched
from tests.search.own_procedures import Halving


def test_search_requests_use_no_device_and_avoid_training_workers() -> None:
    """They go to ETL containers in pods, or else to a worker's executor without a device."""
    for has_pods in (False, True):
        sim = searched(scenario={"has_pods": has_pods})
        fit_of(sim)
        requests = [each for each in sim.log if isinstance(each, TaskAssigned) and "/search/" in each.task]
        assert requests
        assert all(each.devices == () for each in requests)
        assert {each.worker.endswith("-etl") for each in requests} == {has_pods}


def test_a_run_names_the_search_request_that_it_waits_for() -> None:
    """The run waits for a worker that runs searches, or for the procedure's orders."""
    sim = searched()
    for each in sim._workers._workers.values():
        each.kinds = tuple(kind for kind in each.kinds if kind != "search")
    with pytest.raises(RuntimeError, match="no end after 50 steps"):
        sim.run(limit=50)
    state = sim.core.state
    why = "waiting for a worker that runs search procedures"
    assert waiting_for(state, state.runs["fit-1"]) == why
    state.workers["worker-0"].kinds |= {"search"}
    assert waiting_for(state, state.runs["fit-1"]) == "waiting for the actions of Mine"


def test_another_worker_repeats_a_lost_search_request() -> None:
    """The answer does not depend on the attempt."""
    outages = [WorkerOutage(worker=f"worker-{n}", start=2.0 + 9 * n, length=20) for n in range(3)]
    sim = searched(scenario={"outages": outages, "search_s": 3.0})
    run = fit_of(sim)
    attempts = [
        len(task.attempts) for key, task in run.tasks.by_key.items() if TaskKey.parse(key).kind == "search"
    ]
    assert max(attempts) > 1
    assert run.state is RunState.FINISHED
    assert run.search is not None
    assert run.search.finish == "the best is trained to the end"


def test_workers_draw_suggestions_if_the_controller_lacks_the_library() -> None:
    """They equal the controller's own suggestions, and none is drawn twice, even after a crash."""
    draws: dict[str, Any] = {"installed_samplers": frozenset({"random"})}
    search = search_of(ASHA(eta=2, sampler=TPE(startup=3)), samples=8)
    undisturbed = simulation(search, epochs=4, **draws)
    expected = story(fit_of(undisturbed))
    requests = [
        e for e in undisturbed.log if isinstance(e, TaskCommitted) and "/search/suggestions-" in e.task
    ]
    assert sum(len(each.result.answer.values) for each in requests if each.result.answer) == 8
    for write in range(0, undisturbed.writes, 23):
        died = simulation(search, epochs=4, crash_before=frozenset({write, write + 2}), **draws)
        assert story(fit_of(died)) == expected


def test_a_search_request_does_not_wait_for_other_experiments() -> None:
    """It uses no shared device, so it starts at once or after the previous question."""

    def metrics(body: Any) -> Mapping[str, float]:
        return loss(body) if "lr" in body.hyperparams else {"loss": 1.0}

    others = [neighbour("other", 6, 8), neighbour("third", 3, 8)]
    sim = simulation(search_of(OWN), epochs=4, procedure=Halving, metrics=metrics, neighbours=others)
    run = fit_of(sim)
    assert run.state is RunState.FINISHED
    newest, waits = 0.0, []
    for event in sim.log:
        if isinstance(event, TaskAssigned) and "/search/" in event.task:
            waits.append(event.time - newest)
        elif isinstance(event, RunStarted | ValuesSuggested | SearchDecided | TaskCommitted):
            newest = event.time
    assert len(waits) > 10
    assert max(waits) == 0.0


def busy(draw_s: float) -> float:
    """Return the workers' training share of time until the last new model; a sub-epoch takes a second."""
    search = search_of(Random(sampler=TPE()), samples=16)
    sim = simulation(search, epochs=8, installed_samplers=frozenset({"random"}), search_s=draw_s)
    run = fit_of(sim)
    until = max(each.time for each in sim.log if isinstance(each, SearchDecided) and each.add)
    sub_epochs = [
        sub_epoch
        for model in run.models.values()
        for sub_epoch in model.sub_epochs
        if sub_epoch.started < until
    ]
    return (
        sum(min(sub_epoch.ended, until) - sub_epoch.started for sub_epoch in sub_epochs)
        / (until - run.zero)
        / WORKERS
    )


def test_a_slow_suggestion_does_not_idle_workers() -> None:
    """Utilisation falls by less than 3 %, because the worker trains at the same time."""
    assert busy(0.0) == pytest.approx(1.0)
    assert busy(1.0) >= 0.97


def test_a_crashed_search_request_is_retried_before_the_run_pauses() -> None:
    """A crashed process is not the procedure's fault."""
    crash = Failure(kind=FailureKind.CRASH, message="killed")

    def outcome(body: Any, attempt: int, _worker: str) -> Failure | None:
        return crash if body.kind == "search" and attempt == 1 else None

    sim = searched(scenario={"outcome": outcome})
    assert fit_of(sim).state is RunState.FINISHED
    assert not any(isinstance(each, RunPaused) for each in sim.log)
    assert fold(EXPERIMENT, sim.log).runs["fit-1"].state is RunState.FINISHED


def test_a_controller_sleeps_while_a_search_is_paused() -> None:
    """A new leader would otherwise replay all answers; it waits until a user resumes the run."""
    sim = searched(raising)
    with pytest.raises(RuntimeError, match="no end after 60 steps"):
        sim.run(limit=60)
    core = Core(sim.core.record)
    for event in sim.log:
        core.apply(event)
    (run,) = core.state.runs.values()
    assert run.state is RunState.PAUSED
    search = core.search_of(run)
    assert search is not None
    assert search.is_behind(run)
    assert core.wake_s(sim.now) > 1
