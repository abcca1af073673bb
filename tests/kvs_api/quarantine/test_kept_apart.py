"""An unreadable event quarantines its experiment only, until it is restored or deleted (real store)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.contract.events import RunFinished, RunStopRequested
from cerebro.contract.records import Unreadable
from cerebro.errors import ConflictError, UnreadableError
from tests.kvs_api.quarantine.unreadable import NEWER, Store, Work

ILLEGAL = '{"type":"RunFinished","run":"fit-9","outcome":"finished"}'
NO_TASK = '{"type":"TaskStarted","task":"nonsense","attempt":1,"worker":"worker-0"}'
CUT = '{"type":"RunFini'
OTHER_FIELD = '{"type":"RunStopRequested","run":"etl-1","at_once":true}'
UNREADABLE = [NEWER, CUT, OTHER_FIELD]


@pytest.mark.parametrize("event", UNREADABLE)
def test_events_before_the_unreadable_event_are_returned(store: Store, tmp_path: Path, event: str) -> None:
    """After the readable events the client names the unreadable one and the remedy."""
    store.begin("one", tmp_path)
    seq = store.write("one", event)
    store.write("one", '{"type":"RunStopRequested","run":"etl-1","by":""}')
    for read in (lambda: store.kvs.events("one"), lambda: store.kvs.watch({"one": 0}, 0, 0.0)):
        with pytest.raises(UnreadableError, match="event 2 of experiment 'one' cannot be read") as caught:
            read()
        assert caught.value.seq == seq
        assert [event.type for event in caught.value.readable] == ["RunRequested"]
        assert "cerebro delete one" in str(caught.value)
        assert "validation error" not in str(caught.value)


@pytest.mark.parametrize("event", [*UNREADABLE, ILLEGAL, NO_TASK])
def test_other_experiments_continue(store: Store, tmp_path: Path, event: str, controlled: Work) -> None:
    """Its run leaves the queue with the reason, and the next run starts."""
    store.begin("bad", tmp_path)
    seq = store.write("bad", event)
    store.begin("good", tmp_path)
    controlled(lambda: store.kvs.queue() == ())
    assert isinstance(store.kvs.events("good")[-1], RunFinished)
    mark = store.mark("bad")
    assert mark is not None
    assert (mark.seq, mark.by) == (seq, "controller")
    assert mark.reason
    assert store.mark("good") is None


def test_an_unreadable_event_during_a_run_quarantines_the_experiment(
    store: Store, tmp_path: Path, controlled: Work
) -> None:
    """Without workers the run stays queued while the controller reads its new events."""
    store.kvs.remove_worker("worker-0")
    store.begin("bad", tmp_path)
    written: list[int] = []

    def is_quarantined() -> object:
        if not written:
            written.append(store.write("bad", NEWER))
        return store.mark("bad")

    controlled(is_quarantined)
    assert store.kvs.queue() == ()


def test_the_workers_of_a_quarantined_experiment_are_released(
    store: Store, tmp_path: Path, controlled: Work
) -> None:
    """Its attempts are revoked at once, so the next run gets the workers."""
    (tmp_path / "none.csv").write_text("id\nr1\n")
    store.begin("bad", tmp_path)
    written: list[int] = []

    def is_quarantined() -> object:
        if not written and store.types("bad")[-1] == "TaskAssigned":
            written.append(store.write("bad", NEWER))
        return store.mark("bad")

    controlled(is_quarantined)
    found = store.kvs.inbox("worker-0", "a", 0, wait_s=0.0)
    task = "etl-1/etl/train/p0"
    assert [(item.task, item.cancel) for item in found] == [(task, False), (task, True)]


def test_a_quarantined_experiment_accepts_only_its_deletion(store: Store, tmp_path: Path) -> None:
    """Only deletion is allowed. After the restore its run is last in the queue."""
    store.begin("bad", tmp_path)
    seq = store.write("bad", NEWER)
    term = store.kvs.lead("controller", 60.0).term
    with pytest.raises(ConflictError, match="not quarantined"):
        store.kvs.restore("bad")
    with pytest.raises(ConflictError, match="term"):
        store.kvs.quarantine("bad", Unreadable(seq=seq, reason="odd"), term + 1)
    for _ in range(2):
        store.kvs.quarantine("bad", Unreadable(seq=seq, reason="odd"), term)
    with pytest.raises(UnreadableError, match=r"event 2 .* \(odd\)"):
        store.kvs.append("bad", RunStopRequested(run="etl-1"))
    store.begin("good", tmp_path)
    store.mend("bad", seq)
    store.kvs.restore("bad")
    assert [(entry.experiment, entry.run) for entry in store.kvs.queue()] == [
        ("good", "etl-1"),
        ("bad", "etl-1"),
    ]
    store.kvs.append("bad", RunStopRequested(run="etl-1"))
    assert store.types("bad") == ["RunRequested", "RunStopRequested"]
