"""``cerebro stacks``: the workers it asks, its output and its errors."""

from __future__ import annotations

from typing import cast

import pytest

from cerebro.cli import main
from cerebro.cli.experiments import stacks
from cerebro.contract.events import Event
from cerebro.contract.rest import api
from cerebro.errors import ConflictError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state import TaskKey
from tests.cli.test_experiment_commands import Store
from tests.state.stories import Story


class Telling(Store):
    """A store whose worker answers immediately."""

    def request_stacks(self, experiment: str, request: api.StacksRequest) -> api.StacksRequested:
        self.task = request.task
        return api.StacksRequested(worker="worker-0", attempt=1)

    def stacks(self, experiment: str, question: str) -> str | None:
        return "in train"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Telling:
    store = Telling()
    monkeypatch.setattr(stacks, "cluster_client", lambda home: cast(KvsClient, store))
    return store


def with_running_sub_epoch() -> tuple[Event, ...]:
    story = Story(workers=1)
    story.fit(models=2)
    story.start(TaskKey.parse("fit-1/train/m00/e1/p0"), 0)
    return tuple(story.log)


def test_the_stacks_of_running_sub_epochs_are_printed(
    store: Telling, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the sub-epoch, the attempt and the worker."""
    monkeypatch.setattr(store, "events", lambda name, after=0, **_: with_running_sub_epoch()[after:])
    assert main(["stacks", "one", "m00"]) == 0
    assert capsys.readouterr().out == "fit-1/train/m00/e1/p0, attempt 1 on worker-0:\nin train\n"


@pytest.mark.parametrize("ended", [("e1",), ("e1", "e2")], ids=["one", "all"])
def test_a_task_that_ended_since_the_log_was_read_is_left_out(
    store: Telling,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ended: tuple[str, ...],
) -> None:
    """If all of them ended, the error advises to try again."""

    def request_stacks(experiment: str, request: api.StacksRequest) -> api.StacksRequested:
        if request.task.split("/")[3] in ended:
            raise ConflictError(f"{request.task} of one does not run now")
        return api.StacksRequested(worker="worker-0", attempt=1)

    story = Story(workers=2)
    story.fit(models=1, validated=True)
    story.epoch(1)
    story.start(TaskKey.parse("fit-1/valid/m00/e1"), 0)
    story.start(TaskKey.parse("fit-1/train/m00/e2/p1"), 1)
    monkeypatch.setattr(store, "events", lambda name, after=0, **_: tuple(story.log)[after:])
    monkeypatch.setattr(store, "request_stacks", request_stacks)
    status, said = main(["stacks", "one", "m00"]), capsys.readouterr()
    if len(ended) == 1:
        assert (status, said.err) == (0, "")
        assert said.out == "fit-1/train/m00/e2/p1, attempt 1 on worker-0:\nin train\n"
    else:
        assert status == 1
        assert "does not run now: try again while m00 trains" in said.err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("stacks one m00", "m00 of fit-1 is not running, it is queued"),
        ("stacks one m77", "no model 'm77' in one; there are m00, m01"),
        ("stacks one m00 --run fit-9", "one has no run 'fit-9'; it has fit-1"),
        ("stacks two m00", "no experiment 'two'"),
    ],
)
def test_a_model_without_a_running_sub_epoch_is_refused(
    store: Telling, capsys: pytest.CaptureFixture[str], command: str, says: str
) -> None:
    """One line with the choices."""
    assert main(command.split()) == 1
    assert says in capsys.readouterr().err
