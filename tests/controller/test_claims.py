"""Device claims of runs, and the check that all devices have work."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import PriorityChanged, RunFinished, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EvaluatePlan, FitPlan
from cerebro.state import TaskKey
from controller.decisions.core import Core
from controller.sharing import claims
from controller.sharing.arbiter import Claim
from tests.controller.test_fit_dispatch import core_of
from tests.state import fused
from tests.state.runs import TimedStory
from tests.state.stories import DATASET, Story, sub_epoch
from tests.state.test_beside import evaluation


def test_the_fit_estimates_a_tests_work_before_its_first_task() -> None:
    """The estimate uses the fit's time per row, and later the test's own tasks. A run with devices is not estimated."""
    story = TimedStory(workers=1)
    story.fit(models=1, partitions=1, epochs=1)
    assert isinstance(story.run.plan, FitPlan)
    rows = story.run.plan.partitions[0]
    claimed = partial(claims.claim, story.state, fit=None, now=0.0)
    assert claimed(story.run).whole_s == math.inf, "nothing has been trained"
    story.runs(sub_epoch(1, 0), 0, 0.0, 40.0)
    story.append(RunFinished(run="fit-1", outcome="finished"), evaluation(1, "m00"))
    test = story.state.runs["test-1"]
    assert claimed(test).whole_s == math.inf, "it is not planned"
    plan = EvaluatePlan(
        kind="test", dataset=DATASET, fit="fit-1", models={"m00": 1}, partitions={0: rows // 2}, is_whole=True
    )
    story.append(RunStarted(run="test-1", plan=plan))
    assert claimed(test).whole_s == pytest.approx(20.0)
    (key,) = test.counts.pending
    story.begins(TaskKey.parse(key), 0, 50.0)
    assert claimed(test).whole_s == math.inf
    story.ends(TaskKey.parse(key), 0, 51.0)
    assert claimed(test).whole_s == 0.0


@given(
    priorities=st.lists(st.integers(-2, 2), min_size=4, max_size=4),
    busy=st.sets(st.integers(0, 1)),
    of_run=st.integers(-9, 9),
)
def test_a_models_priority_does_not_change_the_claim_of_its_run(
    priorities: list[int], busy: set[int], of_run: int
) -> None:
    """Claims do not depend on model priorities; the run's own priority is its weight."""
    story = TimedStory(workers=2)
    story.fit(models=4)
    for number in busy:
        story.start(sub_epoch(1, number, f"m{number:02}"), number)
    core = Core(ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="t.csv"))))
    for event in story.log:
        core.apply(event)

    def claimed() -> Claim:
        run = core.state.runs["fit-1"]
        return claims.claim(core.state, run, core.fit_of(run), 10.0)

    def change_priority(**of: Any) -> None:
        core.apply(PriorityChanged(run="fit-1", seq=core.state.seq + 1, **of))

    before = claimed()
    for number, priority in enumerate(priorities):
        change_priority(model=f"m{number:02}", priority=priority)
    assert core.fit is not None
    assert core.fit.dispatch_state.priority == priorities
    assert claimed() == before
    change_priority(priority=of_run)
    assert claimed() == replace(before, weight=4.0**of_run)


def test_a_search_request_does_not_count_as_a_sub_epoch() -> None:
    """It uses no device, so the run's claim stays the same."""
    story = Story()
    story.fit()
    before = claims.claim(story.state, story.run, fit=None, now=story.time)
    story.assign(TaskKey(run="fit-1", kind="search", request="actions-0"), 0, ())
    assert claims.claim(story.state, story.run, fit=None, now=story.time).ahead_s == before.ahead_s == 0.0
    story.start(sub_epoch(1, 1), 1)
    assert claims.claim(story.state, story.run, fit=None, now=story.time).ahead_s > 0.0


def test_a_fused_group_counts_as_one_task_of_its_device() -> None:
    """Each of its models takes the time of the group, but a share of the device. The next task is queued in time."""
    story = TimedStory(workers=1)
    run = story.fit(models=4, partitions=1, epochs=2, parallel_plans=(fused.PLAN,))
    for epoch, begin in ((1, 0.0), (2, 8.0)):
        keys = [sub_epoch(epoch, 0, name) for name in ("m00", "m01")]
        story.at(begin, *fused.assigned(story, keys))
        story.at(begin, *fused.started(story, keys))
        for key in keys if epoch == 1 else ():
            story.ends(key, 0, 8.0)
    core, now = core_of(story), story.zero + 10.0
    run = core.state.runs["fit-1"]
    fit = core.fit_of(run)
    claimed = claims.claim(core.state, run, fit, now)
    assert (claimed.sub_epoch_s, claimed.ahead_s, claimed.whole_s) == (8.0, 6.0, math.inf)
    assert claims.ending(core.state, run, fit, now) == set()
    assert claims.ending(core.state, run, fit, now + 5.5) == {("worker-0", 0)}
