"""``cerebro stop``, ``resume``, ``retry``, ``scheduler``, ``archive`` and ``delete``, against the simulated store."""

from __future__ import annotations

from typing import cast

import pytest

from cerebro.cli import main
from cerebro.cli.experiments import commands, tags
from cerebro.contract.events import Event, RunFinished, RunRequested
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.rest import api
from cerebro.runtime.kvs.client import KvsClient
from research.simulation.store import VirtualStore
from tests.state.stories import Story

RECORD = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="m.csv")))


class Store(VirtualStore):
    """A store with a fit of two models; the controller deletes an experiment at the second poll."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.term = self.lead("controller-0", 1e9).term
        self.create_experiment(RECORD)
        story = Story(workers=0)
        story.fit(models=2)
        for event in story.log:
            if isinstance(event, RunRequested):
                self.append("one", event)
            else:
                self.note(event)

    def note(self, event: Event) -> None:
        """Append an event as the controller."""
        steps = (api.Note.model_validate({"event": event.model_copy(update={"seq": 0, "time": 0.0})}),)
        count = len(self.events("one"))
        self.decide("one", api.DecideRequest(term=self.term, after=count, steps=steps))

    def experiments(self):  # type: ignore[no-untyped-def]
        found = super().experiments()
        for name in self.deleting():
            self.delete_experiment(name, self.term)
        return found


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(commands, "cluster_client", lambda home: cast(KvsClient, store))
    monkeypatch.setattr(tags, "cluster_client", lambda home: cast(KvsClient, store))
    monkeypatch.setattr("cerebro.client.connection.author", lambda: "ann")
    monkeypatch.setattr(commands, "_POLL_S", 0.0)
    return store


def newest(store: Store, count: int = 1) -> list[str]:
    """Return the last command in the log."""
    return [event.model_dump_json(exclude={"seq", "time"}) for event in store.events("one")[-count:]]


@pytest.mark.parametrize(
    ("command", "event"),
    [
        ("stop one", {"type": "RunStopRequested", "run": "fit-1"}),
        ("stop one --run fit-1 --model m01", {"type": "ModelStopRequested", "model": "m01"}),
        ("scheduler one fifo", {"type": "SchedulerChanged", "scheduler": "fifo", "planner": True}),
        ("scheduler one lrptw --no-planner", {"scheduler": "lrptw", "planner": False}),
        ("archive one", {"type": "ExperimentArchived", "is_archived": True}),
    ],
)
def test_a_command_is_an_event_in_the_log(store: Store, command: str, event: dict[str, object]) -> None:
    """With the user's name."""
    assert main(command.split()) == 0
    said = store.events("one")[-1].model_dump()
    assert event | {"by": "ann"} == {key: said[key] for key in [*event, "by"]}


def test_tags_are_set_listed_and_deleted(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an experiment or a model; a value may contain the sign =."""
    assert main(["tag", "one", "stage=final", "note=a=b c"]) == 0
    assert main(["tag", "one", "--model", "m00", "good=yes"]) == 0
    assert [event.model_dump()["by"] for event in store.events("one")[-2:]] == ["ann", "ann"]
    capsys.readouterr()
    assert main(["tag", "one"]) == 0
    assert capsys.readouterr().out.splitlines() == ["stage=final", "note=a=b c"]
    assert main(["tag", "one", "--model", "m00", "--delete", "good"]) == 0
    assert "m00 has no tags" in capsys.readouterr().out
    assert main(["tag", "one", "stage"]) == 1
    assert "expected KEY=VALUE" in capsys.readouterr().err


def test_stop_and_resume_accept_several_models(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """If one model is unknown, no model is stopped."""
    assert main(["stop", "one", "--model", "m00", "--model", "m7"]) == 1
    assert "no model 'm7'" in capsys.readouterr().err
    assert main(["stop", "one", "--model", "m00", "--model", "m01"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "m00 of fit-1 of one: requested to stop the model.",
        "m01 of fit-1 of one: requested to stop the model.",
    ]
    assert main(["archive", "one"]) == main(["unarchive", "one"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "one: requested to archive the experiment.",
        "one: requested to restore the experiment from the archive.",
    ]
    assert main(["resume", "one", "--model", "m01"]) == 0
    commands = [event.type for event in store.events("one") if event.type.startswith("Model")]
    assert commands[-3:] == [
        "ModelStopRequested",
        "ModelStopRequested",
        "ModelResumed",
    ]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("resume one", "it is not possible to resume the run: fit-1 is"),
        ("retry one --model m00", "possible now: stop the model"),
        ("scheduler one best", "no scheduler 'best'"),
        ("unarchive one", "experiment 'one' is not archived; possible now: archive"),
        ("delete one", "stop it first"),
        ("delete one --yes one", "stop it first"),
        ("stop none", "no experiment 'none'"),
        ("stop one --run fit-9", "no run 'fit-9' in experiment 'one'; there is fit-1"),
    ],
)
def test_an_impossible_command_prints_one_sentence(
    store: Store, command: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 1, and no event is written."""
    before = store.events("one")
    assert main(command.split()) == 1
    assert says in capsys.readouterr().err
    assert store.events("one") == before


@pytest.fixture
def ended(store: Store) -> Store:
    """Make a store whose run has ended."""
    store.note(RunFinished(run="fit-1", outcome="stopped"))
    return store


def test_deletion_requires_the_name_of_the_experiment(
    ended: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It lists the loss; any other input deletes nothing."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: "yes")
    assert main(["delete", "one"]) == 1
    output = capsys.readouterr()
    assert "1 runs, 2 models with their checkpoints" in output.out
    assert "nothing was deleted" in output.err
    monkeypatch.setattr("builtins.input", lambda prompt: "one ")
    assert main(["delete", "one"]) == 0
    assert "one is deleted." in capsys.readouterr().out
    assert ended.audit()[-1].by == "ann"
