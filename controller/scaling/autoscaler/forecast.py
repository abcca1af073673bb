"""Forecast of a run's end for a number of workers, by simulation in the planner's child process. Pure.

`controller.planning.answering` calls `answer`; the autoscaler gets P50 and P90 for each number within about 3 s.
The engine is the planner's (`cerebro.scheduling.dispatch`): the cluster's policy and state, sub-epoch times
with the measured deviation, and workers lost as often as before. New workers get the worthwhile copies as in
`controller.sources.relief`; removed ones leave their partitions to the others.

Of a large run, some models and as many epochs as time permits are simulated. The rest continues at the rate
of the fluid limit (`cerebro.scheduling.balance`), with noise averaged over the sub-epochs.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from cerebro.scheduling.balance import Balance
from cerebro.scheduling.conditions import Conditions, Join, Outage
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from cerebro.scheduling.problem import Problem, TimedPlan
from controller.scaling.autoscaler.ends import FEWEST, P90, SAMPLES, Ends, simulated, spread

LIMIT_S = 2.5
"""Seconds for all sizes together: an answer should come within 3 s."""

_SUB_EPOCHS = 600
"""Maximum sub-epochs of one simulation, except for one epoch of two models per worker."""

_GAIN = 0.1
"""Minimum relative gain of a copy for its partition."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Remaining work of a fit run, and its workers: plain values for JSON.

    Attributes:
        seconds: ``seconds[m][w]`` of a sub-epoch of size 1, `None` where the model does not fit.
        fixed: the fixed part of each sub-epoch, with the pause before the next one.
        gpus: number for each worker.
        pace: slowness factor of each worker, divided by its GPUs.
        sizes, holders: size and holders of each partition.
        remaining_partitions: mask of each model's remaining partitions in its present epoch.
        ahead: ``ahead[m]``, its further epochs.
        model_ready, gpu_ready: as in `Problem`.
        order: workers in the order of removal, the last one first.
        sigma: deviation of the logarithm of sub-epoch times.
        doubts: uncertainty of each model's mean log time.
        shared: the same for all models together.
        made_s, join_s: seconds to make a copy, and until a worker joins.
        losses_per_s, back_s: losses per worker and second, and seconds until its return; 0 for `join_s`.
    """

    seconds: tuple[tuple[float | None, ...], ...]
    fixed: tuple[tuple[float, ...], ...]
    gpus: tuple[int, ...]
    pace: tuple[float, ...]
    sizes: tuple[float, ...]
    holders: tuple[tuple[int, ...], ...]
    remaining_partitions: tuple[int, ...]
    ahead: tuple[int, ...]
    model_ready: tuple[float, ...]
    gpu_ready: tuple[tuple[float, ...], ...]
    order: tuple[int, ...]
    sigma: float
    made_s: float = 0.0
    join_s: float = 0.0
    losses_per_s: float = 0.0
    back_s: float = 0.0
    doubts: tuple[float, ...] = ()
    shared: float = 0.0

    @property
    def is_unsure(self) -> bool:
        """True if simulations differ."""
        return bool(self.sigma or self.losses_per_s or any(self.doubts))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outlook:
        """Return the inverse of `to_json`."""
        rows = {name: tuple(map(tuple, value[name])) for name in ("seconds", "fixed", "holders", "gpu_ready")}
        flat = ("gpus", "pace", "sizes", "remaining_partitions", "ahead", "model_ready", "order", "doubts")
        return cls(**{**value, **rows, **{name: tuple(value[name]) for name in flat}})


def answer(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request: ``ends`` for each of the ``counts``, in order."""
    outlook = Outlook.from_json(message["outlook"])
    found = forecast(outlook, message["counts"], limit_s=message.get("limit_s", LIMIT_S))
    return {"ends": [[count, *ends] for count, ends in found.items()]}


def forecast(
    outlook: Outlook,
    counts: Sequence[int],
    *,
    limit_s: float = LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
) -> dict[int, Ends]:
    """Return the run's end for each number of workers.

    Args:
        counts: the most important first; without time, a number gets the fluid limit.
        limit_s: time limit of all simulations together, measured by `clock`.
    """
    if not any(outlook.remaining_partitions) and not any(outlook.ahead):
        return {count: Ends(0.0, 0.0) for count in counts if count > 0}
    part = _part(outlook)
    worlds = {count: _World.of(outlook, part, count) for count in dict.fromkeys(counts) if count > 0}
    makespans: dict[int, list[float]] = {count: [] for count in worlds}
    until = clock() + limit_s
    for number in range(SAMPLES):
        for count, world in worlds.items():
            if clock() < until and (number < FEWEST or outlook.is_unsure):
                makespans[count].append(world.makespan(number))
    deviation = spread(makespans.values())
    return {count: world.ends(makespans[count], deviation) for count, world in worlds.items()}


def _part(outlook: Outlook) -> Outlook:
    """Return the run with a sample of its models, if it has too many to simulate."""
    open_models = [m for m, mask in enumerate(outlook.remaining_partitions) if mask or outlook.ahead[m]]
    least = 2 * sum(outlook.gpus)
    most = max(least, _SUB_EPOCHS // max(1, len(outlook.sizes)))
    if len(open_models) > most:
        open_models.sort(key=lambda m: (-_cost(outlook, m), m))
        step = len(open_models) / most
        open_models = [open_models[int((number + 0.5) * step)] for number in range(most)]
    chosen = sorted(open_models)

    def of(rows: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(rows[m] for m in chosen)

    return replace(
        outlook,
        seconds=of(outlook.seconds),
        fixed=of(outlook.fixed),
        remaining_partitions=of(outlook.remaining_partitions),
        ahead=of(outlook.ahead),
        model_ready=of(outlook.model_ready),
        doubts=of(outlook.doubts) if outlook.doubts else (),
    )


def _cost(outlook: Outlook, model: int) -> float:
    """Return seconds of a sub-epoch of size 1 on a typical worker."""
    row = zip(outlook.seconds[model], outlook.fixed[model], strict=True)
    known = [seconds + fixed for seconds, fixed in row if seconds is not None]
    return statistics.median(known) if known else 0.0


def _work(outlook: Outlook, epochs: Sequence[int]) -> tuple[list[float], float, int]:
    """Return seconds per partition and of the longest model, and the number of sub-epochs."""
    work, longest, sub_epochs = [0.0] * len(outlook.sizes), 0.0, 0
    for model, (mask, ahead) in enumerate(zip(outlook.remaining_partitions, epochs, strict=True)):
        cost, model_work = _cost(outlook, model), 0.0
        for partition, size in enumerate(outlook.sizes):
            completed_sub_epochs = ahead + (mask >> partition & 1)
            work[partition] += completed_sub_epochs * cost * size
            model_work += completed_sub_epochs * cost * size
            sub_epochs += completed_sub_epochs
        longest = max(longest, model_work)
    return work, longest, sub_epochs


@dataclass(frozen=True)
class _World:
    """The run simulated with one number of workers.

    Attributes:
        work_ratio: ratio of all remaining work to the simulated part, in the fluid limit.
        noise_ratio: ratio of the relative noise of the whole to the simulated part.
    """

    outlook: Outlook
    problem: Problem
    delays: tuple[float, ...]
    """Seconds before each worker can start."""
    fluid_s: float
    work_ratio: float
    noise_ratio: float

    @classmethod
    def of(cls, outlook: Outlook, part: Outlook, count: int) -> _World:
        present_workers = list(outlook.order[:count])
        new = count - len(present_workers)
        work, longest, sub_epochs = _work(outlook, outlook.ahead)
        pace = [outlook.pace[w] for w in present_workers] + [1 / _typical(outlook.gpus)] * new
        index = {w: number for number, w in enumerate(present_workers)}
        holders = [[index[w] for w in holders if w in index] for holders in outlook.holders]
        copies = [0] * count
        for partition in sorted((p for p, h in enumerate(holders) if not h), key=lambda p: -work[p]):
            worker = _least_loaded(work, pace, holders)
            holders[partition] = [worker]
            copies[worker] += 1
        balance = Balance(work, pace, holders)
        for _, worker in _copied(balance, outlook.made_s):
            copies[worker] += 1
        fluid_s = max(*balance.loads, longest)
        epochs = max(
            0,
            min((a for m, a in zip(part.remaining_partitions, part.ahead, strict=True) if m or a), default=0),
        )
        per_epoch = max(1, len(part.remaining_partitions) * len(part.sizes))
        epochs = min(epochs, max(0, _SUB_EPOCHS // per_epoch - 1))
        part_work, part_longest, part_sub_epochs = _work(part, [min(a, epochs) for a in part.ahead])
        part_fluid = max(*Balance(part_work, pace, balance.holders).loads, part_longest)
        delays = [
            outlook.join_s + copies[number] * outlook.made_s if number >= len(outlook.order) else 0.0
            for number in range(count)
        ]
        return cls(
            outlook=part,
            problem=_problem(part, present_workers, new, balance.holders, epochs + 1),
            delays=tuple(delays),
            fluid_s=fluid_s,
            work_ratio=fluid_s / part_fluid if part_fluid else 1.0,
            noise_ratio=_noise_ratio(outlook, part, sub_epochs, part_sub_epochs),
        )

    def makespan(self, number: int) -> float:
        outlook, rng = self.outlook, random.Random(f"losses {number}")
        span_s = 2 * self.fluid_s / max(self.work_ratio, 1e-9)
        outages, back_s = [], outlook.back_s or outlook.join_s
        for worker in range(self.problem.num_workers):
            at = rng.expovariate(outlook.losses_per_s) if outlook.losses_per_s else math.inf
            while at < span_s:
                outages.append(Outage(worker=worker, start=at, seconds=max(1e-3, back_s)))
                at += back_s + rng.expovariate(outlook.losses_per_s)
        joins = tuple(Join(worker=w, at=s) for w, s in enumerate(self.delays) if s)
        conditions = Conditions(
            sigma=outlook.sigma, doubts=outlook.doubts, outages=tuple(outages), joins=joins
        )
        policy = POLICIES[DEFAULT_POLICY]
        return dispatch(self.problem, policy, seed=number, conditions=conditions).makespan

    def ends(self, makespans: Sequence[float], spread: float) -> Ends:
        """Return the ends of all remaining work.

        Args:
            spread: relative deviation to use for few simulations.
        """
        delay_s, shared = min(self.delays), P90 * self.outlook.shared
        if not makespans:
            return Ends(self.fluid_s + delay_s, (1 + P90 * spread + shared) * self.fluid_s + delay_s)
        middle, upper = simulated(makespans, spread)
        later = math.hypot(self.noise_ratio * (upper - middle), shared * middle)
        return Ends(self.work_ratio * middle, self.work_ratio * (middle + later))


def _noise_ratio(whole: Outlook, part: Outlook, sub_epochs: int, part_sub_epochs: int) -> float:
    """Return the ratio of the whole's relative noise to the part's.

    Sub-epochs deviate independently; a model's uncertainty is common to all its sub-epochs.
    """

    def noise(outlook: Outlook, sub_epochs: int) -> float:
        doubts = [
            d
            for d, mask, a in zip(outlook.doubts, outlook.remaining_partitions, outlook.ahead, strict=False)
            if mask or a
        ]
        of_models = statistics.fmean(d * d for d in doubts) / len(doubts) if doubts else 0.0
        return outlook.sigma**2 / max(1, sub_epochs) + of_models

    of_part = noise(part, part_sub_epochs)
    return math.sqrt(noise(whole, sub_epochs) / of_part) if of_part else 1.0


def _copied(balance: Balance, made_s: float) -> list[tuple[int, int]]:
    """Add the worthwhile copies to the balance; return (partition, worker) in order."""
    found: list[tuple[int, int]] = []
    partitions, workers = range(len(balance.holders)), range(len(balance.loads))
    while len(found) < 3 * len(workers):
        partition = max(partitions, key=lambda p: (balance.level(p), -p))
        able = [w for w in workers if w not in balance.holders[partition]]
        if not able:
            break
        worker = min(able, key=lambda w: (balance.loads[w], w))
        present_level = balance.level(partition)
        gain_s = present_level - balance.level_with(partition, worker)
        if gain_s < max(_GAIN * present_level, 2 * made_s):
            break
        balance.add(partition, worker)
        found.append((partition, worker))
    return found


def _least_loaded(work: Sequence[float], pace: Sequence[float], holders: Sequence[Sequence[int]]) -> int:
    loads = Balance(work, pace, holders).loads
    return min(range(len(loads)), key=lambda w: (loads[w], w))


def _typical(gpus: Sequence[int]) -> int:
    return max(1, int(statistics.median(gpus)))


def _problem(
    part: Outlook, kept: Sequence[int], new: int, holders: Sequence[Sequence[int]], epochs: int
) -> Problem:
    table = []
    for model in range(len(part.seconds)):
        times = [(part.seconds[model][w], part.fixed[model][w]) for w in kept]
        times += [(_cost(part, model), 0.0)] * new
        row = (() if s is None else (TimedPlan(seconds=max(1e-9, s), fixed=f),) for s, f in times)
        table.append(tuple(row))
    gpus = (*(part.gpus[w] for w in kept), *(_typical(part.gpus),) * new)
    ready = [part.gpu_ready[w] for w in kept] + [(0.0,) * _typical(part.gpus)] * new
    return Problem(
        models=tuple(map(str, range(len(table)))),
        workers=tuple(map(str, range(len(gpus)))),
        gpus=gpus,
        parallel_plans=tuple(table),
        holders=tuple(map(tuple, holders)),
        sizes=part.sizes,
        epochs=epochs,
        remaining_partitions=part.remaining_partitions,
        model_ready=part.model_ready,
        gpu_ready=tuple(ready),
    )
