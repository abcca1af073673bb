"""Compaction of old epochs does not change decisions or reports."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import ModelsAdded
from cerebro.contract.runs import FitPlan, NewModel
from cerebro.state import ExperimentState, Model, Run, TaskState, epoch_report, schedule_now
from cerebro.state.models.parallel_plans import describe_plans
from cerebro.state.models.positions import position_of
from cerebro.state.models.sub_epochs import CompactedError
from cerebro.state.snapshots import packed, unpacked
from tests.state.compacted_runs import compacted_history, epochs_of_all
from tests.state.histories import History
from tests.state.soundness import assert_sound

EPOCHS = 6


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    validated=st.booleans(),
    devices=st.integers(1, 2),
    has_parallel_plans=st.booleans(),
    has_gangs=st.booleans(),
    after=st.integers(0, 12),
    reports=st.integers(0, EPOCHS),
)
def test_compaction_changes_no_model_task_or_schedule(
    seed: int,
    validated: bool,
    devices: int,
    has_parallel_plans: bool,
    has_gangs: bool,
    after: int,
    reports: int,
) -> None:
    """The compacting fold agrees with a complete fold about models, assignable tasks and the schedule, as
    long as no model loses more checkpoints in a row than the fold keeps. A fold that keeps a copy of
    compacted sub-epochs agrees too.

    `reports` is the number of epochs before a model is added; after that, no epoch is reported.
    """
    history = History(
        Random(seed),
        validated=validated,
        epochs=EPOCHS,
        devices=devices,
        has_parallel_plans=has_parallel_plans,
        has_gangs=has_gangs,
    )
    history.state.compact_after = history.run.compaction.threshold = after
    whole = ExperimentState(name="one", compact_after=None)
    beside = ExperimentState(name="one", compact_after=after, keeps_compacted=True)
    for event in history.log:
        whole.apply(event)
        beside.apply(event)
    is_same = True
    for number in range(320):
        known = len(history.log)
        history.step()
        report_epochs(history, reports)
        # After a failure for a compacted sub-epoch, the folds differ.
        is_same = is_same and not any(
            "only the log has" in (m.failures.final.message if m.failures.final else "")
            for m in history.run.models.values()
        )
        for event in history.log[known:]:
            beside.apply(event)
            if is_same:
                whole.apply(event)
        if number % 16 == 0 and is_same:
            assert_sound(history.state)
            assert_same(history.run, whole.runs["fit-1"])
            assert_same_schedule(history.state, whole, history.time)
            assert_kept_beside(beside.runs["fit-1"], whole.runs["fit-1"])
    if is_same:
        assert_same(unpacked(packed(history.state), ExperimentState).runs["fit-1"], whole.runs["fit-1"])


def report_epochs(history: History, reports: int) -> None:
    """Report epochs as the controller does; after `reports` epochs, add a model."""
    run = history.run
    if run.is_open and run.has_known_models and len(run.scheduling.epochs) == reports:
        new = NewModel(hyperparams={"lr": 0.5, "batch_size": 1}, epochs=EPOCHS)
        history.append(ModelsAdded(run="fit-1", models=(new,)))
    reached = epochs_of_all(run)
    if run.is_open and run.has_known_models and reached > len(run.scheduling.epochs):
        history.append(epoch_report(history.state, run, len(run.scheduling.epochs) + 1))


def assert_kept_beside(beside: Run, whole: Run) -> None:
    """Check that all sub-epochs are available."""
    for model, other in zip(beside.models.values(), whole.models.values(), strict=True):
        assert repr(list(model.sub_epochs)) == repr(list(other.sub_epochs))  # NaN is NaN


def assert_same(one: Run, whole: Run) -> None:
    """Compare all data except compacted sub-epochs."""
    assert one.device_time.trained_s == pytest.approx(whole.device_time.trained_s)
    assert (one.clock.newest_commit, one.scheduling.epoch_ends, one.device_time.starts) == (
        whole.clock.newest_commit,
        whole.scheduling.epoch_ends,
        whole.device_time.starts,
    )
    assert one.counts == whole.counts
    for model, other in zip(one.models.values(), whole.models.values(), strict=True):
        assert (model.epoch, model.remaining, model.due) == (other.epoch, other.remaining, other.due)
        assert len(model.sub_epochs) == len(other.sub_epochs)
        lost = {sub_epoch.checkpoint.name for sub_epoch in other.sub_epochs} - {
            sub_epoch.checkpoint.name for sub_epoch in model.known_sub_epochs
        }
        assert one.kept_checkpoints(model) == whole.kept_checkpoints(other) - lost
        assert one.best_epoch(model) == whole.best_epoch(other)
        assert [(t.parallel_plan, t.sub_epochs) for t in describe_plans(one, model)] == [
            (t.parallel_plan, t.sub_epochs) for t in describe_plans(whole, other)
        ]
        assert model.peaks == other.peaks
        assert_same_epochs(one, model, other)


def assert_same_epochs(run: Run, model: Model, other: Model) -> None:
    """Compare the metrics of each epoch and the position of the next sub-epoch."""
    assert isinstance(run.plan, FitPlan)
    for epoch in range(1, model.completed_epochs + 1):
        assert repr(model.training_metrics(epoch)) == repr(other.training_metrics(epoch))  # NaN is NaN
        assert model.returned_in(epoch) == other.returned_in(epoch)
        assert repr(model.epoch_totals(epoch)) == repr(other.epoch_totals(epoch))
        assert model.epoch_checkpoint(epoch) == other.epoch_checkpoint(epoch)
        until = model.sub_epochs_until(epoch)
        assert model.partitions_until(until) == other.partitions_until(until)
    sub_epochs = len(model.sub_epochs)
    assert position_of(model, run.plan.partitions, sub_epochs) == position_of(
        other, run.plan.partitions, sub_epochs
    )


def assert_same_schedule(one: ExperimentState, whole: ExperimentState, now: float) -> None:
    """Compare the schedules, including idle time."""
    first, second = schedule_now(one, one.runs["fit-1"], now), schedule_now(whole, whole.runs["fit-1"], now)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert vars(first) == pytest.approx(vars(second))


def test_access_to_a_compacted_sub_epoch_raises_compacted_error() -> None:
    """Access raises a specific error, not IndexError; the last sub-epochs of epochs stay available."""
    history = History(Random(1), validated=False, epochs=EPOCHS)
    history.state.compact_after = history.run.compaction.threshold = 0
    while not any(model.sub_epochs.compacted > 2 for model in history.run.models.values()):
        history.step()
        if history.run.is_open and len(history.run.scheduling.epochs) < (e := epochs_of_all(history.run)):
            history.append(epoch_report(history.state, history.run, e))
    model = next(m for m in history.run.models.values() if m.sub_epochs.compacted > 2)
    last = model.sub_epochs_until(1) - 1
    assert model.sub_epochs[last].epoch == 1
    with pytest.raises(CompactedError, match="sub-epoch 2 is compacted"):
        model.sub_epochs[2]
    with pytest.raises(CompactedError):
        list(model.sub_epochs)


def test_a_compacted_task_counts_as_committed() -> None:
    """Its task counts as done; only the log has its attempts."""
    run = compacted_history(0).run
    model = next(each for each in run.models.values() if each.compacted_epochs > 2)
    for partition in model.partitions:
        key = f"{run.id}/train/{model.id}/e1/p{partition}"
        assert run.find(key).state is TaskState.COMMITTED
        assert key in run.tasks.by_key or not run.find(key).attempts


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), validated=st.booleans(), after=st.sampled_from([None, 0, 6]))
def test_the_fold_keeps_best_and_unvalidated_epochs(seed: int, validated: bool, after: int | None) -> None:
    """The fold keeps the best epoch of each metric and the epochs that await validation."""
    history = History(Random(seed), validated=validated, epochs=EPOCHS)
    history.state.compact_after = history.run.compaction.threshold = after
    for _ in range(200):
        history.step()
        for model in history.run.models.values():
            if history.random.random() < 0.5:
                assert_best(model, validated=validated)


def assert_best(model: Model, *, validated: bool) -> None:
    scores = model.scores("loss", validated=validated)
    assert model.best_epoch("loss", "min", validated=validated) == min(
        scores, key=lambda epoch: (scores[epoch], epoch), default=None
    )
    assert model.best_epoch("loss", "max", validated=validated) == min(
        scores, key=lambda epoch: (-scores[epoch], epoch), default=None
    )
    needed = model.needed_checkpoints("loss", "min", validated=validated)
    for epoch in range(1, model.completed_epochs + 1):
        if validated and model.validation.may_come(epoch):
            assert model.sub_epochs[model.sub_epochs_until(epoch) - 1].checkpoint.name in needed
