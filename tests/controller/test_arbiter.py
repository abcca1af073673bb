"""The arbiter: shares follow weights, no run starves, slots are used, and they change hands rarely."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.state.reports.sharing import due_shares
from controller.sharing.arbiter import HALF_LIFE_S, Arbiter, Claim, DeviceSlot, RunRef


def _due(runs: list[Claim]) -> dict[RunRef, float]:
    return due_shares({claim.ref: (claim.project, claim.weight) for claim in runs})


def ref(name: str) -> RunRef:
    return RunRef(name, "fit-1")


@dataclass(kw_only=True)
class Floor:
    """Device slots and runs that compete for them, in virtual time.

    Attributes:
        runs: Claims, without held and wanted slots.
        served: Seconds that each run had.
        changes: (time, slot, experiment) of each change of holder.
        taken: Times when an experiment lost a slot that it still wanted.
    """

    slots: list[DeviceSlot]
    runs: dict[RunRef, Claim]
    arbiter: Arbiter = field(default_factory=Arbiter)
    now: float = 0.0
    at: dict[DeviceSlot, tuple[RunRef, float]] = field(default_factory=dict)
    served: defaultdict[RunRef, float] = field(default_factory=lambda: defaultdict(float))
    changes: list[tuple[float, DeviceSlot, str]] = field(default_factory=list)
    taken: defaultdict[DeviceSlot, list[float]] = field(default_factory=lambda: defaultdict(list))
    begun: dict[RunRef, float] = field(default_factory=dict)
    _last: dict[DeviceSlot, str] = field(default_factory=dict)
    _ends: list[tuple[float, DeviceSlot]] = field(default_factory=list)

    def claims(self) -> list[Claim]:
        return [self._claim(claim) for claim in self.runs.values()]

    def _claim(self, claim: Claim) -> Claim:
        held = {p: since for p, (owner, since) in self.at.items() if owner == claim.ref}
        most = claim.most - len(held)
        ahead_s = sum(max(0.0, claim.sub_epoch_s - (self.now - since)) for since in held.values())
        wants = frozenset(self.slots) if most > 0 else frozenset[DeviceSlot]()
        return replace(claim, holds=frozenset(held), wants=wants, most=most, ahead_s=ahead_s)

    def until(self, end: float) -> None:
        """Simulate until `end`."""
        self._decide()
        while self._ends and self._ends[0][0] <= end:
            self.now, slot = heapq.heappop(self._ends)
            owner, since = self.at.pop(slot)
            self.served[owner] += self.now - since
            self._advance(owner)
            self._decide()

    def enters(self, time: float, claim: Claim) -> None:
        """Request a run of `claim.most` sub-epochs."""
        self.until(time)
        self.now = time
        self.runs[claim.ref] = replace(claim, whole_s=claim.most * claim.sub_epoch_s)
        self._decide()

    def _advance(self, owner: RunRef) -> None:
        """Count one finished sub-epoch of a finite run."""
        claim = self.runs[owner]
        if claim.whole_s < math.inf:
            most = claim.most - 1
            self.runs[owner] = replace(claim, most=most, whole_s=most * claim.sub_epoch_s)
            if not most:
                del self.runs[owner]

    def _decide(self) -> None:
        self.arbiter.observe(self.now, self.claims())
        wanting = {claim.ref.experiment for claim in self.claims() if claim.most > 0}
        for turn in self.arbiter.turns(set(self.slots) - self.at.keys()):
            for slot in turn.slots:
                last = self._last.get(slot, turn.ref.experiment)
                if last != turn.ref.experiment and last in wanting:
                    self.taken[slot].append(self.now)
                self.begun.setdefault(turn.ref, self.now)
                self.at[slot] = turn.ref, self.now
                heapq.heappush(self._ends, (self.now + self.runs[turn.ref].sub_epoch_s, slot))
                if self._last.get(slot) != turn.ref.experiment:
                    self._last[slot] = turn.ref.experiment
                    self.changes.append((self.now, slot, turn.ref.experiment))
        self.arbiter.observe(self.now, self.claims())


def floor(slots: int, *claims: Claim) -> Floor:
    """Return a floor whose runs all start at once."""
    return Floor(
        slots=[DeviceSlot(f"w-{n}", 0) for n in range(slots)],
        runs={claim.ref: replace(claim, most=claim.most or 10_000) for claim in claims},
    )


SLOTS = [DeviceSlot(f"w-{n}", 0) for n in range(5)]
NAMES = ("a", "b", "c")

some_slots = st.frozensets(st.sampled_from(SLOTS))


@st.composite
def any_claims(draw: st.DrawFn) -> list[Claim]:
    """Generate claims of up to three runs; one run at most holds each slot."""
    free, found = set(SLOTS), []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)):
        holds = draw(some_slots) & free
        free -= holds
        found.append(
            Claim(
                ref=ref(name),
                project=draw(st.sampled_from(["", "p"])),
                weight=draw(st.sampled_from([0.25, 1.0, 4.0])),
                holds=holds,
                wants=draw(some_slots),
                most=draw(st.integers(0, 6)),
                sub_epoch_s=draw(st.floats(0.1, 1000)),
                ahead_s=draw(st.floats(0, 1000)),
                start_s=draw(st.floats(0, 10)),
                whole_s=draw(st.sampled_from([0.0, 10.0, math.inf])),
            )
        )
    return found


@settings(max_examples=200)
@given(st.lists(st.tuples(st.floats(0, 1000), any_claims()), min_size=1, max_size=6))
def test_no_usable_device_slot_stays_free(history: list[tuple[float, list[Claim]]]) -> None:
    """After any history, each free slot goes to a run that wants it, while it has more work."""
    arbiter, now = Arbiter(), 0.0
    for passed, claims in history:
        now += passed
        arbiter.observe(now, claims)
        held = {slot for claim in claims for slot in claim.holds}
        free = set(SLOTS) - held
        turns = arbiter.turns(free)
        assert sorted(turn.ref for turn in turns) == sorted(claim.ref for claim in claims)
        given_to = {turn.ref: turn.slots for turn in turns}
        everything = [slot for slots in given_to.values() for slot in slots]
        assert len(everything) == len(set(everything)), "a slot for two runs"
        for claim in claims:
            assert given_to[claim.ref] <= claim.wants & free
            assert len(given_to[claim.ref]) <= claim.most
            if len(given_to[claim.ref]) < claim.most:
                assert claim.wants & free <= set(everything), "work-conserving"


@settings(max_examples=100)
@given(any_claims(), st.data())
def test_only_the_holder_gets_a_slot_before_it_is_free(claims: list[Claim], data: st.DataObject) -> None:
    """A slot for another run is withheld from its holder and assigned when free."""
    arbiter = Arbiter()
    arbiter.observe(0.0, claims)
    held = {slot: claim.ref for claim in claims for slot in claim.holds}
    ending = data.draw(st.frozensets(st.sampled_from(sorted(held)))) if held else frozenset[DeviceSlot]()
    for turn in arbiter.turns(set(SLOTS) - held.keys(), ending):
        assert all(held[slot] == turn.ref for slot in turn.slots & ending)
    if len(claims) == 1:
        (turn,) = arbiter.turns(set(SLOTS) - held.keys(), ending)
        wanted_slots = claims[0].wants & (set(SLOTS) - held.keys() | ending)
        assert len(turn.slots) == min(claims[0].most, len(wanted_slots)), "alone, it has all that it wants"


@pytest.mark.parametrize("weights", [(1.0, 1.0), (2.0, 1.0), (4.0, 1.0), (0.25, 1.0, 4.0)])
@pytest.mark.parametrize("sub_epochs", [(300.0, 300.0, 300.0), (300.0, 20.0, 111.0)])
def test_shares_follow_weights(weights: tuple[float, ...], sub_epochs: tuple[float, ...]) -> None:
    """Over 50 sub-epochs per slot, each share is exact within 3 %, also with different sub-epoch lengths."""
    runs = [
        Claim(ref=ref(name), weight=weight, sub_epoch_s=sub_epoch_s)
        for name, weight, sub_epoch_s in zip(NAMES, weights, sub_epochs, strict=False)
    ]
    shared_floor = floor(8, *runs)
    shared_floor.until(50 * max(sub_epochs[: len(weights)]))
    total = sum(shared_floor.served.values())
    for claim in runs:
        due = claim.weight / sum(weights)
        assert shared_floor.served[claim.ref] / total == pytest.approx(due, abs=0.03)
        assert _due(runs)[claim.ref] == pytest.approx(due)


def test_projects_share_before_their_runs_do() -> None:
    """Two runs of one project together equal the single run of another."""
    runs = [
        Claim(ref=ref("a"), project="p"),
        Claim(ref=ref("b"), project="p"),
        Claim(ref=ref("c"), project="q"),
    ]
    shared_floor = floor(8, *runs)
    shared_floor.until(60.0 * 200)
    total = sum(shared_floor.served.values())
    for name, due in (("a", 0.25), ("b", 0.25), ("c", 0.5)):
        assert shared_floor.served[ref(name)] / total == pytest.approx(due, abs=0.03)
        assert _due(runs)[ref(name)] == pytest.approx(due)


@settings(max_examples=20, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.25, 1.0, 4.0]), min_size=2, max_size=4),
    sub_epochs=st.lists(st.floats(50, 500), min_size=4, max_size=4),
    slots=st.integers(1, 4),
)
def test_no_run_starves(weights: list[float], sub_epochs: list[float], slots: int) -> None:
    """Each run that wants slots gets one soon, with any other runs."""
    names = "abcd"
    runs = [
        Claim(ref=ref(name), weight=weight, sub_epoch_s=sub_epoch_s)
        for name, weight, sub_epoch_s in zip(names, weights, sub_epochs, strict=False)
    ]
    shared_floor = floor(slots, *runs)
    longest = 2 * (60 + max(sub_epochs)) * sum(weights) / min(weights)
    shared_floor.until(longest)
    first = dict(shared_floor.served)
    assert len(first) == len(runs)
    shared_floor.until(2 * longest)
    assert all(shared_floor.served[claim.ref] > first[claim.ref] for claim in runs)


def test_a_run_that_enters_late_has_no_credit() -> None:
    """It gets its share after it starts, without compensation for the past."""
    shared_floor = floor(8, Claim(ref=ref("a"), sub_epoch_s=300))
    shared_floor.until(10 * 3600)
    shared_floor.runs[ref("b")] = Claim(ref=ref("b"), sub_epoch_s=300, most=10_000)
    before = shared_floor.served[ref("a")]
    shared_floor.until(13 * 3600)
    assert (shared_floor.served[ref("a")] - before) / shared_floor.served[ref("b")] == pytest.approx(
        1.0, abs=0.1
    )


def test_a_project_pays_for_its_past_with_a_half_life() -> None:
    """A project that had the whole cluster waits behind another; a week later its use is forgotten."""
    heavy, other = Claim(ref=ref("a"), project="p"), Claim(ref=ref("b"), project="q")
    for passed, is_behind in ((10.0, True), (30 * HALF_LIFE_S, False)):
        shared_floor = floor(4, heavy)
        shared_floor.until(3600)
        del shared_floor.runs[heavy.ref]
        shared_floor.arbiter.observe(3600, [])
        shared_floor.runs = {
            c.ref: replace(c, most=100, wants=frozenset(shared_floor.slots)) for c in (heavy, other)
        }
        shared_floor.at.clear()
        shared_floor.arbiter.observe(3600 + passed, shared_floor.runs.values())
        slots = {turn.ref: len(turn.slots) for turn in shared_floor.arbiter.turns(shared_floor.slots)}
        assert (slots[heavy.ref] == 0) == is_behind


@pytest.mark.parametrize("start_s", [0.0, 10.0])
def test_a_run_keeps_a_slot_for_the_minimum_hold_time(start_s: float) -> None:
    """The minimum hold time is a minute, and twenty times the process start-up."""
    runs = [Claim(ref=ref(name), sub_epoch_s=5.0, start_s=start_s) for name in NAMES]
    shared_floor = floor(4, *runs)
    shared_floor.until(2000.0)
    latest: dict[DeviceSlot, float] = {}
    for time, slot, _ in shared_floor.changes:
        assert time - latest.get(slot, -1000.0) >= max(60.0, 20 * start_s)
        latest[slot] = time
    assert {experiment for _, _, experiment in shared_floor.changes} == set(NAMES)


def test_a_short_run_does_not_wait_for_the_end_of_a_hold() -> None:
    """It gets the next slot that becomes free; the holder returns at once with a longer hold time."""
    shared_floor = floor(1, Claim(ref=ref("long"), sub_epoch_s=5.0))
    requests = {"first": 12.0, "second": 20.0, "third": 300.0}
    for name, time in requests.items():
        shared_floor.enters(time, Claim(ref=ref(name), sub_epoch_s=1.0, most=1))
    shared_floor.until(400.0)
    assert [experiment for _, _, experiment in shared_floor.changes] == [
        "long", "first", "long", "second", "long", "third", "long",
    ]  # fmt: skip
    waited = {name: shared_floor.begun[ref(name)] - time for name, time in requests.items()}
    assert waited == {"first": 3.0, "second": 116.0, "third": pytest.approx(2.5, abs=2.5)}


def test_a_run_knows_how_long_its_slots_are_withheld() -> None:
    """The earliest of its usable slots counts; without a hold nothing is withheld."""
    slots = [DeviceSlot("w-0", 0), DeviceSlot("w-1", 0)]
    waits = Claim(ref=ref("b"), wants=frozenset(slots), most=2)
    stays = [
        Claim(ref=ref(name), holds=frozenset({slot}), wants=frozenset(slots), most=9, start_s=start_s)
        for name, slot, start_s in (("a", slots[0], 0.0), ("c", slots[1], 6.0))
    ]
    arbiter = Arbiter()
    assert arbiter.kept_s(waits) == 0.0
    arbiter.observe(0.0, [waits, *stays])
    arbiter.observe(20.0, [waits, *stays])
    assert arbiter.kept_s(waits) == 40.0
    assert arbiter.kept_s(replace(waits, wants=frozenset(slots[1:]))) == 100.0
    arbiter.observe(30.0, [waits, replace(stays[0], wants=frozenset()), stays[1]])
    assert arbiter.kept_s(waits) == 0.0


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(st.tuples(st.floats(0, 40), st.floats(1, 30), st.integers(1, 4)), max_size=12),
    sub_epochs=st.lists(st.floats(4, 40), min_size=1, max_size=3),
    slots=st.integers(1, 2),
    start_s=st.sampled_from([0.0, 5.0]),
)
def test_a_slot_changes_hands_at_most_once_per_hold_time(
    requests: list[tuple[float, float, int]], sub_epochs: list[float], slots: int, start_s: float
) -> None:
    """Small runs can take a wanted slot once per hold time, plus once. No run starves."""
    shared_floor = floor(
        slots,
        *(
            Claim(ref=ref(name), sub_epoch_s=u, start_s=start_s)
            for name, u in zip(NAMES, sub_epochs, strict=False)
        ),
    )
    time = 0.0
    for number, (pause, sub_epoch_s, most) in enumerate(requests):
        time += pause
        shared_floor.enters(
            time, Claim(ref=ref(f"short-{number}"), sub_epoch_s=sub_epoch_s, most=most, start_s=start_s)
        )
    shared_floor.until(time + 1000.0)
    stay = max(60.0, 20 * start_s)
    for taken in shared_floor.taken.values():
        for first, begin in enumerate(taken):
            for count, end in enumerate(taken[first:]):
                assert count <= (end - begin) / stay + 1
    assert not any(name.startswith("short") for name, _ in shared_floor.runs)


@settings(max_examples=200)
@given(
    runs=st.lists(
        st.tuples(st.sampled_from(["", "p"]), st.sampled_from([0.25, 1.0, 4.0]), st.floats(1, 5000)),
        min_size=2,
        max_size=4,
    ),
    holders=st.lists(st.integers(0, 3), min_size=1, max_size=9),
)
def test_preemptions_end_at_the_shares(runs: list[tuple[str, float, float]], holders: list[int]) -> None:
    """Sub-epochs never end. Each preemption gives a device of a run above its share to one below.

    After at most one preemption per device, no run is below its share while another one could release a device. With
    different weights in a project, its account may forbid the last ones: it counts service by the runs' weights.
    """
    claims = [
        Claim(ref=ref(str(n)), project=project, weight=weight, most=100, sub_epoch_s=sub_epoch_s)
        for n, (project, weight, sub_epoch_s) in enumerate(runs)
    ]
    holder = {DeviceSlot(f"w-{n}", 0): claims[each % len(claims)].ref for n, each in enumerate(holders)}
    due = {each: share * len(holder) for each, share in _due(claims).items()}
    seconds = {claim.ref: claim.sub_epoch_s for claim in claims}
    arbiter, preempted = Arbiter(), 0

    def held(run: RunRef) -> frozenset[DeviceSlot]:
        return frozenset(slot for slot, of in holder.items() if of == run)

    def observe(now: float) -> None:
        holds = {claim.ref: held(claim.ref) for claim in claims}
        arbiter.observe(
            now,
            [
                replace(
                    claim,
                    holds=holds[claim.ref],
                    wants=frozenset(slots),
                    ahead_s=claim.sub_epoch_s * len(holds[claim.ref]),
                )
                for claim in claims
            ],
        )

    def could_release(run: RunRef) -> bool:
        return len(held(run)) - 1 >= due[run] - 1e-6

    slots = [*holder]
    for hour in range(200):
        observe(hour * 3600.0)
        found = next(arbiter.preemptions(lambda run: dict.fromkeys(held(run), seconds[run])), None)
        if found is None:
            continue
        preempted += 1
        assert len(held(found.waiting)) < due[found.waiting]
        assert could_release(found.holder)
        del holder[found.slots[0]]
        observe(hour * 3600.0)
        (turn,) = (turn for turn in arbiter.turns(found.slots[:1]) if turn.slots)
        assert turn.ref == found.waiting
        holder[found.slots[0]] = turn.ref
    assert preempted <= len(holder)
    has_equal_weights = len({run[:2] for run in runs}) == len({run[0] for run in runs})
    if has_equal_weights and any(len(held(claim.ref)) < due[claim.ref] - 1e-6 for claim in claims):
        assert not any(could_release(claim.ref) for claim in claims)


def test_a_device_is_not_preempted_within_the_minimum_hold_time() -> None:
    slots = frozenset(DeviceSlot(f"w-{n}", 0) for n in range(2))
    first = Claim(ref=ref("first"), holds=slots, wants=slots, most=9, ahead_s=7200.0, start_s=10.0)
    arbiter = Arbiter()
    arbiter.observe(0.0, [first])
    for now, is_over in ((199.0, False), (201.0, True)):
        arbiter.observe(now, [first, Claim(ref=ref("second"), wants=slots, most=9)])
        assert bool([*arbiter.preemptions(lambda run: dict.fromkeys(slots, 3600.0))]) is is_over
