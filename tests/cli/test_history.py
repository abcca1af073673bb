"""``cerebro forget history`` and ``cerebro recommend`` against the simulated store."""

from __future__ import annotations

from typing import cast

import pytest

from cerebro.cli import main
from cerebro.cli.administration import history, recommend
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.stored.history import HistoryRequest, SubEpochHistory, SubEpochKey
from cerebro.runtime.kvs.client import KvsClient
from research.simulation.store import VirtualStore


@pytest.fixture
def store() -> VirtualStore:
    """A history with two rows: three measured sub-epochs, and two without memory measurements."""
    store = VirtualStore(lambda: 0.0)
    store.create_experiment(ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="t.csv"))))
    keys = [
        str(SubEpochKey.of(code="c", dataset="d", hyperparams={"lr": lr}, device=None)) for lr in (0.1, 0.2)
    ]
    rows = (
        SubEpochHistory(sub_epochs=3, log_rate=0.0, peak_bytes=1000),
        SubEpochHistory(sub_epochs=2, log_rate=0.0),
    )
    term = store.lead("c", 60.0).term
    sub_epochs = dict(zip(keys, rows, strict=True))
    store.count_history(HistoryRequest(term=term, experiment="one", after=0, upto=5, sub_epochs=sub_epochs))
    return store


def test_the_history_is_forgotten(
    store: VirtualStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints the number of sub-epochs and the consequence."""
    monkeypatch.setattr(history, "cluster_client", lambda home: store)
    for message in ("2 rows of the history were removed", "0 rows of the history were removed"):
        assert main(["forget", "history"]) == 0
        assert capsys.readouterr().out.startswith(message)
    assert not store.history().sub_epochs


def test_recommendations_rest_on_the_sub_epochs_of_all_runs(store: VirtualStore) -> None:
    """Each sub-epoch counts with the largest peak of similar ones; experiments may be deleted."""
    assert recommend._peaks(cast(KvsClient, store)) == [1000] * 3
