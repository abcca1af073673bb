"""``cerebro forget history``, and what ``cerebro recommend`` reads of it, against the simulated store."""

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
    """With two rows: of three sub-epochs, and of two whose memory nobody measured."""
    made = VirtualStore(lambda: 0.0)
    made.create_experiment(ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="t.csv"))))
    keys = [
        str(SubEpochKey.of(code="c", dataset="d", hyperparams={"lr": lr}, device=None)) for lr in (0.1, 0.2)
    ]
    rows = (
        SubEpochHistory(sub_epochs=3, log_rate=0.0, peak_bytes=1000),
        SubEpochHistory(sub_epochs=2, log_rate=0.0),
    )
    term = made.lead("c", 60.0).term
    sub_epochs = dict(zip(keys, rows, strict=True))
    made.count_history(HistoryRequest(term=term, experiment="one", after=0, upto=5, sub_epochs=sub_epochs))
    return made


def test_the_history_is_forgotten(
    store: VirtualStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says how much there was, and what becomes of it."""
    monkeypatch.setattr(history, "cluster_client", lambda home: store)
    for told in ("2 rows of the history were removed", "0 rows of the history were removed"):
        assert main(["forget", "history"]) == 0
        assert capsys.readouterr().out.startswith(told)
    assert not store.history().sub_epochs


def test_recommendations_rest_on_the_sub_epochs_of_all_runs(store: VirtualStore) -> None:
    """Each sub-epoch with the largest peak of those that are alike; experiments may be gone by then."""
    assert recommend._peaks(cast(KvsClient, store)) == [1000] * 3
