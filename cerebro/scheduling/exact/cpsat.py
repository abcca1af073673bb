"""OR-Tools' CP-SAT: the free default. Takes every problem: replicas, epochs, ready times, GPUs, strategies.

Every visit has a start and, if there is a choice, an optional interval for each option. A model's intervals do not
overlap (invariant: isolation); a worker's fill a cumulative of its GPUs, or do not overlap where no two could run side
by side (invariant: exclusive GPUs). Sub-epochs start on all their GPUs together and are not interrupted, by
construction. What no schedule can do is said as well, since CP-SAT finds proofs of sums and counts only where it is
told to look.

The only module that knows OR-Tools, imported when it is used. It must not meet HiGHS's Python package in one process:
their symbols clash.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from cerebro.scheduling.exact.result import TOLERANCE
from cerebro.scheduling.exact.ticks import Ticks
from cerebro.scheduling.exact.visits import Option, Placed, RequiredVisit, canonical, starts, twins
from cerebro.scheduling.problem import Problem

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    Taken = cp_model.IntVar | int

_MAX_SIDE_BY_SIDE = 4
"""How many sub-epochs of some length on one GPU, one after the other, are counted."""
_MAX_COUNTED = 200
"""Ways to use a worker; with more, counting costs more than it proves."""
_LOOK_S = 0.02


class _Use(NamedTuple):
    """A way in which a visit may use a worker."""

    visit: RequiredVisit
    option: Option
    ticks: int
    taken: Taken


class Programme:
    """The constraint programme of a problem. At first it says only which options are taken, and how much that is;
    `add_times` says when.

    Attributes:
        known: the order of the best schedule so far, twins renamed.
        horizon: its makespan in ticks: none longer is looked for.
    """

    def __init__(
        self,
        problem: Problem,
        wanted: Sequence[RequiredVisit],
        ticks: Ticks,
        known: list[Placed],
        bound: float,
    ) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.wanted, self.ticks = problem, wanted, ticks
        self.cp = cp_model.CpModel()
        self.model_ready = [ticks.of(ready) for ready in problem.model_ready]
        self.gpu_ready = [[ticks.of(ready) for ready in gpus] for gpus in problem.gpu_ready]
        self.known = canonical(problem, known, self.starts_of(known))
        self.horizon = max(
            start + ticks.length(item.option.seconds)
            for item, start in zip(self.known, self.starts_of(self.known), strict=True)
        )
        self.makespan = self.cp.new_int_var(min(self.horizon, ticks.at_least(bound)), self.horizon, "C")
        self.start: dict[RequiredVisit, cp_model.IntVar] = {}
        self.uses = {visit: self._uses(visit) for visit in wanted}
        self.has_choice = any(len(uses) > 1 for uses in self.uses.values())
        self.of_worker: dict[int, list[_Use]] = defaultdict(list)
        for uses in self.uses.values():
            for use in uses:
                self.of_worker[use.option.worker].append(use)
        self._add_loads()
        for worker, uses in self.of_worker.items():
            if self.has_choice and len(uses) <= _MAX_COUNTED:
                self._add_counts(worker, uses)
        self.cp.minimize(self.makespan)

    def starts_of(self, order: list[Placed]) -> list[int]:
        """When the sub-epochs of an order start, in ticks."""
        lengths = [self.ticks.length(item.option.seconds) for item in order]
        return starts(order, lengths, self.model_ready, self.gpu_ready)

    # --- which options ---------------------------------------------------------------------------

    def _uses(self, visit: RequiredVisit) -> list[_Use]:
        """One of the options is taken (equation 4.2 of the thesis)."""
        taken: list[Taken] = [1]
        if len(visit.options) > 1:
            variables = [self.cp.new_bool_var("") for _ in visit.options]
            self.cp.add_exactly_one(variables)
            taken = [*variables]
        return [
            _Use(visit, option, self.ticks.length(option.seconds), is_taken)
            for option, is_taken in zip(visit.options, taken, strict=True)
        ]

    def _add_loads(self) -> None:
        """C is at least what a model has to do; and what a worker has, in GPU-seconds, and in sub-epochs that need more
        than half of its GPUs, of which only one can run at a time (those that need half count half)."""
        of_model: dict[int, list[_Use]] = defaultdict(list)
        for visit, uses in self.uses.items():
            of_model[visit.model] += uses
        for m, uses in of_model.items():
            self.cp.add(sum(use.ticks * use.taken for use in uses) + self.model_ready[m] <= self.makespan)
        for worker, uses in self.of_worker.items():
            gpus = self.problem.gpus[worker]
            halves = [(2 * use.option.gpus > gpus) + (2 * use.option.gpus >= gpus) for use in uses]
            # Where other holders may do it all, C need not wait for this worker.
            first, *later = self.gpu_ready[worker] if self._is_needed(worker) else [0] * gpus
            # Nor for a GPU that is ready later than C.
            least = max(first, self.makespan.proto.domain[0])
            absent = first + sum(min(ready, least) for ready in later)
            for capacity, not_there, weights in (
                (gpus, absent, [use.option.gpus for use in uses]),
                (2, 2 * first, halves),
            ):
                load = sum(w * use.ticks * use.taken for w, use in zip(weights, uses, strict=True))
                self.cp.add(load + not_there <= capacity * self.makespan)

    def _is_needed(self, worker: int) -> bool:
        return any(all(use.option.worker == worker for use in uses) for uses in self.uses.values())

    def _add_counts(self, worker: int, uses: list[_Use]) -> None:
        """If C has no room for k + 1 sub-epochs of some length one after the other, a GPU runs at most k that are as
        long.

        It is this that makes sub-epochs take more GPUs than their GPU-seconds would suggest.
        """
        gpus, ready = self.problem.gpus[worker], self.gpu_ready[worker][0]
        least = self.makespan.proto.domain[0]
        for length in sorted({use.ticks for use in uses}):
            for k in range(1, _MAX_SIDE_BY_SIDE + 1):
                needed = (k + 1) * length + ready
                long = [use for use in uses if use.ticks >= length]
                if needed <= least or sum(use.option.gpus for use in long) <= k * gpus:
                    continue
                few = self.cp.add(sum(use.option.gpus * use.taken for use in long) <= k * gpus)
                if needed <= self.horizon:
                    is_long_enough = self.cp.new_bool_var("")
                    self.cp.add(self.makespan >= needed).only_enforce_if(is_long_enough)
                    few.only_enforce_if(~is_long_enough)

    # --- when ------------------------------------------------------------------------------------

    def add_times(self) -> None:
        """Starts, and who must not overlap whom."""
        of_model: dict[int, list[RequiredVisit]] = defaultdict(list)
        of_worker: dict[int, list[Any]] = defaultdict(list)
        intervals = {visit: self._interval(visit, of_worker) for visit in self.wanted}
        for visit in self.wanted:
            of_model[visit.model].append(visit)
        for mine in of_model.values():
            self.cp.add_no_overlap([intervals[visit] for visit in mine])
            self._add_epochs(mine, intervals)
        for worker, used in of_worker.items():
            gpus = [use.option.gpus for use in self.of_worker[worker]]
            if 2 * min(gpus) > self.problem.gpus[worker]:
                self.cp.add_no_overlap(used)
            else:
                occupied = [ready for ready in self.gpu_ready[worker] if ready]
                used += [self.cp.new_fixed_size_interval_var(0, ready, "") for ready in occupied]
                self.cp.add_cumulative(used, [*gpus, *[1] * len(occupied)], self.problem.gpus[worker])
        # The first visits of models of which only the names differ have any order: let it be that of their numbers.
        first = {m: mine[0] for m, mine in of_model.items()}
        for same in twins(self.problem):
            for one, other in pairwise(first[m] for m in same if m in first):
                self.cp.add(self.start[one] <= self.start[other])

    def _interval(self, visit: RequiredVisit, of_worker: dict[int, list[Any]]) -> Any:
        """The visit's interval, whichever option is taken; those of its options are noted by worker."""
        uses = self.uses[visit]
        earliest = max(self.model_ready[visit.model], min(map(self._ready, uses)))
        start = self.start[visit] = self.cp.new_int_var(earliest, self.horizon, "")
        if len(uses) == 1:
            interval = self.cp.new_fixed_size_interval_var(start, uses[0].ticks, "")
            of_worker[uses[0].option.worker].append(interval)
            self.cp.add(start + uses[0].ticks <= self.makespan)
            return interval
        for use in uses:
            worker = use.option.worker
            of_worker[worker].append(
                self.cp.new_optional_fixed_size_interval_var(start, use.ticks, use.taken, "")
            )
            if self._ready(use) > earliest:
                self.cp.add(start >= self._ready(use)).only_enforce_if(use.taken)
        size = self.cp.new_int_var(min(use.ticks for use in uses), max(use.ticks for use in uses), "")
        self.cp.add(size == sum(use.ticks * use.taken for use in uses))
        end = self.cp.new_int_var(earliest, self.horizon, "")
        self.cp.add(end <= self.makespan)
        return self.cp.new_interval_var(start, size, end, "")

    def _ready(self, use: _Use) -> int:
        """When as many GPUs as it takes are ready."""
        return self.gpu_ready[use.option.worker][use.option.gpus - 1]

    def _add_epochs(self, mine: list[RequiredVisit], intervals: dict[RequiredVisit, Any]) -> None:
        """A model's epochs follow each other."""
        epochs: dict[int, list[RequiredVisit]] = defaultdict(list)
        for visit in mine:
            epochs[visit.epoch].append(visit)
        for before, after in pairwise(epochs.values()):
            turn = self.cp.new_int_var(0, self.horizon, "")
            for visit in before:
                self.cp.add(intervals[visit].end_expr() <= turn)
            for visit in after:
                self.cp.add(self.start[visit] >= turn)

    # --- the search ------------------------------------------------------------------------------

    def add_target(self) -> None:
        """Only what is better than the best schedule so far counts."""
        self.cp.add(self.makespan <= self.horizon - 1)

    def add_hint(self) -> None:
        """The search starts from the best schedule so far."""
        for (visit, option), begin in zip(self.known, self.starts_of(self.known), strict=True):
            self.cp.add_hint(self.start[visit], begin)
            for use in self.uses[visit]:
                if not isinstance(use.taken, int):
                    self.cp.add_hint(use.taken, use.option is option)
        self.cp.add_hint(self.makespan, self.horizon)

    def solve(
        self, seconds: float, *, takes_turns: bool, clock: Callable[[], float] = time.perf_counter
    ) -> tuple[list[Placed], float]:
        """Searches; returns the best order found (empty if none, or if no times were asked for) and a bound in ticks.

        Args:
            seconds: by `clock`.
            takes_turns: whether all of CP-SAT's strategies are tried, instead of one.
        """
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        if clock is time.perf_counter:
            solver.parameters.max_time_in_seconds = seconds
        # Where times are at stake the linear relaxation knows no more than the loads do, and costs time.
        solver.parameters.linearization_level = 0 if self.start else 2
        solver.parameters.interleave_search = takes_turns and self.has_choice
        solver.parameters.use_timetable_edge_finding_in_cumulative = True
        solver.parameters.use_overload_checker_in_cumulative = True
        solver.parameters.use_strong_propagation_in_disjunctive = self.has_choice
        if not self.ticks.is_exact:
            solver.parameters.relative_gap_limit = TOLERANCE / 100
        with nullcontext() if clock is time.perf_counter else _stopped(solver, seconds, clock):
            status = solver.solve(self.cp)
        if status == cp_model.INFEASIBLE:
            return [], self.horizon
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or not self.start:
            return [], solver.best_objective_bound
        order = sorted(self.wanted, key=lambda visit: solver.value(self.start[visit]))
        taken = {
            visit: next(u.option for u in uses if solver.value(u.taken)) for visit, uses in self.uses.items()
        }
        return [Placed(visit, taken[visit]) for visit in order], solver.best_objective_bound


@contextmanager
def _stopped(solver: cp_model.CpSolver, seconds: float, clock: Callable[[], float]) -> Iterator[None]:
    """Ends the search after so many seconds of a clock that CP-SAT does not have, give or take `_LOOK_S`."""
    until, is_over = clock() + seconds, threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_S):
            if clock() >= until:
                solver.stop_search()

    watcher = threading.Thread(target=watch, name="cp-sat clock", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def is_installed() -> bool:
    """Whether OR-Tools can be imported. Not into a process that has TensorFlow: it would crash when it solves."""
    if "tensorflow" in sys.modules and "ortools" not in sys.modules:
        return False
    try:
        import ortools.sat.python.cp_model  # noqa: F401
    except ImportError:
        return False
    return True
