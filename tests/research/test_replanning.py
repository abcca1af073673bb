"""Replanning: the remainder of a problem is a valid problem."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule
from cerebro.scheduling.validator import validate
from research.replanning import rest
from tests.scheduling.instances import problems


@settings(deadline=None, max_examples=40)
@given(problem=problems(max_gpus=3, max_epochs=1, is_begun=False), share=st.sampled_from((0.0, 0.3, 0.7)))
def test_started_sub_epochs_and_a_plan_of_the_rest_form_a_schedule(problem: Problem, share: float) -> None:
    """At any cut, the started sub-epochs and a shifted schedule of the rest are valid together."""
    run = dispatch(problem, POLICIES["lrptw"])
    at = share * run.makespan
    left = rest(problem, run, at)
    begun = [sub_epoch for sub_epoch in run.sub_epochs if sub_epoch.start < at]
    later = dispatch(left, POLICIES["fifo"])
    validate(left, later).check()
    moved = [
        type(u)(
            model=u.model,
            partition=u.partition,
            worker=u.worker,
            start=u.start + at,
            end=u.end + at,
            gpus=u.gpus,
        )
        for u in later.sub_epochs
    ]
    validate(problem, Schedule.of([*begun, *moved])).check()
