"""Inspections and trials during training: only with a choice of plans, and at no cost to the run."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro.contract.events import ClientEvent, ModelChanged, TaskAssigned
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan, TechniqueChoice
from cerebro.contract.tasks.bodies import InspectTask, TaskBody, TrainTask, TrialTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.trials import (
    AvailableDevices,
    DeviceKind,
    Inspection,
    KnownParallelPlan,
    ModelGroup,
    TrialOutcome,
)
from cerebro.state import Run, RunState, TaskState
from cerebro.state.experiment import fold
from controller.decisions.core import Core
from controller.decisions.fit_dispatch import FitDispatch
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario, SubEpochTime, WorkerOutage
from tests.controller.searches import request_at
from tests.controller.test_core import assert_complete, own_partition, plan, request, several_devices

VIRTUAL = DeviceKind(kind="gpu", name="virtual")
DDP = ParallelPlan(technique="ddp", size=2)


def inspection(models: int, *, groups: int = 1) -> Inspection:
    """Models in `groups` groups, with parallel plans for one and two devices."""
    names = [f"m{number:02}" for number in range(models)]
    return Inspection(
        groups=tuple(
            ModelGroup(
                id=f"g{number:02}",
                models=tuple(names[number::groups]),
                parallel_plans=(
                    KnownParallelPlan(id="single", parallel_plan=SINGLE),
                    KnownParallelPlan(id="ddp-2", parallel_plan=DDP),
                ),
            )
            for number in range(groups)
        ),
        device_kinds=(AvailableDevices(device=VIRTUAL, max_devices=2),),
    )


def seconds(*, inspect: float = 3.0, trial: float = 15.0, sub_epoch: float = 100.0) -> SubEpochTime:
    """Fixed times for inspections, trials and sub-epochs."""

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        return {"inspect": inspect, "trial": trial}.get(body.kind, sub_epoch)

    return sub_epoch_time


def simulate(
    *devices: int,
    models: int,
    epochs: int = 3,
    groups: int = 1,
    trials: str = "auto",
    techniques: tuple[TechniqueChoice, ...] | None = None,
    asked_for: tuple[ClientEvent, ...] = (),
    **changes: Any,
) -> Simulation:
    """Return a finished run with workers that can measure.

    `asked_for` has a user's commands, sent after one second.
    """
    scenario = Scenario(
        replicas=own_partition(len(devices)),
        devices=several_devices(*devices),
        inspection=inspection(models, groups=groups),
        **{
            "trial": lambda body: TrialOutcome(batch_s=0.6, is_verified=True),
            "sub_epoch_time": seconds(),
            **changes,
        },
    )
    fit_request = request(models, epochs).model_copy(update={"trials": trials, "techniques": techniques})
    simulation = Simulation(scenario, fit_request, plan(models, len(devices), rows=200))
    for event in asked_for:
        request_at(simulation, 1.0, event)
    simulation.run()
    return simulation


def run_of(simulation: Simulation) -> Run:
    return fold(EXPERIMENT, simulation.log).runs["fit-1"]


def measured(simulation: Simulation) -> list[TaskAssigned]:
    """Return the assigned inspections and trials."""
    return [
        event
        for event in simulation.log
        if isinstance(event, TaskAssigned) and event.task.split("/")[1] in ("inspect", "trial")
    ]


def test_a_long_chain_of_sub_epochs_leads_to_an_inspection_and_a_trial() -> None:
    """One model on two devices: the inspection uses neither, the trial uses both, and its result is stored."""
    simulation = simulate(2, models=1)
    first, second = measured(simulation)
    assert (first.task, first.devices) == ("fit-1/inspect", ())
    assert (second.task, second.devices, second.parallel_plan) == ("fit-1/trial/g00/ddp-2", (0, 1), DDP)
    assert run_of(simulation).trials.outcomes["g00", "ddp-2"].batch_s == 0.6
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=3, partitions=1)


@pytest.mark.parametrize(
    ("devices", "models", "trials"),
    [((1, 1, 1), 1, "auto"), ((2,), 4, "auto"), ((2, 2), 8, "auto"), ((2,), 1, "never")],
)
def test_without_a_choice_of_plans_nothing_is_measured(
    devices: tuple[int, ...], models: int, trials: str
) -> None:
    """One device per worker, twice as many equal models as devices, or a user without trials."""
    simulation = simulate(*devices, models=models, trials=trials)
    assert measured(simulation) == []
    assert run_of(simulation).trials.inspection is None
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=3, partitions=len(devices))


def test_a_changed_model_has_no_trial_for_its_former_group() -> None:
    """Another model of its group is tried; a model alone in its group has no trial."""
    changed = ModelChanged(run="fit-1", model="m00", hyperparams={"batch_size": 2})
    tried: list[str] = []

    def trial(body: TrialTask) -> TrialOutcome:
        tried.append(body.model)
        return TrialOutcome(batch_s=0.6, is_verified=True)

    assert measured(simulate(2, 2, models=2, trial=trial))
    assert tried == ["m00"]
    simulate(2, 2, models=2, trial=trial, asked_for=(changed,))
    assert tried == ["m00", "m01"]
    assert [event.task for event in measured(simulate(2, models=1, asked_for=(changed,)))] == [
        "fit-1/inspect"
    ]


def test_running_out_of_memory_leads_to_an_inspection_on_one_device_too() -> None:
    """Other parallel plans may need less memory."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        is_first = isinstance(body, TrainTask) and attempt == 1 and body.sub_epoch == 0
        full = Failure(kind=FailureKind.OUT_OF_MEMORY, message="no memory", memory_kind="host")
        return full if is_first else None

    simulation = simulate(1, models=2, outcome=outcome)
    assert [event.task for event in measured(simulation)][:1] == ["fit-1/inspect"]
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=3, partitions=1)


@pytest.mark.parametrize("kind", [InspectTask, TrialTask])
@pytest.mark.parametrize("failure", [FailureKind.CRASH, FailureKind.HANG, FailureKind.OUT_OF_MEMORY])
def test_a_failed_measurement_is_recorded_and_the_run_continues(kind: type, failure: FailureKind) -> None:
    """It is not repeated, and no model fails."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        return Failure(kind=failure, message="gone") if isinstance(body, kind) else None

    simulation = simulate(2, models=1, outcome=outcome)
    run = run_of(simulation)
    assert run.state is RunState.FINISHED
    assert len(measured(simulation)) == (1 if kind is InspectTask else 2)
    problem = (
        run.trials.inspection.problem
        if kind is InspectTask and run.trials.inspection
        else run.trials.outcomes["g00", "ddp-2"].reason
    )
    assert "gone" in problem
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=3, partitions=1)


def test_another_worker_repeats_a_lost_trial() -> None:
    """The result is stored once."""
    simulation = simulate(
        2,
        2,
        models=1,
        sub_epoch_time=seconds(trial=50.0),
        outages=[WorkerOutage(worker="worker-1", start=20.0, length=300.0)],
    )
    tried = [event for event in measured(simulation) if "/trial/" in event.task]
    assert [event.worker for event in tried] == ["worker-1", "worker-0"]
    assert run_of(simulation).trials.outcomes["g00", "ddp-2"].is_usable


def test_the_run_end_does_not_wait_for_trials() -> None:
    """After the last sub-epoch, open measurements are revoked."""
    simulation = simulate(2, models=1, epochs=2, sub_epoch_time=seconds(inspect=1000.0))
    run = run_of(simulation)
    assert run.state is RunState.FINISHED
    assert run.clock.ended < 300
    assert run.find("fit-1/inspect").state is TaskState.PENDING


def test_trials_of_several_groups_run_on_different_workers_at_once() -> None:
    """One trial at a time on each worker."""
    simulation = simulate(
        2,
        2,
        models=2,
        groups=2,
        epochs=10,
    )
    tried = [event for event in measured(simulation) if "/trial/" in event.task]
    assert {event.task for event in tried} == {"fit-1/trial/g00/ddp-2", "fit-1/trial/g01/ddp-2"}
    assert len({event.worker for event in tried}) == 2
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=10, partitions=2)


def by(parallel_plan: float, single: float) -> SubEpochTime:
    """Sub-epoch times on two devices and on one."""

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        if isinstance(body, TrainTask):
            return single if body.parallel_plan is None else parallel_plan
        return 5.0

    return sub_epoch_time


@pytest.mark.parametrize(("batch_s", "is_used"), [(0.3, True), (0.7, False)])
def test_a_trial_decides_the_parallel_plan_of_later_sub_epochs(batch_s: float, is_used: bool) -> None:
    """A model alone on two devices uses both after the trial if that is faster."""
    simulation = simulate(
        2,
        models=1,
        epochs=8,
        sub_epoch_time=by(200 * batch_s, 100.0),
        trial=lambda body: TrialOutcome(batch_s=batch_s, is_verified=True),
    )
    run = run_of(simulation)
    labels = [
        sub_epoch.parallel_plan.label if sub_epoch.parallel_plan else "-"
        for sub_epoch in run.models["m00"].sub_epochs
    ]
    assert labels[0] == "-"
    assert set(labels[3:]) == ({"ddp-2"} if is_used else {"-"})
    assert (run.clock.ended - run.clock.started < 700) is is_used


@pytest.mark.parametrize(
    ("is_verified", "is_named", "is_known"), [(True, False, True), (False, False, False), (False, True, True)]
)
def test_unverified_parallel_plans_are_used_only_if_the_user_named_them(
    is_verified: bool, is_named: bool, is_known: bool
) -> None:
    """This includes alternatives for memory shortage; a new controller decides the same."""
    outcome = TrialOutcome(batch_s=0.1, is_verified=is_verified)
    scenario = Scenario(
        replicas=own_partition(1),
        devices=several_devices(2),
        inspection=inspection(1),
        trial=lambda body: outcome,
        sub_epoch_time=seconds(),
    )
    named = (
        tuple(TechniqueChoice(name=parallel_plan.technique) for parallel_plan in (SINGLE, DDP))
        if is_named
        else None
    )
    fit_request = request(1, 3).model_copy(update={"techniques": named})
    simulation = Simulation(scenario, fit_request, plan(1, 1, rows=200, parallel_plans=(SINGLE, DDP)))
    simulation.run()
    core = Core(simulation.core.record)
    for event in simulation.log:
        core.apply(event)
        run = core.state.runs["fit-1"] if core.state.runs else None
        if run is not None and run.trials.outcomes and core.fit is not None:
            break
    assert core.fit is not None
    assert run is not None
    assert (DDP.label in core.fit.parallel_plans.known()[0]) is is_known
    assert (DDP in core.fit.parallel_plans.candidates(0, 0)) is is_known
    assert FitDispatch.of(core.state, run).parallel_plans.known() == core.fit.parallel_plans.known()
