"""Priorities: one number for runs and models, with the names from old logs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import PriorityChanged
from cerebro.contract.priority import HIGH, LOW, MOST, NORMAL, parse, shown, weight
from cerebro.contract.runs import NewModel
from cerebro.errors import BadRequestError
from tests.state.stories import Story


@given(st.integers(-MOST, MOST))
def test_a_priority_is_read_as_it_is_shown_and_stored(priority: int) -> None:
    """Each step is four times the next lower weight."""
    assert parse(shown(priority)) == parse(priority) == parse(str(priority)) == priority
    event = PriorityChanged(run="fit-1", model="m00", priority=priority)
    assert PriorityChanged.model_validate_json(event.model_dump_json()) == event
    new = NewModel(hyperparams={}, epochs=1, priority=priority)
    assert NewModel.model_validate_json(new.model_dump_json()) == new
    assert priority == -MOST or weight(priority) == 4 * weight(priority - 1)


@pytest.mark.parametrize("value", ["urgent", "", None, True, 1.0, float("nan"), MOST + 1, "-10", "--1"])
def test_what_is_none_is_refused_with_what_there_is(value: object) -> None:
    with pytest.raises(
        BadRequestError, match="choose one of low, normal, high, or a whole number from -9 to 9"
    ):
        parse(value)


def test_a_run_and_its_models_are_prioritised_apart() -> None:
    """An event with a model changes the model, without a model the run. A repeated value is late."""
    story = Story()
    story.fit()
    for event in (
        PriorityChanged(run="fit-1", priority=LOW),
        PriorityChanged(run="fit-1", model="m01", priority=HIGH),
        PriorityChanged(run="fit-1", model="m01", priority=HIGH),
    ):
        story.tell(event)
    assert (story.run.priority, story.model("m01").priority, story.model("m00").priority) == (
        LOW,
        HIGH,
        NORMAL,
    )
    assert [record.is_late for record in story.state.commands[-3:]] == [False, False, True]
    assert [record.what for record in story.state.commands[-3:-1]] == [
        "changed the priority of fit-1 to low",
        "changed the priority of model m01 to high (before: normal)",
    ]
