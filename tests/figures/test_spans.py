"""An attempt's outcome decides its appearance in a schedule."""

from __future__ import annotations

from random import Random

import pytest

from cerebro.contract.events import TaskCommitted, TaskFailed
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.contract.trials import TrialOutcome
from cerebro.figures import OTHER_TASK_KINDS, other_tasks, spans, spans_of
from cerebro.state import TaskState
from cerebro.state.reports.timeline import task_attempts
from tests.dispatcher.stories import Story
from tests.state import stories
from tests.state.histories import History
from tests.state.test_measured import DDP, inspected, started


@pytest.mark.parametrize(
    ("kind", "outcome"), [(FailureKind.PREEMPTED, "revoked"), (FailureKind.USER_ERROR, "failed")]
)
def test_preempted_attempt_counts_as_revoked(kind: FailureKind, outcome: str) -> None:
    """A terminated worker is no failure of the sub-epoch."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    sub_epoch = "fit-1/train/m00/e1/p0"
    story.run_task(sub_epoch, "worker-0", None)
    failure = Failure(kind=kind, message="the worker ends")
    story.append(TaskFailed(task=sub_epoch, attempt=1, worker="worker-0", failure=failure))
    (span,) = spans(story.state.runs["fit-1"], story.time)
    assert span.outcome == outcome
    assert span.note.startswith(outcome if outcome == "revoked" else kind)


def test_inspection_and_trials_are_listed_with_the_sub_epochs() -> None:
    """Until the first sub-epoch starts, times count from now. A trial has its result."""
    story = inspected()
    (inspection,) = other_tasks(story.run, story.time)
    assert (inspection.kind, inspection.devices, inspection.end_s) == ("inspect", (), 0.0)
    story.start(stories.sub_epoch(1, 1), 1)
    origin = story.time
    named = started(story, DDP, (0, 1))
    inspection, trial = other_tasks(story.run, story.time + 5)
    assert inspection.end_s < 0
    assert (trial.start_s, trial.outcome, trial.note) == (story.time - origin, "running", "")
    outcome = TrialOutcome(reason="the gradient is another one", cause="gradient")
    story.append(TaskCommitted.model_validate({**named, "result": TaskResult(trial=outcome)}))
    trial = other_tasks(story.run, story.time)[-1]
    assert (trial.devices, trial.outcome, trial.note) == ((0, 1), "committed", "the gradient is another one")
    assert [span.kind for span in spans(story.run, story.time)] == ["train"]


def test_attempts_read_from_the_log_have_the_same_spans() -> None:
    """For all outcomes, except for the result of a trial, which only the fold has."""
    history = History(
        Random(2), validated=False, epochs=3, has_gangs=True, workers=3, has_parallel_plans=True
    )
    while len(history.log) < 150 or not any(
        task.state is TaskState.RUNNING for task in history.run.tasks.open.values()
    ):
        history.step()
    run, now, found = history.run, history.time + 5, list(task_attempts(history.run))
    key = lambda span: (span.start_s, span.task, span.attempt, span.worker)  # noqa: E731
    assert sorted(spans_of(found, run.clock.first_start, now), key=key) == sorted(spans(run, now), key=key)
    story = inspected()
    story.start(stories.sub_epoch(1, 1), 1)
    beside = spans_of(task_attempts(story.run), story.run.clock.first_start, story.time, OTHER_TASK_KINDS)
    assert beside == other_tasks(story.run, story.time)
