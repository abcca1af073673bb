"""Tests and predictions with concurrent runs of their experiment: each run keeps its invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    RunFinished,
    RunRequested,
    RunStarted,
    RunStopRequested,
    SchedulePlanned,
    TaskAssigned,
    TaskCommitted,
    TaskRevoked,
    WorkerRemoved,
)
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlRequest, EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.state import ExperimentState, ModelState, RunState, TaskKey, schedule_now
from cerebro.state.experiment import fold
from controller.decisions.core import Core
from controller.loop.open_runs import Experiments, Opened
from controller.scaling.cluster_snapshot import ClusterSnapshot, WorkerView
from controller.sharing.arbiter import RunRef
from research.simulation.cluster import Simulation
from research.simulation.inline import InlinePlanner
from research.simulation.scenario import DATASET, EXPERIMENT, Neighbour, Scenario
from tests.controller.disturbed import disturbed
from tests.controller.side_by_side import assert_apart
from tests.controller.test_core import assert_complete, assert_exclusive, own_partition, plan, request
from tests.controller.test_planner_process import narrow
from tests.state.stories import DATASET as STORY
from tests.state.stories import SHA, Story, etl_plan, lost
from tests.state.test_beside import evaluation, half_trained

WORKERS = 3


def prediction(
    number: int, models: Sequence[int], epoch: int, *, fit: str = "fit-1", at: float = 0.0, parts: int = 3
) -> Neighbour:
    """Request a prediction with these models at that epoch, in `parts` tasks each."""
    names = [f"m{model:02}" for model in models]
    evaluate_plan = EvaluatePlan(
        kind="predict",
        dataset=DATASET,
        fit=fit,
        models=dict.fromkeys(names, epoch),
        partitions=dict.fromkeys(range(parts), 1),
    )
    return Neighbour(
        name=EXPERIMENT,
        request=EvaluateRequest(kind="predict", fit=fit, models=tuple(names), split="predict"),
        plan=RunStarted(run=f"predict-{number}", plan=evaluate_plan),
        at=at,
    )


def second_fit(models: int, epochs: int, *, at: float) -> Neighbour:
    """Another fit of the experiment."""
    started = plan(models, WORKERS).model_copy(update={"run": "fit-2"})
    return Neighbour(name=EXPERIMENT, request=request(models, epochs), plan=started, at=at)


def committed(simulation: Simulation, run: str) -> Counter[str]:
    """Count the commits of each task of a run."""
    tasks = (event.task for event in simulation.log if isinstance(event, TaskCommitted))
    return Counter(task for task in tasks if task.startswith(f"{run}/"))


def assert_trained(state: ExperimentState, run: str, *, epochs: int) -> None:
    """Check that each model of a fit trains on each partition once an epoch."""
    whole = {(epoch, partition): 1 for epoch in range(1, epochs + 1) for partition in range(WORKERS)}
    for model in state.runs[run].models.values():
        assert model.state is ModelState.FINISHED
        assert Counter((sub_epoch.epoch, sub_epoch.partition) for sub_epoch in model.sub_epochs) == whole


def assert_read_when_finished(simulation: Simulation) -> None:
    """Check that predictions read only finished models, and that two fits never have tasks at the same time."""
    state = ExperimentState(name=EXPERIMENT)
    for event in simulation.log:
        state.apply(event)
        if isinstance(event, TaskAssigned):
            key = TaskKey.parse(event.task)
            run = state.runs[key.run]
            if isinstance(run.plan, EvaluatePlan):
                fit = state.runs[run.plan.fit]
                assert not fit.is_open or fit.models[key.model or ""].state is ModelState.FINISHED
            assert sum(bool(each.tasks.open) for each in state.runs.values() if each.kind == "fit") <= 1


@settings(deadline=None, max_examples=40)
@given(
    shapes=st.tuples(st.integers(2, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 2)),
    evaluations=st.lists(
        st.tuples(st.integers(0, 3), st.floats(0, 60), st.booleans()), min_size=1, max_size=3
    ),
    at=st.floats(0, 40),
    outages=st.lists(
        st.tuples(st.integers(0, WORKERS - 1), st.floats(0.1, 40), st.floats(0.1, 30)),
        max_size=2,
        unique_by=lambda outage: outage[0],
    ),
    faults=st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 4)),
        st.sampled_from((FailureKind.CRASH, FailureKind.OUT_OF_MEMORY)),
        max_size=2,
    ),
    crashes=st.frozensets(st.integers(0, 80), max_size=4),
    devices=st.lists(st.integers(1, 3), min_size=WORKERS, max_size=WORKERS),
    times=st.randoms(use_true_random=False),
)
def test_a_fit_and_concurrent_evaluations_are_each_complete(  # type: ignore[no-untyped-def]
    shapes, evaluations, at, outages, faults, crashes, devices, times
) -> None:
    """With any request times, worker losses and controller crashes, each task is committed exactly once and
    predictions read only final models."""
    models, epochs, others, other_epochs = shapes
    scenario = disturbed(WORKERS, outages=outages, faults=faults, times=times, devices=devices)
    scenario.crash_before = crashes
    read = [
        prediction(number, [model % models, *([(model + 1) % models] if both else [])], epochs, at=when)
        for number, (model, when, both) in enumerate(evaluations, start=1)
    ]
    simulation = Simulation(
        scenario,
        request(models, epochs),
        plan(models, WORKERS),
        neighbours=[*read, second_fit(others, other_epochs, at=at)],
    )
    simulation.run(limit=20_000)
    state = fold(EXPERIMENT, simulation.log)
    assert {run.state for run in state.runs.values()} == {RunState.FINISHED}
    assert_trained(state, "fit-1", epochs=epochs)
    assert_trained(state, "fit-2", epochs=other_epochs)
    for each in read:
        keys = {str(task.key) for task in state.runs[each.plan.run].tasks.by_key.values()}
        assert committed(simulation, each.plan.run) == dict.fromkeys(keys, 1)
    assert_exclusive(simulation)
    assert_apart(simulation)
    assert_read_when_finished(simulation)


def beside(scenario: Scenario, *neighbours: Neighbour, models: int = 4, epochs: int = 4) -> Simulation:
    """A short fit, then a second fit with concurrent runs."""
    neighbour_runs = (second_fit(models, epochs, at=10.0), *neighbours)
    return Simulation(scenario, request(2, 1), plan(2, WORKERS), neighbours=neighbour_runs)


def steady(**changes: object) -> Scenario:
    """Each task takes two seconds."""
    scenario = Scenario(replicas=own_partition(WORKERS), sub_epoch_time=lambda body, worker: 2.0)
    for name, value in changes.items():
        setattr(scenario, name, value)
    return scenario


def test_a_prediction_does_not_wait_for_the_end_of_a_fit() -> None:
    """It gets its share of devices at once; the fit takes longer by the same amount."""
    alone = beside(steady())
    alone.run()
    simulation = beside(steady(), prediction(1, [0, 1], 1, at=14.0))
    simulation.run()
    fit, other = simulation.core.state.runs["fit-2"], simulation.core.state.runs["predict-1"]
    assert other.clock.started == 14.0
    assert other.clock.ended < 26.0 < fit.clock.ended
    assert fit.clock.ended <= alone.core.state.runs["fit-2"].clock.ended + 6 * 2.0 / WORKERS + 4.0
    assert_trained(simulation.core.state, "fit-2", epochs=4)
    # Devices used by the prediction are no idle time of the fit.
    now = schedule_now(simulation.core.state, fit, fit.clock.ended)
    assert now is not None
    assert now.taken_s == pytest.approx(6 * 2.0, rel=0.1)


@pytest.mark.parametrize("stopped", ["fit-2", "predict-1"])
def test_stopping_a_run_does_not_affect_a_concurrent_run(stopped: str) -> None:
    """The other run has no revoked attempt and finishes."""
    simulation = beside(steady(), prediction(1, [0, 1], 1, at=14.0, parts=6))

    def stop() -> None:
        simulation.store.append(EXPERIMENT, RunStopRequested(run=stopped))

    simulation._at(17.0, stop)
    simulation.run()
    state = simulation.core.state
    (other,) = {"fit-2", "predict-1"} - {stopped}
    assert (state.runs[stopped].state, state.runs[other].state) == (RunState.STOPPED, RunState.FINISHED)
    revoked = [event for event in simulation.log if isinstance(event, TaskRevoked)]
    assert {event.task.partition("/")[0] for event in revoked if "is idle" not in event.reason} <= {stopped}


@pytest.mark.slow
def test_a_plan_is_followed_until_another_run_begins() -> None:
    """The plan assumes all workers; the other run starts soon after planning."""
    size, times = 6, narrow(6)

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        return times[body.model, worker] if isinstance(body, TrainTask) else 2.0

    scenario = Scenario(replicas=own_partition(size), sub_epoch_time=sub_epoch_time)
    started = plan(size, size).model_copy(update={"run": "fit-2"})
    fit = Neighbour(name=EXPERIMENT, request=request(size, 2), plan=started, at=1.0)
    process = InlinePlanner(plan_s=1.0, solve_s=1.0)
    simulation = Simulation(
        scenario, request(1, 1), plan(1, size), process, neighbours=[fit, prediction(1, [0], 1, at=90.0)]
    )
    simulation.run()
    run = simulation.core.state.runs["predict-1"]
    assert run.state is simulation.core.state.runs["fit-2"].state is RunState.FINISHED
    before = [event for event in simulation.log if event.time < run.clock.requested]
    assert [bool(event.order) for event in before if isinstance(event, SchedulePlanned)][-1]
    during = [event for event in simulation.log if run.clock.requested <= event.time < run.clock.ended]
    assert [bool(event.order) for event in during if isinstance(event, SchedulePlanned)] == [False]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", ["predict", "train"])
def test_a_retry_after_out_of_memory_runs_alone_beside_another_run(kind: str, devices: int) -> None:
    """No task of the other run is on the worker, and the attempt does not wait until that run finishes."""
    exhausted: list[str] = []

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        key = TaskKey.parse(body.key)
        if key.kind == kind and key.run in ("fit-2", "predict-1") and key.model == "m01" and not exhausted:
            exhausted.append(body.key)
            return Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed for memory")
        return None

    scenario = steady(outcome=outcome, devices={f"worker-{n}": devices for n in range(WORKERS)})
    simulation = beside(scenario, prediction(1, [0, 1], 1, at=12.0, parts=12), models=8)
    simulation.run()
    state, has_been = ExperimentState(name=EXPERIMENT), 0
    for event in simulation.log:
        state.apply(event)
        for worker in state.workers.values():
            for key in worker.open_tasks:
                task = state.runs[key.partition("/")[0]].tasks.by_key[key]
                if task.exhausted:
                    has_been += 1
                    assert len(worker.open_tasks) == 1
    assert has_been
    run = state.runs[exhausted[0].partition("/")[0]]
    (other,) = (state.runs[name] for name in ("fit-2", "predict-1") if name != run.id)
    retried = [e for e in simulation.log if isinstance(e, TaskCommitted) and e.task == exhausted[0]]
    assert retried[0].time < max(run.clock.ended, other.clock.ended) - 2.0
    assert_complete(state, epochs=1, partitions=WORKERS)
    assert_trained(state, "fit-2", epochs=4)


def test_a_run_waiting_for_its_own_experiment_is_not_counted_as_open() -> None:
    """With a limit of one run, a test waits for the fit of its experiment too."""
    story = half_trained()
    story.append(RunRequested(run="fit-2", request=story.run.request), evaluation(1, "m00"))
    core = Core(ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="train.csv"))))
    for event in story.log:
        core.apply(event)
    runs = [("one", "fit-1"), ("one", "fit-2"), ("one", "test-1"), ("two", "fit-1")]
    queue = api.QueueAnswer(runs=tuple(api.QueueEntry(experiment=name, run=run) for name, run in runs))
    found = {}
    for most in (1, 2, 3):
        experiments = Experiments(most)
        experiments.opened["one"] = Opened(core=core, runs=("fit-1",))
        waiting = {RunRef("one", run) for run in core.waiting()}
        found[most] = experiments.admitted(queue, 0.0, waiting)
    assert found[1] == {"one": ("fit-1",)}
    assert found[2] == {"one": ("fit-1", "test-1")}
    assert found[3] == {"one": ("fit-1", "test-1"), "two": ("fit-1",)}
    assert [run.id for run in core.open_runs()] == ["fit-1", "test-1"]
    core.attended = found[1]["one"]
    assert [run.id for run in core.open_runs()] == ["fit-1"]


def test_two_runs_do_not_rebuild_a_partition_at_the_same_time() -> None:
    """A prediction rebuilds lost training data; the ETL run for the same partition waits."""
    story = Story()
    story.etl()
    story.fit(models=1, epochs=1)
    story.epoch(1)
    story.append(RunFinished(run="fit-1", outcome="finished"))
    story.append(lost(1), WorkerRemoved(worker="worker-1", reason="gone"))
    evaluate_request = EvaluateRequest(kind="predict", fit="fit-1", models=("m00",), split="train")
    evaluate_plan = EvaluatePlan(
        kind="predict", dataset=STORY, fit="fit-1", models={"m00": 1}, partitions=dict.fromkeys(range(2), 1)
    )
    again = EtlRequest(code=SHA, code_fingerprint=SHA)
    story.append(
        RunRequested(run="predict-1", request=evaluate_request),
        RunStarted(run="predict-1", plan=evaluate_plan),
        RunRequested(run="etl-2", request=again),
        RunStarted(run="etl-2", plan=etl_plan(2, {"train": 10, "valid": 4})),
    )
    core = Core(ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="train.csv"))))
    core.state = story.state
    assert [run.id for run in core.open_runs()] == ["predict-1", "etl-2"]
    view = WorkerView(incarnation="a", weight=1.0, kinds=("etl", "predict"), replicas=())
    snapshot = ClusterSnapshot(workers={"worker-0": view}, now=story.time)

    def given_to(run: str) -> set[str]:
        steps = core.decide(snapshot, story.state.runs[run])
        return {step.task for step in steps if isinstance(step, api.Assign) and "/etl/train/" in step.task}

    assert given_to("predict-1") == {"predict-1/etl/train/p1"}
    assert given_to("etl-2") == {"etl-2/etl/train/p1"}
    story.start(TaskKey.parse("predict-1/etl/train/p1"), 0, ())
    assert given_to("etl-2") == set()
    story.commit(TaskKey.parse("predict-1/etl/train/p1"), 0, TaskResult(rows=10))
    assert given_to("etl-2") == {"etl-2/etl/train/p1"}
    story.start(TaskKey.parse("etl-2/etl/train/p1"), 0, ())
    assert given_to("predict-1") == set()
