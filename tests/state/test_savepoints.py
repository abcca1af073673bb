"""Savepoints in the fold: which sub-epochs resume, and which restart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    SubEpochSaved,
    TaskAsked,
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
    made = Story()
    made.fit(models=2)
    return made


def saved(told: Story, batch: int, *, key: TaskKey = KEY, worker: int = 0) -> None:
    """Record a savepoint of the open attempt."""
    attempt = told.attempt(key) - 1
    told.tell(
        SubEpochSaved(task=str(key), attempt=attempt, worker=f"worker-{worker}", savepoint=savepoint(batch))
    )


def saved_at(batch: int) -> Story:
    """A fit whose first attempt has a savepoint at this batch."""
    told = story()
    told.start(KEY, 0)
    saved(told, batch)
    return told


def revoked(told: Story, key: TaskKey = KEY, loss: FailureKind | None = None) -> None:
    """Revoke the open attempt from worker 0."""
    attempt = told.attempt(key) - 1
    told.tell(TaskRevoked(task=str(key), attempt=attempt, worker="worker-0", reason="gone", loss=loss))


def newest(told: Story, key: TaskKey = KEY) -> int:
    """Return the batch where the sub-epoch resumes, or 0 for a restart."""
    found = told.model().checkpoints.savepoint_of(str(key))
    return found.batch if found else 0


def test_a_sub_epoch_resumes_from_its_newest_savepoint() -> None:
    """After a crash, a lost worker, a worker shutdown or a stop."""
    told = saved_at(2)
    saved(told, 4)
    revoked(told, loss=FailureKind.CRASH)
    assert newest(told) == 4
    told.fail(KEY, 0, FailureKind.PREEMPTED)
    assert newest(told) == 4
    assert newest(told, sub_epoch(1, 1)) == 0
    told.start(KEY, 0)
    saved(told, 5)
    told.tell(ModelStopRequested(run="fit-1", model="m00"))
    revoked(told)
    told.tell(ModelResumed(run="fit-1", model="m00"))
    assert newest(told) == 5


def test_a_sub_epoch_with_a_savepoint_goes_first() -> None:
    """If the model trained elsewhere first, the savepoint would be useless."""
    told = story()
    told.start(KEY, 0)
    told.break_off(KEY, 0, 1, FailureKind.CRASH)
    assert not told.run.task(KEY).is_interrupted
    told.start(KEY, 0)
    saved(told, 2)
    told.break_off(KEY, 0, 2, FailureKind.CRASH)
    assert told.run.task(KEY).is_interrupted
    told.start(KEY, 0)
    assert not told.run.task(KEY).is_interrupted
    revoked(told)
    assert told.run.task(KEY).is_interrupted


def test_a_commit_discards_savepoints() -> None:
    """A commit of another sub-epoch counts too, because it replaces the model's weights."""
    told = saved_at(3)
    told.commit(KEY, 0)
    assert told.model().checkpoints.saved is None
    told.start(sub_epoch(1, 1), 1)
    saved(told, 3, key=sub_epoch(1, 1), worker=1)
    told.break_off(sub_epoch(1, 1), 1, 1, FailureKind.PREEMPTED)
    assert newest(told, sub_epoch(1, 1)) == 3
    told = saved_at(3)
    told.break_off(KEY, 0, 1, FailureKind.CRASH)
    told.train(1, 1)
    assert newest(told) == 0


def test_a_non_finite_model_restarts_its_sub_epoch() -> None:
    """The savepoint may contain the bad numbers."""
    told = saved_at(3)
    told.break_off(KEY, 0, 1, FailureKind.NON_FINITE)
    assert told.model().state is ModelState.FAILED
    told.tell(ModelRetried(run="fit-1", model="m00"))
    assert newest(told) == 0


@pytest.mark.parametrize("kind", [FailureKind.CRASH, FailureKind.OUT_OF_MEMORY])
def test_a_savepoint_is_dropped_after_two_attempts_died(kind: FailureKind) -> None:
    """The third attempt restarts. The attempt that saved it, and attempts that got further, do not count."""
    told = Story()
    told.fit(models=1, max_attempts=9)
    told.start(KEY, 0)
    saved(told, 2)
    told.break_off(KEY, 0, 1, kind)
    told.fail(KEY, 0, kind)
    assert newest(told) == 2
    told.start(KEY, 0)
    saved(told, 4)
    told.break_off(KEY, 0, 3, kind)
    told.fail(KEY, 0, kind)
    assert newest(told) == 4
    told.fail(KEY, 0, FailureKind.PREEMPTED)
    assert newest(told) == 4
    told.start(KEY, 0)
    revoked(told, loss=FailureKind.CRASH)
    assert newest(told) == 0


def test_an_error_after_a_savepoint_restarts_the_sub_epoch_once() -> None:
    """The savepoint may be the cause. After a restart the error counts as usual."""
    told = saved_at(2)
    told.break_off(KEY, 0, 1, FailureKind.PREEMPTED)
    told.fail(KEY, 0, FailureKind.USER_ERROR)
    assert (told.model().state, newest(told)) == (ModelState.ACTIVE, 0)
    told.fail(KEY, 0, FailureKind.USER_ERROR)
    assert told.model().state is ModelState.FAILED


def test_resumed_work_does_not_count_as_redone() -> None:
    """A restarted sub-epoch counts."""
    told = saved_at(2)
    revoked(told)
    told.start(KEY, 0)
    assert told.model().effort.repeated_attempts == 0
    told.break_off(KEY, 0, 2, FailureKind.CHECKPOINT)
    told = story()
    told.fail(KEY, 0, FailureKind.CRASH)
    told.start(KEY, 0)
    assert told.model().effort.repeated_attempts == 1


def test_only_a_running_sub_epoch_has_savepoints() -> None:
    """The savepoint must come from the running attempt at its worker."""
    told = story()
    told.assign(KEY, 0)
    with pytest.raises(IllegalEventError, match="while it is assigned"):
        saved(told, 2)
    revoked(told)
    told.start(KEY, 0)
    for wrong in ({"attempt": 1}, {"worker": "worker-1"}):
        event = SubEpochSaved(task=str(KEY), attempt=2, worker="worker-0", savepoint=savepoint(2))
        with pytest.raises(IllegalEventError):
            told.tell(event.model_copy(update=wrong))
    told.commit(KEY, 0)
    told.train(1, 1)
    told = Story()
    told.fit(models=1, validated=True, epochs=1)
    told.epoch(1)
    told.start(validation(1), 0)
    with pytest.raises(IllegalEventError, match="no sub-epoch of training"):
        saved(told, 2, key=validation(1))


# --- Preemption ---


def asked(told: Story, key: TaskKey = KEY) -> None:
    attempt = told.attempt(key) - 1
    told.tell(TaskAsked(task=str(key), attempt=attempt, worker="worker-0", reason="stopped"))


def test_a_worker_that_releases_on_request_is_not_ending() -> None:
    """A worker that releases a task without a request is shutting down."""
    told = story()
    told.start(KEY, 0)
    asked(told)
    told.break_off(KEY, 0, 1, FailureKind.PREEMPTED)
    assert not told.state.workers["worker-0"].is_ending
    assert told.run.task(KEY).failures == 0
    assert told.run.task(KEY).is_interrupted
    told.fail(KEY, 0, FailureKind.PREEMPTED)
    assert told.state.workers["worker-0"].is_ending


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
        self.tell(*(joined(number, partitions=(0, 1, 2)) for number in range(3)))
        self.fit(models=1, partitions=3, epochs=2, max_attempts=1000)
        self.files: dict[str, tuple[tuple[int, int, int], ...]] = {"": ()}
        """Maps a file to the (epoch, partition, batch) entries its weights were trained on."""
        self.weights: tuple[tuple[int, int, int], ...] = ()
        self.done = 0
        self.key: TaskKey | None = None
        self.worker = 0

    def step(self, what: str, number: int) -> None:
        if self.key is None:
            self.tell(*(ModelResumed(run="fit-1", model="m00") for _ in range(self.model().is_cut_short)))
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
        self.tell(
            SubEpochSaved(task=str(key), attempt=attempt, worker=at, savepoint=savepoint(self.done, name))
        )

    def end(self, what: str) -> None:
        key, self.key = self.key, None
        assert key is not None
        attempt, at = self.attempt(key) - 1, f"worker-{self.worker}"
        if what == "lose":
            self.tell(
                TaskRevoked(task=str(key), attempt=attempt, worker=at, reason="lost"),
            )
        elif what == "lost" and self.run.task(key).losses < 5:
            self.tell(lost(self.worker))
            self.tell(
                TaskRevoked(task=str(key), attempt=attempt, worker=at, reason="lost", loss=FailureKind.CRASH)
            )
            self.tell(joined(self.worker, incarnation=str(self.state.seq), partitions=(0, 1, 2)))
        elif what == "corrupt":
            if sum(self.model().checkpoints.losses.values()) < 3:
                self.break_off(key, self.worker, attempt, FailureKind.CHECKPOINT)
            else:
                self.break_off(key, self.worker, attempt, FailureKind.CRASH)
            if self.model().is_cut_short:
                self.tell(ModelRetried(run="fit-1", model="m00"))
        elif what == "stop":
            self.tell(ModelStopRequested(run="fit-1", model="m00"))
            self.tell(TaskAsked(task=str(key), attempt=attempt, worker=at, reason="stopped"))
            self.break_off(key, self.worker, attempt, FailureKind.PREEMPTED)
        elif what == "preempt":
            self.break_off(key, self.worker, attempt, FailureKind.PREEMPTED)
        else:
            self.break_off(key, self.worker, attempt, FailureKind.CRASH)


@settings(deadline=None, max_examples=60)
@given(story=steps)
def test_every_batch_of_every_epoch_is_trained_once(story: list[tuple[str, int]]) -> None:
    """The committed weights contain each batch once, despite failures, moves, stops and lost checkpoints."""
    told = Lineage()
    for what, number in story:
        told.step(what, number)
    while not told.model().is_trained or told.key is not None:
        told.step("train", 0)
    weights = told.files[told.model().sub_epochs[-1].checkpoint.name]
    assert sorted(weights) == [(e, p, b) for e in (1, 2) for p in (0, 1, 2) for b in range(BATCHES)]
    order = [(completed.epoch, completed.partition) for completed in told.model().sub_epochs]
    assert weights == tuple((e, p, b) for e, p in order for b in range(BATCHES))
    assert fold("one", told.log) == told.state
