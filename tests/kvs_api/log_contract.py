"""Store contract: experiments and their logs, requests, notes and the queue of runs.

Part of `tests.kvs_api.contract.StoreContract`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cerebro.contract.events import RunFinished, RunRequested, RunStopRequested
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.rest import api
from cerebro.errors import ConflictError, NotFoundError
from tests.kvs_api.bench import LOCATORS, PAUSED, Bench, note, requested


class LogContract:
    """Tests with a new `bench` each."""

    # --- experiments -----------------------------------------------------------------------------

    def test_creating_an_existing_experiment_returns_it(self, bench: Bench) -> None:
        again = ExperimentRecord(name="one", locators=LOCATORS, author="somebody else")
        assert bench.store.create_experiment(again) == bench.store.experiment("one")

    def test_a_name_holds_one_experiment(self, bench: Bench) -> None:
        """Other locators or another archive are refused."""
        before = bench.store.experiment("one")
        moved = ExperimentRecord(name="one", locators=Locators(test=Locator(metadata="test.csv")))
        with pytest.raises(ConflictError, match="'one'"):
            bench.store.create_experiment(moved)
        with pytest.raises(ConflictError, match="'one'"):
            bench.store.create_experiment(ExperimentRecord(name="one", locators=LOCATORS, archive="2" * 64))
        assert bench.store.experiment("one") == before

    def test_an_unknown_experiment_is_not_found(self, bench: Bench) -> None:
        """The error names the missing experiment."""
        step = note(PAUSED)
        request = api.DecideRequest(term=bench.term, after=0, steps=(step,))
        calls: list[Callable[[], object]] = [
            lambda: bench.store.experiment("two"),
            lambda: bench.store.events("two"),
            lambda: bench.store.live("two"),
            lambda: bench.store.append("two", requested("etl-1")),
            lambda: bench.store.decide("two", request),
        ]
        for call in calls:
            with pytest.raises(NotFoundError, match="'two'"):
                call()

    # --- the log ---------------------------------------------------------------------------------

    def test_a_request_counts_once(self, bench: Bench) -> None:
        """A repeated request returns the first one's number."""
        first = bench.store.append("one", requested("etl-1"))
        bench.store.append("one", requested("etl-2"))
        assert bench.store.append("one", requested("etl-1")) == first == 1
        assert bench.types() == ["RunRequested", "RunRequested"]
        assert [entry.run for entry in bench.store.queue()] == ["etl-1", "etl-2"]

    def test_a_run_id_holds_one_request(self, bench: Bench) -> None:
        bench.store.append("one", requested("etl-1"))
        with pytest.raises(ConflictError, match="'etl-1'"):
            bench.store.append("one", requested("etl-1", seed=1))
        assert len(bench.log()) == 1

    def test_events_are_numbered_densely_and_read_after_a_cursor(self, bench: Bench) -> None:
        """Numbers start at 1 without gaps for all writers, and times never decrease."""
        bench.store.append("one", requested("etl-1"))
        bench.run_until("commit")
        bench.store.append("one", RunStopRequested(run="etl-1"))
        log = bench.log()
        assert [event.seq for event in log] == list(range(1, 6))
        assert [event.time for event in log] == sorted(event.time for event in log)
        assert bench.store.events("one", 3) == log[3:]
        assert bench.store.events("one", 5) == ()

    def test_text_of_any_language_is_returned_unchanged(self, bench: Bench) -> None:
        text = 'Žofie said: "日本" 🙂 \\ \n\t\u0001 {}'
        bench.store.append("one", requested("etl-1").model_copy(update={"author": text}))
        event = bench.log()[0]
        assert isinstance(event, RunRequested)
        assert event.author == text

    def test_open_runs_queue_in_the_order_of_their_requests(self, bench: Bench) -> None:
        """The order spans all experiments, and ended runs leave the queue."""
        bench.store.create_experiment(ExperimentRecord(name="two", locators=LOCATORS))
        for experiment, run in (("two", "etl-1"), ("one", "etl-1"), ("two", "etl-2")):
            bench.store.append(experiment, requested(run))
        bench.decide(note(RunFinished(run="etl-1", outcome="finished")))
        queue = [(entry.experiment, entry.run) for entry in bench.store.queue()]
        assert queue == [("two", "etl-1"), ("two", "etl-2")]

    def test_a_note_that_is_sent_twice_is_written_once(self, bench: Bench) -> None:
        """A controller without a response repeats its request from the same cursor."""
        assert bench.decide(note(PAUSED), after=0) == ["done"]
        assert bench.decide(note(PAUSED), after=0) == ["already"]
        assert bench.types() == ["RunPaused"]
