"""One round of decisions: which of the runs that are open decides next, and where it may put tasks. No I/O.

Live and in simulations the same: whoever drives it asks each core that is named, and writes its steps before it asks
for the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

from cerebro.contract import api
from cerebro.contract.records import QUEUE_DEPTH
from cerebro.state import Run, Worker
from cerebro.state.workers import NO_DEVICE
from controller import claims, memory_retries
from controller.arbiter import Arbiter, Claim, Place, RunRef
from controller.cluster_snapshot import ClusterSnapshot
from controller.core import Core

_T = TypeVar("_T")
_OnFault = Callable[[Core, Exception], None] | None


class Asked(NamedTuple):
    """A run that is to decide now.

    Attributes:
        closed: places where it may put nothing.
        depth: open tasks that a place may have then.
        is_alone: no other run is open.
    """

    core: Core
    run: Run
    closed: frozenset[Place] = frozenset()
    depth: int = QUEUE_DEPTH
    is_alone: bool = False

    def on(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """What it is to decide on."""
        return replace(snapshot, closed=self.closed, depth=self.depth)


PATIENCE_S = 60.0
"""How long a task that must be alone on a worker waits for one to become idle by itself, beside other runs. Then one is
kept free for it; that takes no longer than what runs there."""


@dataclass(kw_only=True)
class _Wait:
    """Of a run with a task that must be alone: since when, and the worker that is kept free for it."""

    since: float
    worker: str = ""


class Sharing:
    """Asks the arbiter. Belongs to a loop; not thread-safe.

    Args:
        weigh: a run's weight; that of its priority by default.
    """

    def __init__(self, weigh: claims.Weigh = claims.weight_of) -> None:
        self._arbiter, self._weigh = Arbiter(), weigh
        self._left_out: set[str] = set()
        self._waits: dict[RunRef, _Wait] = {}

    def told(self, attended: Mapping[str, Iterable[str]], cores: Mapping[str, Core]) -> api.Attended:
        """What is worked on, for everybody who waits: those first whose turn it is.

        Args:
            attended: runs that are worked on, by experiment.
            cores: of those that are, as far as there is one now.
        """
        refs = [RunRef(name, run) for name, runs in attended.items() for run in runs]
        found = {}
        for claim in self._arbiter.order():
            core = cores.get(claim.ref.experiment)
            run = core.state.runs.get(claim.ref.run) if core is not None else None
            if claim.ref in refs and run is not None:
                found[claim.ref] = _told(claim, run)
        # Of the others the log is not read to its end yet.
        for ref in refs:
            found.setdefault(ref, api.AttendedRun(experiment=ref.experiment, run=ref.run))
        there: set[Place] = set()
        for core in cores.values():
            there |= claims.places_to_train(core.state)
        return api.Attended(runs=tuple(found.values()), devices=len(there))

    def leave_out(self, experiment: str) -> None:
        """Ask no run of the experiment any more in this round."""
        self._left_out.add(experiment)

    def round(
        self,
        cores: Mapping[str, Core],
        now: float,
        *,
        taken: frozenset[Place] = frozenset(),
        fault: Callable[[Core, Exception], None] | None = None,
    ) -> Iterator[Asked]:
        """Every open run of the experiments given, in the arbiter's order; more than once, if places are left that
        another one may use.

        Args:
            now: the time that an event would have.
            taken: places that nobody here may use.
            fault: told of a core that fails to say what its runs want, which is left out then; without it, that raises.
        """
        self._left_out.clear()
        runs = [(core, run) for core in cores.values() for run in core.open_runs()]
        if len(runs) < 2 and not taken:
            self._rest(runs, now)
            yield from (Asked(core, run, is_alone=True) for core, run in runs)
            self._rest(runs, now)
            return
        see = partial(self._see, runs, now, fault)
        named = {RunRef(core.state.name, run.id): (core, run) for core, run in runs}
        see()
        before = {ref: frozenset(run.open) for ref, (_, run) in named.items()}
        every, free = _places(runs, taken)
        kept = self._keep_free(runs, now, fault)
        unoffered = frozenset[Place]().union(*kept.values())
        for turn in self._arbiter.turns(free - unoffered):
            if turn.places and turn.ref.experiment not in self._left_out:
                yield Asked(*named[turn.ref], every - turn.places, depth=1)
        for claim in see():
            # What nobody has taken is anybody's: who was given it could make nothing of it.
            _, free = _places(runs, taken)
            own = kept.get(claim.ref, frozenset[Place]())
            offered = (free - unoffered) | (own if own <= free else frozenset[Place]())
            if claim.ref.experiment not in self._left_out:
                yield Asked(*named[claim.ref], every - offered, depth=1)
        # Only now is anything queued, because what would run at once elsewhere would be taken back; and nothing of a
        # run that has just taken something back: it is given to an idle device first, in the next round.
        see()
        have_taken_back = {ref for ref, (_, run) in named.items() if not before[ref] <= run.open.keys()}
        ending = self._guarded(runs, fault, lambda core, run: _ending(core, run, now))
        followed = {place for places in ending for place in places} - unoffered
        for turn in self._arbiter.turns((), followed):
            is_asked = turn.ref.experiment not in self._left_out and turn.ref not in have_taken_back
            if turn.places and is_asked:
                yield Asked(*named[turn.ref], every - turn.places)
        see()

    def _keep_free(
        self, runs: list[tuple[Core, Run]], now: float, fault: _OnFault
    ) -> dict[RunRef, frozenset[Place]]:
        """All places of a worker for each run that has waited for long to have one for itself: others have its devices
        in turn, and it would never be idle."""
        found = self._guarded(runs, fault, _alone)
        waiting = {ref: able for ref, able in found if able}
        self._waits = {ref: self._waits.get(ref, _Wait(since=now)) for ref in waiting}
        if not waiting:
            return {}
        held = (place for core, run in runs for place in claims.held(core.state, run))
        busy = Counter(place.worker for place in held)
        kept = {}
        for ref, able in waiting.items():
            wait, taken = self._waits[ref], {each.worker for each in self._waits.values()}
            by_name = {worker.name: worker for worker in able}
            if now - wait.since >= PATIENCE_S and wait.worker not in by_name:
                left = (name for name in by_name if name not in taken)
                wait.worker = min(left, key=busy.__getitem__, default="")
            if wait.worker in by_name:
                kept[ref] = frozenset(claims.places_at(by_name[wait.worker]))
        return kept

    def _rest(self, runs: Iterable[tuple[Core, Run]], now: float) -> None:
        """Keep account of a run that is alone, and gets all that it wants."""
        still = ((core.state, run) for core, run in runs if run.is_open)
        self._arbiter.see(now, [claims.resting(state, run, weigh=self._weigh) for state, run in still])

    def _see(self, runs: list[tuple[Core, Run]], now: float, fault: _OnFault) -> list[Claim]:
        def claim(core: Core, run: Run) -> Claim:
            return claims.claim(core.state, run, core.fit_of(run), now, weigh=self._weigh)

        self._arbiter.see(now, self._guarded(runs, fault, claim))
        return self._arbiter.order()

    def _guarded(
        self, runs: list[tuple[Core, Run]], fault: _OnFault, ask: Callable[[Core, Run], _T]
    ) -> list[_T]:
        """What is so of each run that is still open; who has a fault is left out."""
        found = []
        for core, run in runs:
            if not run.is_open or core.state.name in self._left_out:
                continue
            try:
                found.append(ask(core, run))
            except Exception as error:
                if fault is None:
                    raise
                self.leave_out(core.state.name)
                fault(core, error)
        return found


def _told(claim: Claim, run: Run) -> api.AttendedRun:
    beside = {place.worker for place in claim.holds if place.device == NO_DEVICE}
    return api.AttendedRun(
        experiment=claim.ref.experiment,
        run=claim.ref.run,
        priority=run.priority,
        project=run.project,
        devices=sum(place.device != NO_DEVICE for place in claim.holds),
        beside=len(beside),
        is_hungry=claim.is_hungry,
    )


def _alone(core: Core, run: Run) -> tuple[RunRef, list[Worker]]:
    """The workers that could take a task of the run that must be alone and waits; none if there is no such task."""
    fit = core.fit_of(run) if run.exhausted else None
    able = next(memory_retries.waiting(core.state, run, fit), [])
    return RunRef(core.state.name, run.id), able


def _ending(core: Core, run: Run, now: float) -> set[Place]:
    return claims.ending(core.state, run, core.fit_of(run), now)


def _places(
    runs: Iterable[tuple[Core, Run]], taken: frozenset[Place]
) -> tuple[frozenset[Place], frozenset[Place]]:
    """(all places, those without a task)."""
    every: set[Place] = set()
    full = set(taken)
    for core, run in runs:
        every |= claims.places_of(core.state)
        full |= claims.held(core.state, run)
    return frozenset(every), frozenset(every - full)
