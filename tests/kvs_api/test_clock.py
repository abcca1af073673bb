"""Leases and leadership end by elapsed time, independent of wall clocks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cerebro.contract.rest import api
from tests.kvs_api.bench import JOINED, OTHER
from tests.kvs_api.clocks import HOUR_S, LEASE_S, Machines
from tests.kvs_api.cluster_log_contract import LOST
from tests.kvs_api.real import Database, Service


@pytest.fixture
def machines(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    machines = Machines(service.database, monkeypatch, origins=(17.0, 50_000.0))
    yield machines
    machines.close()


def test_a_dead_worker_is_noticed_although_the_clock_was_set_back(machines: Machines) -> None:
    """Its silence grows normally, and its attempt can be revoked after the lease."""
    machines.begin()
    machines.turn_wall(-HOUR_S)
    machines.go_on(LEASE_S + 0.5)
    assert machines.silent_s() == pytest.approx(LEASE_S + 0.5, abs=0.01)
    assert machines.lead("controller-1") > 1, "who led is gone, too"
    assert machines.revoke() == "done"


def test_no_lease_ends_because_the_clock_was_set_forward(machines: Machines) -> None:
    """Neither worker leases nor leadership depend on the wall clock."""
    machines.begin()
    machines.turn_wall(HOUR_S)
    assert machines.silent_s() < 0.01
    assert machines.revoke() == "refused"
    assert machines.lead("controller-1") == 0


def test_time_without_kvs_api_ends_no_lease(machines: Machines) -> None:
    """Leases cannot be renewed during an outage, so their remaining time is unchanged by it."""
    machines.begin()
    machines.go_on(6.0)
    assert machines.lead() == 1
    machines.go_on(HOUR_S)
    for index in range(2):
        machines.restart(index)
    assert machines.silent_s() == pytest.approx(6.0, abs=0.01)
    assert machines.revoke() == "refused"
    machines.go_on(4.5)
    assert machines.revoke() == "done"


@pytest.mark.processes
def test_the_clock_outlives_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash it continues, and a new process takes over its value."""
    with Database(tmp_path) as database:
        machines = Machines(database, monkeypatch)
        machines.begin()
        machines.go_on(4.0)
        assert machines.report("renew") == "done"
        database.kill()
        database.start()
        machines.turn_wall(-HOUR_S)
        machines.restart()
        assert machines.silent_s() < 0.01
        machines.go_on(LEASE_S + 0.5)
        machines.lead()
        assert machines.revoke() == "done"
        machines.close()


def test_times_of_an_experiment_never_decrease(machines: Machines) -> None:
    """Log times are sortable. They equal the wall clock unless it is set back."""
    machines.begin()
    machines.go_on(5.0)
    machines.report("renew")
    machines.begin("worker-1", OTHER)
    machines.turn_wall(-HOUR_S)
    assert machines.report("commit") == "done"
    machines.turn_wall(HOUR_S + 1)
    assert machines.report("commit", "worker-1", OTHER) == "done"
    times = [json.loads(entry)["time"] for entry in machines.stores[0].read_log("one", 0, 0)]
    assert [time - times[0] for time in times] == [0, 0, 5, 5, 5, 6]


def test_times_of_cluster_events_never_decrease(machines: Machines) -> None:
    """Cluster events are merged into experiment logs, so their times must not decrease either."""
    machines.begin()
    machines.go_on(5.0)
    machines.report("renew")
    machines.begin("worker-1", OTHER)
    machines.turn_wall(-HOUR_S)
    store, term = machines.stores[0], machines.lead()
    assert store.write_cluster_log(api.ClusterLogRequest(term=term, after=0, events=(JOINED,)))
    assert machines.report("commit") == "done"
    machines.turn_wall(HOUR_S + 1)
    assert store.write_cluster_log(api.ClusterLogRequest(term=term, after=1, events=(LOST,)))
    machines.turn_wall(-HOUR_S)
    assert machines.report("commit", "worker-1", OTHER) == "done"
    times = [json.loads(entry)["time"] for entry in store.read_log("one", 0, 0)]
    assert [time - times[0] for time in times] == [0, 0, 5, 5, 5, 5, 6, 6]


steps = st.one_of(
    st.tuples(st.just("wall"), st.sampled_from([-HOUR_S, -30.0, 30.0, HOUR_S, 10 * HOUR_S])),
    st.tuples(st.just("restart"), st.sampled_from([0.0, 1.0])),
    st.tuples(st.just("pass"), st.floats(0.01, 1.0)),
    st.tuples(st.just("pass"), st.floats(0.5, 1.0)),
    st.tuples(st.just("ask"), st.sampled_from([0.0, 1.0])),
)


@pytest.mark.slow
@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, *HealthCheck]
)
@given(history=st.lists(steps, min_size=20, max_size=60), data=st.data())
def test_leases_end_by_elapsed_time_alone(
    service: Service, monkeypatch: pytest.MonkeyPatch, history: list[tuple[str, float]], data: st.DataObject
) -> None:
    """A worker that renews every two seconds keeps its lease.

    A silent one loses it after the lease time, plus any time without calls before a process joined. The
    controller calls at least once a second.
    """
    service.database.empty()
    with monkeypatch.context() as patch:
        machines = Machines(service.database, patch, origins=(3.0, 9_000.0))
        machines.begin()
        machines.begin("worker-1", OTHER)
        renewed = began = machines.elapsed
        slack_s = 0.01
        for what, value in history:
            at = data.draw(st.integers(0, 1))
            if what == "wall":
                machines.turn_wall(value)
            elif what == "restart":
                machines.restart(int(value))
                slack_s += 1.0
            elif what == "pass":
                machines.go_on(value)
                assert machines.lead(at=at) > 0
            if machines.elapsed - renewed >= 2.0:
                assert machines.report("renew", at=at) == "done"
                renewed = machines.elapsed
            assert machines.revoke(at=at) == "refused"
            if machines.elapsed - began > LEASE_S + slack_s:
                assert machines.revoke("worker-1", OTHER, at=at) in ("done", "already")
        machines.close()
