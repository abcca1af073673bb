"""What came of an attempt decides how a schedule draws it."""

from __future__ import annotations

import pytest

from cerebro.contract.events import TaskFailed
from cerebro.contract.tasks import Failure, FailureKind
from cerebro.figures import spans
from tests.dispatcher.stories import Story


@pytest.mark.parametrize(
    ("kind", "outcome"), [(FailureKind.PREEMPTED, "revoked"), (FailureKind.USER_ERROR, "failed")]
)
def test_preempted_attempt_was_taken_back(kind: FailureKind, outcome: str) -> None:
    """A worker that was told to end is no failure of the unit."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    unit = "fit-1/train/m00/e1/p0"
    story.run_task(unit, "worker-0", None)
    failure = Failure(kind=kind, message="the worker ends")
    story.tell(TaskFailed(task=unit, attempt=1, worker="worker-0", failure=failure))
    (span,) = spans(story.state.runs["fit-1"], story.time)
    assert span.outcome == outcome
    assert span.note.startswith(outcome if outcome == "revoked" else kind)
