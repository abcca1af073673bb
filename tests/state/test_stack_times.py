"""The measured times of stacks, and the chosen size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.parallel_plans import FUSED, ParallelPlan
from cerebro.state.models.completed_sub_epoch import DeviceSharing
from cerebro.state.runs.parts.stack_times import StackKey, StackTimes, size_class
from tests.state.completed_sub_epochs import COMPLETED

KEY = StackKey("g00", None)
PLAN = ParallelPlan(technique=FUSED, params={"models": 16}, processes="one")


def observe(times: StackTimes, size: int, seconds: float, number: int) -> None:
    """Add a stack of `size` models that took `seconds` per model; 1: separate training."""
    done = COMPLETED._replace(ended=seconds * size)
    if size > 1:
        done = done._replace(parallel_plan=PLAN, group=DeviceSharing(f"stack {number}", size))
    times.observe(KEY, done)


@given(
    separate_s=st.lists(st.floats(0.95, 1.05), min_size=1, max_size=20),
    stack_s=st.dictionaries(st.sampled_from([4, 8, 16]), st.floats(0.05, 3.0), min_size=1),
)
def test_the_choice_is_never_slower_than_separate_training(
    separate_s: list[float], stack_s: dict[int, float]
) -> None:
    """A chosen stack was measured and is faster; separate training is chosen otherwise."""
    times = StackTimes(since=0.0)
    for number, seconds in enumerate(separate_s):
        observe(times, 1, seconds, number)
    for number, (size, seconds) in enumerate(stack_s.items()):
        observe(times, size, seconds, number)
    measured, chosen = times.measured(KEY), times.chosen(KEY)
    assert measured[chosen] <= measured[1]
    assert chosen == 1 or measured[chosen] < 0.96 * measured[1]
    assert not times.is_slower(KEY, chosen) or chosen == 1


@given(noise=st.lists(st.floats(0.97, 1.03), min_size=1, max_size=30))
def test_noise_does_not_change_the_choice(noise: list[float]) -> None:
    """Two sizes with almost equal times: the first choice stays."""
    times = StackTimes(since=0.0)
    observe(times, 1, 1.0, 0)
    observe(times, 4, 0.5, 1)
    observe(times, 8, 0.5, 2)
    changes = times.choices
    for number, factor in enumerate(noise, start=3):
        observe(times, 4 if number % 2 else 8, 0.5 * factor, number)
        assert times.chosen(KEY) == 4
    assert times.choices == changes


def test_models_of_a_stack_are_one_measurement() -> None:
    """The last commit of a stack counts, since its device was busy until then."""
    times = StackTimes(since=0.0)
    observe(times, 1, 1.0, 0)
    for seconds in (0.3, 0.4, 0.5, 0.6):
        observe(times, 4, seconds, 1)
    rows = COMPLETED.rows
    assert times.measured(KEY) == pytest.approx({1: 1.0 / rows, 4: 0.6 / rows})


def test_sub_epochs_during_the_inspection_do_not_count() -> None:
    """The inspection may slow them."""
    times = StackTimes(since=1e12)
    observe(times, 1, 1.0, 0)
    assert times.measured(KEY) == {}
    assert not times.is_worthwhile(KEY, 16)


def test_the_next_size_doubles_up_to_the_limit() -> None:
    """Four models first, or fewer if the limit is lower; nothing after a slower size."""
    times = StackTimes(since=0.0)
    assert times.untried(KEY, 16) == 0
    observe(times, 1, 1.0, 0)
    assert [times.untried(KEY, most) for most in (1, 2, 3, 4, 16)] == [0, 2, 4, 4, 4]
    observe(times, 4, 0.5, 1)
    assert [times.untried(KEY, most) for most in (4, 5, 8, 16)] == [0, 8, 8, 8]
    observe(times, 8, 0.7, 2)
    assert (times.chosen(KEY), times.untried(KEY, 16)) == (4, 0)
    assert size_class(5) == 8
