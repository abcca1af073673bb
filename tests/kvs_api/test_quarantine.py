"""What cannot be read stops one experiment, not all of them; its user is told, and can delete or restore it.

Over the real store: the client, the controller's loop, sessions, the command line and the page.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from cerebro import cli
from cerebro.cli import experiment_commands
from cerebro.cli import status as cli_status
from cerebro.client.commands import CommandsMixin
from cerebro.client.session import Session
from cerebro.commands.command import Command
from cerebro.commands.rules import CommandKind
from cerebro.contract import api
from cerebro.contract.events import DeletionRequested, RunFinished, RunStopRequested
from cerebro.contract.records import ExperimentRecord, Locator, Locators, Unreadable
from cerebro.errors import ConflictError, UnreadableError
from cerebro.runtime.kvs import KvsClient
from cerebro.runtime.volumes import Volumes
from controller.advisor import ChildHelper
from controller.loop import Controller
from controller.settings import Settings
from dispatcher.app import create_app
from kvs_api import keys
from tests.controller.test_loop import Nobody
from tests.dispatcher.fakes import Browser
from tests.dispatcher.fakes import settings as page_settings
from tests.kvs_api.bench import requested, worker
from tests.kvs_api.real import TOKEN, Service

NEWER = '{"type":"ModelSold","model":"m00"}'
ILLEGAL = '{"type":"RunFinished","run":"fit-9","outcome":"finished"}'
NO_TASK = '{"type":"TaskStarted","task":"nonsense","attempt":1,"worker":"worker-0"}'
CUT = '{"type":"RunFini'
OTHER_FIELD = '{"type":"RunStopRequested","run":"etl-1","at_once":true}'
UNREADABLE = [NEWER, CUT, OTHER_FIELD]


class Store:
    """The real store, and its database, to write into what kvs_api would not."""

    def __init__(self, service: Service) -> None:
        self.service, self.kvs = service, service.client()
        self._redis = redis.Redis.from_url(service.database.url)

    def close(self) -> None:
        """Connections."""
        self.kvs.close()
        self._redis.close()

    def begin(self, name: str, folder: Path) -> None:
        """An experiment with a run, whose data does not exist: its planning fails at once."""
        locators = Locators(train=Locator(metadata=str(folder / "none.csv")))
        self.kvs.create_experiment(ExperimentRecord(name=name, locators=locators))
        self.kvs.append(name, requested("etl-1"))

    def write(self, name: str, event: str) -> int:
        """An event as it is; its seq."""
        seq: Any = self._redis.incr(f"{keys.log(name)}:seq")
        self._redis.xadd(keys.log(name), {"t": 1_000, "e": event}, id=f"{seq}-0")
        return int(seq)

    def mend(self, name: str, seq: int) -> None:
        """Take an event and all after it away, as a newer version would understand it."""
        kept = cast(Any, self._redis.xrange(keys.log(name), max=f"{seq - 1}-0"))
        self._redis.delete(keys.log(name))
        for identity, fields in kept:
            self._redis.xadd(keys.log(name), fields, id=identity)
        self._redis.set(f"{keys.log(name)}:seq", seq - 1)

    def damage(self, name: str) -> None:
        """The experiment's record is that of a version that knows more."""
        self._redis.set(keys.experiment(name), json.dumps({"schema_version": 2, "name": name}))

    def mark(self, name: str) -> Unreadable | None:
        """Why it was quarantined."""
        return next(found.unreadable for found in self.kvs.experiments() if found.experiment.name == name)

    def types(self, name: str) -> list[str]:
        """Of the events that can be read."""
        return [event.type for event in self.kvs.events(name)]


@pytest.fixture
def store(service: Service) -> Iterator[Store]:
    made = Store(service)
    yield made
    made.close()


@pytest.fixture
def controlled(store: Store, tmp_path: Path) -> Callable[[Callable[[], object]], None]:
    """Has a controller work until something is so."""
    store.kvs.register(worker("a"))

    def work(is_so: Callable[[], object]) -> None:
        settings = Settings(
            server="-",
            token="-",
            holder="controller",
            tick_s=0.01,
            volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "volumes")}),
        )
        controller = Controller(store.service.client(), settings, Nobody(), ChildHelper())
        thread = threading.Thread(target=controller.run)
        thread.start()
        try:
            for _ in range(6_000):
                if is_so():
                    return
                assert thread.is_alive(), "the controller died"
                threading.Event().wait(0.01)
            raise AssertionError("it did not happen")
        finally:
            controller.stop.set()
            thread.join(20)

    return work


# --- the client ----------------------------------------------------------------------------------


@pytest.mark.parametrize("event", UNREADABLE)
def test_what_comes_before_can_be_read(store: Store, tmp_path: Path, event: str) -> None:
    """Then the client says which event cannot, in a sentence with what to do."""
    store.begin("one", tmp_path)
    seq = store.write("one", event)
    store.write("one", '{"type":"RunStopRequested","run":"etl-1","by":""}')
    for read in (lambda: store.kvs.events("one"), lambda: store.kvs.watch({"one": 0}, 0, 0.0)):
        with pytest.raises(UnreadableError, match="event 2 of experiment 'one' cannot be read") as caught:
            read()
        assert caught.value.seq == seq
        assert [event.type for event in caught.value.readable] == ["RunRequested"]
        assert "cerebro delete one" in str(caught.value)
        assert "validation error" not in str(caught.value)


# --- the controller ------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [*UNREADABLE, ILLEGAL, NO_TASK])
def test_other_experiments_go_on(
    store: Store, tmp_path: Path, event: str, controlled: Callable[[Callable[[], object]], None]
) -> None:
    """The run of the one that cannot be read leaves the queue; it says which event and why. The next one is worked
    on."""
    store.begin("bad", tmp_path)
    seq = store.write("bad", event)
    store.begin("good", tmp_path)
    controlled(lambda: store.kvs.queue() == ())
    assert isinstance(store.kvs.events("good")[-1], RunFinished)
    mark = store.mark("bad")
    assert mark is not None
    assert (mark.seq, mark.by) == (seq, "controller")
    assert mark.reason
    assert store.mark("good") is None


def test_an_event_that_comes_during_the_run_quarantines_it_too(
    store: Store, tmp_path: Path, controlled: Callable[[Callable[[], object]], None]
) -> None:
    """Nobody can plan it, because no worker is there; so it waits, and is read as it grows."""
    store.kvs.remove_worker("worker-0")
    store.begin("bad", tmp_path)
    written: list[int] = []

    def is_quarantined() -> object:
        if not written:
            written.append(store.write("bad", NEWER))
        return store.mark("bad")

    controlled(is_quarantined)
    assert store.kvs.queue() == ()


@pytest.mark.slow  # its plan is made in a process
def test_its_workers_are_given_back(
    store: Store, tmp_path: Path, controlled: Callable[[Callable[[], object]], None]
) -> None:
    """What they run of it is taken back at once, for the run that is next."""
    (tmp_path / "none.csv").write_text("id\nr1\n")
    store.begin("bad", tmp_path)
    written: list[int] = []

    def is_quarantined() -> object:
        if not written and store.types("bad")[-1] == "TaskAssigned":
            written.append(store.write("bad", NEWER))
        return store.mark("bad")

    controlled(is_quarantined)
    found = store.kvs.inbox("worker-0", "a", 0, wait_s=0.0)
    task = "etl-1/etl/train/p0"
    assert [(item.task, item.cancel) for item in found] == [(task, False), (task, True)]


def test_a_record_that_cannot_be_read_is_the_same_case(
    store: Store, tmp_path: Path, controlled: Callable[[Callable[[], object]], None]
) -> None:
    """It is in the list by its name, and can be deleted."""
    store.begin("bad", tmp_path)
    store.damage("bad")
    store.begin("good", tmp_path)
    controlled(lambda: store.kvs.queue() == ())
    mark = store.mark("bad")
    assert mark is not None
    assert mark.seq == 0
    with pytest.raises(UnreadableError, match="'bad' cannot be read"):
        store.kvs.experiment("bad")


def test_nothing_is_asked_of_it_until_it_is_restored(store: Store, tmp_path: Path) -> None:
    """But deletion. Restored, its run is in the queue where it ends, and the log goes on."""
    store.begin("bad", tmp_path)
    seq = store.write("bad", NEWER)
    term = store.kvs.lead("controller", 60.0).term
    with pytest.raises(ConflictError, match="not quarantined"):
        store.kvs.restore("bad")
    with pytest.raises(ConflictError, match="term"):
        store.kvs.quarantine("bad", Unreadable(seq=seq, reason="odd"), term + 1)
    for _ in range(2):
        store.kvs.quarantine("bad", Unreadable(seq=seq, reason="odd"), term)
    with pytest.raises(UnreadableError, match=r"event 2 .* \(odd\)"):
        store.kvs.append("bad", RunStopRequested(run="etl-1"))
    store.begin("good", tmp_path)
    store.mend("bad", seq)
    store.kvs.restore("bad")
    assert [(entry.experiment, entry.run) for entry in store.kvs.queue()] == [
        ("good", "etl-1"),
        ("bad", "etl-1"),
    ]
    store.kvs.append("bad", RunStopRequested(run="etl-1"))
    assert store.types("bad") == ["RunRequested", "RunStopRequested"]


def test_what_can_still_not_be_read_is_quarantined_again(
    store: Store, tmp_path: Path, controlled: Callable[[Callable[[], object]], None]
) -> None:
    """Restoring it too early costs nothing."""
    store.begin("bad", tmp_path)
    store.write("bad", NEWER)
    controlled(lambda: store.mark("bad"))
    store.kvs.restore("bad")
    assert store.mark("bad") is None
    controlled(lambda: store.mark("bad"))
    assert store.kvs.queue() == ()


# --- what users see ------------------------------------------------------------------------------


@pytest.fixture
def bad(store: Store, tmp_path: Path, controlled: Callable[[Callable[[], object]], None]) -> Store:
    """The experiment "bad" was quarantined."""
    store.begin("bad", tmp_path)
    store.write("bad", NEWER)
    controlled(lambda: store.mark("bad"))
    return store


def session(store: Store) -> Session:
    """A client's session with it."""
    return Session(cast(Any, SimpleNamespace(kvs=store.kvs)), store.kvs.experiment("bad"))


def test_a_notebook_is_told_and_may_delete_it(bad: Store) -> None:
    """`status` shows what came before, and what cannot be read; other commands say the same."""
    found = session(bad)
    assert "etl-1: queued" in found.status()
    assert "event 2 of experiment 'bad' cannot be read (it is of type 'ModelSold'" in found.status()
    with pytest.raises(UnreadableError, match="event 2"):
        found.steer(Command(kind=CommandKind.STOP_RUN))
    with pytest.raises(ConflictError, match="repeat its exact name"):
        found.steer(Command(kind=CommandKind.DELETE, confirm="good"))
    commands = CommandsMixin()
    commands._session = found
    commands.delete(confirm="bad")
    assert bad.kvs.deleting() == ("bad",)


@pytest.mark.parametrize("is_first", [True, False])
def test_one_that_waits_for_its_turn_can_be_deleted(store: Store, tmp_path: Path, is_first: bool) -> None:
    """No controller has looked at it, so its run is in the queue, and nobody can stop that. The one whose turn it is
    is the controller's: it is quarantined in a moment."""
    for name in ("bad", "good") if is_first else ("good", "bad"):
        store.begin(name, tmp_path)
    store.write("bad", NEWER)
    if is_first:
        with pytest.raises(ConflictError, match="etl-1"):
            session(store).steer(Command(kind=CommandKind.DELETE, confirm="bad"))
        assert len(store.kvs.queue()) == 2
    else:
        session(store).steer(Command(kind=CommandKind.DELETE, confirm="bad"))
        assert [entry.experiment for entry in store.kvs.queue()] == ["good"]
        assert store.kvs.deleting() == ("bad",)


def test_one_of_several_that_are_worked_on_is_not_deleted_unread(store: Store, tmp_path: Path) -> None:
    """Those are the first ones in the queue, as many as the controller that leads says; clients are told so, too."""
    store.kvs.lead("controller", 60.0, open_runs=2)
    for name in ("good", "bad", "worse"):
        store.begin(name, tmp_path)
        store.write(name, NEWER)
    assert store.kvs.queued().open_runs == 2
    with pytest.raises(ConflictError, match="etl-1"):
        store.kvs.append("bad", DeletionRequested(), is_unread=True)
    store.kvs.append("worse", DeletionRequested(), is_unread=True)
    assert [entry.experiment for entry in store.kvs.queue()] == ["good", "bad"]


def test_one_that_is_worked_on_beyond_those_that_may_be_is_not_deleted_unread(
    store: Store, tmp_path: Path
) -> None:
    """It was begun before fewer might be open."""
    for name in ("good", "bad"):
        store.begin(name, tmp_path)
    store.write("bad", NEWER)
    told = api.Attended(runs=(api.AttendedRun(experiment="bad", run="etl-1"),))
    for _ in range(2):
        store.kvs.lead("controller", 60.0, open_runs=1, attended=told)
    with pytest.raises(ConflictError, match="etl-1"):
        store.kvs.append("bad", DeletionRequested(), is_unread=True)


def test_a_readable_one_is_not_deleted_while_a_run_waits(store: Store, tmp_path: Path) -> None:
    """It can be stopped."""
    store.begin("good", tmp_path)
    store.begin("bad", tmp_path)
    with pytest.raises(ConflictError, match="etl-1"):
        store.kvs.append("bad", DeletionRequested())
    assert len(store.kvs.queue()) == 2


def test_a_notebook_may_restore_it(bad: Store) -> None:
    """Its run is queued again."""
    commands = CommandsMixin()
    commands._session = session(bad)
    commands.restore()
    assert bad.mark("bad") is None
    assert len(bad.kvs.queue()) == 1


@pytest.fixture
def terminal(bad: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Types a command."""
    monkeypatch.setattr(experiment_commands, "cluster_client", lambda home: bad.kvs)
    monkeypatch.setattr(cli_status, "remote_client", lambda environment: bad.kvs)
    monkeypatch.setattr(experiment_commands, "_GONE_S", 0.0)
    return lambda command: cli.main(command.split())


def test_the_command_line_says_it_in_the_list_and_alone(
    terminal: Callable[[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The list goes on to the others; alone, what came before is shown."""
    assert terminal("status") == 0
    shown = capsys.readouterr().out
    assert "unreadable" in shown
    assert "event 2 of experiment 'bad' cannot be read" in shown
    assert terminal("status bad") != 0
    told = capsys.readouterr()
    assert "etl-1" in told.out
    assert "event 2 of experiment 'bad' cannot be read" in told.err
    assert terminal("stop bad") != 0
    assert "event 2 of experiment 'bad' cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("is_record", [False, True])
def test_the_command_line_deletes_and_restores(
    bad: Store, terminal: Callable[[str], int], is_record: bool
) -> None:
    """With the name once more; also if it is the record that cannot be read."""
    if is_record:
        bad.damage("bad")
    assert terminal("restore bad") == 0
    assert bad.mark("bad") is None or is_record
    bad.kvs.quarantine("bad", Unreadable(seq=2, reason="odd"), bad.kvs.lead("controller", 60.0).term)
    assert terminal("delete bad --yes other") != 0
    assert bad.kvs.deleting() == ()
    terminal("delete bad --yes bad")
    assert bad.kvs.deleting() == ("bad",)


@pytest.mark.parametrize("is_record", [False, True])
def test_the_page_says_it_and_deletes_it(bad: Store, is_record: bool) -> None:
    """In the list, and on its own page, which leads to deletion and restoring."""
    if is_record:
        bad.damage("bad")
    kvs = KvsClient(bad.service.address, TOKEN)
    browser = Browser(create_app(page_settings(), kvs)).sign_in()
    listed = browser.get("/experiments").get_data(as_text=True)
    assert "unreadable" in listed
    assert "event 2 of experiment" in listed
    own = browser.get("/experiments/bad")
    assert own.status_code == 409
    text = own.get_data(as_text=True)
    assert "This experiment cannot be read" in text
    assert "It was quarantined" in text
    if not is_record:
        assert "1 of 2 events can be read" in text
        assert "etl-1" in text
    assert "/experiments/bad/delete" in text
    assert "/experiments/bad/restore" in text
    assert browser.post("/experiments/bad/restore", {}, form="/experiments/bad").status_code == 303
    bad.kvs.quarantine("bad", Unreadable(seq=2, reason="odd"), bad.kvs.lead("controller", 60.0).term)
    form = "/experiments/bad/delete"
    assert "the log cannot be read" in browser.get(form).get_data(as_text=True)
    fields = {"action": "delete", "confirm": "bad"}
    assert browser.post("/experiments/bad/actions", fields, form=form).status_code == 303
    assert bad.kvs.deleting() == ("bad",)
    kvs.close()
