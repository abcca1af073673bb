"""Decisions for many idle workers at once: what is computed once for all of them is what each would be told alone."""

from __future__ import annotations

from functools import reduce
from operator import or_

from hypothesis import given
from hypothesis import strategies as st

from cerebro.scheduling.dispatch_state import NEVER, DispatchState
from cerebro.scheduling.policies import critical_first
from cerebro.scheduling.policies.critical_first import CriticalFirst, by_level, levels, most_left
from cerebro.scheduling.schedule import Placement

WORKERS = 12
"""More than are asked one by one."""


@st.composite
def states(draw: st.DrawFn) -> DispatchState:
    """Models that have visited some partitions, of which each worker holds one; some sub-epochs do not fit
    somewhere."""
    models = draw(st.integers(1, 40))
    state = DispatchState.of_equals(
        models=models, sizes=[1.0] * WORKERS, held=[1 << w for w in range(WORKERS)], epochs=2
    )
    for model in range(models):
        state.open[model] = draw(st.integers(0, state.everything))
    seconds = st.sampled_from([1.0, 2.0, 5.0, NEVER])
    state.set_times(
        [[draw(seconds) for _ in range(WORKERS)] for _ in range(models)],
        [[0.0] * WORKERS for _ in range(models)],
    )
    return state


@given(states())
def test_models_that_are_sorted_once_are_chosen_as_by_each_worker_alone(state: DispatchState) -> None:
    """The worker with most left to do takes the model with most left of those that fit; and so on."""
    workers = range(WORKERS)
    alone = state.copy()
    expected = []
    for worker in by_level(levels(alone.worker_left, workers)):
        model = most_left(alone, worker)
        if model is not None:
            mask = alone.open[model] & alone.held[worker]
            expected.append(Placement(worker, model, (mask & -mask).bit_length() - 1))
            alone.start(expected[-1])
    found = []
    if not critical_first._is_scarce(state, workers):
        for choice in CriticalFirst().choices(state, workers):
            found.append(choice)
            state.start(choice)
        assert found == expected


@given(st.lists(st.integers(0, 2**WORKERS - 1), min_size=1, max_size=60))
def test_models_with_the_same_left_are_told_apart_from_others_only(open_masks: list[int]) -> None:
    """Which models a worker could take, by their places: the same whether few or many sets of partitions differ."""
    state = DispatchState.of_equals(
        models=len(open_masks), sizes=[1.0] * WORKERS, held=[1 << w for w in range(WORKERS)], epochs=1
    )
    state.open = open_masks
    models = list(range(len(open_masks)))
    for repeated in (models, [0] * 40):
        fits = critical_first._fits(state, range(WORKERS), repeated)
        for worker in range(WORKERS):
            bits = (1 << place for place, m in enumerate(repeated) if open_masks[m] >> worker & 1)
            assert fits[worker] == reduce(or_, bits, 0)
