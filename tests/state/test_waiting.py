"""Explanations of why a run waits."""

from __future__ import annotations

from cerebro.contract.events import RunRequested, RunStarted, RunStopRequested, TaskFailed
from cerebro.contract.runs import EtlRequest
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import TaskKey, waiting_for
from cerebro.state.reports.wait_reasons import explained
from tests.state.stories import SHA, Story, etl_plan, joined, lost, sub_epoch


def test_all_lost_workers_are_named_with_their_reasons() -> None:
    """The user can see what to restart."""
    story = Story()
    story.fit()
    story.append(lost(0, reason="silent"), lost(1, reason="its process was restarted"))
    text = waiting_for(story.state, story.run)
    assert "worker-0 (silent)" in text
    assert "worker-1 (its process was restarted)" in text


def test_a_fit_waits_for_the_only_holder_of_a_partition() -> None:
    """The other workers are idle; the message names the lost worker and its partition."""
    story = Story()
    story.fit(epochs=1)
    story.append(lost(1))
    for model in ("m00", "m01"):
        story.train(1, 0, model=model)
    text = waiting_for(story.state, story.run)
    assert "worker-1 (silent)" in text
    assert "partition 1" in text
    story.append(joined(1, incarnation="b"))
    assert waiting_for(story.state, story.run) == ""


def test_a_partition_without_replica_names_the_command_to_rebuild_it() -> None:
    """The worker returned with an empty volume, so waiting would never help."""
    story = Story()
    story.fit(epochs=1)
    story.append(lost(1), joined(1, incarnation="b", partitions=()))
    for model in ("m00", "m01"):
        story.train(1, 0, model=model)
    assert "run_etl" in waiting_for(story.state, story.run)


def test_etl_waits_for_the_worker_assigned_to_a_partition() -> None:
    """The plan assigned the rows to this worker."""
    story = Story()
    story.append(
        RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)),
        RunStarted(run="etl-1", plan=etl_plan(2, {"train": 10})),
        lost(1),
    )
    run = story.state.runs["etl-1"]
    assert "worker-1 (silent)" in waiting_for(story.state, run)
    assert "train 1" in waiting_for(story.state, run)
    assert list(run.tasks.by_key) == [
        str(TaskKey(run="etl-1", kind="etl", split="train", partition=p)) for p in (0, 1)
    ]


def test_a_waiting_run_names_starting_workers() -> None:
    """The number of starting workers comes first, then their obstacles; a paused run shows neither."""
    reason = "waiting for a worker to register"
    explanation = explained(reason, {"w-3": "no node fits"}, "workers are starting: 3 of 4")
    assert explanation == f"{reason}; workers are starting: 3 of 4; w-3 does not start: no node fits"
    assert explained("paused: full", {}, "workers are starting: 3 of 4") == "paused: full"


def test_a_run_that_needs_more_memory_reports_it() -> None:
    """A worker with more memory must join."""
    story = Story()
    story.fit(models=1)
    assert waiting_for(story.state, story.run) == ""
    for attempt in (1, 2):
        story.start(sub_epoch(1, 0), 0)
        failure = Failure(
            kind=FailureKind.OUT_OF_MEMORY, message="too little", memory_kind="host", limit_bytes=4 << 30
        )
        failed = TaskFailed(task=str(sub_epoch(1, 0)), attempt=attempt, worker="worker-0", failure=failure)
        story.append(failed)
    expected = "waiting for a worker with more than 4 GiB of memory, which m00 needs"
    assert waiting_for(story.state, story.run) == expected


def test_a_run_stopped_before_its_start_waits_for_nothing() -> None:
    """It has no plan."""
    story = Story()
    story.fit()
    story.append(RunRequested(run="fit-2", request=story.run.request), RunStopRequested(run="fit-2"))
    assert waiting_for(story.state, story.state.runs["fit-2"]) == ""
