"""Who may sit at a device that several units share: no more than its memory has room for, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.tasks import InboxItem, TrainTask
from cerebro.worker.agent.mailbox import DeviceQueues, Mailbox
from cerebro.worker.agent.seating import SHARE, Seating
from cerebro.worker.agent.turns import Turns

LIMIT = 1000


def unit(number: int, seat: int, code: str = "a") -> InboxItem:
    """An attempt at a unit of some code, at a seat."""
    body = TrainTask(
        key=f"fit-1/train/m{number:02}/e1/p0",
        experiment="one",
        run="fit-1",
        model=f"m{number:02}",
        hyperparams={},
        code=code * 64,
        dataset="d",
        seed=0,
        hang_timeout_s=60.0,
        epoch=1,
        partition=0,
        unit=0,
        checkpoint=None,
    )
    return InboxItem(seq=number + 1, experiment="one", task=body.key, attempt=1, devices=(seat,), body=body)


def seating(seats: int = 4, *, number: int = 1, limit: int | None = LIMIT, context: int = 0) -> Seating:
    """Of a worker with so many devices."""
    return Seating(number, seats, lambda: Turns(1.0), limit_bytes=limit, context_bytes=context)


def test_until_it_is_known_what_a_unit_takes_it_sits_alone() -> None:
    """Then as many as have room, by the most that one took, with what each process takes beside."""
    at = seating(context=50)
    first, second, third, fourth = (unit(n, n) for n in range(4))
    assert at.sit_down(first)
    assert not at.sit_down(second)
    at.ended(first, 250)
    at.rise(first)
    assert at.sit_down(second)
    assert at.sit_down(third)
    assert at.sit_down(fourth)
    assert not at.sit_down(unit(4, 0)), "4 * 300 are more than 90 % of 1000"
    at.rise(third)
    assert at.sit_down(unit(4, 0))


def test_where_memory_is_not_known_seats_alone_count() -> None:
    """As on a machine that does not say how much it has."""
    at = seating(2, limit=None)
    assert [at.sit_down(unit(n, n)) for n in range(3)] == [True, True, False]


def test_devices_are_apart_and_a_worker_without_seats_is_as_ever() -> None:
    """Seat n is at device n modulo their number. What has several devices, or none, sits nowhere."""
    at = seating(2, number=2)
    assert [at.sit_down(unit(n, n)) for n in range(4)] == [True, True, False, False]
    alone = seating(1)
    assert all(alone.sit_down(unit(n, 0)) for n in range(3))
    assert alone.turns(unit(0, 0)) is None
    assert at.turns(unit(0, 1)) is at.turns(unit(0, 3)) is not at.turns(unit(0, 0))


def test_who_waits_for_room_sits_before_those_who_come_later() -> None:
    """A unit of unknown code waits until it can be alone; nobody slips in before it."""
    at = seating()
    known, other, late = unit(0, 0), unit(1, 1, "b"), unit(2, 2)
    at.ended(known, 100)
    assert at.sit_down(known)
    assert not at.sit_down(other)
    assert not at.sit_down(late)
    at.rise(known)
    assert not at.sit_down(late)
    assert at.sit_down(other)
    assert not at.sit_down(late)
    at.rise(other)
    assert at.sit_down(late)


def test_when_memory_runs_out_beside_others_one_less_may_sit_there() -> None:
    """Down to one; what ran out alone says nothing of that."""
    at = seating(limit=None)
    units = [unit(n, n) for n in range(4)]
    assert all(at.sit_down(each) for each in units)
    assert at.ran_out(units[0])
    at.rise(units[0])
    assert not at.sit_down(unit(4, 0))
    for each in units[1:]:
        at.ran_out(each)
        at.rise(each)
    alone = unit(5, 1)
    at.rise(unit(4, 0))
    assert at.sit_down(alone)
    assert not at.ran_out(alone)
    assert not at.sit_down(unit(6, 2))


@settings(deadline=None, max_examples=100)
@given(
    taken=st.lists(st.integers(1, 900), min_size=1, max_size=3),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=40),
)
def test_what_sits_has_room_and_all_are_done(taken: list[int], steps: list[tuple[int, int, bool]]) -> None:
    """Whatever units of whatever code are given to the seats, begin, end, and are taken back: what sits at once has
    room, or is alone; and in the end each unit has had its seat."""
    at = seating()
    woken: list[int] = []
    queues = DeviceQueues(woken.extend, at)
    mailboxes = [Mailbox(queues) for _ in range(4)]
    running: dict[int, InboxItem] = {}

    def begin(seat: int, behind: InboxItem | None = None) -> None:
        item = mailboxes[seat].next(behind)
        if item is not None:
            running[seat] = item
        known = [taken[ord(each.body.code[0]) - ord("a")] for each in running.values() if each.body]
        assert len(known) <= 1 or sum(known) <= SHARE * LIMIT

    def end(seat: int) -> None:
        item = running.pop(seat)
        assert item.body is not None
        at.ended(item, taken[ord(item.body.code[0]) - ord("a")])
        begin(seat, item)
        queues.leave(item)
        for each in range(4):
            if each not in running:
                begin(each)

    try:
        for number, (seat, code, is_taken_back) in enumerate(steps):
            item = unit(number, seat, "abc"[code % len(taken)])
            mailboxes[seat].put(item)
            if is_taken_back and mailboxes[seat].remove(item):
                continue
            if seat in running:
                end(seat)
            else:
                begin(seat)
        while running:
            end(min(running))
        for seat in range(4):
            if seat not in running:
                begin(seat)
            while running:
                end(min(running))
        assert all(mailbox.peek() is None for mailbox in mailboxes)
    finally:
        for mailbox in mailboxes:
            mailbox.close()
