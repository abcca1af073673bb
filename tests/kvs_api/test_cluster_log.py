"""The real store's cluster log: pages and blocked readers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, get_args

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cerebro.contract.events import Event, WorkerJoined
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.rest import api
from cerebro.contract.stored.segments import SegmentRequest
from cerebro.runtime.kvs.client import KvsClient
from kvs_api.logs import cluster_log
from kvs_api.store import database
from kvs_api.store.store import Store
from tests.kvs_api.bench import JOINED, LOCATORS, Bench, requested
from tests.kvs_api.cluster_log_contract import LOST, write_events
from tests.kvs_api.real import Service
from tests.kvs_api.test_blocking_reads import Reader, wait_until_blocked
from tests.kvs_api.test_contract import pass_a_moment

EXPERIMENTS = ("one", "two")


@pytest.fixture
def bench(kvs: KvsClient) -> Bench:
    return Bench(store=kvs, pass_a_moment=pass_a_moment)


def whole(kvs: KvsClient, name: str, after: int = 0) -> list[Event]:
    """Read a log page by page from a cursor."""
    found: list[Event] = []
    while events := kvs.events(name, after + len(found)):
        found += events
    return found


def watched(kvs: KvsClient, ahead: int) -> dict[str, list[Event]]:
    """Read both logs with one watch; skip the first `ahead` events of one."""
    found: dict[str, list[Event]] = {name: [] for name in EXPERIMENTS}
    found["one"] += whole(kvs, "one")[:ahead]
    while news := kvs.watch({name: len(events) for name, events in found.items()}, api.MAX_SEQ, 0.0).events:
        for name, events in news.items():
            found[name] += events
    return found


Write = Literal["one", "two", "cluster", "cluster, twice", "read", "cut one", "cut two", "cut cluster"]


def cut(kvs: KvsClient, term: int, what: str, keep: int = 1) -> None:
    """Move all entries of a log into a file, except the newest `keep`."""
    name = "" if what == "cluster" else what
    created = kvs.experiment(name).created if name else 0.0
    kvs.cut(name, SegmentRequest(term=term, created=created, until=api.MAX_SEQ, keep=keep))


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    page=st.integers(1, 4),
    ahead=st.integers(0, 8),
    writes=st.lists(st.sampled_from(get_args(Write)), max_size=25),
)
@example(page=1, ahead=0, writes=["one", "cluster, twice", "two"])
@example(
    page=2,
    ahead=1,
    writes=["cluster", "one", "one", "cut one", "cluster", "one", "cluster", "cut one", "cut cluster"],
)
@example(
    page=1,
    ahead=0,
    writes=["cluster, twice", "one", "one", "cut cluster", "cut one", "read", "two", "cut two"],
)
def test_pages_return_all_events_in_the_order_of_their_writes(
    service: Service, page: int, ahead: int, writes: list[Write]
) -> None:
    """Each experiment's log includes the cluster's events, for any page size, cursor and read between writes."""
    service.database.empty()
    with contextlib.closing(service.client()) as kvs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "PAGE", page)
        patch.setattr(cluster_log, "PAGE", page)
        bench = Bench(store=kvs, pass_a_moment=pass_a_moment)
        kvs.create_experiment(ExperimentRecord(name="two", locators=LOCATORS))
        order: list[str] = []
        reader: dict[str, list[Event]] = {name: [] for name in EXPERIMENTS}
        for number, write in enumerate(writes):
            if write == "read":
                for name in EXPERIMENTS:
                    reader[name] += whole(kvs, name, len(reader[name]))
            elif write.startswith("cut"):
                cut(kvs, bench.term, write.removeprefix("cut "), keep=1 + number % 2)
            elif write.startswith("cluster"):
                joined = [
                    WorkerJoined(worker=f"w{number}-{each}", incarnation="a", weight=1.0, kinds=())
                    for each in range(1 + ("twice" in write))
                ]
                assert kvs.write_cluster_log(
                    api.ClusterLogRequest(
                        term=bench.term, after=cluster_log_length(order), events=tuple(joined)
                    )
                ).is_written
                order += [f"cluster {event.worker}" for event in joined]
            else:
                kvs.append(write, requested(f"etl-{number}"))
                order.append(f"{write} etl-{number}")
        for name, events in reader.items():
            found = whole(kvs, name)
            messages = [str(getattr(event, "worker", "") or getattr(event, "run", "")) for event in found]
            written = [what.split()[1] for what in order if what.split()[0] in (name, "cluster")]
            assert messages == written
            assert [event.seq for event in found] == list(range(1, len(found) + 1))
            assert found[: len(events)] == events
            for after in range(len(found)):
                assert kvs.events(name, after)[0] == found[after]
        assert watched(kvs, ahead) == {name: whole(kvs, name) for name in EXPERIMENTS}


class Disturbed(Store):
    """A store in which a write happens between the steps of a read."""

    def __init__(self, url: str, writes: Iterable[Callable[[], object]], **options: Any) -> None:
        super().__init__(url, **options)
        self._writes = iter(writes)

    def _read(self, *arguments: Any) -> Any:
        found = super()._read(*arguments)
        next(self._writes, int)()
        return found

    def _reserve(self, *arguments: Any) -> int:
        found = super()._reserve(*arguments)
        next(self._writes, int)()
        return found


@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    writes=st.lists(st.sampled_from(["one", "cluster", "cut one", "cut cluster"]), max_size=12),
    before=st.integers(0, 6),
)
@example(writes=["one", "one", "cut one", "one", "cut one", "cluster", "one"], before=2)
def test_events_written_during_a_read_get_new_numbers(
    service: Service, writes: list[str], before: int
) -> None:
    """Any writer may write between any two steps of the read."""
    service.database.empty()
    with contextlib.closing(service.client()) as kvs:
        bench = Bench(store=kvs, pass_a_moment=pass_a_moment)
        calls: dict[str, Callable[[int], object]] = {
            "one": lambda number: kvs.append("one", requested(f"etl-{number}")),
            "cluster": lambda number: write_events(bench, JOINED.model_copy(update={"worker": f"w{number}"})),
            "cut one": lambda _: cut(kvs, bench.term, "one"),
            "cut cluster": lambda _: cut(kvs, bench.term, "cluster"),
        }
        done = [partial(calls[write], number) for number, write in enumerate(writes)]
        for write in done[:before]:
            write()
        store = Disturbed(service.database.url, done[before:], log_files=service.database.log_files)
        messages: list[Any] = []
        for _ in writes:
            messages += [json.loads(event) for event in store.read_log("one", len(messages), 0.0)]
        found: list[Any] = []
        while page := store.read_log("one", len(found), 0.0):
            found += [json.loads(event) for event in page]
        assert messages == found[: len(messages)]
        assert len(whole(kvs, "one")) == sum(not write.startswith("cut") for write in writes)


def cluster_log_length(order: list[str]) -> int:
    """Count the cluster's events."""
    return sum(what.startswith("cluster") for what in order)


# --- waiting ----------------------------------------------------------------------------------------------


def test_cluster_events_wake_a_blocked_reader_of_an_experiment(bench: Bench, service: Service) -> None:
    """This includes experiments without events."""
    with contextlib.closing(service.client()) as other:
        reader = Reader(lambda: other.events("one", wait_s=20.0))
        wait_until_blocked(service)
        write_events(bench, JOINED, LOST)
        assert [event.type for event in reader.result()] == ["WorkerJoined", "WorkerLost"]
