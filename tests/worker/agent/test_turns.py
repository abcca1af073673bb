"""Who has the turn at a device that several units share: one, always one, and the right one."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cerebro.worker.agent.turns import GROWTH, Seat, Turns

QUANTUM_S = 10.0


class Child:
    """A process at a device: it reads what it is told when it comes to a batch."""

    def __init__(self, device: Turns, merit: float = 0.0, run: str = "one") -> None:
        self.told: deque[dict[str, Any]] = deque()
        self.woken = 0
        self.seat: Seat = device.sit_down(self.told.append, self.wake, run=(run, "fit-1"), merit=merit)
        self.waits = self.has_turn = False

    def wake(self) -> None:
        self.woken += 1

    def batch(self, device: Turns) -> None:
        """Come to a batch that is to be computed."""
        is_halted = self.read()
        if not self.waits and (is_halted or not self.has_turn):
            self.has_turn, self.waits = False, True
            device.wait(self.seat)
        self.read()

    def read(self) -> bool:
        is_halted = False
        while self.told:
            message = self.told.popleft()
            assert message["seat"] == self.seat.number
            if message["do"] == "turn":
                self.has_turn, self.waits = True, False
            is_halted = message["do"] == "halt" and self.has_turn
        return is_halted

    def leave(self, device: Turns) -> None:
        self.read()
        self.has_turn = self.waits = False
        device.leave(self.seat)


class Sharing(RuleBasedStateMachine):
    """Processes come, compute, leave and die in any order, at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.device = Turns(QUANTUM_S, lambda: self.now)
        self.children: list[Child] = []

    @initialize(merits=st.lists(st.sampled_from((0.0, 1.0, 2.0)), min_size=1, max_size=2))
    def begin(self, merits: list[float]) -> None:
        self.children = [Child(self.device, merit) for merit in merits]

    @precondition(lambda self: len(self.children) < 4)
    @rule(merit=st.sampled_from((0.0, 1.0, 2.0)), run=st.sampled_from(("one", "two")))
    def sit_down(self, merit: float, run: str) -> None:
        self.children.append(Child(self.device, merit, run))

    @rule(data=st.data())
    def batch(self, data: st.DataObject) -> None:
        if self.children:
            data.draw(st.sampled_from(self.children)).batch(self.device)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        able = [child for child in self.children if not child.waits]
        if able:
            data.draw(st.sampled_from(able)).leave(self.device)

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        if self.children:
            child = data.draw(st.sampled_from(self.children))
            self.children.remove(child)
            self.device.rise(child.seat)
            self.device.rise(child.seat)

    @rule(seconds=st.sampled_from((0.0, 1.0, QUANTUM_S, 30.0)))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.device.look()

    @invariant()
    def one_has_the_turn(self) -> None:
        """Never two; and one, where anybody waits."""
        found = [c for c in self.children if c.has_turn or any(m["do"] == "turn" for m in c.told)]
        assert len(found) <= 1
        if any(child.waits and not child.told for child in self.children):
            assert found

    @invariant()
    def the_turn_changes_in_time(self) -> None:
        """Whoever waits knows when to look, or the one that has the turn was told to give it back."""
        waiting = [child for child in self.children if child.seat.waiting]
        dues = {self.device.due_s(child.seat) for child in waiting}
        assert len(dues) <= 1
        if waiting and dues == {float("inf")}:
            holder = next(child for child in self.children if not child.seat.waiting and child.seat.turns)
            assert holder is not None


@pytest.mark.slow
def test_whatever_units_do_one_has_the_turn() -> None:
    """However many come, compute, leave and die, in any order."""
    run_state_machine_as_test(
        Sharing, settings=settings(deadline=None, max_examples=60, stateful_step_count=30)
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ended(device: Turns, holder: Child, clock: Clock) -> None:
    """The holder's quantum ends, and it comes to its next batch."""
    clock.now += 1000.0
    device.look()
    holder.batch(device)


def test_each_has_a_turn_after_the_other_and_each_is_longer_than_its_last() -> None:
    """In the order in which they came; by a quarter."""
    clock = Clock()
    device = Turns(QUANTUM_S, clock)
    children = [Child(device) for _ in range(3)]
    for child in children:
        child.batch(device)
    for turns in range(1, 4):
        for number, child in enumerate(children):
            following = children[(number + 1) % 3]
            assert child.read() is False
            assert [each.has_turn for each in children].count(True) == 1
            assert child.has_turn
            due = device.due_s(following.seat)
            assert due == pytest.approx(QUANTUM_S * GROWTH ** (turns - 1))
            clock.now += due - 0.1
            device.look()
            child.batch(device)
            assert child.has_turn, "not before its time"
            clock.now += 0.2
            device.look()
            child.batch(device)
            following.read()
            assert (child.has_turn, following.has_turn) == (False, True)


def test_of_a_run_the_one_with_most_merit_has_the_turn() -> None:
    """From its first wait at the end of a quantum on, until it leaves; then the next best."""
    clock = Clock()
    device = Turns(QUANTUM_S, clock)
    low, high, higher = children = Child(device, 1.0), Child(device, 2.0), Child(device, 3.0)

    def holder() -> Child:
        for child in children:
            child.read()
        (found,) = [child for child in children if child.has_turn]
        return found

    low.batch(device)
    high.batch(device)
    assert holder() is low, "the other waits for the end of the quantum"
    ended(device, low, clock)
    assert holder() is high
    ended(device, high, clock)
    assert holder() is high, "who waits is worth less"
    higher.batch(device)
    ended(device, high, clock)
    assert holder() is higher
    higher.leave(device)
    assert holder() is high


def test_runs_share_a_device_evenly_whatever_their_merits() -> None:
    """Merits of one run say nothing of another one's units."""
    clock = Clock()
    device = Turns(QUANTUM_S, clock)
    rich = [Child(device, 9.0, "rich"), Child(device, 8.0, "rich")]
    plain = [Child(device, 0.0, "plain"), Child(device, 0.0, "plain")]
    for child in (*rich, *plain):
        child.batch(device)
    order = []
    for _ in range(8):
        holder = next(child for child in (*rich, *plain) if child.read() or child.has_turn)
        order.append((rich + plain).index(holder))
        ended(device, holder, clock)
    assert order == [0, 2, 0, 3, 0, 2, 0, 3]


def test_who_waits_is_woken_when_a_quantum_begins() -> None:
    """Its thread is to know when the turn may change."""
    device = Turns(QUANTUM_S, Clock())
    first, second = Child(device), Child(device)
    first.batch(device)
    second.batch(device)
    before = second.woken
    device.rise(first.seat)
    assert second.woken > before
