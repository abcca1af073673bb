"""`Placement`: one record for policy choices, plans, schedules and the planner process."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.policies.following import Following
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement
from controller.planning.planner_query import order_from_json
from tests.scheduling.instances import problems

PLACES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=3, unique_by=lambda place: place[0]
)


@settings(max_examples=40, deadline=None)
@given(problem=problems(max_gpus=2), policy=st.sampled_from(sorted(POLICIES)))
def test_placements_of_a_schedule_round_trip_through_json_as_a_plan(problem: Problem, policy: str) -> None:
    """JSON serialisation keeps them unchanged."""
    schedule = dispatch(problem, POLICIES[policy])
    assert order_from_json(json.loads(json.dumps(schedule.sub_epochs))) == schedule.sub_epochs
    followed = dispatch(problem, Following(schedule.sub_epochs))
    assert sorted(u[:4] for u in followed.sub_epochs) == sorted(u[:4] for u in schedule.sub_epochs)


@settings(max_examples=60)
@given(places=PLACES, gpus=st.integers(1, 3), model=st.integers(0, 1))
def test_a_gang_start_takes_gpus_of_each_worker_and_a_release_returns_them(
    places: list[tuple[int, int]], gpus: int, model: int
) -> None:
    """A gang takes the same number of GPUs from each worker; a release restores the state."""
    state = DispatchState.of_equals(models=2, sizes=[1.0] * 7, held=[0b1111111] * 6, epochs=1, gpus=[9] * 6)
    state.start(Placement(0, model, 6, gpus=gpus, other_members=tuple(places)), at=5.0)
    taken = gpus if places else state.work.need[model][0]
    workers = [0, *(worker for _, worker in places)]
    assert state.free == [9 - taken * workers.count(worker) for worker in range(6)]
    assert state.running[model] == Placement(0, model, 6, start=5.0, gpus=taken, other_members=tuple(places))
    state.release(model)
    assert (state.free, state.running) == ([9] * 6, {})
