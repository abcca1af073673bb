"""Parallel plans of sub-epochs: choice, devices of one worker, and plans that fail."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.scheduling.policies import POLICIES
from cerebro.state import ExperimentState, ModelState, RunState
from cerebro.state.experiment import fold
from controller.decisions.fit_dispatch import FitDispatch
from controller.sharing.rounds import PATIENCE_S
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Outcome, Scenario, WorkerOutage
from tests.controller.side_by_side import neighbour
from tests.controller.test_core import (
    assert_complete,
    assert_exclusive,
    own_partition,
    plan,
    request,
    several_devices,
)
from tests.state import exclusive
from tests.state.stories import Story, sub_epoch

CHECKPOINTING = ParallelPlan(technique="checkpointing")
DDP = ParallelPlan(technique="ddp", size=2)
FSDP = ParallelPlan(technique="fsdp", size=2)
FSDP_3 = ParallelPlan(technique="fsdp", size=3)
PARALLEL_PLANS = (SINGLE, CHECKPOINTING, DDP, FSDP, FSDP_3)

DEVICE = Failure(kind=FailureKind.OUT_OF_MEMORY, message="CUDA out of memory", memory_kind="device")
HOST = Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed for memory", memory_kind="host")
NOT_APPLICABLE = Failure(kind=FailureKind.NOT_APPLICABLE, message="no blocks")

Unusable = Mapping[tuple[str, str], Failure]
"""Maps (model, plan label) to the failure of its sub-epochs."""


def failing(unusable: Unusable) -> Outcome:
    """Return an outcome function with these failures."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        parallel_plan = (body.parallel_plan or SINGLE).label if isinstance(body, TrainTask) else ""
        return unusable.get((getattr(body, "model", ""), parallel_plan))

    return outcome


def simulate(
    *devices: int,
    models: int,
    parallel_plans: tuple[ParallelPlan, ...] = PARALLEL_PLANS,
    epochs: int = 1,
    unusable: Unusable | None = None,
    scheduler: str = "lrptw",
    **changes: object,
) -> Simulation:
    """Return a finished run; worker `n` has `devices[n]` devices and partition `n`."""
    scenario = Scenario(
        replicas=own_partition(len(devices)),
        devices=several_devices(*devices),
        outcome=failing(unusable or {}),
        **changes,  # type: ignore[arg-type]
    )
    fit_request = request(models, epochs).model_copy(update={"scheduler": scheduler})
    simulation = Simulation(scenario, fit_request, plan(models, len(devices), parallel_plans=parallel_plans))
    simulation.run()
    return simulation


def parallel_plans_of(simulation: Simulation, model: str) -> list[str]:
    """Return the plan labels of a model's sub-epochs in order, "-" for none."""
    return [
        event.parallel_plan.label if event.parallel_plan else "-"
        for event in simulation.log
        if isinstance(event, TaskAssigned) and f"/train/{model}/" in event.task
    ]


def test_a_model_that_fits_uses_no_other_parallel_plan() -> None:
    """A run without a choice of plans has the same log and tasks."""
    chosen, plain = (
        simulate(2, 1, models=3, epochs=2, parallel_plans=parallel_plans)
        for parallel_plans in (PARALLEL_PLANS, ())
    )
    assert parallel_plans_of(chosen, "m00") == ["-"] * 4
    assert [e for e in chosen.log if isinstance(e, TaskAssigned)] == [
        e for e in plain.log if isinstance(e, TaskAssigned)
    ]


def test_named_techniques_are_tried_in_order() -> None:
    """The first plan with enough devices on the worker is used."""
    simulation = simulate(3, 2, 1, models=2, parallel_plans=(FSDP_3, DDP, SINGLE))
    found = {
        (event.worker, event.parallel_plan and event.parallel_plan.label, len(event.devices))
        for event in simulation.log
        if isinstance(event, TaskAssigned)
    }
    assert found == {("worker-0", "fsdp-3", 3), ("worker-1", "ddp-2", 2), ("worker-2", None, 1)}


def test_a_model_without_parallel_plans_fails_alone() -> None:
    """The failure lists each plan's reason, and the other models finish."""
    unusable: dict[tuple[str, str], Failure] = {
        ("m01", parallel_plan.label): NOT_APPLICABLE for parallel_plan in PARALLEL_PLANS
    }
    simulation = simulate(3, models=3, unusable=unusable)
    run = fold(EXPERIMENT, simulation.log).runs["fit-1"]
    assert run.state is RunState.FINISHED
    assert {name: model.state for name, model in run.models.items()} == {
        "m00": ModelState.FINISHED,
        "m01": ModelState.FAILED,
        "m02": ModelState.FINISHED,
    }
    failure = run.models["m01"].failures.final
    assert failure is not None
    assert [line.strip() for line in failure.message.splitlines()[1:]] == [
        f"{parallel_plan.label}: no blocks" for parallel_plan in PARALLEL_PLANS
    ]
    assert len(parallel_plans_of(simulation, "m01")) == len(PARALLEL_PLANS)


def assert_no_way_twice(simulation: Simulation) -> None:
    """Check that ruled-out plans are never assigned, and that each plan has its number of devices."""
    state = ExperimentState(name=EXPERIMENT)
    for event in simulation.log:
        if isinstance(event, TaskAssigned) and "/train/" in event.task:
            struck = state.runs["fit-1"].models[event.task.split("/")[2]].failures.ruled_out
            assert (event.parallel_plan or SINGLE).label not in struck
            assert len(event.devices) == (event.parallel_plan or SINGLE).size
        state.apply(event)


unusable_parallel_plans = st.dictionaries(
    st.tuples(
        st.sampled_from(["m00", "m01", "m02"]),
        st.sampled_from([parallel_plan.label for parallel_plan in PARALLEL_PLANS]),
    ),
    st.sampled_from([DEVICE, HOST, NOT_APPLICABLE]),
    max_size=9,
)


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    unusable=unusable_parallel_plans,
    parallel_plans=st.lists(
        st.sampled_from([CHECKPOINTING, DDP, FSDP, FSDP_3]),
        unique_by=lambda parallel_plan: parallel_plan.label,
    ),
    outages=st.lists(
        st.tuples(st.integers(0, 2), st.floats(0.1, 20), st.floats(0.1, 30)),
        max_size=2,
        unique_by=lambda outage: outage[0],
    ),
    deaths=st.frozensets(st.integers(0, 40), max_size=3),
    times=st.randoms(use_true_random=False),
    scheduler=st.sampled_from(sorted(POLICIES)),
    order=st.booleans(),
)
def test_a_model_finishes_unless_all_its_parallel_plans_are_ruled_out(
    counts: list[int],
    unusable: dict[tuple[str, str], Failure],
    parallel_plans: list[ParallelPlan],
    outages: list[tuple[int, float, float]],
    deaths: frozenset[int],
    times: Random,
    scheduler: str,
    order: bool,
) -> None:
    """Plans fail, workers leave and controllers crash: devices are exclusive, ruled-out plans stay so, and
    the log replays to the same state."""
    offered = (SINGLE, *parallel_plans) if order else (*parallel_plans, SINGLE)
    simulation = simulate(
        *counts,
        models=3,
        epochs=2,
        parallel_plans=tuple(parallel_plan for parallel_plan in offered if parallel_plan.size <= max(counts)),
        unusable=unusable,
        scheduler=scheduler,
        sub_epoch_time=lambda body, worker: times.uniform(0.5, 4.0),
        outages=[
            WorkerOutage(worker=f"worker-{w}", start=s, length=n) for w, s, n in outages if w < len(counts)
        ],
        crash_before=deaths,
    )
    state = fold(EXPERIMENT, simulation.log)
    known = simulation.core.state
    assert known == state or known.seq < state.seq, "a controller that has just died knows less"
    assert_complete(state, epochs=2, partitions=len(counts))
    assert_exclusive(simulation)
    assert_no_way_twice(simulation)
    for name, model in state.runs["fit-1"].models.items():
        usable = [
            parallel_plan
            for parallel_plan in offered
            if parallel_plan.size <= min(counts) and (name, parallel_plan.label) not in unusable
        ]
        assert usable or model.state is ModelState.FAILED
        # A lost worker charges only attempts after an out-of-memory failure, so no other cause fails a
        # model here.
        assert not usable or model.state is ModelState.FINISHED


@settings(deadline=None, max_examples=40)
@given(
    devices=st.integers(2, 4),
    wide=st.integers(1, 3),
    times=st.randoms(use_true_random=False),
    scheduler=st.sampled_from(sorted(POLICIES)),
)
def test_single_device_sub_epochs_do_not_overtake_one_with_several_devices(
    devices: int, wide: int, times: Random, scheduler: str
) -> None:
    size = ParallelPlan(technique="fsdp", size=devices)
    names = [f"m{number:02}" for number in range(8)]
    unusable = {(name, "single"): DEVICE for name in names[:wide]}
    simulation = simulate(
        devices,
        models=8,
        epochs=3,
        parallel_plans=(SINGLE, size),
        unusable=unusable,
        scheduler=scheduler,
        sub_epoch_time=lambda body, worker: times.uniform(0.5, 4.0),
    )
    assert_exclusive(simulation)
    open_before: dict[str, set[str]] = {}
    revoked = {(e.task, e.attempt) for e in simulation.log if isinstance(e, TaskRevoked)}
    state = ExperimentState(name=EXPERIMENT)
    for event in simulation.log:
        match event:
            case TaskAssigned() if (
                event.parallel_plan is not None and (event.task, event.attempt) not in revoked
            ):
                open_before[event.task] = set(state.workers["worker-0"].open_tasks)
            case TaskStarted() if event.task not in open_before:
                for waiting, before in open_before.items():
                    assert event.task in before, f"{event.task} began while {waiting} waited"
            case TaskStarted():
                before = open_before.pop(event.task)
                assert before.isdisjoint(state.workers["worker-0"].open_tasks)
            case TaskCommitted() | TaskFailed():
                pass
        state.apply(event)
    assert not open_before


def test_a_sub_epoch_on_several_devices_gets_its_turn_beside_other_runs() -> None:
    scenario = Scenario(
        replicas=own_partition(1),
        devices=several_devices(2),
        sub_epoch_time=lambda body, worker: 5.0 if body.experiment == EXPERIMENT else 7.0,
    )
    simulation = Simulation(
        scenario,
        request(2, 3),
        plan(2, 1, parallel_plans=(DDP,)),
        neighbours=[neighbour("other", 12, 12, workers=1)],
        max_open=2,
    )
    simulation.run()
    logs = {name: simulation.store.events(name) for name in simulation.cores}
    begun = [e.time for e in logs[EXPERIMENT] if isinstance(e, TaskStarted)]
    for before, after in pairwise([0.0, *begun]):
        assert after - before <= PATIENCE_S + 4 * 7.0
    exclusive.assert_exclusive(logs)
    for name, epochs in ((EXPERIMENT, 3), ("other", 12)):
        assert_complete(fold(name, logs[name]), epochs=epochs, partitions=1)


def test_a_measured_parallel_plan_is_dropped_when_ruled_out() -> None:
    story = Story(workers=1, devices=2)
    story.fit(models=1, partitions=1, parallel_plans=(SINGLE, DDP))
    fit = FitDispatch.of(story.state, story.run)
    fit.parallel_plans._wide = {"m00": (DDP,)}
    fit._update_parallel_plans(story.run, story.model())
    assert fit.parallel_plans.of(0, 0) == DDP
    count = len(story.log)
    attempt = story.start(sub_epoch(1, 0), 0, (0, 1), DDP)
    for event in story.log[count:]:
        fit.apply(story.state, event)
    story.append(TaskFailed(task=str(sub_epoch(1, 0)), attempt=attempt, worker="worker-0", failure=DEVICE))
    fit.apply(story.state, story.log[-1])
    assert fit.parallel_plans.of(0, 0) == SINGLE
