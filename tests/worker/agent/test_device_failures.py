"""A unit that raises, or dies with, what a broken device says: told as what it is to who can read it; the next unit has
another process."""

from __future__ import annotations

import pytest

from cerebro.contract.events import TaskCommitted, TaskFailed
from cerebro.contract.failure_rules import FailureRule
from cerebro.contract.records import Locator, Locators
from cerebro.contract.tasks import EtlTask, FailureKind
from cerebro.spec import ETLSpec
from tests.worker.agent.agents import Agents


class Columns(ETLSpec):
    """What preprocesses nothing: it has nothing to read."""


@pytest.mark.parametrize(
    ("do", "kind", "may_be", "before"),
    [
        ("ecc", FailureKind.DEVICE, False, FailureKind.USER_ERROR),
        ("illegal", FailureKind.USER_ERROR, True, FailureKind.USER_ERROR),
        ("aborted by ecc", FailureKind.DEVICE, False, FailureKind.CRASH),
        ("raise", FailureKind.USER_ERROR, False, FailureKind.USER_ERROR),
        ("crash", FailureKind.CRASH, False, FailureKind.CRASH),
    ],
)
def test_who_asks_is_told_of_machines_and_others_as_before(
    agents: Agents, do: str, kind: FailureKind, may_be: bool, before: FailureKind
) -> None:
    """A controller of an earlier version asks for nothing, and could not read it."""
    agents.start()
    for partition, tells_device in enumerate((True, False)):
        told = agents.end_of(agents.give(partition, do, tells_device=tells_device))
        assert isinstance(told, TaskFailed)
        expected = (kind, may_be) if tells_device else (before, False)
        assert (told.failure.kind, told.failure.may_be_device) == expected
    assert isinstance(agents.end_of(agents.give(2, "work")), TaskCommitted)


@pytest.mark.parametrize("do", ["ecc", "illegal"])
def test_a_process_that_met_a_broken_device_is_used_no_more(agents: Agents, do: str) -> None:
    """Every later call in it would raise the same. After another error it stays."""
    agents.start()
    pids = []
    for partition, what in enumerate(("pid", "raise", "pid", do, "pid")):
        agents.end_of(agents.give(partition, what, tells_device=True))
        if what == "pid":
            pids.append(agents.log(partition).split("process ")[1].split()[0])
    assert pids[0] == pids[1] != pids[2]


def test_a_units_failure_is_judged_by_the_clusters_rules_before_its_runs(agents: Agents) -> None:
    """By what its process had printed. Who does not ask is told of no rule; a commit falls under none."""
    agents.start(
        CEREBRO_FAILURE_RULES='[{"name": "ours", "pattern": "^raise attempt", "action": "no_retry"}]'
    )
    own = (
        FailureRule(name="hidden", pattern="^raise attempt"),
        FailureRule(name="own", pattern="^crash attempt", action="retry_elsewhere"),
    )
    expected = {"raise": ("ours", "no_retry"), "crash": ("own", "retry_elsewhere")}
    for partition, (do, (name, action)) in enumerate(expected.items()):
        told = agents.end_of(agents.give(partition, do, tells_device=True, rules=own))
        assert isinstance(told, TaskFailed)
        assert told.failure.rule is not None
        assert (told.failure.rule.name, told.failure.rule.action) == (name, action)
        assert told.failure.rule.line == f"{do} attempt 1"
    told = agents.end_of(agents.give(2, "raise", tells_device=True))
    assert isinstance(told, TaskFailed)
    assert (told.failure.rule, told.failure.late_rules) == (None, ())
    assert isinstance(agents.end_of(agents.give(3, "work", rules=own)), TaskCommitted)


def test_what_fails_of_preprocessing_is_judged_too(agents: Agents) -> None:
    """By the cluster's rules, which may blame the machine, then its run's; only where it is asked."""
    agents.start(
        handler="etl_worker",
        CEREBRO_FAILURE_RULES='[{"name": "ours", "pattern": "no-such-folder", "action": "quarantine"}]',
    )
    code = agents.learn(Columns())
    own = (FailureRule(name="own", pattern="metadata", action="no_retry"),)
    asked = (
        ("no-such-folder", own, ("ours", "quarantine")),
        ("d", own, ("own", "no_retry")),
        ("no-such-folder", None, None),
    )
    for number, (dataset, rules, expected) in enumerate(asked):
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
        told = agents.end_of(body.key)  # there is no metadata of it
        assert isinstance(told, TaskFailed)
        rule = told.failure.rule
        assert (rule and (rule.name, rule.action)) == expected, told.failure.text
        assert (told.failure.kind is FailureKind.DEVICE) == (expected == ("ours", "quarantine"))
