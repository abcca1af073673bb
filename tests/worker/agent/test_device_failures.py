"""A device error marks the failure, and the next sub-epoch gets a new process."""

from __future__ import annotations

from cerebro.contract.events import TaskCommitted, TaskFailed
from cerebro.contract.failure_rules import FailureRule
from cerebro.contract.records import Locator, Locators
from cerebro.contract.tasks.bodies import EtlTask
from cerebro.contract.tasks.failures import FailureKind
from cerebro.spec import ETLSpec
from tests.worker.agent.agents import Agents


class Columns(ETLSpec):
    """A spec that preprocesses no rows."""


ENDS = {
    "raise": (FailureKind.USER_ERROR, False, True),
    "ecc": (FailureKind.DEVICE, False, False),
    "illegal": (FailureKind.USER_ERROR, True, False),
    "aborted by ecc": (FailureKind.DEVICE, False, False),
    "crash": (FailureKind.CRASH, False, False),
}
"""Behaviour of user code -> kind of failure, True if it may be the device's fault, True if the process is reused."""


def test_a_failure_names_the_machine_as_its_cause(agents: Agents) -> None:
    """Its cause is certain, possible or excluded. A process that used a broken device is not reused.

    Later calls in it would fail too. An ordinary error keeps the process, which forks one for each task.
    """
    agents.start()

    def process(partition: int) -> str:
        assert isinstance(agents.end_of(agents.give(partition, "pid")), TaskCommitted)
        return agents.log(partition).split("process ")[1].split()[0]

    before = process(0)
    for number, (do, (kind, may_be, is_reused)) in enumerate(ENDS.items(), 1):
        failed = agents.end_of(agents.give(10 * number, do))
        assert isinstance(failed, TaskFailed)
        assert (failed.failure.kind, failed.failure.may_be_device) == (kind, may_be)
        after = process(10 * number + 1)
        assert (after == before) == is_reused, do
        before = after


def test_a_sub_epochs_failure_is_judged_by_the_clusters_rules_before_its_runs(agents: Agents) -> None:
    """The rules search the task's log. A commit matches no rule."""
    agents.start(
        CEREBRO_FAILURE_RULES='[{"name": "ours", "pattern": "^raise attempt", "action": "no_retry"}]'
    )
    run_rules = (
        FailureRule(name="hidden", pattern="^raise attempt"),
        FailureRule(name="own", pattern="^crash attempt", action="retry_elsewhere"),
    )
    expected = {"raise": ("ours", "no_retry"), "crash": ("own", "retry_elsewhere")}
    for partition, (do, (name, action)) in enumerate(expected.items()):
        end_event = agents.end_of(agents.give(partition, do, rules=run_rules))
        assert isinstance(end_event, TaskFailed)
        assert end_event.failure.rule is not None
        assert (end_event.failure.rule.name, end_event.failure.rule.action) == (name, action)
        assert end_event.failure.rule.line == f"{do} attempt 1"
    assert isinstance(agents.end_of(agents.give(2, "work", rules=run_rules)), TaskCommitted)


def test_the_rules_apply_to_preprocessing_too(agents: Agents) -> None:
    """The cluster's rules, which may blame the machine, come before the run's."""
    agents.start(
        handler="etl_worker",
        CEREBRO_FAILURE_RULES='[{"name": "ours", "pattern": "no-such-folder", "action": "quarantine"}]',
    )
    code = agents.learn(Columns())
    run_rules = (FailureRule(name="own", pattern="metadata", action="no_retry"),)
    cases = (
        ("no-such-folder", run_rules, ("ours", "quarantine")),
        ("d", run_rules, ("own", "no_retry")),
    )
    for number, (dataset, rules, expected) in enumerate(cases):
        body = EtlTask(
            key=f"etl-1/etl/train/p{number}",
            experiment="one",
            dataset=dataset,
            split="train",
            partition=number,
            code=code,
            locators=Locators(train=Locator(metadata="/nowhere.csv")),
            max_failed=0.0,
            rules=rules,
        )
        agents.assign(body, attempt=1, devices=())
        end_event = agents.end_of(body.key)  # its metadata is missing
        assert isinstance(end_event, TaskFailed)
        rule = end_event.failure.rule
        assert rule is not None, end_event.failure.text
        assert (rule.name, rule.action) == expected
        assert (end_event.failure.kind is FailureKind.DEVICE) == (expected == ("ours", "quarantine"))
