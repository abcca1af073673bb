"""Data sets are complete once all partitions are committed; evaluations have a task per model and partition."""

from __future__ import annotations

from cerebro.contract.events import RunFinished, RunRequested, RunResumed, RunStarted
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks.results import TaskResult
from cerebro.state import TaskKey
from tests.state.stories import DATASET, Story, joined, lost


def test_a_data_set_is_complete_after_all_partitions_are_committed() -> None:
    """The state has the rows per split and partition, and the maker holds each training partition."""
    story = Story()
    story.etl(splits={"train": 10, "valid": 4})
    dataset = story.state.newest_dataset()
    assert dataset is not None
    assert dataset.partitions("valid") == {0: 4, 1: 4}
    assert dataset.partitions("train") == {0: 10, 1: 10}
    assert dataset.partitions("test") == {}
    assert [w.name for w in story.state.holders(DATASET, 1)] == ["worker-1"]


def test_a_repeated_etl_run_rebuilds_only_partitions_without_replica() -> None:
    """A training partition without a holder is the exception: it is rebuilt."""
    story = Story()
    story.etl()
    again = story.state.runs["etl-1"]
    story.append(
        RunRequested(run="etl-2", request=again.request),
        RunStarted(run="etl-2", plan=again.plan) if again.plan else RunResumed(run="etl-2"),
    )
    assert story.state.runs["etl-2"].is_complete()
    story.append(
        RunFinished(run="etl-2", outcome="finished"), lost(1), joined(1, incarnation="b", partitions=())
    )
    assert again.plan is not None
    story.append(RunRequested(run="etl-3", request=again.request), RunStarted(run="etl-3", plan=again.plan))
    assert list(story.state.runs["etl-3"].tasks.by_key) == ["etl-3/etl/train/p1"]


def test_a_test_run_has_one_task_per_model() -> None:
    """One task reads all partitions, so metrics need no aggregation."""
    story = Story()
    plan = EvaluatePlan(
        kind="test",
        dataset=DATASET,
        fit="fit-1",
        models={"m00": 1, "m01": 2},
        partitions={0: 5, 1: 6},
        is_whole=True,
    )
    story.append(
        RunRequested(run="test-1", request=EvaluateRequest(kind="test", fit="fit-1", split="test")),
        RunStarted(run="test-1", plan=plan),
    )
    run = story.state.runs["test-1"]
    assert list(run.tasks.by_key) == ["test-1/test/m00", "test-1/test/m01"]
    story.do(TaskKey.parse("test-1/test/m00"), 1, TaskResult(rows=11))
    assert (run.is_complete(), run.progress()) == (False, (1, 2))
    story.do(TaskKey.parse("test-1/test/m01"), 0, TaskResult(rows=11))
    assert run.is_complete()
