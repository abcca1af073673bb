"""When a run would end with so many workers: simulations of what is left, in the planner process's child process.

The engine is the one of the planner's dry runs (`cerebro.scheduling.dispatch`): the policy that decides in the cluster,
on the state that it decides on there, with sub-epochs whose times stray as those that were measured, and workers that
are lost as often as they were. Workers that would come get the copies that pay, as in `controller.sources.relief`;
those that would go leave their partitions to the others.

A large run is simulated in part: some of its models, as many epochs as there is time for. The rest is taken to go on at
the rate of the fluid limit (`cerebro.scheduling.balance`), and its noise to average out with the number of sub-epochs.
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
from cerebro.scheduling.problem import Problem, Strategy
from controller.scaling.autoscaler.ends import FEWEST, P90, SAMPLES, Ends, simulated, spread

LIMIT_S = 2.5
"""For all sizes together: an answer is to come within 3 s."""

_SUB_EPOCHS = 600
"""Sub-epochs that one simulation has at the most, but for one epoch of as many models as two to a worker."""

_GAIN = 0.1
"""A copy shortens what its partition takes by this share at least."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What is left of a fit run, and who is there: plain values, which go through JSON.

    Attributes:
        seconds: ``seconds[m][w]`` of a sub-epoch of size 1, `None` where the model does not fit.
        fixed: likewise, for each sub-epoch of any size, with the pause before the next sub-epoch.
        gpus: of each worker.
        pace: of each worker, by which factor it takes longer than an average one, over its GPUs.
        sizes, holders: of each partition; who holds it.
        left: ``left[m]``, mask of the partitions that are left of the model's present epoch.
        ahead: ``ahead[m]``, further epochs of it.
        model_ready, gpu_ready: as in `Problem`.
        order: workers in the order in which they are kept: who goes first is last.
        sigma: of the logarithm of sub-epoch times.
        doubts: of each model, of the logarithm of what its sub-epochs take on average: how little is known of it.
        shared: the same of what all models take together.
        made_s, join_s: seconds that a copy, and a worker, take to be there.
        losses_per_s, back_s: how often a worker is lost, and after how many seconds it is back; 0: `join_s`.
    """

    seconds: tuple[tuple[float | None, ...], ...]
    fixed: tuple[tuple[float, ...], ...]
    gpus: tuple[int, ...]
    pace: tuple[float, ...]
    sizes: tuple[float, ...]
    holders: tuple[tuple[int, ...], ...]
    left: tuple[int, ...]
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
        """Whether one simulation does not tell all."""
        return bool(self.sigma or self.losses_per_s or any(self.doubts))

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outlook:
        """The reverse of `to_json`."""
        rows = {name: tuple(map(tuple, value[name])) for name in ("seconds", "fixed", "holders", "gpu_ready")}
        flat = ("gpus", "pace", "sizes", "left", "ahead", "model_ready", "order", "doubts")
        return cls(**{**value, **rows, **{name: tuple(value[name]) for name in flat}})


def answer(message: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a question: ``ends``, of each of the ``counts``, in their order."""
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
    """When the run would end with each number of workers.

    Args:
        counts: those that matter most first: what there is no time for has the fluid limit's answer.
        limit_s: time limit of all simulations together, measured by `clock`.
    """
    if not any(outlook.left) and not any(outlook.ahead):
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
    """A run with some of the models, the costly and the cheap alike, where all are too many to simulate."""
    open_models = [m for m, mask in enumerate(outlook.left) if mask or outlook.ahead[m]]
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
        left=of(outlook.left),
        ahead=of(outlook.ahead),
        model_ready=of(outlook.model_ready),
        doubts=of(outlook.doubts) if outlook.doubts else (),
    )


def _cost(outlook: Outlook, model: int) -> float:
    """Seconds of a sub-epoch of size 1 on a worker that is typical."""
    row = zip(outlook.seconds[model], outlook.fixed[model], strict=True)
    known = [seconds + fixed for seconds, fixed in row if seconds is not None]
    return statistics.median(known) if known else 0.0


def _work(outlook: Outlook, epochs: Sequence[int]) -> tuple[list[float], float, int]:
    """Of so many epochs ahead of each model: seconds of each partition, of the longest model, and sub-epochs."""
    work, longest, sub_epochs = [0.0] * len(outlook.sizes), 0.0, 0
    for model, (mask, ahead) in enumerate(zip(outlook.left, epochs, strict=True)):
        cost, own = _cost(outlook, model), 0.0
        for partition, size in enumerate(outlook.sizes):
            visits = ahead + (mask >> partition & 1)
            work[partition] += visits * cost * size
            own += visits * cost * size
            sub_epochs += visits
        longest = max(longest, own)
    return work, longest, sub_epochs


@dataclass(frozen=True)
class _World:
    """The run with a number of workers.

    Attributes:
        rest: by which what is left in all exceeds what is simulated, in the fluid limit.
        calm: by which the relative noise of all is less than that of what is simulated.
    """

    outlook: Outlook
    problem: Problem
    delays: tuple[float, ...]
    """Of each worker, before it can do anything."""
    fluid_s: float
    rest: float
    calm: float

    @classmethod
    def of(cls, whole: Outlook, part: Outlook, count: int) -> _World:
        kept = list(whole.order[:count])
        new = count - len(kept)
        work, longest, sub_epochs = _work(whole, whole.ahead)
        pace = [whole.pace[w] for w in kept] + [1 / _typical(whole.gpus)] * new
        index = {w: number for number, w in enumerate(kept)}
        holders = [[index[w] for w in holders if w in index] for holders in whole.holders]
        copies = [0] * count
        for partition in sorted((p for p, h in enumerate(holders) if not h), key=lambda p: -work[p]):
            worker = _least_loaded(work, pace, holders)
            holders[partition] = [worker]
            copies[worker] += 1
        balance = Balance(work, pace, holders)
        for _, worker in _copied(balance, whole.made_s):
            copies[worker] += 1
        fluid_s = max(*balance.loads, longest)
        epochs = max(0, min((a for m, a in zip(part.left, part.ahead, strict=True) if m or a), default=0))
        per_epoch = max(1, len(part.left) * len(part.sizes))
        epochs = min(epochs, max(0, _SUB_EPOCHS // per_epoch - 1))
        part_work, part_longest, part_sub_epochs = _work(part, [min(a, epochs) for a in part.ahead])
        part_fluid = max(*Balance(part_work, pace, balance.holders).loads, part_longest)
        delays = [
            whole.join_s + copies[number] * whole.made_s if number >= len(whole.order) else 0.0
            for number in range(count)
        ]
        return cls(
            outlook=part,
            problem=_problem(part, kept, new, balance.holders, epochs + 1),
            delays=tuple(delays),
            fluid_s=fluid_s,
            rest=fluid_s / part_fluid if part_fluid else 1.0,
            calm=_calm(whole, part, sub_epochs, part_sub_epochs),
        )

    def makespan(self, number: int) -> float:
        """Of one simulation of what is simulated."""
        outlook, rng = self.outlook, random.Random(f"losses {number}")
        span_s = 2 * self.fluid_s / max(self.rest, 1e-9)
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
        """Of all that is left.

        Args:
            spread: relative deviation of simulations, where these are too few to tell.
        """
        delay_s, shared = min(self.delays), P90 * self.outlook.shared
        if not makespans:
            return Ends(self.fluid_s + delay_s, (1 + P90 * spread + shared) * self.fluid_s + delay_s)
        middle, upper = simulated(makespans, spread)
        later = math.hypot(self.calm * (upper - middle), shared * middle)
        return Ends(self.rest * middle, self.rest * (middle + later))


def _calm(whole: Outlook, part: Outlook, sub_epochs: int, part_sub_epochs: int) -> float:
    """By which the relative noise of the whole is less than that of the part: sub-epochs stray each by itself, and what
    is not known of a model is the same for all its sub-epochs."""

    def noise(outlook: Outlook, sub_epochs: int) -> float:
        doubts = [
            d for d, mask, a in zip(outlook.doubts, outlook.left, outlook.ahead, strict=False) if mask or a
        ]
        of_models = statistics.fmean(d * d for d in doubts) / len(doubts) if doubts else 0.0
        return outlook.sigma**2 / max(1, sub_epochs) + of_models

    of_part = noise(part, part_sub_epochs)
    return math.sqrt(noise(whole, sub_epochs) / of_part) if of_part else 1.0


def _copied(balance: Balance, made_s: float) -> list[tuple[int, int]]:
    """Copies that pay, (partition, worker) in the order in which they are made; the balance has them from now on."""
    found: list[tuple[int, int]] = []
    partitions, workers = range(len(balance.holders)), range(len(balance.loads))
    while len(found) < 3 * len(workers):
        partition = max(partitions, key=lambda p: (balance.level(p), -p))
        able = [w for w in workers if w not in balance.holders[partition]]
        if not able:
            break
        worker = min(able, key=lambda w: (balance.loads[w], w))
        before = balance.level(partition)
        gain_s = before - balance.level_with(partition, worker)
        if gain_s < max(_GAIN * before, 2 * made_s):
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
    strategies = []
    for model in range(len(part.seconds)):
        times = [(part.seconds[model][w], part.fixed[model][w]) for w in kept]
        times += [(_cost(part, model), 0.0)] * new
        parallel_plans = (() if s is None else (Strategy(seconds=max(1e-9, s), fixed=f),) for s, f in times)
        strategies.append(tuple(parallel_plans))
    gpus = (*(part.gpus[w] for w in kept), *(_typical(part.gpus),) * new)
    ready = [part.gpu_ready[w] for w in kept] + [(0.0,) * _typical(part.gpus)] * new
    return Problem(
        models=tuple(map(str, range(len(strategies)))),
        workers=tuple(map(str, range(len(gpus)))),
        gpus=gpus,
        strategies=tuple(strategies),
        holders=tuple(map(tuple, holders)),
        sizes=part.sizes,
        epochs=epochs,
        left=part.left,
        model_ready=part.model_ready,
        gpu_ready=tuple(ready),
    )
