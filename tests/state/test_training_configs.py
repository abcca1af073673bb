"""Training configs of sub-epochs while users change, extend and clone models at any moment."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    ModelChanged,
    ModelExtended,
    ModelsAdded,
    ModelStopRequested,
    PriorityChanged,
    SubEpochSaved,
    TaskAssigned,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.runs import FitPlan, NewModel, ParentCheckpoint
from cerebro.contract.tasks.bodies import Position
from cerebro.contract.tasks.checkpoints import CheckpointRef, Savepoint
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.gangs import Member
from cerebro.state import CompletedSubEpoch, Model, ModelState, TaskKey, TaskState, position_of
from cerebro.state.models.configs import TrainingConfig
from tests.state.completed_sub_epochs import COMPLETED
from tests.state.stories import Story, sub_epoch

ROWS = {0: 10, 1: 7, 2: 12}


def changed(model: str = "m00", **values: Any) -> ModelChanged:
    return ModelChanged(run="fit-1", model=model, hyperparams=values)


def extended(epochs: int, model: str = "m00") -> ModelExtended:
    return ModelExtended(run="fit-1", model=model, epochs=epochs)


def cloned(model: str = "m00", at: Any = "last", epochs: int = 9, **values: Any) -> ModelsAdded:
    hyperparams = {"batch_size": 2, "lr": 0.5, **values}
    new = NewModel(hyperparams=hyperparams, epochs=epochs, checkpoint=ParentCheckpoint(model=model, at=at))
    return ModelsAdded(run="fit-1", models=(new,))


class Course:
    """A fit with random changes, and a record of each sub-epoch's training config."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.story = Story(workers=len(ROWS))
        self.story.fit(models=2, partitions=len(ROWS), epochs=2)
        assert isinstance(self.story.run.plan, FitPlan)
        self.story.run.plan = self.story.run.plan.model_copy(update={"partitions": ROWS})
        self.sub_epochs: dict[str, list[tuple[TrainingConfig, Position]]] = {"m00": [], "m01": []}
        """Maps a model to the training config and position of each committed sub-epoch."""
        self.open: dict[str, tuple[TaskKey, tuple[TrainingConfig, Position]]] = {}
        """Maps a model to its open sub-epoch."""

    def step(self) -> None:
        """Apply one random possible action to a model."""
        model = self.random.choice(list(self.story.run.models.values()))
        if model.id in self.open:
            moves = [self.start, self.commit, self.commit, self.revoke, self.save, self.change, self.extend]
        else:
            moves = [self.assign, self.assign, self.assign, self.change, self.extend, self.clone, self.lose]
        self.random.choice(moves)(model)
        self.check()

    def assign(self, model: Model) -> None:
        """Assign a sub-epoch, sometimes based on an outdated state."""
        if not model.remaining or model.state is not ModelState.ACTIVE:
            return
        partition = self.random.choice(model.remaining)
        if len(self.story.state.workers[f"worker-{partition}"].open_tasks) > 1:
            return
        key = sub_epoch(model.epoch, partition, model.id)
        number = model.version_for(str(key))
        config = model.configs.versions[number]
        assigned = config, position_of(model, ROWS, len(model.sub_epochs), config)
        if self.random.random() < 0.3:
            self.change(model)
        if not model.needs(key.epoch or 0, key.partitions):
            return
        attempt = self.story.attempt(key)
        self.story.append(
            TaskAssigned(task=str(key), attempt=attempt, worker=f"worker-{partition}", config_version=number)
        )
        self.open[model.id] = key, assigned

    def start(self, model: Model) -> None:
        """Start the sub-epoch if it is first in the queue."""
        key, _ = self.open[model.id]
        task = self.story.run.tasks.by_key[str(key)]
        worker = self.story.state.workers[task.worker or ""]
        if task.state is TaskState.ASSIGNED and worker.is_next(str(key)):
            self.story.append(TaskStarted(task=str(key), attempt=task.attempt, worker=worker.name))

    def commit(self, model: Model) -> None:
        key, assigned = self.open[model.id]
        if self.story.run.tasks.by_key[str(key)].state is TaskState.RUNNING:
            del self.open[model.id]
            self.sub_epochs[model.id].append(assigned)
            self.story.commit(key, key.partition or 0)

    def save(self, model: Model) -> None:
        """Save in the middle of the running sub-epoch."""
        key, _ = self.open[model.id]
        task = self.story.run.tasks.by_key[str(key)]
        if task.state is TaskState.RUNNING:
            file = CheckpointRef(name=f"{key}-s{task.attempt}", checksum="-", size=1)
            saved = Savepoint(checkpoint=file, batch=1, rows=1)
            self.story.append(
                SubEpochSaved(task=str(key), attempt=task.attempt, worker=task.worker or "", savepoint=saved)
            )

    def revoke(self, model: Model) -> None:
        key, _ = self.open.pop(model.id)
        task = self.story.run.tasks.by_key[str(key)]
        self.story.append(
            TaskRevoked(task=str(key), attempt=task.attempt, worker=task.worker or "", reason="why")
        )

    def lose(self, model: Model) -> None:
        """Lose the newest checkpoint; the next sub-epoch reports it."""
        self.assign(model)
        if model.id not in self.open or not model.sub_epochs or model.checkpoints.losses.total() > 2:
            return
        self.start(model)
        key, _ = self.open[model.id]
        task = self.story.run.tasks.by_key[str(key)]
        if task.state is TaskState.RUNNING:
            del self.open[model.id]
            if len(model.sub_epochs) > model.lineage.sub_epochs:
                self.sub_epochs[model.id].pop()
            self.story.break_off(key, key.partition or 0, task.attempt, FailureKind.CHECKPOINT)

    def change(self, model: Model) -> None:
        """Change one or two values, sometimes to their current value."""
        values = {"lr": self.random.choice([0.1, 0.2, 0.4]), "batch_size": self.random.randint(1, 7)}
        names = self.random.sample(sorted(values), self.random.randint(1, 2))
        self.story.append(changed(model.id, **{name: values[name] for name in names}))

    def extend(self, model: Model) -> None:
        """Set a larger or smaller number of epochs."""
        self.story.append(extended(self.random.randint(1, 4), model.id))

    def clone(self, model: Model) -> None:
        """Add a warm clone; its origin may be gone."""
        if len(self.sub_epochs) > 4:
            return
        at = self.random.choice(["last", "best", 1, 2])
        before = len(self.story.run.models)
        self.story.append(cloned(model.id, at, self.random.randint(1, 4)))
        if len(self.story.run.models) > before:
            clone = list(self.story.run.models.values())[-1]
            self.sub_epochs[clone.id] = self.sub_epochs[model.id][: clone.lineage.sub_epochs]

    def check(self) -> None:
        """Check that the state matches the record, and that clones' origins still exist."""
        for model in self.story.run.models.values():
            sub_epochs = range(len(model.sub_epochs))
            assert [(model.config_of(u), position_of(model, ROWS, u)) for u in sub_epochs] == self.sub_epochs[
                model.id
            ]
            for until, before in model.configs.changes(len(model.sub_epochs), is_busy=model.busy is not None):
                assert model.hyperparams_of(until - 1) == before != model.hyperparams_of(until)
            assert model.epochs >= model.begun_epochs
            if model.id in self.open:
                assert model.config_of(len(model.sub_epochs)) == self.open[model.id][1][0]
        for young in self.story.run.checkpoints.young.values():
            origin = young.sub_epochs[young.lineage.sub_epochs - 1].checkpoint.name
            assert all(origin in self.story.run.kept_checkpoints(m) for m in self.story.run.models.values())


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**9), st.integers(20, 90))
def test_each_sub_epoch_records_its_training_config(seed: int, steps: int) -> None:
    """The controller may assign and start a sub-epoch before it sees a change."""
    course = Course(seed)
    for _ in range(steps):
        course.step()


# --- Order of events ---


@pytest.fixture
def story() -> Story:
    """A fit whose m00 has trained its first epoch of three."""
    story = Story()
    story.fit(epochs=3)
    story.epoch(1, loss=0.5)
    return story


def test_a_running_sub_epoch_keeps_its_values_through_a_change(story: Story) -> None:
    """The next sub-epoch has the new values."""
    story.start(sub_epoch(2, 0), 0)
    story.append(changed(lr=1.0))
    assert story.model().is_outdated  # a queued sub-epoch would be revoked
    story.commit(sub_epoch(2, 0), 0)
    story.train(2, 1)
    assert [story.model().hyperparams_of(u)["lr"] for u in range(4)] == [0.1, 0.1, 0.1, 1.0]


def test_a_sub_epoch_resumed_from_a_savepoint_keeps_its_values(story: Story) -> None:
    """Another sub-epoch has the new values."""
    story.start(sub_epoch(2, 0), 0)
    file = CheckpointRef(name="s", checksum="-", size=1)
    saved = Savepoint(checkpoint=file, batch=1, rows=1)
    key = str(sub_epoch(2, 0))
    story.append(
        SubEpochSaved(task=key, attempt=1, worker="worker-0", savepoint=saved),
        TaskRevoked(task=key, attempt=1, worker="worker-0", reason="why"),
        changed(lr=1.0),
    )
    model = story.model()
    assert model.configs.versions[model.version_for(key)].hyperparams["lr"] == 0.1
    assert model.configs.versions[model.version_for(str(sub_epoch(2, 1)))].hyperparams["lr"] == 1.0
    story.assign(sub_epoch(2, 0), 0)
    assert not model.is_outdated


def trained_on(story: Story) -> None:
    story.epoch(2, loss=0.1)
    story.train(3, 0, loss=0.1)


def finished(story: Story) -> None:
    story.epoch(2)
    story.epoch(3)


LATE: list[tuple[str, Callable[[Story], None], Any]] = [
    ("gone", trained_on, cloned(at=1)),
    ("never trained", lambda _: None, cloned("m01")),
    ("unknown", lambda _: None, cloned("m07")),
    ("nothing left", lambda _: None, cloned(epochs=1)),
    ("batch size", lambda _: None, cloned(batch_size=11)),
    ("batch size changed", lambda _: None, changed(batch_size=11)),
    ("same values", lambda _: None, changed(lr=0.1)),
    ("change of a finished model", finished, changed(lr=1.0)),
    ("stop of a finished model", finished, ModelStopRequested(run="fit-1", model="m00")),
    ("same priority", lambda _: None, PriorityChanged(run="fit-1", model="m00", priority=0)),
    ("same epochs", lambda _: None, extended(3)),
]


@pytest.mark.parametrize("case", LATE, ids=[name for name, _, _ in LATE])
def test_an_outdated_change_is_late_and_has_no_effect(story: Story, case: Any) -> None:
    """The list of commands marks it as late."""
    _, before, event = case
    before(story)
    facts = repr((story.state.runs, story.state.workers))
    story.append(event)
    assert story.state.commands[-1].is_late
    assert repr((story.state.runs, story.state.workers)) == facts


def test_a_parent_checkpoint_is_kept_until_its_clone_has_committed_twice(story: Story) -> None:
    """Its parent continues and would otherwise remove the checkpoint."""
    story.append(cloned())
    origin = story.model("m02").sub_epochs[-1].checkpoint.name
    story.epoch(2, loss=0.1)
    for partition in (0, 1):
        assert origin in story.run.kept_checkpoints(story.model())
        story.train(2, partition, model="m02")
    story.train(3, 0, loss=0.05)
    assert origin not in story.run.kept_checkpoints(story.model())


def test_the_best_epoch_of_a_clone_is_its_own(story: Story) -> None:
    """Earlier epochs are the parent's, and the parent may have removed their checkpoints."""
    story.append(cloned())
    assert story.model("m02").best_epoch("loss", "min", validated=False) is None
    for partition in (0, 1):
        story.train(2, partition, model="m02", loss=0.9)
    assert story.model("m02").best_epoch("loss", "min", validated=False) == 2


def test_a_clone_with_an_unreadable_parent_checkpoint_fails(story: Story) -> None:
    """The parent's sub-epoch cannot run again for the clone."""
    story.append(cloned())
    story.fail(sub_epoch(2, 0, "m02"), 0, FailureKind.CHECKPOINT)
    failure = story.model("m02").failures.final
    assert failure is not None
    assert "goes on from a checkpoint of m00 that cannot be read: clone it once more" in failure.message
    assert len(story.model("m02").sub_epochs) == 2


def test_a_change_keeps_the_positions_of_earlier_sub_epochs() -> None:
    """Its steps and their expected number stay the same, also with gangs."""
    model = Model(id="m00", hyperparams={"batch_size": 5}, epochs=2, partitions=(0, 1, 2))

    def completed_sub_epoch(epoch: int, partition: int, *others: int) -> CompletedSubEpoch:
        members = tuple(Member(worker=f"worker-{p}", partition=p) for p in others)
        return COMPLETED._replace(epoch=epoch, partition=partition, other_members=members)

    messages = []
    for epoch, partition, others in ((1, 1, (2,)), (1, 0, ()), (2, 0, ()), (2, 1, (2,))):
        messages.append(position_of(model, ROWS, len(model.sub_epochs)))
        model.add(completed_sub_epoch(epoch, partition, *others))
        if epoch == 1 and partition == 0:
            model.change({"batch_size": 3})
            model.configs.active = 1
    assert [position_of(model, ROWS, sub_epoch) for sub_epoch in range(4)] == messages
    assert [place.step for place in messages] == [0, 4, 6, 10]


def test_results_show_the_hyperparameters_that_produced_them() -> None:
    """Later changes of the model do not affect it."""
    story = Story()
    story.fit(models=1, epochs=3)
    story.epoch(1)
    model = story.model()
    before = dict(model.hyperparams)
    story.append(changed(lr=5))
    assert model.hyperparams["lr"] == 5
    assert model.hyperparams_shown(1) == model.hyperparams_shown(None) == before
    story.epoch(2)
    assert model.hyperparams_shown(1) == before
    assert model.hyperparams_shown(2)["lr"] == 5
