"""Simulation of a policy on a problem in virtual time: a discrete-event engine over `DispatchState`.

The planner process compares a plan with dispatch by it, the autoscaler forecasts with it, and research studies
policies. The controller's real decisions do not use it (`controller.decisions`). Like the controller, it decides again
at every event, and the policy sees only the dispatch state. A sub-epoch lost with its worker reopens at once
(seed paper, section 5.6); lost attempts do not appear in the schedule.
"""

from __future__ import annotations

import heapq
import math
import random

from cerebro.errors import InstanceError
from cerebro.scheduling.conditions import Conditions, Reality
from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.policies.critical_first import CriticalFirst
from cerebro.scheduling.policies.policy import Policy
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement, Schedule

CALM = Conditions()
"""Conditions without noise or absences: sub-epochs take their estimated time."""

_SIMULTANEOUS = 1e-9
"""Relative tolerance within which events are simultaneous.

Otherwise rounding of sums would let one worker choose before another with an equal end time.
"""

# Order of simultaneous events: a sub-epoch that ends just as its worker leaves has ended.
_END, _GO, _COME, _MODEL_READY, _GPU_READY = range(5)

_NOWHERE = -1


def dispatch(problem: Problem, policy: Policy, *, seed: int = 0, conditions: Conditions = CALM) -> Schedule:
    """Return the schedule that a policy produces.

    Args:
        problem: must have at most one parallel plan for each model and worker (`Problem.with_parallel_plans`).
        policy: see `Policy`. If it waits while nothing runs, critical first decides instead.
        seed: seed of the policy's generator and of the real durations.
        conditions: noise, slow workers and absences.

    Returns:
        Every sub-epoch once, with its real start and end.

    Raises:
        InstanceError: a sub-epoch can never run, because its workers never return.
    """
    return _Run(problem, policy, seed, conditions).schedule()


class _Run:
    def __init__(self, problem: Problem, policy: Policy, seed: int, conditions: Conditions) -> None:
        self._problem = problem
        self._policy = policy
        self._reality = Reality(problem, conditions, seed)
        self._rng = random.Random(f"choices {seed}")
        self._state = DispatchState(conditions.estimated(problem))
        self._replicas = list(self._state.holders.held)
        self._sub_epochs_due = [self._count(partition) for partition in range(problem.num_partitions)]
        self._wanted = problem.all_partitions
        self._due: dict[int, float] = {}
        self._events: list[tuple[float, int, int]] = []
        self._sub_epochs: list[Placement] = []
        self._fallback = CriticalFirst()
        self._expect()

    def _count(self, partition: int) -> int:
        first = sum(mask >> partition & 1 for mask in self._problem.remaining_partitions)
        return first + (self._problem.epochs - 1) * self._problem.num_models

    def _expect(self) -> None:
        """Queue the events that do not depend on decisions."""
        for worker, absences in enumerate(self._reality.absences):
            for start, end in absences:
                self._events.append((start, _GO, worker))
                if end < math.inf:
                    self._events.append((end, _COME, worker))
        for worker, ready in enumerate(self._problem.gpu_ready):
            occupied = [seconds for seconds in ready if seconds]
            self._state.free[worker] -= len(occupied)
            self._events += [(seconds, _GPU_READY, worker) for seconds in occupied]
        for model, seconds in enumerate(self._problem.model_ready):
            if seconds:
                self._events.append((seconds, _MODEL_READY, model))
                self._state.running[model] = Placement(_NOWHERE, model, _NOWHERE, start=seconds)
        heapq.heapify(self._events)

    def schedule(self) -> Schedule:
        total, now = self._problem.num_sub_epochs, 0.0
        self._happen(until=0.0)
        while True:
            self._decide(now)
            if len(self._sub_epochs) == total:
                return Schedule.of(self._sub_epochs)
            if not self._events:
                raise InstanceError(self._stuck())
            now = self._events[0][0]
            now = self._happen(until=now + _SIMULTANEOUS * max(1.0, now))

    # --- events -----------------------------------------------------------------------------------

    def _happen(self, until: float) -> float:
        """Process all events up to `until`.

        Returns the time of the newest event, so that no sub-epoch starts before the event it waited for.
        """
        now, events = 0.0, self._events
        while events and events[0][0] <= until:
            now, kind, subject = heapq.heappop(events)
            if kind == _END:
                self._end(subject, now)
            elif kind == _GO:
                self._go(subject, now)
            elif kind == _COME:
                self._state.set_held(subject, self._replicas[subject])
            elif kind == _MODEL_READY:
                del self._state.running[subject]
            else:
                self._state.free[subject] += 1
        return now

    def _end(self, model: int, now: float) -> None:
        if self._due.get(model) != now:
            return  # of a lost attempt
        del self._due[model]
        state = self._state
        placement = state.running[model]
        technique = self._problem.parallel_plans[model][placement.worker][0].technique
        self._sub_epochs.append(placement._replace(end=now, technique=technique))
        state.finish(model, now)
        self._sub_epochs_due[placement.partition] -= 1
        if not self._sub_epochs_due[placement.partition]:
            self._wanted &= ~(1 << placement.partition)

    def _go(self, worker: int, now: float) -> None:
        state = self._state
        state.now = now
        for model in [model for model, running in state.running.items() if running.worker == worker]:
            del self._due[model]
            state.release(model)
        state.set_held(worker, 0)

    # --- decisions -------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        state, free = self._state, self._state.free
        # Skip workers without remaining work: an unsuccessful search costs the policy as much as a successful
        # one.
        idle = [w for w, gpus in enumerate(free) if gpus and state.holders.held[w] & self._wanted]
        state.now = now
        while idle:
            choice = self._policy.choose(state, idle, self._rng)
            if choice is None and not self._due:
                choice = self._fallback.choose(state, idle, self._rng)
            if choice is None:
                return
            self._start(choice, now)
            if not free[choice.worker]:
                idle.remove(choice.worker)

    def _start(self, choice: Placement, now: float) -> None:
        worker, model, partition, *_ = choice
        self._state.start(choice, now)
        work = self._reality.work(model, partition, worker, self._state.epoch[model])
        self._due[model] = end = self._reality.end(worker, now, work)
        heapq.heappush(self._events, (end, _END, model))

    def _stuck(self) -> str:
        state, problem = self._state, self._problem
        model, mask = next((model, mask) for model, mask in enumerate(state.open) if mask)
        partition = (mask & -mask).bit_length() - 1
        held = ", ".join(problem.workers[w] for w in problem.places(model, partition))
        return (
            f"the run can never end: model {problem.models[model]!r} has yet to train on partition {partition}, but "
            f"none of the workers that could run it ({held}) comes back; let one come back, or let another one "
            "hold the partition too"
        )
