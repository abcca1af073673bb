"""Effects of failure rules, in the controller's core and in the fold."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cerebro.contract.events import RunFinished, RunRequested, RunStarted, TaskFailed
from cerebro.contract.failure_rules import Action, FailureRule, MatchedRule
from cerebro.contract.records import WorkerStatus
from cerebro.contract.rest.api import Assign, Note
from cerebro.contract.runs import EtlRequest
from cerebro.contract.stored.health import HealthAnswer
from cerebro.contract.tasks.bodies import EtlTask, FittingTask, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import ModelState, TaskKey
from cerebro.state.experiment import fold
from controller.exclusions.health import Quarantined, act, evidence
from controller.loop.open_runs import ended
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Outcome, Scenario
from tests.controller.test_core import assert_complete, plan, request
from tests.controller.test_fit_dispatch import all_here, core_of
from tests.kvs_api.bench import worker
from tests.state.stories import SHA, Story, etl_plan, joined

EVERYWHERE = {f"worker-{n}": [0, 1] for n in range(3)}


def failing(kind: FailureKind, action: Action) -> Failure:
    rule = MatchedRule(name="the rule", action=action, line="what the log said")
    return Failure(kind=kind, message="it failed", rule=rule)


def at_one(failure: Failure, bad: str = "worker-1") -> Outcome:
    """All sub-epochs of model m00, or all on one worker, fail."""
    return lambda body, attempt, worker: (
        failure if isinstance(body, TrainTask) and bad in (worker, body.model) else None
    )


def simulate(scenario: Scenario) -> Simulation:
    simulation = Simulation(scenario, request(3, 2), plan(3, 2))
    simulation.run(limit=20_000)
    return simulation


def failures(simulation: Simulation) -> list[TaskFailed]:
    return [event for event in simulation.log if isinstance(event, TaskFailed)]


def test_no_retry_fails_a_model_at_once() -> None:
    """A crash normally has three attempts; the other models continue."""
    simulation = simulate(
        Scenario(replicas=EVERYWHERE, outcome=at_one(failing(FailureKind.CRASH, "no_retry"), "m00"))
    )
    run = fold(EXPERIMENT, simulation.log).runs["fit-1"]
    assert [model.state for model in run.models.values()] == [
        ModelState.FAILED,
        ModelState.FINISHED,
        ModelState.FINISHED,
    ]
    assert len(failures(simulation)) == 1
    failure = run.models["m00"].failures.final
    assert failure is not None
    assert failure.line == "[the rule] it failed"


def test_retry_elsewhere_moves_a_task_after_a_user_error() -> None:
    """A user error is normally final. No model fails, and no worker is blamed."""
    simulation = simulate(
        Scenario(replicas=EVERYWHERE, outcome=at_one(failing(FailureKind.USER_ERROR, "retry_elsewhere")))
    )
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=2, partitions=2)
    failed = failures(simulation)
    assert failed
    assert len({event.task for event in failed}) == len(failed)  # no task returned to its worker
    assert simulation.store.workers_health().quarantined() == set()


def test_a_cluster_rule_quarantines_after_one_failure() -> None:
    """The task is not charged, and the worker's health names the rule."""
    simulation = simulate(
        Scenario(replicas=EVERYWHERE, outcome=at_one(failing(FailureKind.DEVICE, "quarantine")))
    )
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=2, partitions=2)
    health = simulation.store.workers_health()
    assert health.quarantined() == {"worker-1"}
    mark = health.of("worker-1").quarantine
    assert mark is not None
    assert mark.reason == "[the rule] it failed"


def test_a_runs_rules_cannot_quarantine_workers() -> None:
    """The server refuses it too."""
    rules = [{"name": "x", "pattern": "y", "action": "quarantine"}]
    with pytest.raises(ValidationError, match="workers are not its own"):
        type(request(1, 1)).model_validate({**request(1, 1).model_dump(), "failure_rules": rules})
    with pytest.raises(ValidationError, match="workers are not its own"):
        EtlRequest.model_validate({"code": SHA, "code_fingerprint": SHA, "failure_rules": rules})


# --- ETL ---

PARTITION = TaskKey(run="etl-1", kind="etl", split="train", partition=0)
RULE = FailureRule(name="x", pattern="y", action="retry_elsewhere")


def preprocessing(*, fits: bool = False) -> Story:
    """Two workers, and an ETL run with a rule and two partitions."""
    story = Story(workers=0)
    for number in range(2):
        story.append(joined(number, partitions=()))
    etl_request = EtlRequest(code=SHA, code_fingerprint=SHA, fits=fits, failure_rules=(RULE,))
    story.append(
        RunRequested(run="etl-1", request=etl_request),
        RunStarted(run="etl-1", plan=etl_plan(2, {"train": 10})),
    )
    return story


def fail_partition(story: Story, kind: FailureKind, action: Action, worker: int = 0) -> None:
    attempt = story.start(PARTITION, worker, ())
    story.append(
        TaskFailed(
            task=str(PARTITION), attempt=attempt, worker=f"worker-{worker}", failure=failing(kind, action)
        )
    )


def assignments(story: Story) -> dict[str, Assign]:
    core = core_of(story)
    steps = core.decide(all_here(story), core.state.runs["etl-1"])
    return {step.task: step for step in steps if isinstance(step, Assign)}


@pytest.mark.parametrize("kind", [FailureKind.DATA, FailureKind.USER_ERROR, FailureKind.CRASH])
def test_a_rule_moves_preprocessing_to_another_worker(kind: FailureKind) -> None:
    """The plan's worker and the final error are overridden until all attempts are used."""
    story = preprocessing()
    fail_partition(story, kind, "retry_elsewhere")
    assert assignments(story)[str(PARTITION)].worker == "worker-1"
    fail_partition(story, kind, "retry_elsewhere", worker=1)
    assert str(PARTITION) in assignments(story)
    fail_partition(story, kind, "retry_elsewhere")
    fatal = story.state.runs["etl-1"].failures.fatal
    assert fatal is not None
    assert fatal.line == "[the rule] it failed"


@pytest.mark.parametrize(
    ("action", "is_over"), [("label", False), ("no_retry", True), ("retry_elsewhere", False)]
)
def test_a_rule_decides_the_cost_of_a_preprocessing_crash(action: Action, is_over: bool) -> None:
    """Three attempts or one; the run's message names the rule."""
    story = preprocessing()
    fail_partition(story, FailureKind.CRASH, action)
    assert (story.state.runs["etl-1"].failures.fatal is not None) == is_over
    core = core_of(story)
    steps = core.decide(all_here(story), core.state.runs["etl-1"])
    ends = [
        step.event.error for step in steps if isinstance(step, Note) and isinstance(step.event, RunFinished)
    ]
    assert ends == (["[the rule] it failed"] if is_over else [])


def test_a_cluster_rule_quarantines_a_preprocessing_worker() -> None:
    """One failure is enough, and another worker makes the partition without a charged attempt."""
    story = preprocessing()
    fail_partition(story, FailureKind.DEVICE, "quarantine")
    task = story.state.runs["etl-1"].task(PARTITION)
    assert (task.failures, story.state.runs["etl-1"].failures.fatal) == (0, None)
    assert assignments(story)[str(PARTITION)].worker == "worker-1"
    statuses = [WorkerStatus(record=worker("a", f"worker-{number}"), silent_s=0.0) for number in range(3)]
    (action,) = act(statuses, HealthAnswer(), evidence([ended(story.state)]), story.time)
    assert action == Quarantined(worker="worker-0", reason="[the rule] it failed")


@pytest.mark.parametrize("fits", [False, True])
def test_preprocessing_tasks_have_the_rules_of_their_run(*, fits: bool) -> None:
    """The fitting task has them too."""
    for step in assignments(preprocessing(fits=fits)).values():
        assert isinstance(step.body, FittingTask if fits else EtlTask)
        assert step.body.rules == (RULE,)
