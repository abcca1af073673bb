"""Whose turn it is: how the runs that are open share the devices of a cluster. Pure: no I/O, no clock of its own.

Weighted fair sharing of attained service. A run's *service* is the device-seconds that its tasks had, of any kind: ETL
and validation count as training does. Each second is divided by the weight of the run's priority, and counts for its
project. A device that is free goes to the project that has had least, and within it to the run that has had least;
half of what a project had is forgotten after a day. This is start-time fair queueing (Goyal, Vin and Cheng 1996): a
run's tag is its service plus what its open tasks are still expected to take, so what is decided at one moment is
balanced as well.

- *No credit for the past.* A run that enters begins at the least service of those that are open. So does one that had
  nothing more to ask for: what it could not use is not owed to it later.
- *A change of experiment costs a child process.* A device stays with its experiment for a minute, or for so many times
  what the process took to start, and is taken by another run only if that is behind by more than a sub-epoch.
- *Little work is let in early.* A run that has no place, and all of whose work takes a quarter of a stay at most, is
  given one place whose stay has not ended. It costs what it would cost later. The place then stays with who is there
  next for that much longer, and lets nobody else in until it has. So in any period, a run loses a place that it wants
  at most once per stay, plus once.
- *Nothing lies idle that somebody could use*: all of this orders those that want a device, and never keeps it from the
  only one.

A device is used by one run at a time. Its next task is from another run only once it has none left; so what is queued
behind a sub-epoch is of the same run, and its model is loaded meanwhile as ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

HALF_LIFE_S = 24 * 3600.0
STAY_S = 60.0
STAY_STARTS = 20
"""A device stays with an experiment for so many times what a child process took to start: then at most a twentieth of
its time goes into starts."""

_LITTLE = 4
"""A run has little work if all of it takes no more than a stay over this."""

_SLACK = 1
"""Sub-epochs by which a run has to be behind another one to take a place from it: runs that are even keep what they
have."""


_Key = TypeVar("_Key")


class RunRef(NamedTuple):
    """A run of an experiment."""

    experiment: str
    run: str


class Place(NamedTuple):
    """What one task after another occupies: a device of a worker, or its lane for tasks without a device."""

    worker: str
    device: int
    """`cerebro.state.workers.NO_DEVICE`: the lane."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What an open run has at one moment, and what it could use.

    Attributes:
        weight: of its priority; above 0.
        holds: places where it has open tasks.
        wants: places that it could give a task to now if they were free; those that it holds may be among them.
        most: so many tasks at most.
        sub_epoch_s: seconds that its next task will probably hold a place.
        ahead_s: device-seconds that its open tasks will probably take from now on.
        start_s: seconds that a child process of its experiment takes to start.
        whole_s: device-seconds that all that is left of it will probably take; infinite if that is not known.
    """

    ref: RunRef
    project: str = ""
    weight: float = 1.0
    holds: frozenset[Place] = frozenset()
    wants: frozenset[Place] = frozenset()
    most: int = 0
    sub_epoch_s: float = 60.0
    ahead_s: float = 0.0
    start_s: float = 0.0
    whole_s: float = math.inf

    @property
    def could_use_more(self) -> bool:
        """Whether it could use more than it has."""
        return self.most > 0 and not self.wants <= self.holds


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A run that is to decide now, and the places where it may put tasks."""

    ref: RunRef
    places: frozenset[Place]


@dataclass(kw_only=True)
class _Stay:
    """Which experiment's child a place has, and since when.

    Attributes:
        longer_s: it stays for so much longer than else, because another one was let in early before.
        owed_s: it was let in early itself: so much longer the next one stays.
    """

    experiment: str
    since: float
    longer_s: float = 0.0
    owed_s: float = 0.0


@dataclass
class _Tags:
    """Tags at one moment; they grow with what is allotted. Lower is served first."""

    projects: dict[str, float]
    runs: dict[RunRef, float]

    def of(self, claim: Claim) -> tuple[float, float, RunRef]:
        return self.projects[claim.project], self.runs[claim.ref], claim.ref

    def is_behind(self, one: Claim, other: Claim) -> bool:
        """Whether `one` has had less than `other`, by more than a sub-epoch of `other`."""
        slack = _SLACK * other.sub_epoch_s / other.weight
        if one.project != other.project:
            return self.projects[one.project] + slack < self.projects[other.project]
        return self.runs[one.ref] + slack < self.runs[other.ref]

    def add(self, claim: Claim, seconds: float) -> None:
        self.projects[claim.project] += seconds / claim.weight
        self.runs[claim.ref] += seconds / claim.weight


class _Alike(NamedTuple):
    """Places where the same child is.

    Attributes:
        resident: whose child it is; empty: of none of the open runs.
        stayers: runs of that experiment which want them.
        is_short: the child has not been there for long.
        is_open: somebody with little work may be let in all the same.
        places: in falling order.
    """

    resident: str
    stayers: tuple[Claim, ...]
    is_short: bool
    is_open: bool
    places: list[Place]


@dataclass(kw_only=True)
class _Offer:
    """Places that are alike to a run.

    Attributes:
        stayers: runs of another experiment whose child is there, and which want them.
        is_short: their child has not been there for long.
        is_open: the run may be let in all the same.
        places: the next one last.
    """

    stayers: tuple[Claim, ...]
    is_short: bool
    is_open: bool
    places: list[Place] = field(default_factory=list)

    def has_any(self, unserved: set[Place]) -> bool:
        """Whether one is left."""
        while self.places and self.places[-1] not in unserved:
            self.places.pop()
        return bool(self.places)

    def is_kept(self, claim: Claim, left: Mapping[RunRef, int], tags: _Tags) -> bool:
        """Whether they stay with who is there."""
        stayers = [each for each in self.stayers if left[each.ref] > 0]
        return bool(stayers) and (self.is_short or not any(tags.is_behind(claim, each) for each in stayers))

    def lets_in(self, claim: Claim, tags: _Tags) -> bool:
        """Whether the run is let in although they stay with who is there: it has had no more than these."""
        return self.is_open and all(tags.of(claim)[:2] <= tags.of(each)[:2] for each in self.stayers)


@dataclass(kw_only=True)
class Arbiter:
    """Keeps account of who had what. Times are seconds of any clock that does not go back. Not thread-safe.

    A controller that starts anew knows no past: all that are open begin equal.
    """

    half_life_s: float = HALF_LIFE_S
    stay_s: float = STAY_S
    stay_starts: float = STAY_STARTS
    _now: float = 0.0
    _projects: dict[str, float] = field(default_factory=dict)
    """Project -> weighted service. Of one without an open run as well, until it is forgotten."""
    _runs: dict[RunRef, float] = field(default_factory=dict)
    _claims: dict[RunRef, Claim] = field(default_factory=dict)
    """As they were last seen."""
    _stays: dict[Place, _Stay] = field(default_factory=dict)
    _let_in: dict[Place, RunRef] = field(default_factory=dict)
    """Who was given a place early by the newest turns."""

    def see(self, now: float, claims: Iterable[Claim]) -> None:
        """Take in what the open runs have now. What they had at the last call was theirs until now, so it is to be
        called before a decision and after it."""
        self._serve(max(0.0, now - self._now))
        self._now = max(now, self._now)
        before, self._claims = self._claims, {claim.ref: claim for claim in claims}
        known = {ref for ref in before if ref in self._claims}
        self._level(known)
        self._runs = {ref: service for ref, service in self._runs.items() if ref in self._claims}
        for claim in self._claims.values():
            for place in claim.holds:
                stay = self._stays.get(place)
                if stay is None or stay.experiment != claim.ref.experiment:
                    self._stays[place] = self._begun(place, claim, stay)

    def order(self) -> list[Claim]:
        """The claims that were seen last, those first whose turn it is."""
        return sorted(self._claims.values(), key=self._tags().of)

    def kept_s(self, claim: Claim) -> float:
        """For how many seconds yet every place that a run could use beside its own stays with who is there; 0: one may
        be given to it as soon as it is free."""
        found = [self._kept_s(place, claim) for place in claim.wants - claim.holds]
        return min(found, default=0.0)

    def turns(self, free: Iterable[Place], ending: Iterable[Place] = ()) -> tuple[Turn, ...]:
        """Who may put tasks where, by the claims that were seen last: each run once, in its order.

        Args:
            free: places without a task.
            ending: places whose task is about to end and may be followed by another one of the same run. Where another
                run is to have the place next, nobody is given it now: it becomes free in a moment.
        """
        ending = set(ending)
        tags, claims, unserved = self._tags(), self.order(), {*free, *ending}
        left = {claim.ref: claim.most for claim in claims}
        given: dict[RunRef, set[Place]] = {claim.ref: set() for claim in claims}
        alike = self._alike(unserved, claims)
        offers = {claim.ref: self._offers(claim, alike) for claim in claims}
        self._let_in = {}
        while True:
            contenders = sorted((claim for claim in claims if left[claim.ref] > 0), key=tags.of)
            found = next(
                (
                    (claim, offer.places[-1], is_kept)
                    for claim in contenders
                    for offer in offers[claim.ref]
                    if offer.has_any(unserved)
                    for is_kept in (offer.is_kept(claim, left, tags),)
                    if not is_kept or (left[claim.ref] == claim.most and offer.lets_in(claim, tags))
                ),
                None,
            )
            if found is None:
                return tuple(Turn(ref=c.ref, places=frozenset(given[c.ref])) for c in claims)
            claim, place, is_early = found
            if is_early:
                self._let_in[place] = claim.ref
            unserved.remove(place)
            left[claim.ref] -= 1
            tags.add(claim, claim.sub_epoch_s)
            if place not in ending or place in claim.holds:
                given[claim.ref].add(place)

    # --- mechanism -------------------------------------------------------------------------------

    def _serve(self, seconds: float) -> None:
        """What was held was held for so long."""
        kept = 0.5 ** (seconds / self.half_life_s)
        self._projects = {name: service * kept for name, service in self._projects.items()}
        self._runs = {ref: service * kept for ref, service in self._runs.items()}
        for claim in self._claims.values():
            service = seconds * len(claim.holds) / claim.weight
            self._projects[claim.project] += service
            self._runs[claim.ref] += service

    def _level(self, known: set[RunRef]) -> None:
        """Lift who enters, or had nothing more to ask for, to the least of the others: there is no credit.

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
        gone = self._projects.keys() - by_project.keys()
        for name in [name for name in gone if self._projects[name] < 1.0]:
            del self._projects[name]

    def _tags(self) -> _Tags:
        tags = _Tags(dict(self._projects), dict(self._runs))
        for claim in self._claims.values():
            tags.add(claim, claim.ahead_s)
        return tags

    def _alike(self, unserved: set[Place], claims: list[Claim]) -> list[_Alike]:
        """The places, those together that are alike but for who wants them; asked once, whoever then wants them."""
        by_experiment: dict[str, list[Claim]] = {}
        for claim in claims:
            by_experiment.setdefault(claim.ref.experiment, []).append(claim)
        found: dict[tuple[str, bool, bool, tuple[RunRef, ...]], _Alike] = {}
        for place in sorted(unserved, reverse=True):
            stay = self._stays.get(place)
            there = by_experiment.get(stay.experiment, []) if stay is not None else []
            stayers = tuple(claim for claim in there if place in claim.wants)
            is_short = stay is not None and any(self._is_short(stay, each) for each in stayers)
            resident = stay.experiment if stay is not None and there else ""
            is_open = stay is not None and not (is_short and (stay.longer_s or stay.owed_s))
            key = resident, is_short, is_open, tuple(each.ref for each in stayers)
            if key not in found:
                found[key] = _Alike(resident, stayers, is_short, is_open, [])
            found[key].places.append(place)
        return list(found.values())

    def _offers(self, claim: Claim, alike: list[_Alike]) -> list[_Offer]:
        """Places that the run wants, those first where its own child is, those last where another's child is wanted."""
        found: dict[tuple[int, bool, bool, tuple[RunRef, ...]], _Offer] = {}
        has_little = self._has_little(claim)
        for each in alike:
            places = [place for place in each.places if place in claim.wants]
            if not places:
                continue
            is_own = each.resident == claim.ref.experiment
            stayers = () if is_own else each.stayers
            is_short = each.is_short and not is_own
            is_open = has_little and each.is_open
            rank = 0 if is_own else 2 if stayers else 1
            key = rank, is_short, not is_open, tuple(stayer.ref for stayer in stayers)
            offer = found.setdefault(key, _Offer(stayers=stayers, is_short=is_short, is_open=is_open))
            offer.places = sorted([*offer.places, *places], reverse=True) if offer.places else places
        return [found[key] for key in sorted(found)]

    def _has_little(self, claim: Claim) -> bool:
        return not claim.holds and claim.whole_s <= self.stay_s / _LITTLE

    def _is_short(self, stay: _Stay, stayer: Claim) -> bool:
        return self._now - stay.since < self._length_s(stayer) + stay.longer_s

    def _kept_s(self, place: Place, claim: Claim) -> float:
        stay = self._stays.get(place)
        if stay is None or stay.experiment == claim.ref.experiment:
            return 0.0
        if self._has_little(claim) and not stay.longer_s and not stay.owed_s:
            return 0.0
        there = [each for each in self._claims.values() if each.ref.experiment == stay.experiment]
        until = (self._length_s(each) + stay.longer_s for each in there if place in each.wants)
        return max(0.0, stay.since + max(until, default=0.0) - self._now)

    def _length_s(self, claim: Claim) -> float:
        """How long a place stays with an experiment."""
        return max(self.stay_s, self.stay_starts * claim.start_s)

    def _begun(self, place: Place, claim: Claim, before: _Stay | None) -> _Stay:
        """A stay, after another experiment's or none. What is owed is paid by a stay that is long enough."""
        stay = _Stay(experiment=claim.ref.experiment, since=self._now)
        if self._let_in.get(place) == claim.ref:
            stay.owed_s = self._length_s(claim)
        elif before is not None and self._now - before.since < self._length_s(claim) + before.longer_s:
            stay.longer_s = before.longer_s or before.owed_s
        return stay


def _lift(accounts: dict[_Key, float], present: set[_Key], old: set[_Key], wanting: set[_Key]) -> None:
    """Let none of `present` that is new, or could use no more, have less than the least of those who wait for more."""
    old = old & accounts.keys()
    waiting = old & wanting
    floor = min((accounts[key] for key in waiting or old), default=0.0)
    for key in present:
        if key not in old or (key not in wanting and waiting):
            accounts[key] = max(accounts.get(key, 0.0), floor)
