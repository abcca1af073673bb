"""The measured times of stacks, and the chosen size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import ModelChanged
from cerebro.contract.parallel_plans import FUSED, ParallelPlan
from cerebro.contract.trials import Inspection, ModelGroup
from cerebro.state.models.completed_sub_epoch import DeviceSharing
from cerebro.state.runs.parts.stack_times import StackKey, StackTimes, size_class
from tests.state.completed_sub_epochs import COMPLETED
from tests.state.stories import Story, sub_epoch

KEY = StackKey("g00", None)
PLAN = ParallelPlan(technique=FUSED, params={"models": 16}, processes="one")


def observe(times: StackTimes, size: int, seconds: float, number: int) -> None:
    """Add a stack of `size` models that took `seconds` per model; 1: separate training."""
    done = COMPLETED._replace(ended=seconds * size)
    if size > 1:
        done = done._replace(parallel_plan=PLAN, group=DeviceSharing(f"stack {number}", size))
    times.observe(KEY, done)


def separately(*seconds: float) -> StackTimes:
    """Return the times after separate training only."""
    times = StackTimes(since=0.0)
    for number, each in enumerate(seconds):
        observe(times, 1, each, number)
    return times


@given(
    separate_s=st.lists(st.floats(0.95, 1.05), min_size=1, max_size=20),
    stack_s=st.lists(st.tuples(st.sampled_from([4, 8, 16]), st.floats(0.05, 3.0)), min_size=1),
)
def test_the_choice_is_never_slower_than_separate_training(
    separate_s: list[float], stack_s: list[tuple[int, float]]
) -> None:
    """A chosen stack was faster when it was chosen, and is never more than 5 % slower."""
    times = separately(*separate_s)
    for number, (size, seconds) in enumerate(stack_s):
        observe(times, size, seconds, number)
        measured, chosen = times.measured(KEY), times.chosen(KEY)
        assert chosen == 1 or 0.95 * measured[chosen] <= measured[1]


@pytest.mark.parametrize("slow_s", [1.0, 5.0])
def test_one_disturbed_stack_rejects_no_size(slow_s: float) -> None:
    """The size is measured until two times agree, or three times. Two slow stacks reject it."""
    times = separately(1.0, 1.0)
    observe(times, 4, slow_s, 0)
    assert (times.chosen(KEY), times.next_size(KEY, 16), times.is_slower(KEY, 4)) == (1, 4, False)
    assert times.is_worthwhile(KEY, 16)
    changes = times.choices
    observe(times, 4, 0.4, 1)
    observe(times, 4, 0.4, 2)
    assert (times.chosen(KEY), times.next_size(KEY, 16)) == (4, 8)
    assert times.choices > changes
    twice = separately(1.0, 1.0)
    for number in range(2):
        observe(twice, 4, slow_s, number)
    assert (twice.chosen(KEY), twice.next_size(KEY, 16), twice.is_slower(KEY, 4)) == (1, 0, True)
    assert not twice.is_worthwhile(KEY, 16)


def test_one_disturbed_separate_sub_epoch_chooses_no_stack() -> None:
    """A stack is measured, but chosen only once two separate times agree, or three are known."""
    times = separately(9.0, 1.0)
    for number in range(2):
        observe(times, 4, 1.5, number)
    assert times.chosen(KEY) == 1
    observe(times, 1, 1.1, 2)
    assert (times.chosen(KEY), times.is_worthwhile(KEY, 16)) == (1, False)


def test_only_separate_training_and_real_stacks_are_measured() -> None:
    """A stack that shrank to one model, another technique and a resumed sub-epoch have other times."""
    times = separately(1.0, 1.0)
    known = times.measured(KEY)
    late = COMPLETED._replace(ended=50.0)
    lean = ParallelPlan(technique="checkpointing", processes="one")
    for other in (
        late._replace(parallel_plan=PLAN, group=DeviceSharing("stack 0", 1)),
        late._replace(parallel_plan=PLAN),
        late._replace(parallel_plan=lean),
        late._replace(resumed_rows=2),
        late._replace(rows=0),
    ):
        times.observe(KEY, other)
        assert times.measured(KEY) == known
    times.observe(KEY, late._replace(parallel_plan=PLAN, group=DeviceSharing("stack 1", 3)))
    assert times.measured(KEY) == pytest.approx(known | {4: 50.0 / 3 / COMPLETED.rows})


@given(noise=st.lists(st.floats(0.97, 1.03), min_size=1, max_size=30))
def test_noise_does_not_change_the_choice(noise: list[float]) -> None:
    """Two sizes with almost equal times: the first choice stays."""
    times = separately(1.0, 1.0)
    observe(times, 4, 0.5, 1)
    observe(times, 8, 0.5, 2)
    changes = times.choices
    for number, factor in enumerate(noise, start=3):
        observe(times, 4 if number % 2 else 8, 0.5 * factor, number)
        assert times.chosen(KEY) == 4
    assert times.choices <= changes + 2, "each of both sizes becomes known once"


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
    """Four models first, or fewer if the limit is lower; nothing after a size that was slower twice."""
    times = StackTimes(since=0.0)
    assert times.next_size(KEY, 16) == 0
    for number in range(2):
        observe(times, 1, 1.0, number)
    assert [times.next_size(KEY, most) for most in (1, 2, 3, 4, 16)] == [0, 2, 4, 4, 4]
    observe(times, 4, 0.5, 1)
    assert [times.next_size(KEY, most) for most in (4, 5, 8, 16)] == [0, 8, 8, 8]
    for number in range(2, 4):
        observe(times, 8, 0.7, number)
    assert (times.chosen(KEY), times.next_size(KEY, 16)) == (4, 0)
    assert size_class(5) == 8


def test_sub_epochs_of_a_changed_model_do_not_count() -> None:
    """Its new hyperparameters may change the time, and it joins no stack."""
    story = Story()
    run = story.fit(models=2)
    run.trials.stacks.since = 0.0
    run.trials.inspect(Inspection(groups=(ModelGroup(id="g00", models=("m00", "m01")),)), run.models)
    story.append(ModelChanged(run="fit-1", model="m00", hyperparams={"batch_size": 2}))
    for model, is_measured in (("m00", False), ("m01", True)):
        story.start(sub_epoch(1, 0, model), 0)
        story.commit(sub_epoch(1, 0, model), 0)
        assert bool([*run.trials.stacks]) == is_measured
