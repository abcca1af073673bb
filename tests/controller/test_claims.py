"""Whether there is work everywhere, so that the loop may let news gather."""

from __future__ import annotations

from cerebro.contract.events import RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EtlRequest
from cerebro.state import TaskKey
from controller import opened
from controller.core import Core
from controller.opened import Overview
from tests.state.stories import SHA, Story, etl_plan, unit


def is_busy(*stories: Story) -> bool:
    """Over all open runs of these experiments."""
    overviews = []
    for story in stories:
        core = Core(ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="t.csv"))))
        core.state = story.state
        overviews.append(Overview.of(core))
    return opened.is_busy(overviews)


def test_a_fit_is_busy_when_each_device_has_a_task() -> None:
    """Of whichever run."""
    story, other = Story(workers=2), Story(workers=2)
    story.fit()
    other.fit()
    story.start(unit(1, 0), 0)
    assert not is_busy(story, other)
    other.start(unit(1, 1), 1)
    assert is_busy(story, other)
    assert not is_busy(story)


def test_an_etl_run_is_busy_when_each_worker_makes_a_partition() -> None:
    """Devices do not matter to it."""
    story = Story(workers=2)
    request = EtlRequest(code=SHA, code_fingerprint=SHA)
    story.tell(
        RunRequested(run="etl-1", request=request), RunStarted(run="etl-1", plan=etl_plan(2, {"train": 4}))
    )
    for partition, expected in ((0, False), (1, True)):
        story.start(TaskKey(run="etl-1", kind="etl", split="train", partition=partition), partition, ())
        assert is_busy(story) is expected


def test_nothing_is_busy_without_workers_or_runs() -> None:
    """There is nothing to gather."""
    story = Story(workers=0)
    assert not is_busy(story)
    story.tell(RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)))
    assert not is_busy(story)
