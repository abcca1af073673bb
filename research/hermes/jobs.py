"""Jobs as in Hermes's evaluation: models whose losses may or may not fall, which no policy knows in advance.

From the paper: 16 jobs, 4 or 12 good (section 4.1.1); seconds of 1,000 iterations (table 2), assumed to be at batch 16;
batch sizes (table 1); 60 of 85 good jobs reach their goal within 500 iterations, the others within 1,000 (section 2.2).
The parameters of `Workload` replace numbers that the paper does not print. The same seed gives the same jobs in the
same order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, NamedTuple

from cerebro.scheduling.convergence import UNSEEN, Progress, Quantum, Sample
from cerebro.scheduling.convergence.curves import GOAL

GPUS = 4
"""Nodes with one GPU each (section 4.1)."""
START_S = 2.5
"""Seconds of a job's first start.

By table 2, Hermes takes 2.2 to 3.0 s more than plain TensorFlow, on all four networks.
"""

_BATCHES = (16, 24, 32, 50)
_FIRST_BATCH = 16
_WITHIN_500 = 60 / 85
_LOSS = 7.0
"""Loss at the start."""


class Network(NamedTuple):
    """Seconds of 1,000 iterations (table 2), and of saving and restoring at a preemption.

    Figure 7 prints the latter for two networks; VGG16 and ResNet50 are interpolated by size.
    """

    seconds: float
    switch_s: float


NETWORKS: Mapping[str, Network] = {
    "GoogleNet": Network(30.12, 0.67),
    "VGG16": Network(94.26, 1.45),
    "VGG19": Network(110.49, 1.57),
    "ResNet50": Network(66.88, 0.95),
}


class Bad(NamedTuple):
    """Weights of the kinds of bad jobs.

    Attributes:
        slow: fall too slowly. plateau: stop early. decoy: have a large regularisation term that falls quickly, then
            nothing more. diverging: rise, or only fluctuate.
    """

    slow: float = 0.40
    plateau: float = 0.30
    decoy: float = 0.15
    diverging: float = 0.15


_MIXED = Bad()


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Distribution of the jobs.

    Attributes:
        jobs, good: number of jobs, and number of good ones.
        iterations: iterations of each job.
        batch_share: share of an iteration's time that grows with the batch size.
        noise: relative noise of a loss.
        every: iterations between two observed losses.
        bad: kinds of the other jobs.
        shape: form of the loss curves: exponentials, power laws, or good jobs with a second fall half-way.
        switch: factor on the paper's cost of a preemption.
        migrate_s: additional seconds after a job moves to another GPU.
    """

    jobs: int = 16
    good: int = 4
    iterations: int = 1000
    batch_share: float = 0.7
    noise: float = 0.06
    every: int = 10
    bad: Bad = _MIXED
    shape: Literal["exp", "power", "step"] = "exp"
    switch: float = 1.0
    migrate_s: float = 0.0


VARIANTS: Mapping[str, Workload] = {
    "": Workload(),
    "noise-15": Workload(noise=0.15),
    "noise-30": Workload(noise=0.30),
    "power-law": Workload(shape="power"),
    "late-fall": Workload(shape="step"),
    "3000-iterations": Workload(iterations=3000),
    "slow": Workload(bad=Bad(1, 0, 0, 0)),
    "decoys": Workload(bad=Bad(0, 0, 1, 0)),
    "diverging": Workload(bad=Bad(0, 0, 0, 1)),
    "free-switch": Workload(switch=0.0),
    "dear-switch": Workload(switch=5.0),
    "migration": Workload(migrate_s=1.0),
}
"""Variants of the assumptions, by name. The paper's text suggests no variant."""


@dataclass
class Job:
    """One model. `train` changes it.

    Attributes:
        rate: iterations per second.
        total: number of iterations.
        goal: iterations after which `GOAL` of its decrease is complete.
        done: completed iterations.
        progress: observed progress.
    """

    is_good: bool
    rate: float
    total: int
    start: float
    floor: float
    half: float
    noise: float
    growth: float
    shape: str
    every: int
    rng: random.Random
    goal: float = 0.0
    done: float = 0.0
    progress: Progress = UNSEEN

    @property
    def total_s(self) -> float:
        """Seconds of all iterations."""
        return self.total / self.rate

    @property
    def left_s(self) -> float:
        """Seconds of the remaining iterations."""
        return (self.total - self.done) / self.rate

    @property
    def is_done(self) -> bool:
        """True if all iterations are complete."""
        return self.done >= self.total

    def share(self, iteration: float) -> float:
        """Return the remaining share of the decrease, from 1 to 0."""
        if self.shape == "power":
            return float((1 + iteration / self.half) ** -1.5)
        if self.shape == "step" and self.is_good:
            late = 0.25 / (1 + math.exp(-(iteration / self.total - 0.5) * 60))
            return float(0.75 * 2 ** (-iteration / self.half) + 0.25 - late)
        return float(2 ** (-iteration / self.half))

    def loss(self, iteration: float) -> float:
        """Return the loss without noise."""
        if self.growth:
            return self.start * (1 + self.growth * iteration / self.total)
        return self.floor + (self.start - self.floor) * self.share(iteration)

    def train(self, seconds: float) -> Quantum:
        """Train for a time, and return the observed losses."""
        before = self.done
        # The margin covers rounding, so that the job ends.
        self.done = min(self.total, before + seconds * self.rate + 1e-6)
        number = max(1, int(self.done // self.every) - int(before // self.every))
        step = (self.done - before) / number
        seen = []
        for place in range(1, number + 1):
            noise = max(0.05, 1 + self.rng.gauss(0, self.noise))
            seen.append(
                Sample((before + place * step) / self.total, self.loss(before + place * step) * noise, 1)
            )
        quantum = Quantum(tuple(seen))
        self.progress = Progress(
            quanta=(*self.progress.quanta, quantum), done=self.done / self.total, total_s=self.total_s
        )
        return quantum


def make_jobs(network: str, work: Workload, seed: int) -> list[Job]:
    """Return the jobs of a workload on a network, in order of arrival."""
    rng = random.Random(f"{network}/{work.good}/{work.jobs}/{seed}")
    jobs = [_drawn(network, work, seed, number, rng) for number in range(work.jobs)]
    rng.shuffle(jobs)
    return jobs


def _drawn(network: str, work: Workload, seed: int, number: int, rng: random.Random) -> Job:
    batch = rng.choice(_BATCHES)
    per_iteration = NETWORKS[network].seconds / 1000
    job = Job(
        is_good=number < work.good,
        rate=1 / (per_iteration * (1 - work.batch_share + work.batch_share * batch / _FIRST_BATCH)),
        total=work.iterations,
        start=_LOSS * rng.uniform(0.95, 1.05),
        floor=0.0,
        half=0.0,
        noise=work.noise,
        growth=0.0,
        shape=work.shape,
        every=work.every,
        rng=random.Random(f"{network}/{seed}/{number}/loss"),
    )
    job = _good(job, rng) if job.is_good else _bad(job, work.bad, rng)
    job.goal = _goal(job)
    return job


def _good(job: Job, rng: random.Random) -> Job:
    floor = job.start * rng.uniform(0.25, 0.45)
    low, high = (150, 500) if rng.random() < _WITHIN_500 else (500, 950)
    goal = math.exp(rng.uniform(math.log(low), math.log(high))) * job.total / 1000
    return replace(job, floor=floor, half=goal / math.log2(10))


def _bad(job: Job, bad: Bad, rng: random.Random) -> Job:
    kind = rng.choices(bad._fields, bad)[0]
    job = replace(job, floor=job.start * 0.4, half=rng.uniform(3, 20) * job.total)
    if kind == "plateau":
        return replace(job, floor=job.start * rng.uniform(0.75, 0.95), half=rng.uniform(30, 150))
    if kind == "decoy":
        start = job.start * rng.uniform(1.5, 5)
        return replace(job, start=start, floor=rng.uniform(6.0, 9.0), half=rng.uniform(30, 200))
    if kind == "diverging":
        return replace(job, noise=rng.uniform(0.15, 0.4), growth=rng.uniform(0, 1.5))
    return job


def _goal(job: Job) -> float:
    """Find the goal by bisection."""
    low, high = 0.0, float(job.total)
    for _ in range(40):
        middle = (low + high) / 2
        is_before = 1 - job.share(middle) < GOAL * (1 - job.share(job.total))
        low, high = (middle, high) if is_before else (low, middle)
    return high


def oracle_s(jobs: Sequence[Job]) -> float:
    """Return the mean seconds to the goal of an oracle.

    The oracle trains only good jobs, the shortest first, which is optimal on average.
    """
    ends, times = [0.0] * GPUS, []
    for needed in sorted(job.goal / job.rate for job in jobs if job.is_good):
        gpu = min(range(GPUS), key=ends.__getitem__)
        ends[gpu] += needed
        times.append(ends[gpu])
    return fmean(times)
