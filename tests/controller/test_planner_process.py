"""Plans made during a run: when they are requested, followed and discarded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import Event, PriorityChanged, SchedulePlanned
from cerebro.contract.runs import FitRequest
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.scheduling.planning import advice
from cerebro.scheduling.validator import validate
from cerebro.state import schedule_of
from cerebro.state.experiment import fold
from controller.decisions.core import Core
from controller.planning import SpawnedProcess
from controller.planning.planner_query import planner_query, to_json
from research.simulation.cluster import Simulation
from research.simulation.inline import InlinePlanner
from research.simulation.scenario import EXPERIMENT, Scenario, WorkerOutage
from tests.controller.test_core import assert_complete, assert_exclusive, own_partition, plan, request


@pytest.fixture(scope="module", autouse=True)
def few_dry_runs() -> Iterator[None]:
    """Limit the dry runs that compare a plan with dispatch; they take most of the test time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advice, "_MAX_SUB_EPOCHS", 100)
        yield


def narrow(size: int, *, seed: int = 1) -> dict[tuple[str, str], float]:
    """As many models as workers with nearly equal times, the worst case for dispatch."""
    rng = random.Random(seed)
    models = [rng.uniform(8.5, 11.5) for _ in range(size)]
    workers = [rng.uniform(0.95, 1.05) for _ in range(size)]
    return {
        (f"m{m:02}", f"worker-{w}"): cost * speed
        for m, cost in enumerate(models)
        for w, speed in enumerate(workers)
    }


def simulated(
    times: dict[tuple[str, str], float],
    size: int,
    *,
    epochs: int,
    process: Any,
    outages: tuple[WorkerOutage, ...] = (),
    crash_before: frozenset[int] = frozenset(),
    **options: Any,
) -> Simulation:
    """Return a finished run with as many models as workers."""

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        assert isinstance(body, TrainTask)
        return times[body.model, worker]

    scenario = Scenario(
        replicas=own_partition(size),
        sub_epoch_time=sub_epoch_time,
        outages=outages,
        crash_before=crash_before,
    )
    fit_request: FitRequest = request(size, epochs).model_copy(update=options)
    simulation = Simulation(scenario, fit_request, plan(size, size), process)
    simulation.run()
    return simulation


def plans(log: tuple[Event, ...]) -> list[SchedulePlanned]:
    return [event for event in log if isinstance(event, SchedulePlanned)]


def test_a_better_plan_is_followed() -> None:
    """With as many models as workers, the run with a planner finishes earlier and keeps all invariants."""
    times, size, epochs = narrow(5), 5, 3
    alone = simulated(times, size, epochs=epochs, process=None)
    helped = simulated(times, size, epochs=epochs, process=InlinePlanner(plan_s=0.1, solve_s=0.2))
    assert plans(helped.log)
    assert all(event.makespan_s < event.dispatch_s for event in plans(helped.log) if event.order)
    assert helped.now < alone.now
    state = fold(EXPERIMENT, helped.log)
    assert_complete(state, epochs=epochs, partitions=size)
    assert_exclusive(helped)
    problem, schedule = schedule_of(state.runs["fit-1"])
    assert not validate(problem, schedule, actual=True).violations


def test_no_plan_is_requested_while_priorities_differ() -> None:
    """Different priorities override plans. A withdrawn priority, or one of a finished model, has no effect."""
    size, process = 3, InlinePlanner(plan_s=0.1, solve_s=0.3)
    scenario = Scenario(replicas=own_partition(size), sub_epoch_time=lambda body, worker: 10.0)
    simulation = Simulation(scenario, request(size, 4), plan(size, size), process)
    requests: list[int] = []
    for at, priority in ((0.5, 1), (45.0, 0)):

        def change(priority: int = priority) -> None:
            requests.append(len(process.requests))
            event = PriorityChanged(run="fit-1", model="m00", priority=priority)
            simulation.store.append(EXPERIMENT, event)

        simulation._at(at, change)
    simulation.run()
    assert requests == [0, 0], "while they differ nobody is asked"
    assert process.requests


def test_a_plan_is_void_when_a_worker_is_lost() -> None:
    """The old plan is discarded, dispatch takes over, and a new plan is requested."""
    process = InlinePlanner(plan_s=0.1, solve_s=0.1)
    outage = WorkerOutage(worker="worker-2", start=80.0, length=60.0)
    simulation = simulated(narrow(5), 5, epochs=4, process=process, outages=(outage,))
    core = Core(simulation.store.experiment(EXPERIMENT))
    voided = False
    for event in simulation.log:
        had_plan = bool(core.state.runs) and core.state.runs["fit-1"].scheduling.planned is not None
        core.apply(event)
        voided |= had_plan and core.state.runs["fit-1"].scheduling.planned is None
    assert voided
    assert_complete(core.state, epochs=4, partitions=5)


def test_a_controller_restarted_from_the_log_decides_the_same() -> None:
    """A controller that starts from the log during a planned run makes the same decisions."""
    simulation = simulated(narrow(6), 6, epochs=2, process=InlinePlanner(plan_s=0.1, solve_s=0.3))
    assert any(event.order for event in plans(simulation.log))
    kept = Core(simulation.store.experiment(EXPERIMENT))
    for number, event in enumerate(simulation.log):
        kept.apply(event)
        if number % 7 == 0:
            fresh = Core(kept.record)
            for earlier in simulation.log[: number + 1]:
                fresh.apply(earlier)
            assert fresh.decide(simulation.snapshot()) == kept.decide(simulation.snapshot())


@settings(deadline=None, max_examples=10)
@given(st.frozensets(st.integers(0, 200), min_size=1, max_size=12))
def test_a_planned_run_survives_its_controller(crash_before: frozenset[int]) -> None:
    """A crash before or after any write still gives a complete run without violations."""
    times, size, epochs = narrow(5, seed=4), 5, 2
    process = InlinePlanner(plan_s=0.1, solve_s=0.1)
    simulation = simulated(times, size, epochs=epochs, process=process, crash_before=crash_before)
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=epochs, partitions=size)
    assert_exclusive(simulation)


@settings(deadline=None, max_examples=20)
@given(models=st.integers(1, 4), workers=st.integers(1, 3), epochs=st.integers(1, 4), seed=st.integers(0, 9))
def test_a_planner_query_near_the_end_of_an_epoch_includes_the_next(
    models: int, workers: int, epochs: int, seed: int
) -> None:
    """The question has all sub-epochs up to the next common epoch, plus the following epoch if less than half
    an epoch remains. With fewer than two sub-epochs left, no plan is requested."""
    times = random.Random(seed)
    scenario = Scenario(
        replicas=own_partition(workers), sub_epoch_time=lambda body, worker: times.uniform(1.0, 4.0)
    )
    simulation = Simulation(scenario, request(models, epochs), plan(models, workers))
    simulation.run()
    core = Core(simulation.store.experiment(EXPERIMENT))
    for event in simulation.log:
        core.apply(event)
        if core.fit is None:
            continue
        board = core.fit.dispatch_state
        to_come = {
            m: mask.bit_count() - (m in board.running)
            for m, mask in enumerate(board.open)
            if mask and (board.epoch[m] < epochs or mask.bit_count() > (m in board.running))
        }
        ahead = min((epochs - board.epoch[m] for m in to_come), default=0)
        query = planner_query(core.fit)
        if sum(to_come.values()) + ahead * workers * len(to_come) < 2:
            assert query is None
            continue
        assert query is not None
        assert [mask.bit_count() for mask in query.problem.remaining_partitions] == [*to_come.values()]
        assert query.problem.epochs == 1 + ahead


@pytest.mark.slow
@pytest.mark.processes
def test_a_planner_process_answers_and_ends() -> None:
    """A real planner process: a question and its answer, a replaced question, and no process afterwards."""
    simulation = simulated(narrow(3), 3, epochs=2, process=None)
    core = Core(simulation.store.experiment(EXPERIMENT))
    query = None
    for event in simulation.log:
        core.apply(event)
        if query is None and core.fit is not None:
            query = planner_query(core.fit)
    assert query is not None
    process = SpawnedProcess()
    message = {"request": "plan", "problem": to_json(query.problem), "present": query.present, "sigma": 0.0}
    process.send(message)
    process.send(message)  # replaces the first question
    answer = process.wait(300.0)
    assert answer["planned_s"] <= answer["dispatch_s"] * (1 + 1e-9)
    process.send({"request": "plan", "problem": {}, "sigma": 0.0})
    assert "error" in process.wait(300.0)
    process.stop()
    assert process.answer() is None
