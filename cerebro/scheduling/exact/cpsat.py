"""OR-Tools' CP-SAT, the free default. Supports replicas, epochs, ready times, GPUs and parallel plans.

Every sub-epoch has a start and, with a choice, an optional interval for each option. A model's intervals do
not overlap (invariant: isolation). A worker's intervals share a cumulative resource of its GPUs, or do not
overlap if no two fit side by side (invariant: exclusive GPUs). By construction, sub-epochs start on all their
GPUs together and are not interrupted. Redundant constraints on sums and counts help CP-SAT find proofs.

The only module that uses OR-Tools, imported on first use. Do not load HiGHS's Python package in the same
process: their symbols clash.
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

from cerebro.scheduling.exact.required_sub_epochs import RequiredSubEpoch, canonical, starts, twins
from cerebro.scheduling.exact.result import TOLERANCE
from cerebro.scheduling.exact.ticks import Ticks
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    Taken = cp_model.IntVar | int

_MAX_SIDE_BY_SIDE = 4
"""Maximum count of equally long sub-epochs in sequence on one GPU in the counting constraints."""
_MAX_COUNTED = 200
"""Number of uses of a worker above which counting costs more than it proves."""
_POLL_S = 0.02


class _Use(NamedTuple):
    """One option of a sub-epoch that uses a worker."""

    sub_epoch: RequiredSubEpoch
    option: Placement
    ticks: int
    taken: Taken


class Programme:
    """Constraint programme of a problem. Initially it only chooses options; `add_times` adds the times.

    Attributes:
        known: order of the best known schedule, with twins renamed.
        horizon: its makespan in ticks, the upper limit of the search.
    """

    def __init__(
        self,
        problem: Problem,
        wanted: Sequence[RequiredSubEpoch],
        ticks: Ticks,
        known: list[Placement],
        bound: float,
    ) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.wanted, self.ticks = problem, wanted, ticks
        self.cp = cp_model.CpModel()
        self.model_ready = [ticks.of(ready) for ready in problem.model_ready]
        self.gpu_ready = [[ticks.of(ready) for ready in gpus] for gpus in problem.gpu_ready]
        self.known = canonical(problem, known, self.starts_of(known))
        self.horizon = max(
            start + ticks.length(item.seconds)
            for item, start in zip(self.known, self.starts_of(self.known), strict=True)
        )
        self.makespan = self.cp.new_int_var(min(self.horizon, ticks.at_least(bound)), self.horizon, "C")
        self.start: dict[RequiredSubEpoch, cp_model.IntVar] = {}
        self.uses = {sub_epoch: self._uses(sub_epoch) for sub_epoch in wanted}
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

    def starts_of(self, order: list[Placement]) -> list[int]:
        """Return the start of each sub-epoch of an order, in ticks."""
        lengths = [self.ticks.length(item.seconds) for item in order]
        return starts(order, lengths, self.model_ready, self.gpu_ready)

    # --- options ---------------------------------------------------------------------------------

    def _uses(self, sub_epoch: RequiredSubEpoch) -> list[_Use]:
        """Add the constraint that one option is taken (equation 4.2 of the thesis)."""
        taken: list[Taken] = [1]
        if len(sub_epoch.options) > 1:
            variables = [self.cp.new_bool_var("") for _ in sub_epoch.options]
            self.cp.add_exactly_one(variables)
            taken = [*variables]
        return [
            _Use(sub_epoch, option, self.ticks.length(option.seconds), is_taken)
            for option, is_taken in zip(sub_epoch.options, taken, strict=True)
        ]

    def _add_loads(self) -> None:
        """Bound C by the load of each model and each worker.

        A worker's load is in GPU-seconds, and also in sub-epochs that need more than half of its GPUs and so
        exclude each other (exactly half counts half).
        """
        of_model: dict[int, list[_Use]] = defaultdict(list)
        for sub_epoch, uses in self.uses.items():
            of_model[sub_epoch.model] += uses
        for m, uses in of_model.items():
            self.cp.add(sum(use.ticks * use.taken for use in uses) + self.model_ready[m] <= self.makespan)
        for worker, uses in self.of_worker.items():
            gpus = self.problem.gpus[worker]
            halves = [(2 * use.option.gpus > gpus) + (2 * use.option.gpus >= gpus) for use in uses]
            # If other holders may do all its work, C need not wait for this worker.
            first, *later = self.gpu_ready[worker] if self._is_needed(worker) else [0] * gpus
            # C need not wait for a GPU that is ready later than C.
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
        """Limit the number of long sub-epochs on a GPU by the makespan.

        If C has no room for k + 1 sub-epochs of some length in sequence, a GPU runs at most k of them. This
        accounts for GPUs that stay partly unused, beyond GPU-seconds.
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

    # --- times -----------------------------------------------------------------------------------

    def add_times(self) -> None:
        """Add starts and the constraints against overlaps."""
        of_model: dict[int, list[RequiredSubEpoch]] = defaultdict(list)
        of_worker: dict[int, list[Any]] = defaultdict(list)
        intervals = {sub_epoch: self._interval(sub_epoch, of_worker) for sub_epoch in self.wanted}
        for sub_epoch in self.wanted:
            of_model[sub_epoch.model].append(sub_epoch)
        for mine in of_model.values():
            self.cp.add_no_overlap([intervals[sub_epoch] for sub_epoch in mine])
            self._add_epochs(mine, intervals)
        for worker, used in of_worker.items():
            gpus = [use.option.gpus for use in self.of_worker[worker]]
            if 2 * min(gpus) > self.problem.gpus[worker]:
                self.cp.add_no_overlap(used)
            else:
                occupied = [ready for ready in self.gpu_ready[worker] if ready]
                used += [self.cp.new_fixed_size_interval_var(0, ready, "") for ready in occupied]
                self.cp.add_cumulative(used, [*gpus, *[1] * len(occupied)], self.problem.gpus[worker])
        # Models that differ only in name are interchangeable: order their first sub-epochs by number.
        first = {m: mine[0] for m, mine in of_model.items()}
        for same in twins(self.problem):
            for one, other in pairwise(first[m] for m in same if m in first):
                self.cp.add(self.start[one] <= self.start[other])

    def _interval(self, sub_epoch: RequiredSubEpoch, of_worker: dict[int, list[Any]]) -> Any:
        """Return the sub-epoch's interval for any option; record the options' intervals by worker."""
        uses = self.uses[sub_epoch]
        earliest = max(self.model_ready[sub_epoch.model], min(map(self._ready, uses)))
        start = self.start[sub_epoch] = self.cp.new_int_var(earliest, self.horizon, "")
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
        """Return when enough GPUs for the option are ready."""
        return self.gpu_ready[use.option.worker][use.option.gpus - 1]

    def _add_epochs(self, mine: list[RequiredSubEpoch], intervals: dict[RequiredSubEpoch, Any]) -> None:
        """Order a model's epochs."""
        epochs: dict[int, list[RequiredSubEpoch]] = defaultdict(list)
        for sub_epoch in mine:
            epochs[sub_epoch.epoch].append(sub_epoch)
        for earlier_sub_epochs, later_sub_epochs in pairwise(epochs.values()):
            turn = self.cp.new_int_var(0, self.horizon, "")
            for sub_epoch in earlier_sub_epochs:
                self.cp.add(intervals[sub_epoch].end_expr() <= turn)
            for sub_epoch in later_sub_epochs:
                self.cp.add(self.start[sub_epoch] >= turn)

    # --- the search ------------------------------------------------------------------------------

    def add_target(self) -> None:
        """Accept only schedules better than the best known one."""
        self.cp.add(self.makespan <= self.horizon - 1)

    def add_hint(self) -> None:
        """Start the search from the best known schedule."""
        by_name = {sub_epoch[:3]: sub_epoch for sub_epoch in self.wanted}
        for known, begin in zip(self.known, self.starts_of(self.known), strict=True):
            sub_epoch = by_name[known.model, known.partition, known.epoch]
            self.cp.add_hint(self.start[sub_epoch], begin)
            for use in self.uses[sub_epoch]:
                if not isinstance(use.taken, int):
                    self.cp.add_hint(use.taken, use.option == known)
        self.cp.add_hint(self.makespan, self.horizon)

    def solve(
        self, seconds: float, *, takes_turns: bool, clock: Callable[[], float] = time.perf_counter
    ) -> tuple[list[Placement], float]:
        """Search; return the best order and a bound in ticks.

        The order is [] if nothing was found or the programme has no times.

        Args:
            seconds: time limit by `clock`.
            takes_turns: True to alternate all of CP-SAT's strategies instead of one.
        """
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        if clock is time.perf_counter:
            solver.parameters.max_time_in_seconds = seconds
        # With times, the linear relaxation adds nothing to the load bounds and costs time.
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
        order = sorted(self.wanted, key=lambda sub_epoch: solver.value(self.start[sub_epoch]))
        taken = {
            sub_epoch: next(u.option for u in uses if solver.value(u.taken))
            for sub_epoch, uses in self.uses.items()
        }
        return [taken[sub_epoch] for sub_epoch in order], solver.best_objective_bound


@contextmanager
def _stopped(solver: cp_model.CpSolver, seconds: float, clock: Callable[[], float]) -> Iterator[None]:
    """Stop the search after `seconds` of a clock CP-SAT does not support, to within `_POLL_S`."""
    until, is_over = clock() + seconds, threading.Event()

    def watch() -> None:
        while not is_over.wait(_POLL_S):
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
    """Return whether OR-Tools can be imported. False if TensorFlow is loaded: solving would crash."""
    if "tensorflow" in sys.modules and "ortools" not in sys.modules:
        return False
    try:
        import ortools.sat.python.cp_model  # noqa: F401
    except ImportError:
        return False
    return True
