"""Online dispatch under noise: makespan of critical first divided by the clairvoyant bound.

Sub-epoch times vary log-normally around their estimates, and become known only when a sub-epoch ends. The bound uses
the real durations: no schedule beats the largest row or column sum, even with full knowledge. The grid is n / p in 2,
4, 8, p in 8, 16, heterogeneous (the paper's networks and cards, section 5.4) and near-equal times, sigma in 0.1, 0.2,
0.3, and 5 seeds of each.

A second grid has a worker that is away for a fifth of the time. The bound counts its absence only as lost capacity: the
policy pays for repeating the lost attempt, which only advance knowledge of the outage could avoid. On average this is
half of one of the worker's 16 sub-epochs at n = 2p, p = 8, so the notes report the loss.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.figure import Figure
from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.conditions import Conditions, Outage, Reality
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule
from cerebro.scheduling.validator import validate
from research.scenarios import narrow, paper

CALM_BAR, OUTAGE_BAR = 1.015, 1.03
SEEDS = 5
RATIOS, WORKERS, SIGMAS = (2, 4, 8), (8, 16), (0.1, 0.2, 0.3)
KINDS: dict[str, Callable[[int, int, int], Problem]] = {"heterogeneous": paper, "near-equal": narrow}
DOWN = 0.2
"""Share of the time that the absent worker is away."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run: its place in the grid, makespan divided by the bound, and share of lost attempts."""

    kind: str
    per_worker: int
    workers: int
    sigma: float
    ratio: float
    lost: float


def trials(policy: str, *, is_down: bool) -> Iterator[Trial]:
    """Yield the whole grid.

    Args:
        policy: name of the policy.
        is_down: True for an absence of a random worker at a random time, for a fifth of the time.
    """
    for kind, make in KINDS.items():
        for per_worker in RATIOS:
            for workers in WORKERS:
                for sigma in SIGMAS:
                    for seed in range(SEEDS):
                        problem = make(per_worker * workers, workers, seed)
                        outages = (_outage(problem, seed),) if is_down else ()
                        conditions = Conditions(sigma=sigma, outages=outages)
                        bound = Reality(problem, conditions, seed).bound()
                        schedule = dispatch(problem, POLICIES[policy], seed=seed, conditions=conditions)
                        validate(problem, schedule, actual=True).check()
                        yield Trial(
                            kind=kind,
                            per_worker=per_worker,
                            workers=workers,
                            sigma=sigma,
                            ratio=schedule.makespan / bound,
                            lost=sum(_lost(schedule, outage) for outage in outages) / bound,
                        )


def benchmark() -> list[Figure]:
    """Measure the grid without and with outages."""
    began = time.process_time()
    calm = list(trials("lrptw", is_down=False))
    used = f"{time.process_time() - began:.1f} s of CPU for all runs of critical first, bounds and validation included"
    down = list(trials("lrptw", is_down=True))
    lost = statistics.fmean(trial.lost for trial in down)
    return [
        _figure(
            "online, n >= 2p, sigma 0.1 to 0.3: mean makespan over the clairvoyant bound",
            calm,
            bar=CALM_BAR,
            notes=(_against_random(is_down=False), used),
        ),
        _figure(
            "online, the same with a worker down for a fifth of the time",
            down,
            bar=OUTAGE_BAR,
            notes=(
                f"attempts lost with the worker: {lost:.4f} of the bound on average",
                _against_random(is_down=True),
            ),
        ),
    ]


def _figure(what: str, found: list[Trial], *, bar: float, notes: tuple[str, ...]) -> Figure:
    ratios = [trial.ratio for trial in found]
    return Figure(
        what=what,
        measured=f"{statistics.fmean(ratios):.4f}, at most {max(ratios):.3f}, in {len(ratios)} runs",
        ratio=statistics.fmean(ratios),
        bar=bar,
        sense="at most",
        notes=(_worst(found), *notes),
    )


def _worst(found: list[Trial]) -> str:
    """Describe the worst cell of the grid: its mean over the seeds and its worst run."""
    cells: dict[tuple[str, int, int, float], list[float]] = {}
    for trial in found:
        cells.setdefault((trial.kind, trial.per_worker, trial.workers, trial.sigma), []).append(trial.ratio)
    (kind, per_worker, workers, sigma), ratios = max(
        cells.items(), key=lambda cell: statistics.fmean(cell[1])
    )
    return (
        f"worst cell: mean {statistics.fmean(ratios):.3f}, max {max(ratios):.3f} ({kind}, {per_worker * workers} "
        f"models on {workers} workers, sigma {sigma})"
    )


def _against_random(*, is_down: bool) -> str:
    mean = statistics.fmean(trial.ratio for trial in trials("random", is_down=is_down))
    return f"the paper's random order, on the same durations: mean {mean:.4f}"


def _outage(problem: Problem, seed: int) -> Outage:
    rng = random.Random(f"outage {seed}")
    bound = lower_bound(problem)
    return Outage(
        worker=rng.randrange(problem.num_workers),
        start=rng.uniform(0.0, 1.0 - DOWN) * bound,
        seconds=DOWN * bound,
    )


def _lost(schedule: Schedule, outage: Outage) -> float:
    """Return the seconds of the lost attempt: the worker's time before its absence without a sub-epoch."""
    sub_epochs = [each for each in schedule.sub_epochs if outage.worker in (w for _, w in each.places)]
    if sub_epochs[-1].end <= outage.start:
        return 0.0  # it had finished and was idle
    return outage.start - max(
        (sub_epoch.end for sub_epoch in sub_epochs if sub_epoch.end <= outage.start), default=0.0
    )
