"""Users see why an experiment is unreadable, and can delete or restore it everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cerebro import cli
from cerebro.cli.administration import cluster_status as cli_status
from cerebro.cli.experiments import commands
from cerebro.client.commands import CommandsMixin
from cerebro.client.session import Session
from cerebro.commands.command import Command
from cerebro.commands.rules import CommandKind
from cerebro.contract.events import DeletionRequested
from cerebro.contract.records import Unreadable
from cerebro.errors import ConflictError, UnreadableError
from cerebro.runtime.kvs.client import KvsClient
from dispatcher.app import create_app
from tests.dispatcher.fakes import Browser
from tests.dispatcher.fakes import settings as page_settings
from tests.kvs_api.quarantine.unreadable import NEWER, Store
from tests.kvs_api.real import TOKEN


def session(store: Store) -> Session:
    """Open a client session on the experiment."""
    return Session(cast(Any, SimpleNamespace(kvs=store.kvs)), store.kvs.experiment("bad"))


def test_a_notebook_shows_the_error_and_may_delete_the_experiment(bad: Store) -> None:
    """`status` shows earlier events and the error; other commands raise it."""
    found = session(bad)
    assert "etl-1: queued" in found.status()
    assert "event 2 of experiment 'bad' cannot be read (it is of type 'ModelSold'" in found.status()
    with pytest.raises(UnreadableError, match="event 2"):
        found.send(Command(kind=CommandKind.STOP_RUN))
    with pytest.raises(ConflictError, match="repeat its exact name"):
        found.send(Command(kind=CommandKind.DELETE, confirm="good"))
    commands = CommandsMixin()
    commands._session = found
    commands.delete(confirm="bad")
    assert bad.kvs.deleting() == ("bad",)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_queued_unreadable_experiment_can_be_deleted(store: Store, tmp_path: Path, is_first: bool) -> None:
    """No controller has read it yet, so its run cannot be stopped.

    The first run in the queue is refused: the controller quarantines it soon.
    """
    for name in ("bad", "good") if is_first else ("good", "bad"):
        store.begin(name, tmp_path)
    store.write("bad", NEWER)
    if is_first:
        with pytest.raises(ConflictError, match="etl-1"):
            session(store).send(Command(kind=CommandKind.DELETE, confirm="bad"))
        assert len(store.kvs.queue()) == 2
    else:
        session(store).send(Command(kind=CommandKind.DELETE, confirm="bad"))
        assert [entry.experiment for entry in store.kvs.queue()] == ["good"]
        assert store.kvs.deleting() == ("bad",)


def test_an_experiment_in_progress_cannot_be_deleted_unread(store: Store, tmp_path: Path) -> None:
    """The leader publishes the number of open runs; the first runs in the queue belong to the controller."""
    store.kvs.lead("controller", 60.0, open_runs=2)
    for name in ("good", "bad", "worse"):
        store.begin(name, tmp_path)
        store.write(name, NEWER)
    assert store.kvs.queued().open_runs == 2
    with pytest.raises(ConflictError, match="etl-1"):
        store.kvs.append("bad", DeletionRequested(), is_unread=True)
    store.kvs.append("worse", DeletionRequested(), is_unread=True)
    assert [entry.experiment for entry in store.kvs.queue()] == ["good", "bad"]


def test_a_notebook_may_restore_the_experiment(bad: Store) -> None:
    """Its run is queued again."""
    commands = CommandsMixin()
    commands._session = session(bad)
    commands.restore()
    assert bad.mark("bad") is None
    assert len(bad.kvs.queue()) == 1


@pytest.fixture
def terminal(bad: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Run a command in a terminal."""
    monkeypatch.setattr(commands, "cluster_client", lambda home: bad.kvs)
    monkeypatch.setattr(cli_status, "remote_client", lambda environment: bad.kvs)
    monkeypatch.setattr(commands, "_DELETION_TIMEOUT_S", 0.0)
    return lambda command: cli.main(command.split())


@pytest.mark.parametrize("is_record", [False, True])
def test_the_command_line_deletes_and_restores(
    bad: Store, terminal: Callable[[str], int], is_record: bool
) -> None:
    """Deletion needs the name again; an unreadable record works too."""
    if is_record:
        bad.damage("bad")
    assert terminal("restore bad") == 0
    assert bad.mark("bad") is None or is_record
    bad.kvs.quarantine(
        "bad", Unreadable(seq=2, reason="odd"), bad.kvs.lead("controller", 60.0, is_start=True).term
    )
    assert terminal("delete bad --yes other") != 0
    assert bad.kvs.deleting() == ()
    terminal("delete bad --yes bad")
    assert bad.kvs.deleting() == ("bad",)


@pytest.mark.parametrize("is_record", [False, True])
def test_the_page_shows_the_error_and_deletes_the_experiment(bad: Store, is_record: bool) -> None:
    """Both the list and the experiment's page show it, with deletion and restore."""
    if is_record:
        bad.damage("bad")
    kvs = KvsClient(bad.service.address, TOKEN)
    browser = Browser(create_app(page_settings(), kvs)).sign_in()
    listed = browser.get("/experiments").get_data(as_text=True)
    assert "unreadable" in listed
    assert "event 2 of experiment" in listed
    page = browser.get("/experiments/bad")
    assert page.status_code == 409
    text = page.get_data(as_text=True)
    assert "This experiment cannot be read" in text
    assert "It was quarantined" in text
    if not is_record:
        assert "1 of 2 events are readable" in text
        assert "etl-1" in text
    assert "/experiments/bad/delete" in text
    assert "/experiments/bad/restore" in text
    assert browser.post("/experiments/bad/restore", {}, form="/experiments/bad").status_code == 303
    bad.kvs.quarantine(
        "bad", Unreadable(seq=2, reason="odd"), bad.kvs.lead("controller", 60.0, is_start=True).term
    )
    form = "/experiments/bad/delete"
    assert "the log cannot be read" in browser.get(form).get_data(as_text=True)
    fields = {"action": "delete", "confirm": "bad"}
    assert browser.post("/experiments/bad/actions", fields, form=form).status_code == 303
    assert bad.kvs.deleting() == ("bad",)
    kvs.close()
