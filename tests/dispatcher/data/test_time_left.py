"""The time estimate of a run excludes one-off process start times."""

from __future__ import annotations

import pytest

from cerebro.contract.events import LivePoint, TaskAssigned, TaskCommitted, TaskStarted
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult, Timings
from cerebro.state.runs import goals
from dispatcher.pages import formats
from dispatcher.read_models.read_model import ReadModel
from tests.dispatcher.stories import Story

IMPORTS_S, SUB_EPOCH_S, ROWS = 8.0, 0.08, 898


def begun(models: int = 8, epochs: int = 3) -> Story:
    """A planned fit on two workers; both have started their first sub-epoch."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=models, epochs=epochs)
    for worker in range(2):
        key = f"fit-1/train/m0{worker}/e1/p{worker}"
        story.append(TaskAssigned(task=key, attempt=1, worker=f"worker-{worker}"), 0.0)
        story.append(TaskStarted(task=key, attempt=1, worker=f"worker-{worker}"), 0.0)
    return story


def commit(story: Story, worker: int, *, start_s: float, takes_s: float) -> None:
    """Commit the first sub-epoch."""
    result = TaskResult(
        rows=ROWS,
        metrics={"accuracy": 0.5},
        checkpoint=CheckpointRef(name=f"c{worker}", checksum="0" * 16, size=1),
        timings=Timings(start_s=start_s, compute_s=SUB_EPOCH_S),
    )
    key = f"fit-1/train/m0{worker}/e1/p{worker}"
    story.append(TaskCommitted(task=key, attempt=1, worker=f"worker-{worker}", result=result), takes_s)


def left_s(story: Story, *points: LivePoint) -> float:
    read_model = ReadModel(story.record)
    read_model.apply(story.events)
    read_model.add_points(points)
    left = read_model.throughput(story.time).time_left
    assert left is not None
    return left.seconds


@pytest.mark.parametrize("committed", [1, 2])
def test_the_remaining_time_excludes_imports_before_the_first_sub_epoch(committed: int) -> None:
    """A first sub-epoch of 0.08 s ends after 8 s because of imports.

    The other 47 take 4 s on one worker, 2 s on two.
    """
    story = begun()
    commit(story, 0, start_s=IMPORTS_S, takes_s=IMPORTS_S + SUB_EPOCH_S)
    if committed == 2:
        commit(story, 1, start_s=IMPORTS_S, takes_s=0.0)
    exact_s = (8 * 3 * 2 - committed) * SUB_EPOCH_S / committed
    assert left_s(story) == pytest.approx(exact_s, rel=0.2)


def test_a_running_sub_epoch_also_reports_its_wait() -> None:
    """Before any commit."""
    story = begun()
    story.time += IMPORTS_S + 2.0
    point = LivePoint(
        task="fit-1/train/m00/e1/p0", attempt=1, rows=ROWS // 2, total_rows=ROWS, start_s=IMPORTS_S
    )
    exact_s = (8 * 3 * 2 - 0.5) * 4.0
    assert left_s(story, point) == pytest.approx(exact_s, rel=0.2)


def test_the_end_of_an_endless_run_is_a_date() -> None:
    """Its time left would be 10**18 years; pages show the end."""
    story = begun(epochs=10**26)
    commit(story, 0, start_s=0.0, takes_s=1.0)
    ends_at = story.time + left_s(story)
    assert formats.iso(ends_at).startswith("9999-")
    assert formats.clock(ends_at).endswith("UTC")
    assert goals.clock(ends_at, story.time).startswith("9999-")
