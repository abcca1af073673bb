"""Named problems for comparing schedulers: the thesis's, the paper's, and further ones.

A seed alone determines each problem, so a name and a number identify an instance. Times are whole seconds, because
exact solvers need a tolerance to prove anything about fractions. Numbers that a source does not print are assumed, and
marked here. This module contains problems and conditions, not solvers or output.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cerebro.errors import InstanceError
from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.conditions import Conditions, Join, Outage, Straggler
from cerebro.scheduling.problem import Problem
from research.assumed import CLUSTERS, WORKLOADS, saturn
from research.problems import multi_gpu, open_shop

LINEAR: Mapping[int, float] = {1: 1.0, 2: 2.0, 4: 4.0}
"""GPUs -> speed-up. The thesis assumes this (section 4.4)."""
SUBLINEAR: Mapping[int, float] = {1: 1.0, 2: 1.8, 4: 3.2}
"""GPUs -> speed-up with communication between GPUs."""

# Seconds of a model on one shard and one GPU. Section 4.4 does not print them, but makespans that follow from them:
# random order and the MILP leave hardly any idle time in figures 4.2 and 4.3, so these times sum up to 5252 s and to
# 8956 s; in figures 4.1 and 4.2 the slowest model, shard after shard, decides for one model per GPU: 15926 s / 16 and
# 7780 s / 8. Assumed is only that the others are spread evenly below it; 4.3, then, has the slowest model of 4.1.
_THESIS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "4.1": ((797, 837, 876, 916, 955, 995), (2,) * 8),
    "4.2": ((779, 817, 856, 895, 933, 972), (4, 2, 2)),
    "4.3": ((797, 818, 840, 862, 884, 907, 929, 951, 973, 995), (4, 2, 2)),
}

# The 35 convolutional networks of github.com/albanie/convnet-burden, which must be reference [2] of the paper, in
# millions of operations for an image: their mean, 5942, and deviation, 5670, are those of section 5.4.
_NETWORKS = (
    *(360, 579, 724, 727, 727, 837, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 3000, 3000, 3000, 4000, 4000),
    *(
        4000,
        4000,
        4000,
        4000,
        6000,
        8000,
        8000,
        8000,
        8000,
        8000,
        11000,
        11000,
        16000,
        16000,
        16000,
        20000,
        21000,
    ),
)
_CARDS = (12.1, 5.6, 11.3, 18.7)
"""Titan Xp, K80, GTX 1080 and P100, in 10^12 operations per second (paper, section 5.4)."""

_SHARE = 0.2
"""Share of the makespan for which a worker is down, slow or late."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A named problem, optionally with failures.

    Attributes:
        name: name for the command line.
        about: description in one line.
        problem: seed -> the problem.
        conditions: problem -> its failures, if any.
        rivals: the same task in the restricted form of other schedulers, by their names.
    """

    name: str
    about: str
    problem: Callable[[int], Problem]
    conditions: Callable[[Problem], Conditions] | None = None
    rivals: Mapping[str, Callable[[int], Problem]] = field(default_factory=dict)


def find(name: str) -> Scenario:
    """Return the scenario with a name.

    Raises:
        InstanceError: the name is unknown.
    """
    if name not in SCENARIOS:
        raise InstanceError(f"there is no scenario {name!r}: `python -m research simulate --list` shows them")
    return SCENARIOS[name]


# --- the thesis's -------------------------------------------------------------------------------


def thesis(figure: str, speed_up: Mapping[int, float] = LINEAR) -> Problem:
    """Figure 4.1, 4.2 or 4.3 of the thesis: each model visits each node, on one or more of its GPUs.

    A node's data is proportional to its GPUs, so by equation 4.15 a sub-epoch takes the model's time times the node's
    GPUs, divided by the speed-up.
    """
    models, nodes = _THESIS[figure]
    return multi_gpu(
        nodes,
        {
            f"m{number}": {
                node: {
                    gpus: float(round(seconds * size / speed_up[gpus])) for gpus in speed_up if gpus <= size
                }
                for node, size in enumerate(nodes)
            }
            for number, seconds in enumerate(models)
        },
    )


def thesis_full_nodes(figure: str, speed_up: Mapping[int, float] = LINEAR) -> Problem:
    """The same for the thesis's "Random Scheduler", with all GPUs of a node for each model."""
    problem = thesis(figure, speed_up)
    return problem.with_parallel_plans(
        [[len(parallel_plans) - 1 for parallel_plans in row] for row in problem.parallel_plans]
    )


def thesis_per_gpu(figure: str) -> Problem:
    """The same for its "Multi-GPU MOP", with a model and a shard per GPU and no nodes."""
    models, nodes = _THESIS[figure]
    return open_shop([[float(seconds)] * sum(nodes) for seconds in models])


# --- the paper's --------------------------------------------------------------------------------


def paper(models: int, workers: int, seed: int = 0, *, heterogeneous: bool = True) -> Problem:
    """Figure 6 of the paper (section 5.4): a sub-epoch takes the network's cost over the worker's capacity.

    A partition of a million images is assumed. Homogeneous: every network of 6000 million operations, every worker of
    12 * 10^12 per second.
    """
    rng = random.Random(f"figure 6: {models} x {workers}, {seed}")
    costs = rng.choices(_NETWORKS, k=models) if heterogeneous else [6000] * models
    cards = rng.choices(_CARDS, k=workers) if heterogeneous else [12.0] * workers
    return open_shop([[float(round(cost / card)) for card in cards] for cost in costs])


# --- hard ones ----------------------------------------------------------------------------------


def narrow(models: int, workers: int, seed: int = 0) -> Problem:
    """Nearly equal times: about 1000 s, with up to 15% difference between models and 5% between workers."""
    rng = random.Random(f"narrow {models} x {workers}, {seed}")
    costs = [rng.uniform(0.85, 1.15) for _ in range(models)]
    speeds = [rng.uniform(0.95, 1.05) for _ in range(workers)]
    return open_shop([[float(round(1000 * cost * speed)) for speed in speeds] for cost in costs])


def balanced(models: int, workers: int, seed: int = 0) -> Problem:
    """Equal row sums and equal column sums: no model and no worker is longer than another.

    Shifting seconds around rectangles of a constant matrix, which changes no sum, gives the times: 100 s on average, 50
    s to 150 s.
    """
    rng = random.Random(f"balanced {models} x {workers}, {seed}")
    times = [[100] * workers for _ in range(models)]
    for _ in range(30 * models * workers):
        (i, k), (j, h) = rng.sample(range(models), 2), rng.sample(range(workers), 2)
        most = min(150 - max(times[i][j], times[k][h]), min(times[i][h], times[k][j]) - 50)
        moved = rng.randint(0, most)
        times[i][j] += moved
        times[k][h] += moved
        times[i][h] -= moved
        times[k][j] -= moved
    return open_shop([[float(seconds) for seconds in row] for row in times])


# --- replicas, epochs and failures --------------------------------------------------------------


def replicated(models: int, workers: int, copies: int, seed: int = 0) -> Problem:
    """The paper's heterogeneous problem, with each partition also on the next workers (section 5.5)."""
    problem = paper(models, workers, seed)
    holders = tuple(tuple((p + copy) % workers for copy in range(copies)) for p in range(workers))
    return replace(problem, holders=holders)


def long_run(models: int, workers: int, epochs: int, seed: int = 0) -> Problem:
    """The paper's heterogeneous problem over several epochs."""
    return replace(paper(models, workers, seed), epochs=epochs)


def _noisy(problem: Problem) -> Conditions:
    return Conditions(sigma=0.3)


def _down(problem: Problem) -> Conditions:
    """The first worker is away for a fifth of the time, after a third."""
    bound = lower_bound(problem)
    return Conditions(sigma=0.3, outages=(Outage(worker=0, start=bound / 3, seconds=_SHARE * bound),))


def _late(problem: Problem) -> Conditions:
    """The last worker joins after a fifth of the time."""
    return Conditions(
        sigma=0.1, joins=(Join(worker=problem.num_workers - 1, at=_SHARE * lower_bound(problem)),)
    )


def _slow(problem: Problem) -> Conditions:
    """The first worker is half as fast for a fifth of the time, without notice."""
    bound = lower_bound(problem)
    slow = Straggler(worker=0, factor=2.0, start=bound / 3, seconds=_SHARE * bound)
    return Conditions(sigma=0.1, stragglers=(slow,))


# --- catalogue ----------------------------------------------------------------------------------


def _fixed(make: Callable[..., Problem], *arguments: Any) -> Callable[[int], Problem]:
    """Return the same problem for every seed."""
    return lambda seed: make(*arguments)


def _theses() -> Iterator[Scenario]:
    for figure, (models, nodes) in _THESIS.items():
        size = f"{len(models)} models, nodes of {', '.join(map(str, nodes))} GPUs"
        for kind, speed_up in (("", LINEAR), ("-sublinear", SUBLINEAR)):
            description = "linear speed-up" if speed_up is LINEAR else "1.8x on 2 GPUs, 3.2x on 4"
            yield Scenario(
                name=f"thesis-{figure}{kind}",
                about=f"thesis, figure {figure}: {size}, {description}",
                problem=_fixed(thesis, figure, speed_up),
                rivals={
                    "Multi-GPU MOP": _fixed(thesis_per_gpu, figure),
                    "Random scheduler": _fixed(thesis_full_nodes, figure, speed_up),
                },
            )


def _saturns() -> Iterator[Scenario]:
    for workload in WORKLOADS:
        for cluster in CLUSTERS:
            for is_hopping in (False, True) if len(CLUSTERS[cluster]) > 1 else (False,):
                layout = "the data is cut over the nodes" if is_hopping else "each model on one node"
                yield Scenario(
                    name=f"saturn-{workload}-{cluster}{'-hop' if is_hopping else ''}",
                    about=f"12 models with a choice of technique ({workload}), {cluster} GPUs, {layout}; assumed times",
                    problem=_fixed(partial(saturn, is_hopping=is_hopping), workload, cluster),
                )


def _papers() -> Iterator[Scenario]:
    for kind, word in (("hom", "homogeneous"), ("het", "heterogeneous")):
        for models in (16, 256):
            for workers in (8, 16):
                yield Scenario(
                    name=f"paper-{kind}-{models}x{workers}",
                    about=f"paper, figure 6: {models} models on {workers} workers, {word}",
                    problem=partial(paper, models, workers, heterogeneous=kind == "het"),
                )


def _further() -> Iterator[Scenario]:
    for size in (8, 16):
        yield Scenario(
            name=f"hard-narrow-{size}x{size}",
            about=f"as many models as workers ({size}), nearly equal times",
            problem=partial(narrow, size, size),
        )
    yield Scenario(
        name="hard-balanced-20x16",
        about="20 models on 16 workers, all rows sum up to the same, and all columns",
        problem=partial(balanced, 20, 16),
    )
    yield Scenario(
        name="few-4x8",
        about="fewer models (4) than workers (8), nearly equal times",
        problem=partial(narrow, 4, 8),
    )
    yield Scenario(
        name="replicated-16x8",
        about="paper-het-16x8, each partition on two workers",
        problem=partial(replicated, 16, 8, 2),
    )
    yield Scenario(
        name="epochs-16x8",
        about="paper-het-16x8 over three epochs",
        problem=partial(long_run, 16, 8, 3),
    )
    for name, about, conditions in (
        ("noise", "sub-epoch times vary by 30 %", _noisy),
        ("outage", "sub-epoch times vary by 30 %, a worker is down for a fifth of the time", _down),
        ("join", "sub-epoch times vary by 10 %, a worker joins after a fifth of the time", _late),
        (
            "straggler",
            "sub-epoch times vary by 10 %, a worker is half as fast for a fifth of the time",
            _slow,
        ),
    ):
        yield Scenario(
            name=f"online-{name}-32x16",
            about=f"32 models on 16 workers, nearly equal times; {about}",
            problem=partial(narrow, 32, 16),
            conditions=conditions,
        )


SCENARIOS: Mapping[str, Scenario] = {s.name: s for s in (*_theses(), *_papers(), *_further(), *_saturns())}
"""Scenarios by name."""
