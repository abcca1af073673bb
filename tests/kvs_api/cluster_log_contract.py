"""Store contract: the cluster log, and experiment logs merged with it.

Part of `tests.kvs_api.contract.StoreContract`.
"""

from __future__ import annotations

import pytest

from cerebro.contract.events import (
    ClusterEvent,
    DeletionRequested,
    LocatorsChanged,
    ReplicasChanged,
    RunFinished,
    WorkerJoined,
    WorkerLost,
    WorkerRemoved,
)
from cerebro.contract.records import ExperimentRecord, Replica
from cerebro.contract.rest import api
from cerebro.errors import ConflictError
from tests.kvs_api.bench import JOINED, LOCATORS, Bench, note, requested, worker

LOST = WorkerLost(worker="worker-0", incarnation="a", reason="silent")
REMOVED = WorkerRemoved(worker="worker-0", reason="gone")
MORE = ReplicasChanged(volume="worker-0", gained=(Replica(dataset="d", partition=1),))
AGAIN = WorkerJoined(worker="worker-0", incarnation="b", weight=1.0, kinds=("etl",))


def write_events(
    bench: Bench, *events: ClusterEvent, after: int | None = None, term: int | None = None
) -> bool:
    """Write to the cluster log; return True if it was written."""
    request = api.ClusterLogRequest(
        term=bench.term if term is None else term,
        after=len(bench.store.cluster_log()) if after is None else after,
        events=events,
    )
    return bench.store.write_cluster_log(request).is_written


class ClusterLogContract:
    """Tests with a new `bench` each."""

    def test_the_clusters_log_is_dense_and_read_after_a_cursor(self, bench: Bench) -> None:
        """Events of one request share their time."""
        assert write_events(bench, JOINED, LOST)
        assert write_events(bench, REMOVED)
        events = bench.store.cluster_log()
        assert [(event.seq, event.type) for event in events] == [
            (1, "WorkerJoined"),
            (2, "WorkerLost"),
            (3, "WorkerRemoved"),
        ]
        assert bench.store.cluster_log(2) == events[2:]
        assert all(event.time > 0 for event in events)

    def test_only_an_up_to_date_leader_writes_the_cluster_log(self, bench: Bench) -> None:
        """A repeated request returns the events that are there."""
        with pytest.raises(ConflictError, match="term"):
            write_events(bench, JOINED, term=bench.term - 1)
        request = api.ClusterLogRequest(term=bench.term, after=0, events=(JOINED,))
        first, second = bench.store.write_cluster_log(request), bench.store.write_cluster_log(request)
        assert (first.is_written, second.is_written) == (True, False)
        assert first.events == second.events == bench.store.cluster_log()
        assert not write_events(bench, LOST, after=0)
        assert not write_events(bench, LOST, after=2)
        assert len(bench.store.cluster_log()) == 1

    def test_the_log_of_each_experiment_includes_cluster_events(self, bench: Bench) -> None:
        """The merged log keeps the order of writes; numbers are dense and times never decrease."""
        write_events(bench, JOINED)
        bench.store.append("one", requested("etl-1"))
        write_events(bench, LOST, REMOVED)
        bench.decide(note(RunFinished(run="etl-1", outcome="failed")))
        write_events(bench, AGAIN, MORE)
        bench.store.create_experiment(ExperimentRecord(name="two", locators=LOCATORS))
        bench.store.append("two", requested("etl-1"))
        log = bench.log()
        assert [event.type for event in log] == [
            "WorkerJoined",
            "RunRequested",
            "WorkerLost",
            "WorkerRemoved",
            "RunFinished",
            "WorkerJoined",
            "ReplicasChanged",
        ]
        assert [event.seq for event in log] == list(range(1, 8))
        assert [event.time for event in log] == sorted(event.time for event in log)
        assert all(bench.store.events("one", after) == log[after:] for after in range(9))
        messages = [event.type for event in bench.store.cluster_log()]
        assert [event.type for event in bench.store.events("two")] == [*messages, "RunRequested"]

    def test_event_numbers_never_change(self, bench: Bench) -> None:
        """Cluster events that were read at the end of a log keep their numbers after the next write."""
        bench.store.append("one", requested("etl-1"))
        write_events(bench, JOINED)
        before = bench.log()
        assert bench.store.append("one", requested("etl-2")) == 3
        write_events(bench, LOST)
        assert bench.log()[:2] == before
        assert [event.seq for event in bench.log()] == [1, 2, 3, 4]

    def test_cluster_events_wake_readers_of_experiments(self, bench: Bench) -> None:
        """Every watched experiment gets them, and so does a decision's response."""
        bench.store.append("one", requested("etl-1"))
        write_events(bench, JOINED)
        answer = bench.store.watch({"one": 1}, 0, 0.0)
        assert [event.type for event in answer.events["one"]] == ["WorkerJoined"]
        request = api.DecideRequest(term=bench.term, after=1, steps=())
        assert bench.store.decide("one", request).events == answer.events["one"]
        assert bench.store.watch({"one": 2}, 0, 0.0).events == {}

    def test_tasks_are_assigned_only_to_workers_in_the_cluster_log(self, bench: Bench) -> None:
        """Incarnations must match. Workers that the log never named are not checked."""
        bench.store.register(worker("a"))
        assert bench.assign(task="etl-1/etl/train/p7") == "done"
        write_events(bench, JOINED)
        assert bench.assign() == "done"
        assert bench.revoke(force=True) == "done"
        write_events(bench, LOST)
        assert bench.assign(2) == "refused"
        write_events(bench, AGAIN)
        assert bench.assign(2) == "refused"
        bench.store.register(worker("b"))
        assert bench.assign(2, incarnation="b") == "done"
        write_events(bench, LOST.model_copy(update={"incarnation": "b"}), REMOVED)
        assert bench.assign(task="etl-1/etl/train/p8", incarnation="b") == "refused"

    def test_only_own_events_of_an_experiment_keep_its_run_open(self, bench: Bench) -> None:
        """Cluster events do not keep a run from ending."""
        bench.store.append("one", requested("etl-1"))
        write_events(bench, JOINED)
        finished = note(RunFinished(run="etl-1", outcome="finished"))
        assert bench.decide(finished, after=0) == ["refused"]
        assert bench.decide(finished, after=1) == ["done"]
        write_events(bench, LOST)
        assert bench.store.experiments()[0].last_seq == 3
        changed = LocatorsChanged(locators=LOCATORS, after=2, by="ann")
        with pytest.raises(ConflictError):
            bench.store.append("one", changed)
        assert bench.store.append("one", changed.model_copy(update={"after": 4})) == 5

    def test_a_reused_name_starts_with_the_cluster_log(self, bench: Bench) -> None:
        """The deleted experiment's events have no effect."""
        write_events(bench, JOINED)
        bench.store.append("one", DeletionRequested(by="ann"))
        write_events(bench, LOST)
        bench.store.delete_experiment("one", bench.term)
        bench.store.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
        assert bench.types() == ["WorkerJoined", "WorkerLost"]
        assert bench.store.append("one", requested("etl-1")) == 3
