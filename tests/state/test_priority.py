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
def test_priorities_round_trip_as_text_and_json(priority: int) -> None:
    """Each step is four times the next lower weight."""
    assert parse(shown(priority)) == parse(priority) == parse(str(priority)) == priority
    event = PriorityChanged(run="fit-1", model="m00", priority=priority)
    assert PriorityChanged.model_validate_json(event.model_dump_json()) == event
    new = NewModel(hyperparams={}, epochs=1, priority=priority)
    assert NewModel.model_validate_json(new.model_dump_json()) == new
    assert priority == -MOST or weight(priority) == 4 * weight(priority - 1)


@pytest.mark.parametrize("value", ["urgent", "", None, True, 1.0, float("nan"), MOST + 1, "-10", "--1"])
def test_an_invalid_priority_is_refused_with_the_valid_values(value: object) -> None:
    with pytest.raises(
        BadRequestError, match="choose one of low, normal, high, or a whole number from -9 to 9"
    ):
        parse(value)


def test_runs_and_models_have_separate_priorities() -> None:
    """An event with a model changes the model, without a model the run. A repeated value is late."""
    story = Story()
    story.fit()
    for event in (
        PriorityChanged(run="fit-1", priority=LOW),
        PriorityChanged(run="fit-1", model="m01", priority=HIGH),
        PriorityChanged(run="fit-1", model="m01", priority=HIGH),
    ):
        story.append(event)
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
