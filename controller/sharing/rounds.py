"""One round of decisions: which open run decides next, and which device slots it may fill. No I/O.

Live and simulated controllers drive it alike: call each yielded core, and write its steps before requesting
the next one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple, ParamSpec, TypeVar

from cerebro.contract.records import QUEUE_DEPTH
from cerebro.contract.rest import api
from cerebro.state import ExperimentState, Run, RunState, TaskState, Worker
from cerebro.state.workers import NO_DEVICE
from controller.decisions.core import Core
from controller.decisions.fit_dispatch import FitDispatch
from controller.exclusions import memory_retries
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.sharing import claims
from controller.sharing.arbiter import Arbiter, Claim, DeviceSlot, RunRef

_P = ParamSpec("_P")
_T = TypeVar("_T")


_NO_ATTENDED = api.Attended()


class RunOffer(NamedTuple):
    """A run that may decide now.

    Attributes:
        excluded_slots: slots it may not fill.
        depth: maximum number of open tasks of a slot.
        is_alone: True if no other run is open.
        preempted: a device that it should release for another run, if any.
    """

    core: Core
    run: Run
    excluded_slots: frozenset[DeviceSlot] = frozenset()
    depth: int = QUEUE_DEPTH
    is_alone: bool = False
    preempted: DeviceSlot | None = None

    def on(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Return the snapshot for its decision."""
        return replace(
            snapshot, excluded_slots=self.excluded_slots, depth=self.depth, preempted=self.preempted
        )


PATIENCE_S = 60.0
"""Seconds that a task for a whole worker or several devices waits for them to become free by chance.

After that they are reserved for the task, which takes no longer than their current tasks.
"""


@dataclass(kw_only=True)
class _Wait:
    """A run with a task that needs more than one slot: its waiting time and reserved slots."""

    since: float
    worker: str = ""
    size: int = 0
    slots: frozenset[DeviceSlot] = frozenset()


class Sharing:
    """Gives open runs their turns by the arbiter. Owned by a loop; not thread-safe."""

    def __init__(self) -> None:
        self._arbiter = Arbiter()
        self._skipped: set[str] = set()
        self._waits: dict[RunRef, _Wait] = {}
        self._rested: tuple[ExperimentState, int, str, Claim] | None = None
        """State, event number and run of the newest idle claim, and the claim."""

    def attended(
        self,
        attended: Mapping[str, Iterable[str]],
        runs: Mapping[RunRef, Run],
        devices: int,
        waiting: tuple[api.QueueEntry, ...] = (),
        previous: api.Attended = _NO_ATTENDED,
    ) -> api.Attended:
        """Return the attended runs as clients see them, the next to be served first.

        Args:
            attended: attended runs by experiment.
            runs: attended runs with a loaded log.
            devices: number of devices for training.
            waiting: runs that wait for another one of their experiment, as known from loaded logs.
            previous: the last result, of this or an earlier controller. It remains for runs without a loaded
                log.
        """
        refs = [RunRef(name, run) for name, names in attended.items() for run in names]
        found = {}
        for claim in self._arbiter.order():
            if claim.ref in refs and claim.ref in runs:
                found[claim.ref] = _attended_run(claim, runs[claim.ref], self._arbiter.kept_s(claim))
        known = {RunRef(each.experiment, each.run): each for each in previous.runs}
        for ref in refs:
            if ref not in found:
                found[ref] = known.get(ref) or api.AttendedRun(experiment=ref.experiment, run=ref.run)
        return api.Attended(runs=tuple(found.values()), devices=devices or previous.devices, waiting=waiting)

    def skip(self, experiment: str) -> None:
        """Skip all runs of the experiment for the rest of this round."""
        self._skipped.add(experiment)

    def round(
        self,
        cores: Mapping[str, Core],
        snapshot: ClusterSnapshot,
        *,
        taken: frozenset[DeviceSlot] = frozenset(),
        has_others: bool = False,
    ) -> Iterator[RunOffer]:
        """Offer slots to each open run in the arbiter's order, and again if other runs left slots free.

        Args:
            snapshot: the present workers and time.
            taken: slots that no run may use.
            has_others: True if other runs are open.

        Raises:
            CoreFaultError: a core failed to describe its runs. This ends the round, because the free slots are
                unknown.
        """
        self._skipped.clear()
        now = snapshot.now
        runs = [(core, run) for core in cores.values() for run in _guard(core, core.open_runs)]
        if len(runs) < 2 and not has_others and not taken:
            self._waits.clear()
            self._observe_idle(runs, now)
            yield from (RunOffer(core, run, is_alone=True) for core, run in runs)
            self._observe_idle(runs, now)
            return
        view = _RoundView(runs, now, self._skipped)
        self._arbiter.observe(now, view.claims())
        named = {RunRef(core.state.name, run.id): (core, run) for core, run in runs}
        previous = {ref: frozenset(run.tasks.open) for ref, (_, run) in named.items()}
        every = view.slots()
        reserved = self._reserve(view, now)
        unoffered = frozenset[DeviceSlot]().union(*reserved.values())
        for turn in self._arbiter.turns(every - taken - view.held() - unoffered):
            if turn.slots and turn.ref.experiment not in self._skipped:
                yield RunOffer(*named[turn.ref], every - turn.slots, depth=1)
        self._arbiter.observe(now, view.claims())
        for claim in self._arbiter.order():
            # Slots still free are open to all runs: their first run could not use them.
            free = every - taken - view.held()
            reserved_slots = reserved.get(claim.ref, frozenset[DeviceSlot]())
            offered = (free - unoffered) | (
                reserved_slots if reserved_slots <= free else frozenset[DeviceSlot]()
            )
            if claim.ref.experiment not in self._skipped:
                yield RunOffer(*named[claim.ref], every - offered, depth=1)
        # Queue only now: a task that could run at once elsewhere would be revoked. Skip runs that have just
        # revoked a task, because an idle device gets it in the next round.
        self._arbiter.observe(now, view.claims())
        have_revoked = {ref for ref, (_, run) in named.items() if _has_revoked(run, previous[ref])}
        ending = [_guard(core, _ending, core, run, now) for core, run in view.still()]
        followed = {slot for slots in ending for slot in slots} - unoffered - taken
        for turn in self._arbiter.turns((), followed):
            if turn.ref.experiment in self._skipped or turn.ref in have_revoked:
                continue
            core, run = named[turn.ref]
            # Add full slots with a replaceable queued sub-epoch: this costs no other run its turn.
            offered = turn.slots | _guard(core, claims.giving_way, core.state, run, core.fit_of(run))
            if offered:
                yield RunOffer(core, run, every - offered)
        self._arbiter.observe(now, view.claims())
        if not has_others:
            yield from self._preempt(view, snapshot, every, unoffered)

    def _preempt(
        self,
        view: _RoundView,
        snapshot: ClusterSnapshot,
        every: frozenset[DeviceSlot],
        reserved: frozenset[DeviceSlot],
    ) -> Iterator[RunOffer]:
        """Let a run release a device that a waiting run would use at once. One request at a time."""
        runs = {RunRef(core.state.name, run.id): (core, run) for core, run in view.still()}
        if any(_is_releasing(run) for _, run in runs.values()):
            return

        def releasable(ref: RunRef) -> dict[DeviceSlot, float]:
            core, run = runs[ref]
            found = _guard(core, claims.releasable, core.state, run, core.fit_of(run), snapshot.now)
            return {slot: seconds for slot, seconds in found.items() if slot not in reserved}

        for each in self._arbiter.preemptions(releasable):
            core, run = runs[each.waiting]
            offer = RunOffer(core, run, every.difference(each.slots), depth=1)
            steps = _guard(core, core.decide, offer.on(snapshot), run)
            assigned = [step for step in steps if isinstance(step, api.Assign)]
            starts = {DeviceSlot(step.worker, device) for step in assigned for device in step.devices}
            preempted = next((slot for slot in each.slots if slot in starts), None)
            if preempted is not None:
                yield RunOffer(*runs[each.holder], every, depth=1, preempted=preempted)
                return

    def _reserve(self, view: _RoundView, now: float) -> dict[RunRef, frozenset[DeviceSlot]]:
        """Reserve slots for each run that has waited too long for a whole worker or several devices.

        Other runs use these slots alternately, so they would never be free together.
        """
        found = (_guard(core, _needing, core, run, now) for core, run in view.still())
        waiting = {ref: (able, size) for ref, able, size in found if able}
        self._waits = {ref: self._waits.get(ref, _Wait(since=now)) for ref in waiting}
        if not waiting:
            return {}
        held = view.held()
        busy = Counter(slot.worker for slot in held)
        reserved = {}
        for ref, (able, size) in waiting.items():
            wait, taken = self._waits[ref], {each.worker for each in self._waits.values()}
            by_name = {worker.name: worker for worker in able}
            is_found = wait.worker in by_name and wait.size == size
            if now - wait.since >= PATIENCE_S and not is_found:
                unreserved_workers = (name for name in by_name if name not in taken)
                wait.worker, wait.size = min(unreserved_workers, key=busy.__getitem__, default=""), size
                if wait.worker:
                    slots = sorted(claims.worker_slots(by_name[wait.worker]), key=lambda slot: slot in held)
                    devices = [slot for slot in slots if slot.device != NO_DEVICE]
                    wait.slots = frozenset(devices[:size] if size else slots)
            if wait.worker in by_name:
                reserved[ref] = wait.slots
        return reserved

    def _observe_idle(self, runs: Iterable[tuple[Core, Run]], now: float) -> None:
        """Update the account of a run that is alone and gets all it wants."""
        still = ((core, run) for core, run in runs if run.is_open)
        self._arbiter.observe(now, [_guard(core, self._idle_claim, core, run) for core, run in still])

    def _idle_claim(self, core: Core, run: Run) -> Claim:
        state, known = core.state, self._rested
        if known is not None and known[0] is state and known[1:3] == (state.seq, run.id):
            return known[3]
        claim = claims.idle_claim(state, run)
        self._rested = state, state.seq, run.id, claim
        return claim


class CoreFaultError(Exception):
    """A core raised an unexpected error, the cause of this one.

    Attributes:
        core: the core that failed.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(f"the core of {core.state.name} has a fault")
        self.core = core


class _RoundView:
    """Claims and slots of one round, recomputed only after a log has grown.

    Args:
        skipped: experiments that are skipped. They keep their slots.
    """

    def __init__(self, runs: Sequence[tuple[Core, Run]], now: float, skipped: Set[str]) -> None:
        self._runs, self._now, self._skipped = runs, now, skipped
        self._claims: dict[RunRef, tuple[int, Claim]] = {}

    def still(self) -> Iterator[tuple[Core, Run]]:
        """Return the runs that are still open and not skipped."""
        return (
            (core, run) for core, run in self._runs if run.is_open and core.state.name not in self._skipped
        )

    def claims(self) -> list[Claim]:
        """Return the claims of these runs."""
        return [self._claim(core, run) for core, run in self.still()]

    def slots(self) -> frozenset[DeviceSlot]:
        """Return all slots of the workers."""
        cores = {core.state.name: core for core, _ in self._runs}
        found = (_guard(core, claims.all_slots, core.state) for core in cores.values())
        return frozenset[DeviceSlot]().union(*found)

    def held(self) -> frozenset[DeviceSlot]:
        """Return the slots with tasks of any run."""
        self.claims()
        is_open = {RunRef(core.state.name, run.id): run.is_open for core, run in self._runs}
        return frozenset[DeviceSlot]().union(
            *(c.holds for ref, (_, c) in self._claims.items() if is_open[ref])
        )

    def _claim(self, core: Core, run: Run) -> Claim:
        ref, seq = RunRef(core.state.name, run.id), core.state.seq
        known = self._claims.get(ref)
        if known is None or known[0] != seq:
            known = self._claims[ref] = seq, _guard(core, self._new_claim, core, run)
        return known[1]

    def _new_claim(self, core: Core, run: Run) -> Claim:
        return claims.claim(core.state, run, core.fit_of(run), self._now)


def _guard(core: Core, function: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
    try:
        return function(*args, **named)
    except Exception as error:
        raise CoreFaultError(core) from error


_KEPT_S = 5.0
"""Round the remaining hold time up to 5 s so pages can be cached."""


def _attended_run(claim: Claim, run: Run, kept_s: float) -> api.AttendedRun:
    workers_without_device = {slot.worker for slot in claim.holds if slot.device == NO_DEVICE}
    return api.AttendedRun(
        experiment=claim.ref.experiment,
        run=claim.ref.run,
        priority=run.priority,
        project=run.project,
        devices=sum(slot.device != NO_DEVICE for slot in claim.holds),
        without_device=len(workers_without_device),
        could_use_more=claim.could_use_more,
        kept_s=_KEPT_S * math.ceil(kept_s / _KEPT_S) if claim.could_use_more else 0.0,
    )


def _needing(core: Core, run: Run, now: float) -> tuple[RunRef, list[Worker], int]:
    """Return workers for the run's task that waits for more than one slot, and its devices.

    0 devices means that the task must run alone. Without a waiting task, or if the run gets nothing, the result
    has no workers.
    """
    ref, fit = RunRef(core.state.name, run.id), core.fit_of(run)
    if run.state is not RunState.RUNNING:
        return ref, [], 0
    waiting = memory_retries.waiting(core.state, run, fit, now, core.views)
    if able := next((able for _, able in waiting if able), []):
        return ref, able, 0
    if (
        fit is None
        or fit.parallel_plans.is_plain
        or any(len(task.attempts[-1].devices) > 1 for task in run.tasks.open.values())
    ):
        return (
            ref,
            [],
            0,
        )  # at most one sub-epoch of several devices waits at a time
    return (ref, *next((found for found in _wide(core.state, fit) if found[0]), ([], 0)))


def _wide(state: ExperimentState, fit: FitDispatch) -> Iterator[tuple[list[Worker], int]]:
    """Yield workers and size for each idle model that needs several devices."""
    dispatch_state = fit.dispatch_state
    for name in fit.parallel_plans.choosing:
        model = fit.names.model(name)
        size, remaining_mask = fit.parallel_plans.size(model), dispatch_state.open[model]
        if size > 1 and remaining_mask and model not in dispatch_state.running:
            held = dispatch_state.holders.held
            yield (
                [
                    w
                    for w in state.workers.values()
                    if w.is_alive
                    and w.trains
                    and w.devices >= size
                    and held[fit.names.worker(w.name)] & remaining_mask
                    and fit.parallel_plans.of(model, fit.names.worker(w.name)) is not None
                ],
                size,
            )


def _is_releasing(run: Run) -> bool:
    """True if a worker was asked to release a task of the run and has not answered yet."""
    return any(task.attempts[-1].release_requested_at is not None for task in run.tasks.open.values())


def _has_revoked(run: Run, previous: Set[str]) -> bool:
    """True if an open task became pending again. A task that was committed during the round does not count."""
    return any(run.find(key).state is TaskState.PENDING for key in previous - run.tasks.open.keys())


def _ending(core: Core, run: Run, now: float) -> set[DeviceSlot]:
    return claims.ending(core.state, run, core.fit_of(run), now)
