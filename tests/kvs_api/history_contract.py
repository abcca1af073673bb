"""Store contract: the history counts each event once.

Part of `tests.kvs_api.contract.StoreContract`.
"""

from __future__ import annotations

import pytest

from cerebro.contract.events import DeletionRequested
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.stored.history import History, HistoryRequest, SubEpochHistory, SubEpochKey
from cerebro.contract.trials import DeviceKind
from cerebro.errors import ConflictError
from tests.kvs_api.bench import LOCATORS, Bench

GPU = DeviceKind(kind="gpu", name="Tesla T4")
ROW = SubEpochHistory(sub_epochs=2, log_rate=-3.0, variance=0.5, fixed_s=1.0, peak_bytes=7)


def key(number: int) -> str:
    """Return a sub-epoch's key."""
    return str(SubEpochKey.of(code="a", dataset="d", hyperparams={"lr": number}, device=GPU))


def history_request(
    term: int, after: int, upto: int, *numbers: int, experiment: str = "one"
) -> HistoryRequest:
    """Return a request with `ROW` for each number."""
    sub_epochs = dict.fromkeys(map(key, numbers), ROW)
    return HistoryRequest(term=term, experiment=experiment, after=after, upto=upto, sub_epochs=sub_epochs)


class HistoryContract:
    """Tests with a new `bench` each."""

    def test_each_event_is_counted_once(self, bench: Bench) -> None:
        """The log cursor prevents repeated counts, also by another controller."""
        store, term = bench.store, bench.term
        assert store.count_history(history_request(term, 0, 5, 1)).is_counted
        for again in (
            history_request(term, 0, 5, 1),
            history_request(term, 0, 9, 1, 2),
            history_request(term, 3, 9, 2),
        ):
            answer = store.count_history(again)
            assert (answer.upto, answer.is_counted) == (5, False)
        assert store.history().sub_epochs == {key(1): ROW}
        assert store.count_history(history_request(term, 5, 9, 1)).is_counted
        assert store.history().sub_epochs[key(1)].sub_epochs == 4

    def test_only_the_leader_counts_events(self, bench: Bench) -> None:
        with pytest.raises(ConflictError, match="term"):
            bench.store.count_history(history_request(bench.term - 1, 0, 5, 1))
        assert bench.store.history() == History()

    def test_a_new_experiment_of_the_same_name_is_counted_from_its_start(self, bench: Bench) -> None:
        """The deleted experiment's cursor is dropped and its statistics stay."""
        store, term = bench.store, bench.term
        store.count_history(history_request(term, 0, 5, 1))
        store.append("one", DeletionRequested())
        store.delete_experiment("one", term)
        store.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
        assert store.count_history(history_request(term, 0, 2, 1)).is_counted
        assert store.history().sub_epochs[key(1)].sub_epochs == 4

    def test_a_forgotten_history_is_not_counted_again(self, bench: Bench) -> None:
        """Only later events count."""
        store, term = bench.store, bench.term
        store.count_history(history_request(term, 0, 5, 1, 2))
        assert store.forget_history() == 2
        assert not store.count_history(history_request(term, 0, 5, 1)).is_counted
        assert store.history() == History()
        store.count_history(history_request(term, 5, 6, 2))
        assert set(store.history().sub_epochs) == {key(2)}
