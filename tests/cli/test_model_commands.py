"""``cerebro add``, ``clone``, ``change``, ``extend``, ``prioritize`` and ``stop-search``, on a simulated store."""

from __future__ import annotations

from typing import cast

import pytest

from cerebro.cli import main
from cerebro.cli.experiments import model_commands
from cerebro.runtime.kvs.client import KvsClient
from tests.cli.test_experiment_commands import Store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(model_commands, "cluster_client", lambda home: cast(KvsClient, store))
    monkeypatch.setattr("cerebro.client.connection.author", lambda: "ann")
    return store


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("add one lr=0.5 batch_size=2", "added a model to fit-1: m02"),
        ("clone one m00 lr=0.5 --epochs 9", "added a model to fit-1, from m00: m02"),
        ("change one m01 lr=1e-3", "changed model m01: lr=0.001 (before: lr=0.2)"),
        ("extend one m01 7", "had model m01 trained for 7 epochs (before: 2)"),
        ("prioritize one low --model m01", "changed the priority of model m01 to low (before: normal)"),
        ("prioritize one -2 --model m01", "changed the priority of model m01 to -2 (before: normal)"),
        ("prioritize one 2", "changed the priority of fit-1 to 2"),
    ],
)
def test_a_command_prints_its_result(
    store: Store, capsys: pytest.CaptureFixture[str], command: str, said: str
) -> None:
    """Such as the id of a new model."""
    assert main(command.split()) == 0
    assert capsys.readouterr().out == f"fit-1 of one: {said}.\n"
    assert getattr(store.events("one")[-1], "by", "") == "ann"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("add one lr", "expected NAME=VALUE, such as lr=0.001"),
        ("add one lr=1 lr=2", "with each name once"),
        ("add one lr=1", "batch_size is None, expected a whole number from 1 to 10"),
        ("add one lr=1 batch_size=2 kind=wide", "no hyperparameter 'kind'; there is"),
        ("clone one m00 --warm", "model m00 was never trained"),
        ("clone one m00 --warm --at 3", "model m00 was never trained"),
        ("clone one m00 --warm --at never", "expected 'last', 'best' or the number of an epoch"),
        ("change one m07 lr=1", "no model 'm07'"),
        ("stop-search one", "fit-1 has no search"),
    ],
)
def test_an_impossible_command_prints_one_line_and_sends_no_event(
    store: Store, capsys: pytest.CaptureFixture[str], command: str, says: str
) -> None:
    """One line on stderr; nothing is sent."""
    before = len(store.events("one"))
    assert main(command.split()) == 1
    assert says in capsys.readouterr().err
    assert len(store.events("one")) == before
