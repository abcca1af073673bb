"""A model's changed values, each with its first sub-epoch."""

from __future__ import annotations

from cerebro.contract.events import ModelChanged, ModelExtended, ModelsAdded
from cerebro.contract.runs import NewModel, ParentCheckpoint
from dispatcher.models.changes import changes
from tests.state.stories import Story, sub_epoch


def change(lr: float) -> ModelChanged:
    return ModelChanged(run="fit-1", model="m00", hyperparams={"lr": lr})


def change_rows(story: Story, model: str = "m00") -> list[tuple[object, object, str]]:
    return [(row.old_value, row.new_value, row.since) for row in changes(story.model(model))]


def test_a_change_applies_from_the_next_sub_epoch() -> None:
    """A change applies to the next sub-epoch, named by its epoch and its position in that epoch."""
    story = Story()
    story.fit(epochs=3)
    assert change_rows(story) == []
    story.train(1, 0)
    story.append(change(3))
    assert change_rows(story) == [(0.1, 3, "the next sub-epoch")]
    story.assign(sub_epoch(1, 1), 1)
    assert change_rows(story) == [(0.1, 3, "epoch 1, sub-epoch 2, the current one")]
    story.append(change(4))
    assert change_rows(story) == [
        (3, 4, "the next sub-epoch"),
        (0.1, 3, "epoch 1, sub-epoch 2, the current one"),
    ]


def test_a_warm_clone_has_changed_at_its_first_own_sub_epoch() -> None:
    """A changed number of epochs does not count as a changed value."""
    story = Story()
    story.fit(epochs=3)
    story.epoch(1)
    new = NewModel(hyperparams={"batch_size": 1, "lr": 9}, epochs=3, checkpoint=ParentCheckpoint(model="m00"))
    story.append(ModelsAdded(run="fit-1", models=(new,)), ModelExtended(run="fit-1", model="m00", epochs=8))
    assert change_rows(story) == []
    assert change_rows(story, "m02") == [(0.1, 9, "the next sub-epoch")]
    story.train(2, 0, model="m02")
    assert change_rows(story, "m02") == [(0.1, 9, "epoch 2, sub-epoch 1")]
