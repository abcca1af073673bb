"""Exact solvers on the thesis's scenarios, on sub-linear speed-up, and on published open-shop instances.

Times are CPU seconds of this process, which searches on one core, so other work on the machine does not count.

Taillard's instances (Benchmarks for basic scheduling problems, EJOR 64, 1993), square ones up to 10 x 10, come from his
generator and printed seeds; seven of Guéret's and Prins's 80 very hard ones (Ann. Oper. Res. 92, 1999) are copied here.
The known optima come with the literature.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from benchmarks.figure import Figure
from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.exact import ExactResult, SolverUnavailableError, solve_exact
from cerebro.scheduling.planning.planner import plan
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule
from cerebro.scheduling.validator import validate
from research.problems import open_shop
from research.scenarios import SUBLINEAR, thesis

LIMIT_S = 60.0
FIGURES = ("4.1", "4.2", "4.3")

Times = list[list[int]]

# (time seed, machine seed) -> optimum
_TAILLARD: dict[int, dict[tuple[int, int], int]] = {
    4: {
        (1166510396, 164000672): 193,
        (1624514147, 1076870026): 236,
        (1116611914, 1729673136): 271,
        (410579806, 1453014524): 250,
        (1036100146, 375655500): 295,
        (597897640, 322140729): 189,
        (1268670769, 556009645): 201,
        (307928077, 421384574): 217,
        (667545295, 485515899): 261,
        (35780816, 492238933): 217,
    },
    5: {
        (527556884, 1343124817): 300,
        (1046824493, 1973406531): 262,
        (1165033492, 86711717): 323,
        (476292817, 24463110): 310,
        (1181363416, 606981348): 326,
        (897739730, 513119113): 312,
        (577107303, 2046387124): 303,
        (1714191910, 1928475945): 300,
        (1813128617, 2091141708): 353,
        (808919936, 183753764): 326,
    },
    7: {
        (1840686215, 1827454623): 435,
        (1026771938, 1312166461): 443,
        (609471574, 670843185): 468,
        (1022295947, 398226875): 463,
        (1513073047, 1250759651): 416,
        (1612211197, 95606345): 451,
        (435024109, 1118234860): 422,
        (1760865440, 1099909092): 424,
        (122574075, 10979313): 458,
        (248031774, 1685251301): 398,
    },
    10: {
        (1344106948, 1868311537): 637,
        (425990073, 1111853152): 588,
        (666128954, 1750328066): 598,
        (442723456, 1369177184): 577,
        (2033800800, 1344077538): 640,
        (964467313, 1735817385): 538,
        (1004528509, 967002400): 616,
        (1667495107, 818777384): 595,
        (1806968543, 1561913259): 595,
        (938376228, 344628625): 596,
    },
}

_GUERET_PRINS: dict[str, tuple[int, Times]] = {
    "GP03-01": (1168, [[661, 168, 171], [6, 489, 505], [333, 343, 324]]),
    "GP03-02": (1170, [[497, 170, 333], [7, 659, 334], [496, 171, 333]]),
    "GP04-01": (1281, [[638, 3, 42, 317], [7, 638, 69, 286], [4, 1, 605, 390], [351, 358, 284, 7]]),
    "GP04-02": (1270, [[707, 1, 279, 13], [2, 41, 324, 633], [290, 283, 80, 347], [1, 675, 317, 7]]),
    "GP05-01": (
        1245,
        [
            [289, 26, 35, 649, 1],
            [1, 316, 366, 254, 63],
            [392, 1, 570, 34, 3],
            [21, 1, 1, 45, 932],
            [297, 656, 28, 18, 1],
        ],
    ),
    "GP06-01": (
        1264,
        [
            [19, 301, 1, 24, 10, 645],
            [1, 30, 320, 433, 199, 17],
            [12, 318, 9, 1, 659, 1],
            [17, 329, 642, 1, 1, 10],
            [301, 12, 27, 204, 130, 326],
            [650, 10, 1, 337, 1, 1],
        ],
    ),
    "GP10-01": (
        1093,
        [
            [69, 458, 1, 142, 15, 2, 98, 45, 169, 1],
            [175, 1, 464, 1, 1, 14, 232, 1, 1, 110],
            [3, 66, 120, 290, 3, 15, 60, 435, 1, 7],
            [1, 7, 35, 1, 2, 365, 1, 4, 318, 266],
            [1, 117, 1, 172, 28, 41, 438, 28, 173, 1],
            [18, 1, 26, 13, 195, 1, 1, 412, 4, 329],
            [367, 1, 2, 378, 134, 54, 1, 2, 1, 60],
            [364, 22, 9, 1, 13, 1, 161, 47, 328, 54],
            [1, 2, 277, 1, 9, 506, 7, 25, 1, 171],
            [1, 325, 65, 1, 600, 1, 1, 1, 4, 1],
        ],
    ),
}


def benchmark() -> list[Figure]:
    """Measure the thesis's scenarios, sub-linear speed-up and published instances."""
    _timed(taillard(4, 1166510396, 164000672))  # imports the solver, outside the measurement
    return [_thesis(), _sublinear(), _published()]


def published() -> Iterator[tuple[str, int, Problem]]:
    """Yield (name, optimum, problem) of each published instance."""
    for size, seeds in _TAILLARD.items():
        for number, ((time_seed, machine_seed), optimum) in enumerate(seeds.items(), start=1):
            yield f"tai{size:02}-{number:02}", optimum, taillard(size, time_seed, machine_seed)
    for name, (optimum, times) in _GUERET_PRINS.items():
        yield name, optimum, open_shop(times)


def taillard(size: int, time_seed: int, machine_seed: int) -> Problem:
    """Return one of Taillard's instances: times from 1 to 99, assigned to machines in a shuffled order for each job."""
    drawn = _numbers(time_seed)
    times = [[next(drawn)(1, 99) for _ in range(size)] for _ in range(size)]
    drawn = _numbers(machine_seed)
    dealt = [[0] * size for _ in range(size)]
    for job, row in enumerate(times):
        machines = list(range(size))
        for place in range(size):
            other = next(drawn)(place, size - 1)
            machines[place], machines[other] = machines[other], machines[place]
        for machine, seconds in zip(machines, row, strict=True):
            dealt[job][machine] = seconds
    return open_shop(dealt)


def _numbers(seed: int) -> Iterator[Callable[[int, int], int]]:
    """Yield generators of uniform integers in a range.

    Linear congruential generator of Bratley, Fox and Schrage, as in Taillard's paper.
    """
    modulus = 2**31 - 1
    while True:
        seed = 16807 * seed % modulus
        yield lambda low, high, at=seed / modulus: low + int(at * (high - low + 1))  # type: ignore[misc]


def _timed(
    problem: Problem, *, solver: str = "auto", hint: Schedule | None = None
) -> tuple[ExactResult, float]:
    """Return a solver's checked result and its CPU seconds."""
    began = time.process_time()
    result = solve_exact(problem, time_limit_s=LIMIT_S, solver=solver, hint=hint)
    seconds = time.process_time() - began
    if result.schedule is None:
        raise RuntimeError(f"nothing to measure: {result.note}")
    validate(problem, result.schedule).check()
    return result, seconds


def _thesis() -> Figure:
    slowest, lines, notes = 0.0, [], []
    for figure in FIGURES:
        result, seconds = _timed(thesis(figure))
        lines.append(f"{figure}: {result.lower_bound:.0f} s in {seconds:.2f} s")
        slowest = max(slowest, seconds if result.is_optimal else float("inf"))
    if find_spec("gurobipy"):
        notes.append(f"Gurobi, compact form: {', '.join(map(_by_gurobi, FIGURES))}.")
    return Figure(
        what="the thesis's three scenarios, linear speed-up: proven optimal",
        measured="; ".join(lines),
        ratio=slowest,
        bar=2.0,
        sense="at most",
        measure="s",
        notes=tuple(notes),
    )


def _by_gurobi(figure: str) -> str:
    try:
        result, seconds = _timed(thesis(figure), solver="gurobi")
    except SolverUnavailableError as error:
        return str(error)
    return f"{figure} {'proven optimal' if result.is_optimal else 'not proven'} in {seconds:.2f} s"


def _sublinear() -> Figure:
    problem = thesis("4.3", SUBLINEAR)
    planned = plan(problem, time_limit_s=2.0)
    result, seconds = _timed(problem, hint=planned.schedule)
    makespan = result.schedule.makespan if result.schedule else float("inf")
    return Figure(
        what="10 tasks on [4,2,2], 1.8x on 2 GPUs and 3.2x on 4, in 60 s: makespan over best bound",
        measured=f"{makespan:.0f} s, bound {result.lower_bound:.0f} s, {seconds:.0f} s of one core",
        ratio=makespan / result.lower_bound,
        bar=1.03,
        sense="at most",
        notes=(
            f"The planner's {planned.schedule.makespan:.0f} s in 2 s is the hint.",
            f"The loads alone would bound it by {lower_bound(problem):.0f} s.",
        ),
    )


def _published() -> Figure:
    slowest, unproven, wrong, count = (0.0, ""), [], [], 0
    for name, optimum, problem in published():
        result, seconds = _timed(problem)
        count += 1
        slowest = max(slowest, (seconds, name))
        if not result.is_optimal:
            unproven.append(name)
        elif result.lower_bound != optimum:
            wrong.append(f"{name}: {result.lower_bound:.0f}, not {optimum}")
    return Figure(
        what="published open-shop instances up to 10 x 10: proven optimal, the slowest",
        measured=f"{count - len(unproven)} of {count}, slowest {slowest[1]}",
        ratio=float("inf") if unproven else slowest[0],
        bar=LIMIT_S,
        sense="at most",
        measure="s",
        notes=(
            f"Not proven: {', '.join(unproven)}." if unproven else "All are proven.",
            f"Against the literature: {'; '.join(wrong)}."
            if wrong
            else "All makespans are the literature's.",
        ),
    )
