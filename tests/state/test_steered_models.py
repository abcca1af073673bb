"""Users stop, resume and retry single models."""

from __future__ import annotations

from cerebro.contract.events import (
    TaskRevoked,
)
from cerebro.state import ModelState
from cerebro.state.reports import state_words
from tests.state.stories import Story, sub_epoch
from tests.state.user_commands import resume, states, stop


def test_a_stopped_model_trains_no_further_and_keeps_its_sub_epochs() -> None:
    """It is stopping while its sub-epoch runs, then stopped."""
    story = Story()
    story.fit()
    story.train(1, 0)
    story.start(sub_epoch(1, 1), 1)
    story.append(stop())
    assert state_words.model(story.model(), story.run) == "stopping"
    story.append(TaskRevoked(task=str(sub_epoch(1, 1)), attempt=1, worker="worker-1", reason="stopped"))
    assert state_words.model(story.model(), story.run) == "stopped"
    assert (len(story.model().sub_epochs), story.model().effort.repeated_attempts) == (1, 0)
    assert story.run.progress() == (1, 5)
    assert not story.run.is_complete()
    story.epoch(1, model="m01")
    story.epoch(2, model="m01")
    assert story.run.is_complete()
    assert states(story) == {"m00": "stopped", "m01": "finished"}


def test_a_commit_before_the_revocation_counts() -> None:
    """A sub-epoch committed before its revocation counts; the last one finishes the model."""
    story = Story()
    story.fit(epochs=1)
    story.train(1, 0)
    story.start(sub_epoch(1, 1), 1)
    story.append(stop())
    story.commit(sub_epoch(1, 1), 1)
    assert story.model().state is ModelState.FINISHED


def test_a_resumed_model_continues_with_its_remaining_partitions() -> None:
    """It continues with the epoch's remaining partitions."""
    story = Story()
    story.fit()
    story.train(1, 0)
    story.append(stop(), resume())
    assert story.model().state is ModelState.ACTIVE
    assert story.model().remaining == (1,)
    story.train(1, 1)
