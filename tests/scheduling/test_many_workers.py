"""Decisions for many idle workers at once equal decisions for each worker alone."""

from __future__ import annotations

from functools import reduce
from operator import or_

from hypothesis import given
from hypothesis import strategies as st

from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.policies import critical_first
from cerebro.scheduling.policies.critical_first import CriticalFirst, by_level, levels, most_left
from cerebro.scheduling.remaining_work import NEVER
from cerebro.scheduling.schedule import Placement

WORKERS = 12
"""Above the threshold for separate decisions."""


@st.composite
def states(draw: st.DrawFn) -> DispatchState:
    """Generate models with some trained partitions; each worker holds one partition and some models do not fit."""
    models = draw(st.integers(1, 40))
    state = DispatchState.of_equals(
        models=models, sizes=[1.0] * WORKERS, held=[1 << w for w in range(WORKERS)], epochs=2
    )
    for model in range(models):
        state.open[model] = draw(st.integers(0, state.epoch_masks[model]))
    seconds = st.sampled_from([1.0, 2.0, 5.0, NEVER])
    state.set_times(
        [[draw(seconds) for _ in range(WORKERS)] for _ in range(models)],
        [[0.0] * WORKERS for _ in range(models)],
    )
    return state


@given(states())
def test_choices_for_many_workers_equal_choices_for_each_alone(state: DispatchState) -> None:
    """The worker with the most remaining work takes its fitting model with the most remaining work."""
    workers = range(WORKERS)
    alone = state.copy()
    expected = []
    for worker in by_level(levels(alone.work.worker_left, workers)):
        model = most_left(alone, worker)
        if model is not None:
            mask = alone.open[model] & alone.holders.held[worker]
            expected.append(Placement(worker, model, (mask & -mask).bit_length() - 1))
            alone.start(expected[-1])
    found = []
    if not critical_first._is_scarce(state, workers):
        for choice in CriticalFirst().choices(state, workers):
            found.append(choice)
            state.start(choice)
        assert found == expected


@given(st.lists(st.integers(0, 2**WORKERS - 1), min_size=1, max_size=60))
def test_equal_remaining_partitions_do_not_change_the_fitting_workers(open_masks: list[int]) -> None:
    """The result must not depend on the number of distinct partition sets."""
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
