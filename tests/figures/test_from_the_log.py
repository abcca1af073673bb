"""Curves, spans, scores and progress match the log."""

from __future__ import annotations

from cerebro.contract.events import RunRequested, RunStarted, TaskFailed, TaskRevoked
from cerebro.contract.runs import EtlRequest
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.figures import epoch_curves, etl_progress, spans
from cerebro.figures.models import scores, summaries, values_at
from cerebro.state import TaskKey
from tests.state.stories import DATASET, SHA, Story, etl_plan, sub_epoch


def fitted() -> Story:
    """A fit of two models for two epochs; the second one is better, but fails in its second epoch."""
    story = Story()
    story.fit(models=2, epochs=2)
    story.epoch(1, loss=4.0)
    story.epoch(2, loss=5.0)
    story.epoch(1, model="m01", loss=1.0)
    return story


# --- curves ------------------------------------------------------------------------------------------


def test_a_curve_has_a_point_per_epoch_and_its_best_value() -> None:
    """In plan order, with the index that selects the colour."""
    first, second = epoch_curves(fitted().run, "loss")
    assert (first.model, first.index, first.x, first.y, first.best_at) == (
        "m00",
        0,
        (1.0, 2.0),
        (4.0, 5.0),
        0,
    )
    assert (second.model, second.index, second.x, second.y) == ("m01", 1, (1.0,), (1.0,))


def test_a_curve_over_rows_or_time_ends_where_the_epoch_ends() -> None:
    """Two sub-epochs of ten rows per epoch; seconds since the run's first sub-epoch."""
    story = fitted()
    assert epoch_curves(story.run, "loss", axis="row")[0].x == (20.0, 40.0)
    sub_epochs = story.model().sub_epochs
    expected = tuple(sub_epochs[i].ended - story.run.clock.first_start for i in (1, 3))
    assert epoch_curves(story.run, "loss", axis="time")[0].x == expected


def test_a_curve_marks_its_first_non_finite_value() -> None:
    """A sub-epoch with a non-finite metric commits nothing, so the value is taken from the failure."""
    story = fitted()
    story.fail(sub_epoch(2, 0, "m01"), 0, FailureKind.NON_FINITE)
    assert epoch_curves(story.run, "loss")[1].broke_at == 2.0


# --- spans -------------------------------------------------------------------------------------------


def test_every_attempt_that_ran_is_a_span() -> None:
    """Committed, failed, revoked and running attempts; not those only queued at a worker."""
    story = Story()
    run = story.fit(models=3, epochs=1)
    story.fail(sub_epoch(1, 0), 0, FailureKind.CRASH)
    story.train(1, 0)
    attempt = story.start(sub_epoch(1, 1, "m01"), 1)
    story.append(
        TaskRevoked(task=str(sub_epoch(1, 1, "m01")), attempt=attempt, worker="worker-1", reason="silent")
    )
    story.start(sub_epoch(1, 0, "m02"), 0)
    story.assign(sub_epoch(1, 1), 1)
    found = spans(run, story.time + 10)
    assert [(s.model, s.attempt, s.outcome, s.note) for s in found] == [
        ("m00", 1, "failed", "crash"),
        ("m00", 2, "committed", ""),
        ("m01", 1, "revoked", "revoked: silent"),
        ("m02", 1, "running", ""),
    ]
    assert found[0].start_s == 0.0
    assert found[-1].end_s == story.time + 10 - run.clock.first_start
    assert all(span.start_s < span.end_s for span in found)


# --- scores ------------------------------------------------------------------------------------------


def test_models_are_compared_by_best_value_or_at_one_epoch() -> None:
    """`margin` accepts models that are this many epochs behind."""
    story = fitted()
    rows = list(summaries(story.run))
    assert scores(rows) == {"m00": 4.0, "m01": 1.0}
    assert values_at(story.run, 2) == {"m00": 5.0}
    assert values_at(story.run, 2, margin=1) == {"m00": 5.0, "m01": 1.0}
    assert scores(rows, {"m00": 9.0}) == {"m00": 9.0}


# --- ETL ---------------------------------------------------------------------------------------------


def test_rows_of_a_split_are_kept_failed_in_progress_or_pending() -> None:
    """In the end, rows in are rows kept plus rows failed."""
    story = Story()
    story.append(
        RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)),
        RunStarted(run="etl-1", plan=etl_plan(2, {"train": 10})),
    )
    keys = [TaskKey(run="etl-1", kind="etl", split="train", partition=p) for p in range(2)]
    run, dataset = story.state.runs["etl-1"], story.state.datasets[DATASET]
    story.do(keys[0], 0, TaskResult(rows=8, rows_failed=2))
    story.start(keys[1], 1)
    (split,) = etl_progress(dataset, run, {str(keys[1]): 3})
    assert (split.rows, split.kept_rows, split.failed, split.done) == (20, 8, 2, 13)
    (split,) = etl_progress(dataset, run, {str(keys[1]): 99})
    assert split.done == 20
    failure = Failure(kind=FailureKind.DATA, message="m", rows_failed=4)
    story.append(TaskFailed(task=str(keys[1]), attempt=1, worker="worker-1", failure=failure))
    (split,) = etl_progress(dataset, run)
    assert (split.kept_rows, split.failed, split.done) == (8, 6, 14)
