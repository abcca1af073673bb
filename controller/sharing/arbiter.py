"""The fair share of open runs: which run gets which device slot next. Pure: no I/O, no clock.

Weighted fair sharing of attained service. The *service* of a run is the device-seconds of all its tasks. Each
second is divided by the weight of the run's priority, and also counts for the run's project. A free device
goes to the project with the least service, and within it to the run with the least. A project's service
halves every day. This is start-time fair queueing (Goyal, Vin and Cheng 1996): a run's tag is its service
plus the expected remaining time of its open tasks, so assignments made at one moment are balanced too.

- *No credit for the past.* A new run starts at the least service of the open runs. So does a run that could
use no more devices: it is not compensated later.
- *A change of experiment costs a child process.* A device stays with its experiment for the minimum hold
time: a minute, or a multiple of the process's start time. After that, another run takes it only if it is
behind by more than a sub-epoch, or has fewer devices than its fair share while the experiment's run keeps its
own share.
- *A long sub-epoch is preempted.* If a run has fewer devices than its fair share and waits, a run that has more
releases one (`Arbiter.preemptions`). Each preemption brings the devices closer to the shares, so preemptions end
there.
- *Short runs start early.* If a run has no slot and all its work takes at most a quarter of a minimum hold
time, it gets one slot before that slot's hold time ends. The next experiment there keeps the slot for longer
to make up for this, and meets no second early start until then. So in any period, a run loses a wanted slot
at most once per hold time, plus once.
- *No usable device idles.* All rules only order the runs that want a device.

One run uses a device at a time. Another run's task follows only after the run's last task there. So the
sub-epochs queued on a device are all of one run, and their models load during the current one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from cerebro.state.reports.sharing import due_shares
from cerebro.state.workers import NO_DEVICE

HALF_LIFE_S = 24 * 3600.0
STAY_S = 60.0
STAY_STARTS = 20
"""Minimum hold time in start times of a child process: starts take at most a twentieth of a device's time."""

_LITTLE = 4
"""A run starts early if all its work takes at most the minimum hold time divided by this."""

_SLACK = 1
"""A run takes another's slot only if it is behind by more than this many sub-epochs: equal runs keep theirs."""

_ROUNDING = 1e-9
"""Maximum rounding error of a fair share in devices."""


_Key = TypeVar("_Key")


class RunRef(NamedTuple):
    """A run of an experiment."""

    experiment: str
    run: str


class DeviceSlot(NamedTuple):
    """A device slot: a device of a worker, or its slot for tasks without a device."""

    worker: str
    device: int
    """`cerebro.state.workers.NO_DEVICE` for tasks without a device."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Slots that an open run holds, and slots that it could use, at one moment.

    Attributes:
        weight: of its priority; above 0.
        holds: slots with open tasks of the run.
        wants: slots where the run could start a task now if they were free; may include held slots.
        most: maximum number of further tasks.
        sub_epoch_s: expected seconds of its next task.
        ahead_s: expected remaining device-seconds of its open tasks.
        start_s: seconds that a child process of its experiment takes to start.
        whole_s: expected device-seconds of all its remaining work; infinite if unknown.
    """

    ref: RunRef
    project: str = ""
    weight: float = 1.0
    holds: frozenset[DeviceSlot] = frozenset()
    wants: frozenset[DeviceSlot] = frozenset()
    most: int = 0
    sub_epoch_s: float = 60.0
    ahead_s: float = 0.0
    start_s: float = 0.0
    whole_s: float = math.inf

    @property
    def could_use_more(self) -> bool:
        """True if it could use more slots than it holds."""
        return self.most > 0 and not self.wants <= self.holds


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A run that may decide now, and the slots it may fill."""

    ref: RunRef
    slots: frozenset[DeviceSlot]


class Preemption(NamedTuple):
    """Devices of the run `holder`, one of which it should release for the run `waiting`."""

    holder: RunRef
    waiting: RunRef
    slots: tuple[DeviceSlot, ...]


@dataclass(kw_only=True)
class _Hold:
    """The experiment of a slot's child process, and its start.

    Attributes:
        longer_s: extra hold time, because an early start displaced the experiment before.
        owed_s: for an early start, the extra hold time of its successor.
    """

    experiment: str
    since: float
    longer_s: float = 0.0
    owed_s: float = 0.0


@dataclass
class _Tags:
    """Tags at one moment, increased by each allocation. The lowest is served first."""

    projects: dict[str, float]
    runs: dict[RunRef, float]

    def of(self, claim: Claim) -> tuple[float, float, RunRef]:
        return self.projects[claim.project], self.runs[claim.ref], claim.ref

    def is_behind(self, one: Claim, other: Claim) -> bool:
        """True if `one` has had less service than `other`, by more than a sub-epoch of `other`."""
        slack = _SLACK * other.sub_epoch_s / other.weight
        if one.project != other.project:
            return self.projects[one.project] + slack < self.projects[other.project]
        return self.runs[one.ref] + slack < self.runs[other.ref]

    def add(self, claim: Claim, seconds: float) -> None:
        self.projects[claim.project] += seconds / claim.weight
        self.runs[claim.ref] += seconds / claim.weight


@dataclass
class _Devices:
    """Number of devices that each run holds, and its fair share of all that runs hold or want."""

    held: dict[RunRef, int]
    due: dict[RunRef, float]

    @classmethod
    def of(cls, claims: Collection[Claim]) -> _Devices:
        used = frozenset[DeviceSlot]().union(*(claim.holds | claim.wants for claim in claims))
        devices = {slot for slot in used if slot.device != NO_DEVICE}
        users = (claim for claim in claims if not devices.isdisjoint(claim.holds | claim.wants))
        shares = due_shares({claim.ref: (claim.project, claim.weight) for claim in users})
        return cls(
            held={claim.ref: len(devices & claim.holds) for claim in claims},
            due={ref: share * len(devices) for ref, share in shares.items()},
        )

    def are_too_few(self, claim: Claim) -> bool:
        """True if the run holds less than its fair share."""
        return self.held[claim.ref] + _ROUNDING < self.due.get(claim.ref, 0.0)


class _Alike(NamedTuple):
    """Slots with equal child process and demand.

    Attributes:
        resident: experiment of the child process; "" if it has no open run.
        stayers: runs of that experiment that want the slots.
        is_short: True within the minimum hold time.
        is_open: True if a short run may start here early.
        slots: in descending order.
    """

    resident: str
    stayers: tuple[Claim, ...]
    is_short: bool
    is_open: bool
    slots: list[DeviceSlot]


@dataclass(kw_only=True)
class _Offer:
    """Slots that are equal to a run.

    Attributes:
        stayers: runs of another experiment whose child process is there, and that want the slots.
        is_short: True within their minimum hold time.
        is_open: True if the run may start early.
        slots: the next one last.
    """

    stayers: tuple[Claim, ...]
    is_short: bool
    is_open: bool
    slots: list[DeviceSlot] = field(default_factory=list)

    def has_any(self, unserved: set[DeviceSlot]) -> bool:
        """True if a slot is still unserved."""
        while self.slots and self.slots[-1] not in unserved:
            self.slots.pop()
        return bool(self.slots)

    def is_kept(self, claim: Claim, left: Mapping[RunRef, int], tags: _Tags, devices: _Devices) -> bool:
        """True if the slots stay with their present experiment."""
        stayers = [each for each in self.stayers if left[each.ref] > 0]
        if self.is_short or not stayers:
            return bool(stayers)
        has_few = devices.are_too_few(claim)
        return not any(
            tags.is_behind(claim, each) or (has_few and not devices.are_too_few(each)) for each in stayers
        )

    def lets_in(self, claim: Claim, tags: _Tags) -> bool:
        """True if the run may start early: it has had no more service than the present runs."""
        return self.is_open and all(tags.of(claim)[:2] <= tags.of(each)[:2] for each in self.stayers)


@dataclass(kw_only=True)
class Arbiter:
    """Account of the service that each run has had.

    After a start of the controller, all open runs begin equal. Times are seconds of any monotonic clock. Not
    thread-safe.
    """

    half_life_s: float = HALF_LIFE_S
    stay_s: float = STAY_S
    stay_starts: float = STAY_STARTS
    _now: float = 0.0
    _projects: dict[str, float] = field(default_factory=dict)
    """Project -> weighted service. Projects without open runs stay until it has decayed."""
    _runs: dict[RunRef, float] = field(default_factory=dict)
    _claims: dict[RunRef, Claim] = field(default_factory=dict)
    """Claims of the last `see`."""
    _holds: dict[DeviceSlot, _Hold] = field(default_factory=dict)
    _let_in: dict[DeviceSlot, RunRef] = field(default_factory=dict)
    """Slots of early starts of the newest `turns`."""

    def observe(self, now: float, claims: Iterable[Claim]) -> None:
        """Update the claims of the open runs, and charge the previous ones until now.

        Call it before and after each decision.
        """
        self._serve(max(0.0, now - self._now))
        self._now = max(now, self._now)
        previous_claims, self._claims = self._claims, {claim.ref: claim for claim in claims}
        known = {ref for ref in previous_claims if ref in self._claims}
        self._level(known)
        self._runs = {ref: service for ref, service in self._runs.items() if ref in self._claims}
        for claim in self._claims.values():
            for slot in claim.holds:
                hold = self._holds.get(slot)
                if hold is None or hold.experiment != claim.ref.experiment:
                    self._holds[slot] = self._begun(slot, claim, hold)

    def order(self) -> list[Claim]:
        """Return the current claims, the next to be served first."""
        return sorted(self._claims.values(), key=self._tags().of)

    def kept_s(self, claim: Claim) -> float:
        """Return the seconds until the first further slot that the run wants may be reassigned.

        0 means that it may get one as soon as one is free.
        """
        found = [self._kept_s(slot, claim) for slot in claim.wants - claim.holds]
        return min(found, default=0.0)

    def turns(self, free: Iterable[DeviceSlot], ending: Iterable[DeviceSlot] = ()) -> tuple[Turn, ...]:
        """Distribute slots among the current claims, in order of service.

        Args:
            free: slots without a task.
            ending: slots with a task that will end soon. The same run may queue another task there. If
                another run should have such a slot next, nothing is queued: the slot will soon be free.
        """
        ending = set(ending)
        tags, claims, unserved = self._tags(), self.order(), {*free, *ending}
        devices = _Devices.of(claims)
        remaining_tasks = {claim.ref: claim.most for claim in claims}
        assigned_slots: dict[RunRef, set[DeviceSlot]] = {claim.ref: set() for claim in claims}
        alike = self._alike(unserved, claims)
        offers = {claim.ref: self._offers(claim, alike) for claim in claims}
        self._let_in = {}
        while True:
            contenders = sorted((claim for claim in claims if remaining_tasks[claim.ref] > 0), key=tags.of)
            found = next(
                (
                    (claim, offer.slots[-1], is_kept)
                    for claim in contenders
                    for offer in offers[claim.ref]
                    if offer.has_any(unserved)
                    for is_kept in (offer.is_kept(claim, remaining_tasks, tags, devices),)
                    if not is_kept
                    or (remaining_tasks[claim.ref] == claim.most and offer.lets_in(claim, tags))
                ),
                None,
            )
            if found is None:
                return tuple(Turn(ref=c.ref, slots=frozenset(assigned_slots[c.ref])) for c in claims)
            claim, slot, is_early = found
            if is_early:
                self._let_in[slot] = claim.ref
            unserved.remove(slot)
            remaining_tasks[claim.ref] -= 1
            tags.add(claim, claim.sub_epoch_s)
            devices.held[claim.ref] += slot.device != NO_DEVICE
            if slot not in ending or slot in claim.holds:
                assigned_slots[claim.ref].add(slot)

    def preemptions(self, releasable: Callable[[RunRef], Mapping[DeviceSlot, float]]) -> Iterator[Preemption]:
        """Yield preemptions for runs that have fewer devices than their fair share and wait for one.

        After any one of them, `turns` gives the device to the waiting run, and its holder still has its own share.
        The minimum hold time of the device is over.

        Args:
            releasable: returns the devices that a run could release, the preferred ones first, and the expected
                seconds until their tasks end.
        """
        claims = self.order()
        devices = _Devices.of(claims)
        waiting = {claim.ref for claim in claims if claim.could_use_more and devices.are_too_few(claim)}
        for claim in reversed(claims):
            if not waiting or devices.are_too_few(claim):
                continue
            heirs: dict[tuple[RunRef, ...], RunRef] = {}
            slots: dict[RunRef, list[DeviceSlot]] = {}
            for slot, remaining_s in releasable(claim.ref).items():
                # Devices that the same runs want go to the same one.
                wanting = tuple(each.ref for each in claims if slot in each.wants)
                if waiting.isdisjoint(wanting) or self._is_short(self._holds[slot], claim):
                    continue
                if wanting not in heirs:
                    heirs[wanting] = self._heir(claim, slot, remaining_s)
                if heirs[wanting] in waiting - {claim.ref}:
                    slots.setdefault(heirs[wanting], []).append(slot)
            for ref, found in slots.items():
                yield Preemption(claim.ref, ref, tuple(found))

    # --- mechanism -------------------------------------------------------------------------------

    def _heir(self, claim: Claim, slot: DeviceSlot, remaining_s: float) -> RunRef:
        """Return the run that gets a device if the present run releases it; this run if it lacks devices then."""
        released = replace(
            claim,
            holds=claim.holds - {slot},
            wants=claim.wants | {slot},
            most=claim.most + 1,
            ahead_s=max(0.0, claim.ahead_s - remaining_s),
        )
        arbiter = replace(self, _claims=self._claims | {claim.ref: released})
        if _Devices.of(arbiter._claims.values()).are_too_few(released):
            return claim.ref
        return next((turn.ref for turn in arbiter.turns((slot,)) if turn.slots), claim.ref)

    def _serve(self, seconds: float) -> None:
        """Charge the held slots for this many seconds."""
        decay = 0.5 ** (seconds / self.half_life_s)
        self._projects = {name: service * decay for name, service in self._projects.items()}
        self._runs = {ref: service * decay for ref, service in self._runs.items()}
        for claim in self._claims.values():
            service = seconds * len(claim.holds) / claim.weight
            self._projects[claim.project] += service
            self._runs[claim.ref] += service

    def _level(self, known: set[RunRef]) -> None:
        """Raise new and satisfied runs to the least service of the others: there is no credit.

        Args:
            known: runs that were open before.
        """
        by_project: dict[str, list[Claim]] = {}
        for claim in self._claims.values():
            by_project.setdefault(claim.project, []).append(claim)
        old = {name for name, claims in by_project.items() if any(c.ref in known for c in claims)}
        wanting = {name for name, claims in by_project.items() if any(c.could_use_more for c in claims)}
        _lift(self._projects, set(by_project), old, wanting)
        for claims in by_project.values():
            refs = {claim.ref for claim in claims}
            _lift(self._runs, refs, refs & known, {claim.ref for claim in claims if claim.could_use_more})
        absent = self._projects.keys() - by_project.keys()
        for name in [name for name in absent if self._projects[name] < 1.0]:
            del self._projects[name]

    def _tags(self) -> _Tags:
        tags = _Tags(dict(self._projects), dict(self._runs))
        for claim in self._claims.values():
            tags.add(claim, claim.ahead_s)
        return tags

    def _alike(self, unserved: set[DeviceSlot], claims: list[Claim]) -> list[_Alike]:
        """Group equal slots, so that each run is compared with groups."""
        by_experiment: dict[str, list[Claim]] = {}
        for claim in claims:
            by_experiment.setdefault(claim.ref.experiment, []).append(claim)
        found: dict[tuple[str, bool, bool, tuple[RunRef, ...]], _Alike] = {}
        for slot in sorted(unserved, reverse=True):
            hold = self._holds.get(slot)
            there = by_experiment.get(hold.experiment, []) if hold is not None else []
            stayers = tuple(claim for claim in there if slot in claim.wants)
            is_short = hold is not None and any(self._is_short(hold, each) for each in stayers)
            resident = hold.experiment if hold is not None and there else ""
            is_open = hold is not None and not (is_short and (hold.longer_s or hold.owed_s))
            key = resident, is_short, is_open, tuple(each.ref for each in stayers)
            if key not in found:
                found[key] = _Alike(resident, stayers, is_short, is_open, [])
            found[key].slots.append(slot)
        return list(found.values())

    def _offers(self, claim: Claim, alike: list[_Alike]) -> list[_Offer]:
        """Return the slots a run wants: first at its own child process, last at a wanted foreign one."""
        found: dict[tuple[int, bool, bool, tuple[RunRef, ...]], _Offer] = {}
        has_little = self._has_little(claim)
        for each in alike:
            slots = [slot for slot in each.slots if slot in claim.wants]
            if not slots:
                continue
            is_own = each.resident == claim.ref.experiment
            stayers = () if is_own else each.stayers
            is_short = each.is_short and not is_own
            is_open = has_little and each.is_open
            rank = 0 if is_own else 2 if stayers else 1
            key = rank, is_short, not is_open, tuple(stayer.ref for stayer in stayers)
            offer = found.setdefault(key, _Offer(stayers=stayers, is_short=is_short, is_open=is_open))
            offer.slots = sorted([*offer.slots, *slots], reverse=True) if offer.slots else slots
        return [found[key] for key in sorted(found)]

    def _has_little(self, claim: Claim) -> bool:
        return not claim.holds and claim.whole_s <= self.stay_s / _LITTLE

    def _is_short(self, hold: _Hold, stayer: Claim) -> bool:
        return self._now - hold.since < self._length_s(stayer) + hold.longer_s

    def _kept_s(self, slot: DeviceSlot, claim: Claim) -> float:
        hold = self._holds.get(slot)
        if hold is None or hold.experiment == claim.ref.experiment:
            return 0.0
        if self._has_little(claim) and not hold.longer_s and not hold.owed_s:
            return 0.0
        there = [each for each in self._claims.values() if each.ref.experiment == hold.experiment]
        until = (self._length_s(each) + hold.longer_s for each in there if slot in each.wants)
        return max(0.0, hold.since + max(until, default=0.0) - self._now)

    def _length_s(self, claim: Claim) -> float:
        """Return the minimum hold time of a slot."""
        return max(self.stay_s, self.stay_starts * claim.start_s)

    def _begun(self, slot: DeviceSlot, claim: Claim, previous: _Hold | None) -> _Hold:
        """Return a new hold. It inherits the extra time owed if the previous hold ended early."""
        hold = _Hold(experiment=claim.ref.experiment, since=self._now)
        if self._let_in.get(slot) == claim.ref:
            hold.owed_s = self._length_s(claim)
        elif previous is not None and self._now - previous.since < self._length_s(claim) + previous.longer_s:
            hold.longer_s = previous.longer_s or previous.owed_s
        return hold


def _lift(accounts: dict[_Key, float], present: set[_Key], old: set[_Key], wanting: set[_Key]) -> None:
    """Raise new and satisfied accounts to the least account that waits for more."""
    old = old & accounts.keys()
    waiting = old & wanting
    floor = min((accounts[key] for key in waiting or old), default=0.0)
    for key in present:
        if key not in old or (key not in wanting and waiting):
            accounts[key] = max(accounts.get(key, 0.0), floor)
