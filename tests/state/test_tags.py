"""Tags of experiments and models in the fold, and their checks before."""

from __future__ import annotations

import pytest

from cerebro.commands.tags import tags_event
from cerebro.contract.events import DeletionRequested, TagsChanged
from cerebro.contract.tags import MAX_TAGS
from cerebro.errors import BadRequestError, CerebroError, ConflictError, NotFoundError
from cerebro.state import snapshots
from tests.state.stories import Story


@pytest.fixture
def story() -> Story:
    story = Story()
    story.fit(models=2)
    return story


def test_tags_are_set_replaced_and_deleted(story: Story) -> None:
    """Tags of an experiment and of its models are separate; authors are in the list of commands."""
    story.append(tags_event(story.state, {"stage": "draft", "note": "two\nlines"}, by="ann"))
    story.append(tags_event(story.state, {"good": ""}, model="m00", by="bob"))
    story.append(tags_event(story.state, {"stage": "final", "note": None}, by="bob"))
    assert story.state.tags == {"stage": "final"}
    assert story.state.runs["fit-1"].models["m00"].tags == {"good": ""}
    assert story.state.runs["fit-1"].models["m01"].tags == {}
    said = [(each.by, each.what) for each in story.state.commands[-3:]]
    assert said == [
        ("ann", "set tags: stage=draft; changed the note"),
        ("bob", "set tags of model m00: good"),
        ("bob", "set tags: stage=final; deleted the note"),
    ]


def test_a_snapshot_keeps_tags(story: Story) -> None:
    """Readers start from snapshots."""
    story.append(tags_event(story.state, {"stage": "final"}))
    assert snapshots.unpacked(snapshots.packed(story.state), type(story.state)).tags == {"stage": "final"}


@pytest.mark.parametrize(
    ("changes", "model", "error"),
    [
        ({}, "", BadRequestError),
        ({"": "x"}, "", BadRequestError),
        ({"a=b": "x"}, "", BadRequestError),
        ({"k" * 101: "x"}, "", BadRequestError),
        ({"k": "v" * 5001}, "", BadRequestError),
        ({f"k{index}": "" for index in range(MAX_TAGS + 1)}, "", BadRequestError),
        ({"k": "v"}, "m99", NotFoundError),
    ],
)
def test_invalid_tags_are_refused(
    story: Story, changes: dict[str, str | None], model: str, error: type[CerebroError]
) -> None:
    """Keys, values, their number, and models that do not exist."""
    with pytest.raises(error):
        tags_event(story.state, changes, model=model)


def test_the_number_of_tags_is_limited_also_in_the_fold(story: Story) -> None:
    """Two users may reach the limit at the same time: the second change has no effect."""
    full: dict[str, str | None] = {f"k{index}": "v" for index in range(MAX_TAGS)}
    story.append(TagsChanged(tags=dict(full), by="ann"))
    story.append(TagsChanged(tags={"more": "v"}, by="bob"))
    assert story.state.tags == full
    assert story.state.commands[-1].is_late
    with pytest.raises(BadRequestError, match="more than 100 tags: delete some"):
        tags_event(story.state, {"more": "v"})


def test_a_model_that_does_not_exist_changes_nothing(story: Story) -> None:
    """Such an event has no effect."""
    story.append(TagsChanged(tags={"a": "b"}, run="fit-1", model="m99"))
    story.append(TagsChanged(tags={"a": "b"}, model="m00"))
    assert story.state.tags == {}
    assert [each.is_late for each in story.state.commands[-2:]] == [True, True]


def test_tags_cannot_change_during_a_deletion() -> None:
    """The message names the experiment."""
    story = Story()
    story.append(DeletionRequested())
    with pytest.raises(ConflictError, match="is being deleted"):
        tags_event(story.state, {"a": "b"})
