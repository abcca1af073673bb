"""Time-shared GPUs: Hermes as published, its rivals, and better policies.

As published, a job stays on one GPU (Hermes, algorithms 1 and 2) and can be preempted after any iteration (section
3.4). Each reading of an open point in the paper has a name here; docs/hermes.md lists them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from cerebro.scheduling.convergence import Rule, hermes, promising, slaq
from research.hermes.jobs import GPUS, NETWORKS, START_S, Job, Workload

_HERMES_S, _OTHERS_S = 10.0, 30.0
"""Quanta of Hermes, and of round robin and SLAQ (section 4.1.2)."""
_MILESTONES, _FACTOR = (0.25, 0.5, 0.75), 1.5
"""Decreases of the loss that make Hermes's quantum grow (section 3.3), and the factor, which the paper does not print.
"""
_FIRST_LOSSES, _SHORTEST_S, _GROWTH = 12, 3.0, 1.25
"""Of `promising`: observed losses in a job's first quantum, minimum quantum, and growth of the next quantum."""

Quantum = Callable[[Job], float]
"""Job -> seconds of its quantum."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Rule for the next job on a GPU, and the length of its quantum.

    Attributes:
        about: description in one line.
        worth: value of each job; the largest goes first. Among equals the running job goes first, then the earlier one.
        quantum: see `Quantum`.
        is_global: True if any GPU takes any job; otherwise each job stays on one GPU.
        is_literal: True if the job that ran is not in the queue of Hermes's algorithm 3.
        preempts: True if a job is saved and restored when another one takes its GPU.
    """

    about: str
    worth: Callable[[Sequence[Job]], list[float]]
    quantum: Quantum
    is_global: bool = False
    is_literal: bool = False
    preempts: bool = True


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a simulation.

    Attributes:
        to_goal_s: mean seconds until a good job reached its goal.
        makespan_s: seconds until all jobs ended.
        switches: number of times a GPU took another job.
    """

    to_goal_s: float
    makespan_s: float
    switches: int


def share(jobs: Sequence[Job], policy: Policy, network: str, work: Workload) -> Outcome:
    """Run all jobs to completion. Changes the jobs."""
    return _Sharing(jobs, policy, network, work).run()


class _Sharing:
    def __init__(self, jobs: Sequence[Job], policy: Policy, network: str, work: Workload) -> None:
        self._jobs, self._policy, self._work = jobs, policy, work
        self._switch_s = NETWORKS[network].switch_s * work.switch
        self._free = [0.0] * GPUS
        """Time when each GPU is next free."""
        self._on: list[int | None] = [None] * GPUS
        self._at: dict[int, int] = {}
        """Job -> its last GPU."""
        self._reached = dict.fromkeys(range(len(jobs)), math.inf)
        self._switches = 0
        self._end = 0.0

    def run(self) -> Outcome:
        while self._free[gpu := min(range(GPUS), key=self._free.__getitem__)] < math.inf:
            self._serve(gpu)
        good = [self._reached[n] for n, job in enumerate(self._jobs) if job.is_good]
        return Outcome(to_goal_s=fmean(good), makespan_s=self._end, switches=self._switches)

    def _serve(self, gpu: int) -> None:
        last, self._on[gpu] = self._on[gpu], None
        able = self._able(gpu)
        if not able:
            # Another GPU may release a job: try again when the next one does.
            ends = [self._free[g] for g, job in enumerate(self._on) if job is not None]
            self._free[gpu] = min(ends) + 1e-6 if ends and self._policy.is_global else math.inf
            return
        if self._policy.is_literal and last in able and len(able) > 1:
            able.remove(last)
        worth = self._policy.worth(self._jobs)
        chosen = max(able, key=lambda number: (worth[number], number == last))
        job, now = self._jobs[chosen], self._free[gpu]
        cost_s = self._cost(chosen, gpu, last)
        seconds, before = min(self._policy.quantum(job), job.left_s), job.done
        job.train(seconds)
        if math.isinf(self._reached[chosen]) and job.done >= min(job.goal, job.total):
            self._reached[chosen] = now + cost_s + max(0.0, job.goal - before) / job.rate
        self._on[gpu], self._at[chosen] = chosen, gpu
        self._free[gpu] = now + cost_s + seconds
        self._end = max(self._end, self._free[gpu])

    def _able(self, gpu: int) -> list[int]:
        """Return jobs that the GPU could take. Unless the policy is global, jobs go to the GPUs in turn."""
        return [
            number
            for number, job in enumerate(self._jobs)
            if not job.is_done and number not in self._on and (self._policy.is_global or number % GPUS == gpu)
        ]

    def _cost(self, chosen: int, gpu: int, last: int | None) -> float:
        is_new = not self._jobs[chosen].progress.quanta
        if chosen == last and not is_new:
            return 0.0
        self._switches += 1
        if not self._policy.preempts:
            return 0.0
        if is_new:
            return START_S
        return self._switch_s + (self._work.migrate_s if self._at[chosen] != gpu else 0.0)


# --- policies -----------------------------------------------------------------------------------


def _by(rule: Rule) -> Callable[[Sequence[Job]], list[float]]:
    return lambda jobs: rule([job.progress for job in jobs])


def _first(jobs: Sequence[Job]) -> list[float]:
    return [-float(number) for number in range(len(jobs))]


def _fewest_quanta(jobs: Sequence[Job]) -> list[float]:
    return [-float(len(job.progress.quanta)) for job in jobs]


def _highest_loss(jobs: Sequence[Job]) -> list[float]:
    """Return each job's last loss: SLAQ as Hermes's section 4.1.3 describes it."""
    return [job.progress.quanta[-1].midrange if job.progress.quanta else math.inf for job in jobs]


def _always(seconds: float) -> Quantum:
    return lambda job: seconds


def _at_milestones(job: Job) -> float:
    quanta = job.progress.quanta
    decrease = 1 - quanta[-1].midrange / quanta[0].midrange if quanta else 0.0
    return float(_HERMES_S * _FACTOR ** sum(decrease >= milestone for milestone in _MILESTONES))


def _growing(job: Job) -> float:
    look_s = _FIRST_LOSSES * job.every / job.rate + 0.01
    return float(max(_SHORTEST_S, look_s) * _GROWTH ** len(job.progress.quanta))


POLICIES: Mapping[str, Policy] = {
    "fifo": Policy(
        about="first in, first out, each to its end",
        worth=_first,
        quantum=_always(math.inf),
        is_global=True,
        preempts=False,
    ),
    "rr": Policy(about="round robin", worth=_fewest_quanta, quantum=_always(_OTHERS_S)),
    "slaq-described": Policy(
        about="SLAQ as Hermes's paper describes it: the highest loss",
        worth=_highest_loss,
        quantum=_always(_OTHERS_S),
    ),
    "slaq": Policy(about="SLAQ as its own paper has it", worth=_by(slaq), quantum=_always(_OTHERS_S)),
    "hermes-literal": Policy(
        about="Hermes to the letter: the job that ran is not compared",
        worth=_by(hermes),
        quantum=_at_milestones,
        is_literal=True,
    ),
    "hermes": Policy(
        about="Hermes as printed, the job that ran is compared, too",
        worth=_by(hermes),
        quantum=_at_milestones,
    ),
    "hermes-global": Policy(
        about="the same with one queue for all GPUs",
        worth=_by(hermes),
        quantum=_at_milestones,
        is_global=True,
    ),
    "promising-bound": Policy(
        about="promising, each job bound to a GPU", worth=_by(promising), quantum=_growing
    ),
    "promising": Policy(
        about="who is expected to be good soonest, one queue for all GPUs",
        worth=_by(promising),
        quantum=_growing,
        is_global=True,
    ),
}
"""Policies by name."""
