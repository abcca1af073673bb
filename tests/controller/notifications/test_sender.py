"""Messages are sent once, survive restarts, and wait for no slow receiver. With the real store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import redis

from cerebro.contract.events import RunFinished, RunPaused, RunRequested
from cerebro.contract.records import ExperimentRecord, Locator, Locators, WorkerRecord
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlRequest
from cerebro.contract.stored.health import QuarantineWorkerRequest
from cerebro.contract.stored.notifications import (
    MAX_ATTEMPTS,
    EventKind,
    Message,
    NotificationTarget,
    TargetRequest,
)
from cerebro.errors import CerebroError, ConflictError, StoreUnavailableError
from cerebro.runtime.kvs.client import KvsClient
from controller.loop.leadership import fence
from controller.notifications.delivery import redacted
from controller.notifications.sender import LOST_S, RETRY_S, Sender
from kvs_api.store import keys
from tests.kvs_api.real import TOKEN, Service

SHA = "0" * 64
TERM_S = 600.0


@dataclass
class Receiver:
    """Remembers messages by address. Addresses with ``broken`` refuse; ``slow`` ones wait for `may_end`."""

    received: list[tuple[str, str]] = field(default_factory=list)
    may_end: threading.Event = field(default_factory=threading.Event)
    num_refused: int = 0

    def send(self, url: str, message: Message) -> None:
        if "broken" in url:
            self.num_refused += 1
            raise CerebroError("no route to the receiver")
        if "slow" in url:
            assert self.may_end.wait(60)
        self.received.append((url.rpartition("/")[2], message.title))


@dataclass
class World:
    """A store with a leading controller, and a sender."""

    service: Service
    kvs: KvsClient
    receiver: Receiver = field(default_factory=Receiver)
    now: float = 0.0
    runs: int = 0

    def __post_init__(self) -> None:
        self.term = self.kvs.lead("one", TERM_S).term
        self.kvs.create_experiment(
            ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="a.csv")))
        )
        self.sender = self.restarted()

    def restarted(self) -> Sender:
        """Return a new sender, as after a crash of the process."""
        writer = KvsClient(self.service.address, TOKEN, write_headers=lambda: fence(self.term))
        self.sender = Sender(writer, self.receiver.send, clock=lambda: self.now)
        return self.sender

    def add(self, name: str, **fields: object) -> NotificationTarget:
        request = {"url": f"json://host/{name}", **fields}
        target = self.kvs.add_notification(TargetRequest.model_validate(request))
        self.now = max(self.now, target.created)
        return target

    def begin(self) -> str:
        self.runs += 1
        run = f"etl-{self.runs}"
        self.kvs.append("one", RunRequested(run=run, request=EtlRequest(code=SHA, code_fingerprint=SHA)))
        return run

    def note(self, event: RunFinished | RunPaused) -> None:
        after = self.kvs.experiments()[0].last_seq
        self.kvs.decide("one", api.DecideRequest(term=self.term, after=after, steps=(api.Note(event=event),)))

    def end(self, outcome: str = "finished") -> None:
        """End a new run."""
        self.note(RunFinished.model_validate({"run": self.begin(), "outcome": outcome, "error": "no rows"}))

    def step(self, count: int = 2) -> None:
        """Let the sender work, and wait for its threads."""
        for _ in range(count):
            self.sender.step()
            self.sender.wait()


@pytest.fixture
def world(service: Service, kvs: KvsClient) -> Iterator[World]:
    world = World(service, kvs)
    yield world
    world.receiver.may_end.set()
    world.sender.close()


def test_each_event_is_sent_once(world: World) -> None:
    """Also after further steps; events before the target was added are not sent."""
    world.end()
    world.add("a")
    world.end()
    world.end("failed")
    world.step(5)
    assert world.receiver.received == [
        ("a", "Cerebro: etl-2 of one has finished"),
        ("a", "Cerebro: etl-3 of one has failed"),
    ]
    ((status),) = world.kvs.notifications().statuses.values()
    assert (status.sent, status.failed, status.error) == (2, 0, "")


def test_a_restarted_sender_continues_after_the_stored_cursor(world: World) -> None:
    """Events of the meantime are sent, earlier ones are not repeated."""
    world.add("a")
    world.end()
    world.step()
    world.sender.close()
    world.end()
    world.restarted()
    world.step(3)
    assert [title for _, title in world.receiver.received] == [
        "Cerebro: etl-1 of one has finished",
        "Cerebro: etl-2 of one has finished",
    ]


def test_a_message_is_sent_once_although_its_result_cannot_be_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is away between sending and storing."""
    world.add("a")
    world.end()
    world.step(1)
    store = world.sender._store

    def away(outbox: object) -> None:
        raise StoreUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(store, "replace_outbox", away)
        with pytest.raises(StoreUnavailableError):
            world.sender.step()
    world.step(3)
    assert world.receiver.received == [("a", "Cerebro: etl-1 of one has finished")]
    assert not world.kvs.outbox().outbox.messages


def test_a_queued_message_survives_a_crash_before_it_is_sent(world: World) -> None:
    """The message and the cursor are stored together."""
    world.add("slow")
    world.end()
    world.sender.step()
    assert len(world.kvs.outbox().outbox.messages) == 1
    world.receiver.may_end.set()
    world.sender.close()
    world.receiver.received.clear()  # the process ended before it stored the result
    world.restarted()
    world.step()
    assert world.receiver.received == []  # another process may still wait for the receiver
    world.now += LOST_S
    world.step()
    assert world.receiver.received == [("slow", "Cerebro: etl-1 of one has finished")]
    assert world.kvs.outbox().outbox.messages == ()


def test_a_slow_receiver_delays_only_its_own_messages(world: World) -> None:
    """Each target has one attempt at a time."""
    world.add("slow")
    world.add("a")
    for _ in range(3):
        world.end()
    while sum(name == "a" for name, _ in world.receiver.received) < 3:
        world.sender.step()
    assert not any(name == "slow" for name, _ in world.receiver.received)
    world.receiver.may_end.set()
    world.step(4)
    assert sum(name == "slow" for name, _ in world.receiver.received) == 3


def test_a_refused_message_is_retried_and_then_dropped(world: World) -> None:
    """The delays grow; list and doctor show the reason."""
    world.add("broken")
    world.end()
    world.step(4)
    assert world.receiver.num_refused == 1
    for delay_s in RETRY_S:
        world.now += delay_s
        world.step(3)
    assert world.receiver.num_refused == MAX_ATTEMPTS
    world.now += 10 * max(RETRY_S)
    world.step()
    assert world.receiver.num_refused == MAX_ATTEMPTS
    (status,) = world.kvs.notifications().statuses.values()
    assert (status.sent, status.failed, status.error) == (0, 1, "no route to the receiver")
    assert world.kvs.outbox().outbox.messages == ()


def test_a_target_gets_only_its_events(world: World) -> None:
    """A pause carries its reason."""
    world.add("pauses", events=(EventKind.PAUSED,))
    world.end()
    world.note(RunPaused(run=world.begin(), reason="its budget of 2 worker-hours is spent"))
    world.step()
    assert world.receiver.received == [("pauses", "Cerebro: etl-2 of one is paused")]


def test_a_quarantined_worker_is_reported_once(world: World) -> None:
    """The events of workers are in no experiment's log."""
    world.add("a")
    for name in ("worker-0", "worker-1"):
        fields = {"worker": name, "incarnation": "a", "weight": 1, "cores": 1, "kinds": ("etl", "train")}
        world.kvs.register(WorkerRecord.model_validate(fields))
    world.kvs.quarantine_worker("worker-1", QuarantineWorkerRequest(reason="three hangs", by="ann"))
    world.step(4)
    assert world.receiver.received == [("a", "Cerebro: worker worker-1 is quarantined")]


def test_a_test_message_has_one_attempt_and_a_result(world: World) -> None:
    """`cerebro notify test` waits for it."""
    good, bad = world.add("a"), world.add("broken")
    for target in (good, bad):
        tested = world.kvs.test_notification(target.id).tested
        world.now = max(world.now, tested)
        world.step(3)
        assert world.kvs.notifications().statuses[target.id].tested == tested
    assert world.receiver.received == [("a", "Cerebro: test")]
    assert world.receiver.num_refused == 1
    assert world.kvs.notifications().statuses[bad.id].error == "no route to the receiver"


def test_a_removed_target_gets_nothing_more(world: World) -> None:
    """Its queued messages are dropped."""
    target = world.add("broken")
    world.end()
    world.step()
    world.kvs.remove_notification(target.id)
    world.step()
    assert world.kvs.outbox().outbox.messages == ()
    assert world.receiver.num_refused == 1


def test_a_sender_of_an_earlier_term_stores_nothing(world: World) -> None:
    """The store refuses it, so two controllers do not send the same messages for long."""
    world.add("a")
    world.kvs.lead("one", 0.001)
    assert world.kvs.lead("two", TERM_S).term > world.term
    world.kvs.append("one", RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)))
    with pytest.raises(ConflictError, match="has ended"):
        world.step()
    assert world.receiver.received == []


def test_a_sender_of_an_earlier_term_starts_no_attempt(world: World) -> None:
    """Also of a message that it has tried before."""
    world.add("broken")
    world.end()
    world.step()
    world.kvs.lead("one", 0.001)
    assert world.kvs.lead("two", TERM_S).term > world.term
    world.now += RETRY_S[0]
    with pytest.raises(ConflictError, match="has ended"):
        world.step()
    assert world.receiver.num_refused == 1


def test_a_damaged_outbox_repeats_no_message(world: World) -> None:
    """Nothing of earlier events is sent, also no test message; later events are."""
    target = world.add("a")
    world.kvs.test_notification(target.id)
    world.end()
    world.now += 1
    world.step(3)
    assert len(world.receiver.received) == 2
    with redis.Redis.from_url(world.service.database.url) as database:
        database.set(keys.OUTBOX, "no JSON")
    world.restarted()
    world.step(2)
    world.end()
    world.step(2)
    assert [title for _, title in world.receiver.received[2:]] == ["Cerebro: etl-2 of one has finished"]


def test_a_test_request_during_the_test_message_before_it_gets_its_own(world: World) -> None:
    """Each request has a message that was sent after it."""
    target = world.add("slow")
    world.now = world.kvs.test_notification(target.id).tested
    world.sender.step()
    tested = world.kvs.test_notification(target.id).tested
    world.now = max(world.now, tested)
    world.receiver.may_end.set()
    world.step(4)
    assert [title for _, title in world.receiver.received] == ["Cerebro: test"] * 2
    assert world.kvs.notifications().statuses[target.id].tested == tested


def test_reasons_contain_no_secret() -> None:
    """Parts of the address are replaced, except the host of a web server."""
    url = "jsons://ann:pass9word@hooks.example.org/T0KEN?key=abcdef"
    line = (
        "POST https://ann:pass9word@hooks.example.org/T0KEN?key=abcdef of hooks.example.org failed: error=404"
    )
    assert (
        redacted(line, url)
        == "POST https://***:***@hooks.example.org/***?***=*** of hooks.example.org failed: error=404"
    )
    assert redacted("no workspace T0KEN", "slack://T0KEN/B0DY/x") == "no workspace ***"
