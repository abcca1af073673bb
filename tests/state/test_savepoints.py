"""Savepoints in the fold: which sub-epochs resume, and which restart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    PreemptionRequested,
    SubEpochSaved,
    TaskRevoked,
)
from cerebro.contract.tasks.checkpoints import CheckpointRef, Savepoint
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import IllegalEventError
from cerebro.state import ModelState, TaskKey
from cerebro.state.experiment import fold
from tests.state.stories import Story, joined, lost, sub_epoch, validation

KEY = sub_epoch(1, 0)
BATCHES = 6
"""Batches of a sub-epoch."""


def savepoint(batch: int, name: str = "") -> Savepoint:
    """Return a savepoint before this batch."""
    reference = CheckpointRef(name=name or f"s{batch}", checksum="-", size=1)
    return Savepoint(checkpoint=reference, batch=batch, rows=batch)


def story() -> Story:
    """A fit of two models on two workers."""
    story = Story()
    story.fit(models=2)
    return story


def saved(story: Story, batch: int, *, key: TaskKey = KEY, worker: int = 0) -> None:
    """Record a savepoint of the open attempt."""
    attempt = story.attempt(key) - 1
    story.append(
        SubEpochSaved(task=str(key), attempt=attempt, worker=f"worker-{worker}", savepoint=savepoint(batch))
    )


def saved_at(batch: int) -> Story:
    """A fit whose first attempt has a savepoint at this batch."""
    run_story = story()
    run_story.start(KEY, 0)
    saved(run_story, batch)
    return run_story


def revoked(story: Story, key: TaskKey = KEY, loss: FailureKind | None = None) -> None:
    """Revoke the open attempt from worker 0."""
    attempt = story.attempt(key) - 1
    story.append(TaskRevoked(task=str(key), attempt=attempt, worker="worker-0", reason="gone", loss=loss))


def newest(story: Story, key: TaskKey = KEY) -> int:
    """Return the batch where the sub-epoch resumes, or 0 for a restart."""
    found = story.model().checkpoints.savepoint_of(str(key))
    return found.batch if found else 0


def test_a_sub_epoch_resumes_from_its_newest_savepoint() -> None:
    """After a crash, a lost worker, a worker shutdown or a stop."""
    run_story = saved_at(2)
    saved(run_story, 4)
    revoked(run_story, loss=FailureKind.CRASH)
    assert newest(run_story) == 4
    run_story.fail(KEY, 0, FailureKind.PREEMPTED)
    assert newest(run_story) == 4
    assert newest(run_story, sub_epoch(1, 1)) == 0
    run_story.start(KEY, 0)
    saved(run_story, 5)
    run_story.append(ModelStopRequested(run="fit-1", model="m00"))
    revoked(run_story)
    run_story.append(ModelResumed(run="fit-1", model="m00"))
    assert newest(run_story) == 5


def test_a_sub_epoch_with_a_savepoint_goes_first() -> None:
    """If the model trained elsewhere first, the savepoint would be useless."""
    run_story = story()
    run_story.start(KEY, 0)
    run_story.break_off(KEY, 0, 1, FailureKind.CRASH)
    assert not run_story.run.task(KEY).is_interrupted
    run_story.start(KEY, 0)
    saved(run_story, 2)
    run_story.break_off(KEY, 0, 2, FailureKind.CRASH)
    assert run_story.run.task(KEY).is_interrupted
    run_story.start(KEY, 0)
    assert not run_story.run.task(KEY).is_interrupted
    revoked(run_story)
    assert run_story.run.task(KEY).is_interrupted


def test_a_commit_discards_savepoints() -> None:
    """A commit of another sub-epoch counts too, because it replaces the model's weights."""
    run_story = saved_at(3)
    run_story.commit(KEY, 0)
    assert run_story.model().checkpoints.saved is None
    run_story.start(sub_epoch(1, 1), 1)
    saved(run_story, 3, key=sub_epoch(1, 1), worker=1)
    run_story.break_off(sub_epoch(1, 1), 1, 1, FailureKind.PREEMPTED)
    assert newest(run_story, sub_epoch(1, 1)) == 3
    run_story = saved_at(3)
    run_story.break_off(KEY, 0, 1, FailureKind.CRASH)
    run_story.train(1, 1)
    assert newest(run_story) == 0


def test_a_non_finite_model_restarts_its_sub_epoch() -> None:
    """The savepoint may contain the bad numbers."""
    run_story = saved_at(3)
    run_story.break_off(KEY, 0, 1, FailureKind.NON_FINITE)
    assert run_story.model().state is ModelState.FAILED
    run_story.append(ModelRetried(run="fit-1", model="m00"))
    assert newest(run_story) == 0


@pytest.mark.parametrize("kind", [FailureKind.CRASH, FailureKind.OUT_OF_MEMORY])
def test_a_savepoint_is_dropped_after_two_attempts_died(kind: FailureKind) -> None:
    """The third attempt restarts. The attempt that saved it, and attempts that got further, do not count."""
    story = Story()
    story.fit(models=1, max_attempts=9)
    story.start(KEY, 0)
    saved(story, 2)
    story.break_off(KEY, 0, 1, kind)
    story.fail(KEY, 0, kind)
    assert newest(story) == 2
    story.start(KEY, 0)
    saved(story, 4)
    story.break_off(KEY, 0, 3, kind)
    story.fail(KEY, 0, kind)
    assert newest(story) == 4
    story.fail(KEY, 0, FailureKind.PREEMPTED)
    assert newest(story) == 4
    story.start(KEY, 0)
    revoked(story, loss=FailureKind.CRASH)
    assert newest(story) == 0


def test_an_error_after_a_savepoint_restarts_the_sub_epoch_once() -> None:
    """The savepoint may be the cause. After a restart the error counts as usual."""
    run_story = saved_at(2)
    run_story.break_off(KEY, 0, 1, FailureKind.PREEMPTED)
    run_story.fail(KEY, 0, FailureKind.USER_ERROR)
    assert (run_story.model().state, newest(run_story)) == (ModelState.ACTIVE, 0)
    run_story.fail(KEY, 0, FailureKind.USER_ERROR)
    assert run_story.model().state is ModelState.FAILED


def test_resumed_work_does_not_count_as_redone() -> None:
    """A restarted sub-epoch counts."""
    run_story = saved_at(2)
    revoked(run_story)
    run_story.start(KEY, 0)
    assert run_story.model().effort.repeated_attempts == 0
    run_story.break_off(KEY, 0, 2, FailureKind.CHECKPOINT)
    run_story = story()
    run_story.fail(KEY, 0, FailureKind.CRASH)
    run_story.start(KEY, 0)
    assert run_story.model().effort.repeated_attempts == 1


def test_only_a_running_sub_epoch_has_savepoints() -> None:
    """The savepoint must come from the running attempt at its worker."""
    run_story = story()
    run_story.assign(KEY, 0)
    with pytest.raises(IllegalEventError, match="while it is assigned"):
        saved(run_story, 2)
    revoked(run_story)
    run_story.start(KEY, 0)
    for wrong in ({"attempt": 1}, {"worker": "worker-1"}):
        event = SubEpochSaved(task=str(KEY), attempt=2, worker="worker-0", savepoint=savepoint(2))
        with pytest.raises(IllegalEventError):
            run_story.append(event.model_copy(update=wrong))
    run_story.commit(KEY, 0)
    run_story.train(1, 1)
    run_story = Story()
    run_story.fit(models=1, validated=True, epochs=1)
    run_story.epoch(1)
    run_story.start(validation(1), 0)
    with pytest.raises(IllegalEventError, match="no sub-epoch of training"):
        saved(run_story, 2, key=validation(1))


# --- Preemption ---


def request_release(story: Story, key: TaskKey = KEY) -> None:
    attempt = story.attempt(key) - 1
    story.append(PreemptionRequested(task=str(key), attempt=attempt, worker="worker-0", reason="stopped"))


def test_a_worker_that_releases_on_request_is_not_ending() -> None:
    """A worker that releases a task without a request is shutting down."""
    run_story = story()
    run_story.start(KEY, 0)
    request_release(run_story)
    run_story.break_off(KEY, 0, 1, FailureKind.PREEMPTED)
    assert not run_story.state.workers["worker-0"].is_ending
    assert run_story.run.task(KEY).failures == 0
    assert run_story.run.task(KEY).is_interrupted
    run_story.fail(KEY, 0, FailureKind.PREEMPTED)
    assert run_story.state.workers["worker-0"].is_ending


# --- Exactly once ---

steps = st.lists(
    st.tuples(st.sampled_from(["begin", "train", "save", "die", "preempt", "lose", "stop", "lost", "corrupt"]),
              st.integers(0, 2)),
    max_size=80,
)  # fmt: skip


class Lineage(Story):
    """One model on three workers with all partitions. Each file records the batches in its weights."""

    def __init__(self) -> None:
        super().__init__(workers=0)
        self.append(*(joined(number, partitions=(0, 1, 2)) for number in range(3)))
        self.fit(models=1, partitions=3, epochs=2, max_attempts=1000)
        self.files: dict[str, tuple[tuple[int, int, int], ...]] = {"": ()}
        """Maps a file to the (epoch, partition, batch) entries its weights were trained on."""
        self.weights: tuple[tuple[int, int, int], ...] = ()
        self.done = 0
        self.key: TaskKey | None = None
        self.worker = 0

    def step(self, what: str, number: int) -> None:
        if self.key is None:
            self.append(*(ModelResumed(run="fit-1", model="m00") for _ in range(self.model().is_cut_short)))
            if not self.model().is_trained:
                self.begin(number)
        elif what in ("begin", "train"):
            self.train_on()
        elif what == "save" and self.done:
            self.save()
        elif what != "save":
            self.end(what)

    def begin(self, number: int) -> None:
        """Load the task's state and continue, as a worker does."""
        remaining = self.model().remaining
        self.key, self.worker = sub_epoch(self.model().epoch, remaining[number % len(remaining)]), number
        found = self.model().checkpoints.savepoint_of(str(self.key))
        newest = self.model().sub_epochs[-1].checkpoint.name if self.model().sub_epochs else ""
        self.weights = self.files[found.checkpoint.name if found else newest]
        self.done = found.batch if found else 0
        self.start(self.key, number)

    def train_on(self) -> None:
        key = self.key
        assert key is not None
        self.weights += ((key.epoch or 0, key.partition or 0, self.done),)
        self.done += 1
        if self.done == BATCHES:
            name = f"u{len(self.files)}"
            self.files[name] = self.weights
            reference = CheckpointRef(name=name, checksum="-", size=1)
            self.commit(
                key, self.worker, TaskResult(rows=BATCHES, metrics={"loss": 1.0}, checkpoint=reference)
            )
            self.key = None

    def save(self) -> None:
        key, name = self.key, f"s{len(self.files)}"
        assert key is not None
        self.files[name] = self.weights
        attempt = self.attempt(key) - 1
        at = f"worker-{self.worker}"
        self.append(
            SubEpochSaved(task=str(key), attempt=attempt, worker=at, savepoint=savepoint(self.done, name))
        )

    def end(self, what: str) -> None:
        key, self.key = self.key, None
        assert key is not None
        attempt, at = self.attempt(key) - 1, f"worker-{self.worker}"
        if what == "lose":
            self.append(
                TaskRevoked(task=str(key), attempt=attempt, worker=at, reason="lost"),
            )
        elif what == "lost" and self.run.task(key).losses < 5:
            self.append(lost(self.worker))
            self.append(
                TaskRevoked(task=str(key), attempt=attempt, worker=at, reason="lost", loss=FailureKind.CRASH)
            )
            self.append(joined(self.worker, incarnation=str(self.state.seq), partitions=(0, 1, 2)))
        elif what == "corrupt":
            if sum(self.model().checkpoints.losses.values()) < 3:
                self.break_off(key, self.worker, attempt, FailureKind.CHECKPOINT)
            else:
                self.break_off(key, self.worker, attempt, FailureKind.CRASH)
            if self.model().is_cut_short:
                self.append(ModelRetried(run="fit-1", model="m00"))
        elif what == "stop":
            self.append(ModelStopRequested(run="fit-1", model="m00"))
            self.append(PreemptionRequested(task=str(key), attempt=attempt, worker=at, reason="stopped"))
            self.break_off(key, self.worker, attempt, FailureKind.PREEMPTED)
        elif what == "preempt":
            self.break_off(key, self.worker, attempt, FailureKind.PREEMPTED)
        else:
            self.break_off(key, self.worker, attempt, FailureKind.CRASH)


@settings(deadline=None, max_examples=60)
@given(story=steps)
def test_every_batch_of_every_epoch_is_trained_once(story: list[tuple[str, int]]) -> None:
    """The committed weights contain each batch once, despite failures, moves, stops and lost checkpoints."""
    lineage = Lineage()
    for what, number in story:
        lineage.step(what, number)
    while not lineage.model().is_trained or lineage.key is not None:
        lineage.step("train", 0)
    weights = lineage.files[lineage.model().sub_epochs[-1].checkpoint.name]
    assert sorted(weights) == [(e, p, b) for e in (1, 2) for p in (0, 1, 2) for b in range(BATCHES)]
    order = [(completed.epoch, completed.partition) for completed in lineage.model().sub_epochs]
    assert weights == tuple((e, p, b) for e, p in order for b in range(BATCHES))
    assert fold("one", lineage.log) == lineage.state
