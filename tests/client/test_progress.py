"""Progress bars say what the state says: rows per split for ETL, units for a fit, and whom the run waits for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cerebro.contract.events import LivePoint, RunPaused, RunRequested, RunStarted, RunStopRequested
from cerebro.contract.runs import EtlRequest
from cerebro.contract.tasks import FailureKind, TaskResult
from cerebro.progress import Progress
from cerebro.state import TaskKey
from tests.state.stories import SHA, Story, etl_plan, unit


class Bar:
    """Stands for tqdm's bar."""

    def __init__(self, total: int = 0, desc: str = "", unit: str = "", **_: object) -> None:
        self.total, self.desc, self.unit = total, desc, unit
        self.n, self.postfix, self.is_closed, self.drawn = 0, "", False, 0

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        self.postfix = text

    def refresh(self) -> None:
        self.drawn += 1

    def close(self) -> None:
        self.is_closed = True


class Screen:
    """What was drawn and written."""

    def __init__(self) -> None:
        self.bars: dict[str, Bar] = {}
        self.lines: list[str] = []

    def __call__(self, **given: object) -> Bar:
        bar = Bar(**given)  # type: ignore[arg-type]
        self.bars[bar.desc] = bar
        return bar

    def write(self, text: str, file: object = None) -> None:
        self.lines.append(text)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    import tqdm.auto

    shown = Screen()
    monkeypatch.setattr(tqdm.auto, "tqdm", shown)
    yield shown
    assert all(bar.is_closed for bar in shown.bars.values())


def etl_story() -> Story:
    story = Story()
    story.tell(
        RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)),
        RunStarted(run="etl-1", plan=etl_plan(2, {"train": 10, "test": 4})),
    )
    return story


def etl_key(partition: int) -> TaskKey:
    return TaskKey(run="etl-1", kind="etl", split="train", partition=partition)


def live(key: TaskKey, rows: int) -> LivePoint:
    return LivePoint(task=str(key), attempt=1, rows=rows)


def test_etl_has_a_bar_per_split_over_all_workers(screen: Screen) -> None:
    """Rows of partitions that are done, and live rows of those under way."""
    story = etl_story()
    with Progress("etl-1", is_shown=True) as progress:
        progress.show(story.state)
        assert {name: (bar.n, bar.total) for name, bar in screen.bars.items()} == {
            "train": (0, 20),
            "test": (0, 8),
        }
        story.do(etl_key(0), 0, TaskResult(rows=10))
        story.start(etl_key(1), 1)
        progress.live([live(etl_key(1), 3), live(etl_key(1), 6)])
        progress.show(story.state)
        assert screen.bars["train"].n == 16
        progress.live([live(etl_key(1), 99)])
        progress.show(story.state)
        assert screen.bars["train"].n == 20


def test_rows_that_failed_are_shown(screen: Screen) -> None:
    """They count as done, and are named."""
    story = etl_story()
    story.do(etl_key(0), 0, TaskResult(rows=8, rows_failed=2))
    with Progress("etl-1", is_shown=True) as progress:
        progress.show(story.state)
    assert (screen.bars["train"].n, screen.bars["train"].postfix) == (10, "2 failed")


def test_a_fit_has_one_bar_of_units_with_the_best_model(screen: Screen) -> None:
    """Its metric, its epoch, and how many models failed."""
    story = Story()
    story.fit(models=3)
    with Progress("fit-1", is_shown=True) as progress:
        progress.show(story.state)
        assert (screen.bars["fit-1"].n, screen.bars["fit-1"].total) == (0, 12)
        story.epoch(1, loss=0.12345678)
        progress.show(story.state)
        assert screen.bars["fit-1"].n == 2
        assert screen.bars["fit-1"].postfix == "best loss 0.1235 (m00, epoch 1)"
        story.fail(unit(1, 0, "m01"), 0, FailureKind.USER_ERROR)
        story.tell(RunStopRequested(run="fit-1"))
        progress.show(story.state)
        assert screen.bars["fit-1"].postfix.endswith("1 failed, stopping")


def test_an_unchanged_state_is_not_drawn_again(screen: Screen) -> None:
    """A notebook's output does not flicker."""
    story = Story()
    story.fit()
    story.train(1, 0)
    with Progress("fit-1", is_shown=True) as progress:
        progress.show(story.state)
        drawn = screen.bars["fit-1"].drawn
        progress.show(story.state)
        assert screen.bars["fit-1"].drawn == drawn


def test_what_a_run_waits_for_is_said_once(screen: Screen) -> None:
    """And again only when it waits for something else."""
    story = Story()
    story.fit()
    with Progress("fit-1", is_shown=True) as progress:
        story.tell(RunPaused(run="fit-1", reason="no room"))
        for _ in range(3):
            progress.show(story.state)
        story.tell(RunStopRequested(run="fit-1"))
        progress.show(story.state)
    assert screen.lines == ["fit-1: paused: no room"]


def test_nothing_is_drawn_unless_it_is_wanted(screen: Screen) -> None:
    """Nor for a run that nobody knows yet."""
    story = Story()
    story.fit()
    with Progress("fit-1", is_shown=False) as progress:
        progress.show(story.state)
    with Progress("fit-9", is_shown=True) as progress:
        progress.show(story.state)
    assert screen.bars == {}
