"""The overview, the models table and the model's page link to the log of the failed attempt."""

from __future__ import annotations

from cerebro.contract.events import TaskFailed, TaskRevoked
from cerebro.contract.tasks.failures import Failure, FailureKind
from dispatcher.tabs.models import failed_attempts
from tests.dispatcher.fakes import Bench
from tests.dispatcher.stories import Story

SUB_EPOCH = "fit-1/train/m01/e1/p0"


def crashed(times: int = 3) -> Story:
    """A fit of two models; m01 crashes until its attempts are used up."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    for attempt in range(1, times + 1):
        story.run_task(SUB_EPOCH, "worker-0", None)
        failure = Failure(kind=FailureKind.CRASH, message="the process was killed by signal 11")
        story.append(TaskFailed(task=SUB_EPOCH, attempt=attempt, worker="worker-0", failure=failure))
    return story


def test_a_revoked_attempt_of_another_sub_epoch_is_not_the_failed_attempt() -> None:
    """An earlier sub-epoch was revoked and done again; a later one failed."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    before = "fit-1/train/m01/e1/p1"
    story.run_task(before, "worker-1", None)
    story.append(TaskRevoked(task=before, attempt=1, worker="worker-1", reason="a user asked"))
    story.fail(SUB_EPOCH, "worker-0", "ValueError: shapes differ")
    run = story.state.runs["fit-1"]
    assert failed_attempts(run, ["m01"])["m01"].task == SUB_EPOCH


def test_three_pages_link_to_the_failed_attempt() -> None:
    """The link contains task and attempt."""
    bench = Bench()
    bench.store.add(crashed())
    page = bench.signed_in()
    for path in ("", "/models", "/models/m01"):
        html = page.get(f"/experiments/digits{path}").text
        assert (
            f'href="/experiments/digits/logs?task={SUB_EPOCH}&amp;attempt=3">log of attempt 3</a>' in html
        ), path
