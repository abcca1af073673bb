"""Policies that compare models by their observed progress."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.policies import POLICIES, is_by_priority_score
from research.problems import open_shop
from tests.scheduling.instances import open_shops, problems

NAMES = [name for name in POLICIES if is_by_priority_score(name)]
RNG = random.Random(0)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(problem=problems(max_models=5, is_begun=False), data=st.data())
def test_no_eligible_model_is_better(name: str, problem, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    state = DispatchState(problem)
    state.priority_score = [float(data.draw(st.integers(0, 3))) for _ in range(problem.num_models)]
    workers = [worker for worker, gpus in enumerate(state.free) if gpus]
    choice = POLICIES[name].choose(state, workers, RNG)
    if choice is None:
        assert not any(list(state.eligible(worker)) for worker in workers)
    else:
        eligible = [model for model, _ in state.eligible(choice.worker)]
        assert state.priority_score[choice.model] == max(state.priority_score[model] for model in eligible)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10, deadline=None)
@given(problem=open_shops())
def test_without_priority_scores_models_come_first_in_first_out(name: str, problem) -> None:  # type: ignore[no-untyped-def]
    assert dispatch(problem, POLICIES[name]) == dispatch(problem, POLICIES["fifo"])


def test_the_best_model_trains_on_each_free_worker_first() -> None:
    """It goes to each free worker with an untrained partition."""
    state = DispatchState(open_shop([[1.0, 1.0]] * 3))
    state.priority_score = [1.0, 3.0, 2.0]
    first = POLICIES["promising"].choose(state, [0, 1], RNG)
    assert first is not None
    assert first.model == 1
    state.start(first)
    second = POLICIES["promising"].choose(state, [1 - first.worker], RNG)
    assert second is not None
    assert second.model == 2
