"""The cluster's log in the real store: pages, readers and processes of an older version, who waits."""

from __future__ import annotations

import contextlib
import json
from typing import Any, cast

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cerebro.contract import api
from cerebro.contract.events import Event, RunStopRequested, WorkerJoined
from cerebro.contract.records import ExperimentRecord
from cerebro.errors import StoreUnavailableError, UnreadableError
from cerebro.runtime.kvs import KvsClient
from cerebro.state.experiment import fold
from kvs_api import database, keys, ledger
from tests.kvs_api.bench import JOINED, LOCATORS, Bench, requested, worker
from tests.kvs_api.ledger_contract import LOST, MORE, tell
from tests.kvs_api.real import Service
from tests.kvs_api.test_blocking_reads import Reader, wait_until_blocked
from tests.kvs_api.test_contract import pass_a_moment

EXPERIMENTS = ("one", "two")


@pytest.fixture
def bench(kvs: KvsClient) -> Bench:
    return Bench(store=kvs, pass_a_moment=pass_a_moment)


def as_older(kvs: KvsClient, name: str, after: int = 0) -> list[dict[str, Any]]:
    """The log as a client gets it that knows of no ledger."""
    content = kvs.send("GET", f"/v1/experiments/{name}/events?after={after}", None, 0.0)
    answer = json.loads(content)
    assert answer.keys() == {"events"}
    return cast("list[dict[str, Any]]", answer["events"])


def whole(kvs: KvsClient, name: str) -> list[Event]:
    """A log, page by page."""
    found: list[Event] = []
    while events := kvs.events(name, len(found)):
        found += events
    return found


def watched(kvs: KvsClient, ahead: int) -> dict[str, list[Event]]:
    """Both logs, read together, one of them from so many events on."""
    found: dict[str, list[Event]] = {name: [] for name in EXPERIMENTS}
    found["one"] += whole(kvs, "one")[:ahead]
    while news := kvs.watch({name: len(events) for name, events in found.items()}, api.MAX_SEQ, 0.0).events:
        for name, events in news.items():
            found[name] += events
    return found


@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    page=st.integers(1, 4),
    ahead=st.integers(0, 8),
    writes=st.lists(st.sampled_from([*EXPERIMENTS, "cluster", "cluster, twice", "older"]), max_size=25),
)
@example(page=1, ahead=0, writes=["one", "cluster, twice", "two"])
def test_any_writes_are_read_in_their_order_page_by_page(
    service: Service, page: int, ahead: int, writes: list[str]
) -> None:
    """Of each experiment its own and the cluster's, however much fits into a page, and from any number on; also where a
    process of an older version appends, which knows of no ledger."""
    service.database.empty()
    with (
        contextlib.closing(service.client()) as kvs,
        pytest.MonkeyPatch.context() as patch,
        redis.Redis.from_url(service.database.url) as raw,
    ):
        patch.setattr(database, "PAGE", page)
        patch.setattr(ledger, "PAGE", page)
        bench = Bench(store=kvs, pass_a_moment=pass_a_moment)
        kvs.create_experiment(ExperimentRecord(name="two", locators=LOCATORS))
        order: list[str] = []
        for number, write in enumerate(writes):
            if write.startswith("cluster"):
                events = [
                    WorkerJoined(worker=f"w{number}-{each}", incarnation="a", weight=1.0, kinds=())
                    for each in range(1 + ("twice" in write))
                ]
                assert kvs.write_ledger(
                    api.LedgerRequest(term=bench.term, after=ledger_length(order), events=tuple(events))
                ).is_written
                order += [f"cluster {event.worker}" for event in events]
            elif write == "older":
                seq = raw.incr(f"{keys.log('one')}:seq")
                event = requested(f"etl-{number}").model_dump_json(exclude={"seq", "time"})
                raw.xadd(keys.log("one"), {"t": 1, "e": event}, id=f"{seq}-0")
                order.append(f"one etl-{number}")
            else:
                kvs.append(write, requested(f"etl-{number}"))
                order.append(f"{write} etl-{number}")
        for name in EXPERIMENTS:
            found = whole(kvs, name)
            told = [str(getattr(event, "worker", "") or getattr(event, "run", "")) for event in found]
            assert sorted(told) == sorted(
                what.split()[1] for what in order if what.split()[0] in (name, "cluster")
            )
            if "older" not in writes:
                assert told == [what.split()[1] for what in order if what.split()[0] in (name, "cluster")]
            assert [event.seq for event in found] == list(range(1, len(found) + 1))
            for after in range(len(found)):
                assert kvs.events(name, after)[0] == found[after]
        assert watched(kvs, ahead) == {name: whole(kvs, name) for name in EXPERIMENTS}


def ledger_length(order: list[str]) -> int:
    """How many events of the cluster there are."""
    return sum(what.startswith("cluster") for what in order)


# --- readers of an older version -------------------------------------------------------------------------


def test_an_older_client_reads_a_log_that_it_can_fold(bench: Bench, kvs: KvsClient) -> None:
    """It knows no `HoldingsChanged`: in its place a worker joins that shares the volume, and is given nothing. So by
    its own rules the volume holds what was gained."""
    bench.store.register(worker("a"))
    tell(bench, JOINED)
    bench.store.append("one", requested("etl-1"))
    tell(bench, MORE)
    bench.store.append("one", RunStopRequested(run="etl-1"))
    told = as_older(kvs, "one")
    assert [event["type"] for event in told] == [
        "WorkerJoined",
        "RunRequested",
        "WorkerJoined",
        "RunStopRequested",
    ]
    assert [event["seq"] for event in told] == [1, 2, 3, 4]
    assert as_older(kvs, "one", 2) == told[2:]
    stand_in = WorkerJoined.model_validate(told[2])
    assert (stand_in.kinds, stand_in.volume) == ((), "worker-0")
    state = fold("one", [JOINED.model_copy(update={"seq": 1}), bench.log()[1], stand_in, bench.log()[3]])
    assert state.workers["worker-0"].holdings == {("d", 1)}


def test_an_older_client_is_told_to_update_where_it_would_be_wrong(bench: Bench, kvs: KvsClient) -> None:
    """A log from before there was a ledger names workers by itself; that one joins again, its rules do not allow."""
    bench.store.append("one", requested("etl-1"))
    assert [event["type"] for event in as_older(kvs, "one")] == ["RunRequested"]
    tell(bench, JOINED)
    for _ in range(2):
        with pytest.raises(UnreadableError, match="install the version that the cluster has"):
            as_older(kvs, "one")
        bench.store.append("one", RunStopRequested(run="etl-1"))


def test_a_server_of_an_older_version_is_not_believed(bench: Bench, kvs: KvsClient) -> None:
    """It leaves out what is in the ledger, while it is being replaced: it is asked again, and no log is damaged."""
    tell(bench, JOINED)
    bench.store.append("one", requested("etl-1"))
    send = kvs.send

    def older(method: str, path: str, *rest: Any) -> bytes:
        answer = json.loads(send(method, path, *rest))
        answer.pop("ledger", None)
        answer["events"] = [event for event in answer["events"] if event["type"] != "WorkerJoined"]
        return json.dumps(answer).encode()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kvs, "send", older)
        with pytest.raises(StoreUnavailableError, match="older version"):
            kvs.events("one")
    assert len(kvs.events("one")) == 2


# --- waiting ----------------------------------------------------------------------------------------------


def test_who_waits_for_an_experiment_is_woken_by_the_cluster(bench: Bench, service: Service) -> None:
    """Of an experiment without any event of its own, too."""
    with contextlib.closing(service.client()) as other:
        reader = Reader(lambda: other.events("one", wait_s=20.0))
        wait_until_blocked(service)
        tell(bench, JOINED, LOST)
        assert [event.type for event in reader.result()] == ["WorkerJoined", "WorkerLost"]
