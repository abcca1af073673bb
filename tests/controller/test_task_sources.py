"""The contract of task sources: their proposals can be assigned and are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cerebro.state import Task, TaskState
from controller.decisions.assignment_draft import AssignmentDraft
from controller.sources.etl_and_evaluation import EtlAndEvaluation
from controller.sources.gangs import Gangs
from controller.sources.measurement import Measurements
from controller.sources.replication import Replicas
from controller.sources.search_tasks import SearchRequests
from controller.sources.task_source import Offer, Proposal, RevocableTasks, TaskSource
from controller.sources.training import Training
from controller.sources.verification import Reexecutions
from research.simulation.cluster import Simulation
from research.simulation.scenario import Scenario
from tests.controller import test_gangs, test_machines, test_verifications
from tests.controller.searches import fit_of
from tests.controller.test_core import own_partition, plan, request
from tests.controller.test_own_procedure import searched
from tests.controller.trials import test_measuring


def validated() -> Simulation:
    scenario = Scenario(replicas=own_partition(2))
    simulation = Simulation(scenario, request(2, 1), plan(2, 2, validated=True))
    simulation.run()
    return simulation


def two_devices_each() -> Simulation:
    return test_measuring.simulate(2, 2, models=4, sub_epoch_time=test_measuring.seconds())


def a_broken_machine() -> Simulation:
    """A worker is quarantined and another makes its partition."""
    scenario = Scenario(replicas=own_partition(3), outcome=test_machines.at("worker-1"))
    return test_machines.simulate(scenario, models=8)


def in_gangs() -> Simulation:
    return test_gangs.simulation_of(Scenario(replicas=own_partition(2)), 2, 1, 2, 2)


SOURCES: dict[type[TaskSource], Callable[[], Any]] = {
    Replicas: a_broken_machine,
    SearchRequests: lambda: fit_of(searched()),
    Measurements: two_devices_each,
    EtlAndEvaluation: validated,
    Reexecutions: lambda: test_verifications.simulate(Scenario(replicas=test_verifications.everywhere(3))),
    Gangs: in_gangs,
    Training: a_broken_machine,
}


@pytest.mark.parametrize("kind", SOURCES, ids=lambda kind: kind.__name__)
def test_a_source_proposes_only_assignable_tasks(
    kind: type[TaskSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pending, needed, and on an alive worker's free slots without an exclusion."""
    proposed, accept = 0, AssignmentDraft.accept

    def checked(source: TaskSource, view: AssignmentDraft, offer: Offer) -> Iterator[Proposal]:
        nonlocal proposed
        for proposal in source.propose(view, offer):
            key, worker, devices = proposal.key, proposal.worker, proposal.devices
            proposed += isinstance(source, kind)
            assert view.run.task(key).state is TaskState.PENDING
            assert not view.has(key)
            assert worker in {each.name for each in view.alive}
            assert view.exclusions.feasible(key, worker, devices) is None
            if not isinstance(source, EtlAndEvaluation | Gangs | Training):
                revocable = cast(RevocableTasks, source)
                assert key.kind in revocable.kinds
                assert revocable.is_still_needed(Task(key=key))
            if not isinstance(
                source, Measurements | Training
            ):  # these sources also take the next devices to become free
                assert all(view.slots.count(worker, device) < offer.depth for device in devices)
            yield proposal

    def checking_accept(self: AssignmentDraft, source: TaskSource, offer: Offer = Offer()) -> None:  # noqa: B008
        accept(self, SimpleNamespace(propose=partial(checked, source)), offer)

    monkeypatch.setattr(AssignmentDraft, "accept", checking_accept)
    SOURCES[kind]()
    assert proposed
