"""Old log entries move from the database to files without a visible change."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from cerebro.contract.events import DeletionRequested, Event, RunFinished
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.rest import api
from cerebro.contract.stored.segments import SegmentRequest
from cerebro.errors import ConflictError, LostEventsError, NotFoundError
from cerebro.runtime.kvs.client import KvsClient
from kvs_api.logs import segment_store
from kvs_api.store import keys
from tests.kvs_api.bench import (
    JOINED,
    LOCATORS,
    OTHER,
    TASK,
    Bench,
    body,
    live_point,
    note,
    requested,
    started,
    worker,
)
from tests.kvs_api.cluster_log_contract import write_events
from tests.kvs_api.real import Service
from tests.kvs_api.test_contract import pass_a_moment


@pytest.fixture
def bench(kvs: KvsClient) -> Bench:
    """A store with a run and a worker."""
    bench = Bench(store=kvs, pass_a_moment=pass_a_moment)
    kvs.append("one", requested("etl-1"))
    kvs.register(worker("a"))
    return bench


@pytest.fixture
def database(service: Service) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(service.database.url)
    yield client
    client.close()


def request(
    bench: Bench,
    name: str = "one",
    *,
    keep: int = 1,
    least: int = 1,
    until: int = api.MAX_SEQ,
    live_before: float = 0.0,
) -> SegmentRequest:
    """Build a request to move all entries except the newest."""
    return SegmentRequest(
        term=bench.term,
        created=bench.created(name),
        until=until,
        keep=keep,
        least=least,
        live_before=live_before,
    )


def whole(kvs: KvsClient, name: str = "one") -> list[Event]:
    """Read a log page by page."""
    found: list[Event] = []
    while events := kvs.events(name, len(found)):
        found += events
    return found


def sub_epochs(bench: Bench, count: int) -> None:
    """Assign, start and commit tasks: three events each."""
    for number in range(count):
        task = f"etl-1/etl/train/p{number}"
        assert bench.assign(task=task) == "done"
        assert bench.step("start", task=task) == "done"
        assert bench.step("commit", task=task) == "done"


def test_moved_events_are_readable_and_not_in_the_database(
    bench: Bench, kvs: KvsClient, database: redis.Redis
) -> None:
    """Segments have any size and start where the previous one ended; the newest entry stays."""
    sub_epochs(bench, 5)
    before = whole(kvs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_store, "MOST", 4)
        segments = []
        while (answer := kvs.cut("one", request(bench))).moved is not None:
            segments.append(answer.moved)
    assert [segment.entries for segment in segments] == [4, 4, 4, 3]
    assert kvs.segments("one").segments == tuple(segments)
    assert database.xlen(keys.log("one")) == 1
    assert whole(kvs) == before
    assert kvs.events("one", 6)[0] == before[6]
    assert kvs.experiments()[0].last_seq == len(before)


def test_the_append_only_file_is_rewritten_without_moved_events(
    bench: Bench, kvs: KvsClient, database: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis loads the whole append-only file at startup, so it is rewritten when most entries are obsolete."""
    for _ in range(40):
        database.set("filler", b"x" * (1 << 20))
    database.delete("filler")
    sub_epochs(bench, 4)
    monkeypatch.setattr(segment_store, "MOST", 4)
    assert kvs.cut("one", request(bench)).moved is not None
    assert _file_size(database) > 40 << 20, "it is small for that"
    monkeypatch.setattr("kvs_api.store.database._LEAST_FILE", 1 << 20)
    assert kvs.cut("one", request(bench)).moved is not None
    deadline = time.monotonic() + 30
    while _file_size(database) > 1 << 20:
        assert time.monotonic() < deadline


def _file_size(database: redis.Redis) -> int:
    return int(database.info("persistence")["aof_current_size"])


def test_ended_tasks_are_forgotten_and_can_be_repeated(
    bench: Bench, kvs: KvsClient, database: redis.Redis
) -> None:
    """Attempt numbers continue from the log. Steps of old attempts are refused as before."""
    sub_epochs(bench, 2)
    bench.assign(task=OTHER.replace("p1", "p7"))
    kvs.cut("one", request(bench))
    left = {key.decode() for key in database.scan_iter(keys.task("one", "*"))}
    assert left == {keys.task("one", OTHER.replace("p1", "p7"))}
    assert bench.step("commit") == "refused"
    assert bench.step("start") == "refused"
    assert bench.revoke() == "refused"
    assert bench.assign(2) == "done"
    assert bench.assign(2) == "already"
    assert bench.assign(3) == "refused"


def test_a_repeated_task_is_not_forgotten_with_its_first_attempt(
    bench: Bench, kvs: KvsClient, database: redis.Redis
) -> None:
    """Its second attempt is open or ended later."""
    sub_epochs(bench, 1)
    assert bench.assign(2) == "done"
    kvs.cut("one", request(bench))
    assert database.hget(keys.task("one", TASK), "state") == b"assigned"


def test_notes_that_were_read_are_forgotten(bench: Bench, kvs: KvsClient, database: redis.Redis) -> None:
    """A repeated note is still recognized."""
    bench.decide(note(started()))
    sub_epochs(bench, 1)
    bench.decide(note(RunFinished(run="etl-1", outcome="finished")))
    kvs.cut("one", request(bench))
    assert database.hlen(keys.log("one") + ":notes") == 1
    cursor = len(whole(kvs)) - 1
    assert bench.decide(note(RunFinished(run="etl-1", outcome="finished")), after=cursor) == ["already"]


def test_live_points_are_removed_by_time(bench: Bench, kvs: KvsClient) -> None:
    """Points before a given time are removed, and none without a time."""
    bench.assign()
    bench.step("start")
    bench.report(live=[live_point(rows=1), live_point(rows=2)])
    pass_a_moment()
    bench.report(live=[live_point(rows=3)])
    first, second, third = kvs.live("one")
    sub_epochs_before = [first.time, second.time, third.time]
    kvs.cut("one", request(bench))
    assert len(kvs.live("one")) == 3
    bench.step("renew")
    bench.step("fail")
    kvs.cut("one", request(bench, live_before=third.time))
    assert [point.time for point in kvs.live("one")] == [
        time for time in sub_epochs_before if time >= third.time
    ]


def test_the_clusters_log_is_moved_too(bench: Bench, kvs: KvsClient, database: redis.Redis) -> None:
    """It is still merged into experiment logs."""
    for number in range(4):
        write_events(bench, JOINED.model_copy(update={"worker": f"w{number}"}))
        kvs.append("one", requested(f"etl-{number + 2}"))
    before, cluster = whole(kvs), kvs.cluster_log()
    assert kvs.cut("", request(bench, "")).moved is not None
    assert database.xlen(keys.CLUSTER_LOG) == 1
    assert (whole(kvs), kvs.cluster_log(), kvs.cluster_log(2)) == (before, cluster, cluster[2:])
    kvs.cut("one", request(bench))
    assert whole(kvs) == before


def test_of_two_concurrent_moves_one_is_refused(bench: Bench, kvs: KvsClient) -> None:
    """Nothing is moved twice or lost."""
    sub_epochs(bench, 5)
    before = whole(kvs)
    answers: list[bool] = []

    def cut() -> None:
        answers.append(kvs.cut("one", request(bench)).moved is not None)

    threads = [threading.Thread(target=cut) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(answers) == 1
    assert whole(kvs) == before


@pytest.mark.parametrize("harm", ["gone", "torn", "another", "bit"])
def test_a_missing_or_damaged_segment_file_is_named(
    bench: Bench, kvs: KvsClient, service: Service, harm: str
) -> None:
    """A file of another log counts as damaged too; the original is accepted again after a restore."""
    sub_epochs(bench, 3)
    before = whole(kvs)
    moved = kvs.cut("one", request(bench, keep=4)).moved
    assert moved is not None
    path = service.database.log_files / "one" / moved.file
    content = path.read_bytes()
    _harm(path, harm)
    said = f"events 1 to {moved.last} .*{moved.file}.*(r|R)estore it from a backup"
    with pytest.raises(LostEventsError, match=said):
        kvs.events("one")
    assert list(kvs.events("one", moved.last)) == before[moved.last :]
    assert kvs.append("one", requested("etl-2")) == len(before) + 1
    path.write_bytes(content)
    assert whole(kvs)[: len(before)] == before


def _harm(path: Path, harm: str) -> None:
    content = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
        return
    if harm == "bit":
        content[len(content) // 2] ^= 1
    path.write_bytes({"torn": bytes(content[:-9]), "another": b"something else", "bit": bytes(content)}[harm])


def test_a_process_without_a_volume_moves_nothing_and_names_the_cause(
    bench: Bench, kvs: KvsClient, service: Service
) -> None:
    """The error also appears when a client reads events that another process moved."""
    sub_epochs(bench, 2)
    with Service(service.database, log_files=None) as without:
        poor = without.client()
        with pytest.raises(ConflictError, match="no shared volume"):
            poor.cut("one", request(bench))
        kvs.cut("one", request(bench, keep=2))
        with pytest.raises(LostEventsError, match="has no shared volume: give it CEREBRO_VOLUMES"):
            poor.events("one")


def test_one_snapshot_is_kept_per_format(bench: Bench, kvs: KvsClient, service: Service) -> None:
    """The newest snapshot of each format is kept, and one of older formats. A damaged one is ignored."""
    sub_epochs(bench, 1)
    assert kvs.snapshot("one", "a") is None
    for seq in range(1, 4):
        kvs.keep_snapshot("one", seq, "a", bench.term, b"fold %d" % seq, created=bench.created())
    assert kvs.snapshot("one", "a") == b"fold 3"
    assert kvs.snapshot("one", "b") is None
    folder = service.database.log_files / "one"
    files = [folder / snapshot.file for snapshot in reversed(kvs.segments("one").snapshots)]
    assert [path.read_bytes() for path in files] == [b"fold 2", b"fold 3"]
    files[1].write_bytes(b"fold X")
    assert kvs.snapshot("one", "a") == b"fold 2"
    files[0].unlink()
    assert kvs.snapshot("one", "a") is None
    with pytest.raises(ConflictError):
        kvs.keep_snapshot("one", 4, "a", bench.term + 1, b"stale", created=bench.created())


def test_a_full_volume_moves_nothing(bench: Bench, kvs: KvsClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so, no partial file remains, and the log is unchanged."""
    sub_epochs(bench, 2)
    before = whole(kvs)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConflictError, match="nothing was moved"):
            kvs.cut("one", request(bench))
    assert kvs.segments("one").segments == ()
    assert whole(kvs) == before
    assert kvs.cut("one", request(bench)).moved is not None


def test_late_calls_do_not_affect_a_recreated_experiment(bench: Bench, kvs: KvsClient) -> None:
    """A process may store a snapshot while a user deletes and recreates the experiment."""
    sub_epochs(bench, 2)
    late, created = request(bench), bench.created()
    bench.decide(note(RunFinished(run="etl-1", outcome="finished")))
    kvs.append("one", DeletionRequested(by="ann"))
    kvs.delete_experiment("one", bench.term)
    pass_a_moment()
    kvs.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    for number in range(1, 4):
        kvs.append("one", requested(f"etl-{number}"))
    with pytest.raises(NotFoundError):
        kvs.cut("one", late)
    with pytest.raises(NotFoundError):
        kvs.keep_snapshot("one", 7, "a", bench.term, b"of before", created=created)
    assert kvs.snapshot("one", "a") is None
    assert kvs.segments("one").segments == ()


def test_a_delayed_duplicate_call_is_refused(bench: Bench, kvs: KvsClient) -> None:
    """A delayed duplicate has an old cursor, so it is refused."""
    bench.decide(note(started()))
    sub_epochs(bench, 1)
    bench.decide(note(RunFinished(run="etl-1", outcome="finished")))
    before = whole(kvs)
    kvs.cut("one", request(bench))
    assert bench.decide(note(started()), after=1) == ["refused"]
    step = api.Assign(task=TASK, attempt=1, worker="worker-0", incarnation="a", body=body(TASK))
    assert bench.decide(step, after=1) == ["refused"]
    assert whole(kvs) == before
