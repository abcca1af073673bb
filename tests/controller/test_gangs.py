"""Gangs: workers that start and lose a sub-epoch together."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import TaskAssigned, TaskCommitted
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.rest import api
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.gangs import Member
from cerebro.state import ModelState, Run, TaskKey
from cerebro.state.experiment import fold
from controller.decisions.decide import _revoke_tasks
from controller.scaling.cluster_snapshot import SILENT, Liveness
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.disturbed import disturbed
from tests.controller.test_core import own_partition, plan, request
from tests.controller.test_fit_dispatch import told_step_by_step
from tests.state.stories import Story, sub_epoch


def gang_parallel_plan(workers: int) -> ParallelPlan:
    return ParallelPlan(technique="ddp", workers=workers)


def simulation_of(scenario: Scenario, models: int, epochs: int, workers: int, gang: int) -> Simulation:
    """Return a finished simulation of a fit with gangs."""
    fit_request = request(models, epochs).model_copy(update={"gang": gang})
    simulation = Simulation(
        scenario,
        fit_request,
        plan(models, workers, rows=4, parallel_plans=(gang_parallel_plan(gang), SINGLE)),
    )
    simulation.run(limit=20_000)
    return simulation


def of_gangs(scenario: Scenario) -> Scenario:
    """Return the scenario with gang-specific failures only for gangs."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        failure = scenario.outcome(body, attempt, worker)
        is_of_gangs = failure is not None and failure.kind in ("not_applicable", "member_lost")
        return None if is_of_gangs and getattr(body, "gang", None) is None else failure

    return replace(scenario, outcome=outcome)


def fit_of(simulation: Simulation) -> Run:
    """Return the run in its final state."""
    return fold(EXPERIMENT, simulation.log).runs["fit-1"]


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(2, 5), st.integers(1, 3)),
    gang=st.integers(2, 3),
    outages=st.lists(st.tuples(st.integers(0, 4), st.floats(0.1, 20), st.floats(0.1, 30)), max_size=4),
    faults=st.dictionaries(
        st.tuples(st.integers(0, 2), st.integers(0, 8)),
        st.sampled_from(
            [FailureKind.CRASH, FailureKind.CHECKPOINT, FailureKind.NOT_APPLICABLE, FailureKind.MEMBER_LOST]
        ),
        max_size=4,
    ),
    times=st.randoms(use_true_random=False),
)
def test_each_model_trains_on_each_partition_once_per_epoch_in_any_gangs(  # type: ignore[no-untyped-def]
    shape, gang, outages, faults, times
) -> None:
    """After any losses and failures, the run finishes, no model fails, each partition is trained once per
    epoch, and the dispatch state follows the log."""
    models, workers, epochs = shape
    scenario = of_gangs(disturbed(workers, outages=outages, faults=faults, times=times))
    simulation = simulation_of(scenario, models, epochs, workers, gang)
    assert told_step_by_step(simulation)
    run = fit_of(simulation)
    for model in run.models.values():
        if model.failures.final is not None and model.failures.final.kind is FailureKind.CHECKPOINT:
            continue  # a first sub-epoch has no predecessor to repeat
        assert model.state is ModelState.FINISHED
        for epoch in range(1, epochs + 1):
            trained = [
                p for completed in model.sub_epochs if completed.epoch == epoch for p in completed.partitions
            ]
            assert sorted(trained) == list(range(workers))
    committed = Counter(event.task for event in simulation.log if isinstance(event, TaskCommitted))
    redone = {task for task, times in committed.items() if times > 1}
    assert not redone or FailureKind.CHECKPOINT in faults.values()


def sets_of(simulation: Simulation) -> list[tuple[str, tuple[int, ...]]]:
    """Return (model, partitions) of each sub-epoch in assignment order."""
    keys = [TaskKey.parse(e.task) for e in simulation.log if isinstance(e, TaskAssigned)]
    return [(key.model or "", key.partitions) for key in keys if key.kind == "train"]


@pytest.mark.parametrize(("models", "seconds"), [(1, 2.0), (2, 2.0)])
def test_gangs_keep_workers_busy_with_fewer_models_than_workers(models: int, seconds: float) -> None:
    """Four workers in gangs of two: models alternate between gangs and need half as many sub-epochs."""

    def sub_epoch_time(body: object, worker: str) -> float:
        return 1.0 if isinstance(body, TrainTask) else 0.0

    scenario = Scenario(replicas=own_partition(4), sub_epoch_time=sub_epoch_time)
    simulation = simulation_of(scenario, models, 1, 4, 2)
    assert {partitions for _, partitions in sets_of(simulation)} == {(0, 1), (2, 3)}
    assert len(sets_of(simulation)) == 2 * models
    starts = [event.time for event in simulation.log if isinstance(event, TaskAssigned)]
    ends = [event.time for event in simulation.log if isinstance(event, TaskCommitted)]
    assert max(ends) - min(starts) == pytest.approx(seconds, abs=0.2)


def test_a_gang_that_cannot_train_a_model_leaves_it_to_single_workers() -> None:
    """The plan is ruled out for that model without a charged attempt; the other model continues in gangs."""
    faults = {(0, 0): FailureKind.NOT_APPLICABLE}
    scenario = of_gangs(disturbed(4, outages=(), faults=faults, times=Random(1)))
    simulation = simulation_of(scenario, 2, 2, 4, 2)
    run = fit_of(simulation)
    assert [*run.models["m00"].failures.ruled_out] == ["ddp-2x1"]
    assert {len(v.partitions) for v in run.models["m00"].sub_epochs} == {1}
    assert {len(v.partitions) for v in run.models["m01"].sub_epochs} == {2}
    assert not any(task.failures for task in run.tasks.by_key.values())


def test_a_gang_plan_is_ruled_out_only_after_repeated_member_losses() -> None:
    """After five losses of a member in one sub-epoch, the model continues without a gang."""
    lost = itertools.count()

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        if isinstance(body, TrainTask) and body.gang is not None and body.sub_epoch == 0 and next(lost) < 9:
            return Failure(kind=FailureKind.MEMBER_LOST, message="worker-1 is gone")
        return None

    scenario = Scenario(replicas=own_partition(2), outcome=outcome)
    run = fit_of(simulation_of(scenario, 1, 1, 2, 2))
    model = run.models["m00"]
    assert model.state is ModelState.FINISHED
    assert "worker-1 is gone" in model.failures.ruled_out["ddp-2x1"].reason
    assert {len(completed.partitions) for completed in model.sub_epochs} == {1}


def test_a_model_that_needs_gangs_fails_on_a_leftover_partition() -> None:
    """The failure gives the reason; without a leftover partition, gangs train the model."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        is_alone = isinstance(body, TrainTask) and body.gang is None
        return Failure(kind=FailureKind.NOT_APPLICABLE, message="no room") if is_alone else None

    def run(workers: int) -> Run:
        return fit_of(
            simulation_of(Scenario(replicas=own_partition(workers), outcome=outcome), 1, 2, workers, 2)
        )

    assert run(4).models["m00"].state is ModelState.FINISHED
    model = run(3).models["m00"]
    assert model.state is ModelState.FAILED
    assert model.failures.final is not None
    assert "partition 2 is in no set of 2, and one worker cannot train the model" in model.failures.final.text


def test_a_worker_with_fewer_devices_trains_alone() -> None:
    """The other workers form gangs, and it trains alone."""
    scenario = Scenario(
        replicas=own_partition(4),
        devices={f"worker-{n}": 2 for n in range(3)},
        sub_epoch_time=lambda body, worker: 1.0,
    )
    fit_request = request(1, 1).model_copy(update={"gang": 2})
    wide = ParallelPlan(technique="ddp", workers=2, size=2)
    simulation = Simulation(scenario, fit_request, plan(1, 4, rows=4, parallel_plans=(wide, SINGLE)))
    simulation.run(limit=20_000)
    assert fit_of(simulation).state == "finished"
    assert Counter(partitions for _, partitions in sets_of(simulation)) == {(0, 1): 1, (2,): 1, (3,): 1}


@pytest.mark.parametrize(("silent", "is_forced"), [(0, False), (1, True)])
def test_a_leaders_lease_does_not_protect_a_silent_member(silent: int, is_forced: bool) -> None:
    """A silent member would block all decisions. A silent leader's lease is respected."""
    story = Story(workers=2)
    story.fit(models=1, partitions=2)
    key = sub_epoch(1, 0)._replace(other_partitions=(1,))
    story.assign(key, 0, others=(Member(worker="worker-1", partition=1),))
    worker = story.state.workers[f"worker-{silent}"]
    (step,) = _revoke_tasks(story.state, worker, SILENT, Liveness.SILENT)
    assert isinstance(step, api.Revoke)
    assert (step.task, step.worker, step.force) == (str(key), "worker-0", is_forced)
