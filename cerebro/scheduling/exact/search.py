"""Sequence of CP-SAT runs, and the best schedule and bound. Independent of OR-Tools itself.

The first run chooses options without times: it is small, and gives a bound. Then cold and hinted starts
alternate, because each wins on different problems (a cold one only knows the makespan to beat). One thread,
because the machine is training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.exact.cpsat import Programme, is_installed
from cerebro.scheduling.exact.required_sub_epochs import RequiredSubEpoch, placed, required_sub_epochs, timed
from cerebro.scheduling.exact.result import TOLERANCE, ExactResult, SolverUnavailableError
from cerebro.scheduling.exact.ticks import Ticks
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement, Schedule

MAX_SUB_EPOCHS = 10_000
"""Maximum number of sub-epochs; building larger models exceeds usual time limits."""
_CHOICE_SHARE = 0.1
"""Share of the time limit for options without times."""
_STARTS = ((False, True, 0.15), (False, False, 0.5), (True, False, 1.0))
"""Runs in sequence: is hinted, alternates strategies, share of the remaining time.

CP-SAT's strategies alternate only if there is a choice of options: together they prove easy cases, one alone
packs better.
"""


def solve(
    problem: Problem,
    *,
    time_limit_s: float,
    hint: Schedule | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> ExactResult:
    """Search for the best schedule with CP-SAT.

    Args:
        time_limit_s: time limit of the searches, without building the models.
        hint: a valid schedule to start from.
        clock: monotonic seconds; `time.process_time` excludes other work on the machine.

    Raises:
        SolverUnavailableError: OR-Tools is not installed.
    """
    began = clock()
    search = _Search.of(problem, hint, clock)
    note = search.run(time_limit_s)
    return ExactResult(
        schedule=search.best,
        lower_bound=min(search.bound, search.best.makespan),
        is_optimal=search.is_proven(),
        solver="cp-sat",
        seconds=clock() - began,
        note=note,
    )


@dataclass
class _Search:
    """The best schedule and the best bound, improved by each run."""

    problem: Problem
    wanted: tuple[RequiredSubEpoch, ...]
    ticks: Ticks
    best: Schedule
    bound: float
    clock: Callable[[], float]

    @classmethod
    def of(cls, problem: Problem, hint: Schedule | None, clock: Callable[[], float]) -> _Search:
        wanted = required_sub_epochs(problem)
        best = timed(problem, placed(hint, wanted) if hint else _cyclic(problem, wanted))
        times = [option.seconds for sub_epoch in wanted for option in sub_epoch.options]
        ready = [at for gpus in problem.gpu_ready for at in gpus]
        ticks = Ticks.fitting([*times, *problem.model_ready, *ready], best.makespan or 1.0)
        return cls(problem, wanted, ticks, best, lower_bound(problem) if wanted else 0.0, clock)

    def is_proven(self) -> bool:
        """Return whether the best schedule is optimal.

        To the last tick if ticks are exact, else to `TOLERANCE`.
        """
        tolerance = 1e-9 if self.ticks.is_exact else TOLERANCE
        return self.best.makespan - self.bound <= tolerance * self.best.makespan

    def run(self, time_limit_s: float) -> str:
        """Search; return a note."""
        if self.is_proven():
            return "a first schedule meets the lower bound: nothing to search"
        if len(self.wanted) > MAX_SUB_EPOCHS:
            return (
                f"{len(self.wanted)} sub-epochs are too many for CP-SAT (at most {MAX_SUB_EPOCHS}): kept the first "
                f"schedule"
            )
        if not is_installed():
            raise SolverUnavailableError("CP-SAT needs OR-Tools, which is not installed: pip install ortools")
        until = self.clock() + time_limit_s
        if any(len(sub_epoch.options) > 1 for sub_epoch in self.wanted):
            programme = self.programme()
            self.raise_bound(
                programme.solve(_CHOICE_SHARE * time_limit_s, takes_turns=False, clock=self.clock)[1]
            )
        for is_hinted, takes_turns, share in _STARTS:
            seconds = share * (until - self.clock())
            if seconds > 0 and not self.is_proven():
                self.attempt(seconds, is_hinted=is_hinted, takes_turns=takes_turns)
        rounding = "" if self.ticks.is_exact else f", times cut to {1 / self.ticks.per_second:.2g} s"
        if self.is_proven():
            return f"searched to the end{rounding}"
        return f"stopped after {time_limit_s:g} s with the best schedule found{rounding}"

    def attempt(self, seconds: float, *, is_hinted: bool, takes_turns: bool) -> None:
        """Run the solver once on the whole problem."""
        programme = self.programme()
        programme.add_times()
        if is_hinted:
            programme.add_hint()
        else:
            programme.add_target()
        found, bound = programme.solve(seconds, takes_turns=takes_turns, clock=self.clock)
        self.raise_bound(bound)
        if found:
            self.best = min(self.best, timed(self.problem, found), key=lambda schedule: schedule.makespan)

    def programme(self) -> Programme:
        return Programme(self.problem, self.wanted, self.ticks, placed(self.best, self.wanted), self.bound)

    def raise_bound(self, ticks: float) -> None:
        shortest = (min(option.seconds for option in sub_epoch.options) for sub_epoch in self.wanted)
        self.bound = max(self.bound, self.ticks.bound(ticks, shortest))


def _cyclic(problem: Problem, wanted: Sequence[RequiredSubEpoch]) -> list[Placement]:
    """Return an initial order: models start at different partitions in rotation, with their fastest option."""
    width = problem.num_partitions
    order = sorted(wanted, key=lambda v: (v.epoch, (v.partition - v.model) % width, v.model))
    return [min(sub_epoch.options, key=lambda option: option.seconds) for sub_epoch in order]
