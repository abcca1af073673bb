"""What follows from a failure that falls under a rule: under the controller's own core, and in the fold."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cerebro.contract.events import TaskFailed
from cerebro.contract.failure_rules import Action, FailureRule, MatchedRule
from cerebro.contract.tasks import Failure, FailureKind, TaskBody, TrainTask
from cerebro.state import ModelState, RunState
from cerebro.state.experiment import fold
from controller.simulation.cluster import Simulation
from controller.simulation.scenario import EXPERIMENT, Outcome, Scenario
from tests.controller.test_core import assert_complete, plan, request

EVERYWHERE = {f"worker-{n}": [0, 1] for n in range(3)}


def failing(kind: FailureKind, action: Action) -> Failure:
    rule = MatchedRule(name="the rule", action=action, line="what the log said")
    return Failure(kind=kind, message="it failed", rule=rule)


def at_one(failure: Failure, bad: str = "worker-1") -> Outcome:
    """All units of model m00, or all units at one worker, fail."""
    return lambda body, attempt, worker: (
        failure if isinstance(body, TrainTask) and bad in (worker, body.model) else None
    )


def simulate(scenario: Scenario) -> Simulation:
    made = Simulation(scenario, request(3, 2), plan(3, 2))
    made.run(limit=20_000)
    return made


def failures(simulation: Simulation) -> list[TaskFailed]:
    return [event for event in simulation.log if isinstance(event, TaskFailed)]


def test_no_retry_gives_a_model_up_at_once() -> None:
    """A crash is worth three attempts; by the rule it is worth one. The others go on."""
    simulation = simulate(
        Scenario(holdings=EVERYWHERE, outcome=at_one(failing(FailureKind.CRASH, "no_retry"), "m00"))
    )
    run = fold(EXPERIMENT, simulation.log).runs["fit-1"]
    assert [model.state for model in run.models.values()] == [
        ModelState.FAILED,
        ModelState.FINISHED,
        ModelState.FINISHED,
    ]
    assert len(failures(simulation)) == 1
    failure = run.models["m00"].failure
    assert failure is not None
    assert failure.line == "[the rule] it failed"


def test_retry_elsewhere_goes_to_another_worker_though_the_code_raised() -> None:
    """A user's error is final otherwise. No model is lost, and no worker is blamed for it."""
    simulation = simulate(
        Scenario(holdings=EVERYWHERE, outcome=at_one(failing(FailureKind.USER_ERROR, "retry_elsewhere")))
    )
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=2, partitions=2)
    failed = failures(simulation)
    assert failed
    assert len({event.task for event in failed}) == len(failed)  # none came back to the same worker
    assert simulation.store.workers_health().quarantined() == set()


def test_retry_elsewhere_ends_with_the_attempts() -> None:
    """Where it fails everywhere, the model is given up after `max_attempts`."""
    simulation = simulate(
        Scenario(
            holdings=EVERYWHERE, outcome=at_one(failing(FailureKind.USER_ERROR, "retry_elsewhere"), "m00")
        )
    )
    failed = failures(simulation)
    assert len(failed) == 3
    assert len({event.worker for event in failed}) == 3
    assert fold(EXPERIMENT, simulation.log).runs["fit-1"].state is RunState.FINISHED


def test_a_label_changes_nothing_else() -> None:
    """A crash has its three attempts."""
    simulation = simulate(
        Scenario(holdings=EVERYWHERE, outcome=at_one(failing(FailureKind.CRASH, "label"), "m00"))
    )
    assert len(failures(simulation)) == 3


def test_a_rule_of_the_cluster_quarantines_after_one_failure() -> None:
    """The task loses no attempt, and the worker's health says which rule it was."""
    simulation = simulate(
        Scenario(holdings=EVERYWHERE, outcome=at_one(failing(FailureKind.DEVICE, "quarantine")))
    )
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=2, partitions=2)
    health = simulation.store.workers_health()
    assert health.quarantined() == {"worker-1"}
    mark = health.of("worker-1").quarantine
    assert mark is not None
    assert mark.reason == "[the rule] it failed"


def test_a_rule_that_matches_everywhere_empties_no_cluster() -> None:
    """At most half of the workers, as ever; the task is given up in the end."""
    simulation = simulate(
        Scenario(holdings=EVERYWHERE, outcome=at_one(failing(FailureKind.DEVICE, "quarantine"), "m00"))
    )
    assert len(simulation.store.workers_health().quarantined()) <= 1
    run = fold(EXPERIMENT, simulation.log).runs["fit-1"]
    assert {run.models[name].state for name in ("m01", "m02")} == {ModelState.FINISHED}


def test_rules_are_told_to_workers_that_know_them_alone() -> None:
    """While one of an earlier version trains nobody is told; what a run has is what they are told."""
    rules = (FailureRule(name="x", pattern="y", action="no_retry"),)
    for old, expected in ((frozenset({"worker-0"}), {None}), (frozenset[str](), {rules})):
        told: set[object] = set()

        def look(body: TaskBody, attempt: int, worker: str, told: set[object] = told) -> None:
            if isinstance(body, TrainTask):
                told.add(body.rules)

        asked = request(3, 2).model_copy(update={"failure_rules": rules})
        Simulation(Scenario(holdings=EVERYWHERE, outcome=look, without_ways=old), asked, plan(3, 2)).run()
        assert told == expected


def test_a_run_cannot_quarantine_workers_whoever_asks_for_it() -> None:
    """Also not past the client."""
    rules = [{"name": "x", "pattern": "y", "action": "quarantine"}]
    with pytest.raises(ValidationError, match="workers are not its own"):
        type(request(1, 1)).model_validate({**request(1, 1).model_dump(), "failure_rules": rules})


def test_what_older_versions_cannot_read_is_not_written() -> None:
    """A failure without a rule, and a fit without rules, are as they were."""
    failure = Failure(kind=FailureKind.CRASH, message="x")
    assert {"rule", "late_rules"}.isdisjoint(failure.model_dump())
    assert {"failure_rules", "audit"}.isdisjoint(request(1, 1).model_dump())
    assert failure.label == ""
    assert failure.line == "x"
