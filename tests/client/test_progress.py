"""Progress shows rows per split for ETL, sub-epochs for a fit, and the reason of a wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from cerebro.client.progress import Progress
from cerebro.client.progress.bars import NOT_SHOWN, QueueDisplay
from cerebro.client.progress.notebook import NotebookScreen, rendered
from cerebro.client.progress.terminal import TerminalScreen
from cerebro.contract.events import LivePoint, RunPaused, RunRequested, RunStarted, RunStopRequested
from cerebro.contract.runs import EtlRequest
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.state import ExperimentState, Run, TaskKey
from tests.state.stories import SHA, Story, etl_plan, sub_epoch


class Bar:
    """A double for tqdm's bar."""

    def __init__(self, total: int = 0, desc: str = "", **_: object) -> None:
        self.total, self.desc = total, desc
        self.n, self.postfix, self.is_closed, self.drawn = 0, "", False, 0

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        self.postfix = text

    def refresh(self) -> None:
        self.drawn += 1

    def close(self) -> None:
        self.is_closed = True


class Terminal:
    """A terminal that records drawings and lines."""

    def __init__(self) -> None:
        self.bars: dict[str, Bar] = {}
        self.lines: list[str] = []

    def __call__(self, **given: object) -> Bar:
        bar = Bar(**given)  # type: ignore[arg-type]
        self.bars[bar.desc] = bar
        return bar

    def write(self, text: str, file: object = None) -> None:
        self.lines.append(text)


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    import tqdm

    shown = Terminal()
    monkeypatch.setattr(tqdm, "tqdm", shown)
    yield shown
    assert all(bar.is_closed for bar in shown.bars.values())


class Shown(Progress):
    """Progress in a terminal; the clock advances by a second per `show`."""

    def __init__(self, run: str, *, is_shown: bool = True) -> None:
        self.clock = Clock()
        super().__init__(run, is_shown=is_shown, screen=TerminalScreen(is_terminal=True), clock=self.clock)

    def show(
        self,
        state: ExperimentState,
        reason: str = "",
        shown: QueueDisplay = NOT_SHOWN,
    ) -> None:
        self.clock.now += 1
        super().show(state, reason, shown)


def etl_story() -> Story:
    story = Story()
    story.append(
        RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)),
        RunStarted(run="etl-1", plan=etl_plan(2, {"train": 10, "test": 4})),
    )
    return story


def etl_key(partition: int) -> TaskKey:
    return TaskKey(run="etl-1", kind="etl", split="train", partition=partition)


def live(key: TaskKey, rows: int) -> LivePoint:
    return LivePoint(task=str(key), attempt=1, rows=rows)


# --- in a terminal -----------------------------------------------------------------------------------


def test_etl_has_a_bar_per_split_over_all_workers(terminal: Terminal) -> None:
    """Rows of finished partitions plus live rows of partitions in progress."""
    story = etl_story()
    with Shown("etl-1") as progress:
        progress.show(story.state)
        assert {name: (bar.n, bar.total) for name, bar in terminal.bars.items()} == {
            "train": (0, 20),
            "test": (0, 8),
        }
        story.do(etl_key(0), 0, TaskResult(rows=10))
        story.start(etl_key(1), 1)
        progress.update_rows([live(etl_key(1), 3), live(etl_key(1), 6)])
        progress.show(story.state)
        assert terminal.bars["train"].n == 16
        progress.update_rows([live(etl_key(1), 99)])
        progress.show(story.state)
        assert terminal.bars["train"].n == 20


def test_a_fit_has_one_bar_of_sub_epochs_with_the_best_model(terminal: Terminal) -> None:
    """With its metric, its epoch, and the number of failed models."""
    story = Story()
    story.fit(models=3)
    with Shown("fit-1") as progress:
        progress.show(story.state)
        assert (terminal.bars["fit-1"].n, terminal.bars["fit-1"].total) == (0, 12)
        story.epoch(1, loss=0.12345678)
        progress.show(story.state)
        assert terminal.bars["fit-1"].n == 2
        assert terminal.bars["fit-1"].postfix == "best loss 0.1235 (m00, epoch 1)"
        story.fail(sub_epoch(1, 0, "m01"), 0, FailureKind.USER_ERROR)
        story.append(RunStopRequested(run="fit-1"))
        progress.show(story.state)
        assert terminal.bars["fit-1"].postfix.endswith("1 failed, stopping")


def test_the_wait_reason_of_a_run_is_printed_once(terminal: Terminal) -> None:
    """And again when the reason changes."""
    story = Story()
    story.fit()
    with Shown("fit-1") as progress:
        story.append(RunPaused(run="fit-1", reason="no room"))
        for _ in range(3):
            progress.show(story.state, "paused: no room")
        story.append(RunStopRequested(run="fit-1"))
        progress.show(story.state)
    assert terminal.lines == ["fit-1: paused: no room"]


def test_without_a_terminal_progress_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """The first state, a change at most every ten seconds, and the last state; no control codes."""
    clock, story = Clock(), Story()
    story.fit(models=2)
    screen = TerminalScreen(clock, is_terminal=False)
    with Progress("fit-1", is_shown=True, screen=screen, clock=clock) as progress:
        for partition in range(2):
            for model in ("m00", "m01"):
                progress.show(story.state, "waits for a worker")
                clock.now += 6
                story.train(1, partition, model=model)
        progress.show(story.state)
    assert capsys.readouterr().err.splitlines() == [
        "fit-1: 0/8 sub-epochs",
        "fit-1: waits for a worker",
        "fit-1: 2/8 sub-epochs",
        "fit-1: 4/8 sub-epochs, best loss 1 (m00, epoch 1)",
    ]


# --- how often ---------------------------------------------------------------------------------------


class Painted:
    """A slow screen that counts drawings."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.sub_epochs = clock, seconds, list[int]()

    def draw(
        self,
        state: ExperimentState,
        run: Run,
        rows: Mapping[str, int],
        reason: str,
        shown: QueueDisplay,
    ) -> None:
        self.clock.now += self.seconds
        self.sub_epochs.append(run.progress()[0])

    def close(self) -> None:
        self.sub_epochs.append(-1)


def test_drawing_is_rate_limited_and_ends_with_the_last_event() -> None:
    """The last drawing shows the final state."""
    clock, story = Clock(), Story()
    story.fit(models=4)
    screen = Painted(clock, 0.0)
    with Progress("fit-1", is_shown=True, screen=screen, clock=clock) as progress:
        for number in range(4):
            for partition in range(2):
                clock.now += 0.1
                story.train(1, partition, model=f"m{number:02}")
                progress.show(story.state)
    assert screen.sub_epochs == [1, 4, 7, 8, -1]


# --- in a notebook -----------------------------------------------------------------------------------


class Handle:
    """A double for the handle of a displayed output."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        assert raw
        self.outputs.append(bundle)


def test_a_notebook_shows_a_stated_part_of_many_models_and_epochs() -> None:
    """The output of a notebook stays readable."""
    story = Story()
    run = story.fit(models=30, epochs=40, partitions=1)
    for epoch in range(1, 21):
        for model in run.models:
            story.train(epoch, 0, model=model)
    html = rendered(story.state, run, {}, "")
    assert "20 of 30 models" in html
    assert "epochs 1 to 20" in html
    assert html.count("<progress") == 13


def test_names_of_users_are_text_in_a_notebook() -> None:
    """Hyperparameter names are escaped."""
    story = Story()
    nasty = "<script>alert(1)</script>"
    run = story.fit(hyperparams={"m00": {nasty: 1, "batch_size": 1}, "m01": {nasty: nasty, "batch_size": 1}})
    assert nasty not in rendered(story.state, run, {}, nasty)


def test_a_notebook_has_one_output_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HTML and text, updated only on changes; an export has the last state."""
    import IPython.display

    handle, first = Handle(), list[dict[str, str]]()

    def display(bundle: dict[str, str], **given: Any) -> Handle:
        assert given == {"raw": True, "display_id": True}
        first.append(bundle)
        return handle

    monkeypatch.setattr(IPython.display, "display", display)
    story = etl_story()
    run, screen = story.state.runs["etl-1"], NotebookScreen()
    screen.draw(story.state, run, {}, "")
    screen.draw(story.state, run, {}, "")
    assert (len(first), handle.outputs) == (1, [])
    story.do(etl_key(0), 0, TaskResult(rows=10))
    screen.draw(story.state, run, {}, "")
    assert "10 of 20 rows" in handle.outputs[0]["text/html"]
    assert handle.outputs[0]["text/plain"] == "train: 10/20\ntest: 0/8"
