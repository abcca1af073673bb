"""Comparison of policies on Hermes's jobs, for ``python -m research simulate`` and the benchmark.

The measure is the mean time until good jobs have made 90% of their decrease of the loss (section 4.2), divided by the
same time of an oracle that trains only good jobs. All policies get the same jobs in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from cerebro.errors import InstanceError
from cerebro.scheduling.policies import POLICIES
from research.hermes import sharing
from research.hermes.jobs import GPUS, NETWORKS, VARIANTS, Job, Workload, make_jobs, oracle_s
from research.hermes.sharing import Outcome

AT_SUB_EPOCHS = ("lrptw", "fifo", "rr", "slaq", "hermes", "promising")
"""Default dispatch policies for comparison at sub-epoch boundaries."""

Engine = Callable[[Sequence[Job], str, str, Workload], Outcome]
"""(jobs, policy, network, workload) -> outcome."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A workload with a name."""

    name: str
    about: str
    work: Workload


def _scenarios() -> Iterable[Scenario]:
    for good in (4, 12):
        for variant, work in VARIANTS.items():
            suffix = f", {variant.replace('-', ' ')}" if variant else ""
            yield Scenario(
                name=f"hermes-{good}" + (f"-{variant}" if variant else ""),
                about=f"Hermes: {good} of 16 jobs good, {GPUS} GPUs, four networks{suffix}; assumed curves",
                work=replace(work, good=good),
            )


SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in _scenarios()}
"""Scenarios by name."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One policy, over networks and seeds.

    Attributes:
        to_goal: network -> time divided by the oracle's, for each seed.
        makespan: mean makespan divided by (the jobs' work / GPUs).
        switches: mean number of switches in a run.
    """

    policy: str
    to_goal: Mapping[str, tuple[float, ...]]
    makespan: float
    switches: float

    @property
    def ratios(self) -> list[float]:
        """Ratios of all networks and seeds, in the same order for all policies."""
        return [ratio for network in NETWORKS for ratio in self.to_goal[network]]

    @property
    def mean(self) -> float:
        """Mean of the ratios."""
        return fmean(self.ratios)


def compare(
    scenario: Scenario, policies: Sequence[str] = (), *, seeds: Iterable[int], engine: Engine | None = None
) -> tuple[Row, ...]:
    """Compare policies on a scenario.

    Args:
        policies: names of policies; all by default.
        seeds: seeds of the jobs and of the noise of their losses.
        engine: dispatches sub-epochs by the policies of `run_fit`; without one, GPUs are time-shared.

    Raises:
        InstanceError: a policy is unknown.
    """
    known = tuple(POLICIES) if engine else tuple(sharing.POLICIES)
    for name in policies:
        if name not in known:
            raise InstanceError(f"{scenario.name} has no policy {name!r}: choose one of {', '.join(known)}")
    seed_list = list(seeds)
    chosen = policies or (AT_SUB_EPOCHS if engine else known)
    return tuple(_row(scenario.work, name, seed_list, engine or shared) for name in chosen)


def shared(jobs: Sequence[Job], policy: str, network: str, work: Workload) -> Outcome:
    """Time-share the GPUs by a policy of `sharing.POLICIES`."""
    return sharing.share(jobs, sharing.POLICIES[policy], network, work)


def _row(work: Workload, policy: str, seeds: Sequence[int], engine: Engine) -> Row:
    to_goal: dict[str, tuple[float, ...]] = {}
    makespans: list[float] = []
    switches: list[int] = []
    for network in NETWORKS:
        ratios = []
        for seed in seeds:
            jobs = make_jobs(network, work, seed)
            found = engine(jobs, policy, network, work)
            ratios.append(found.to_goal_s / oracle_s(jobs))
            makespans.append(found.makespan_s / (sum(job.total_s for job in jobs) / GPUS))
            switches.append(found.switches)
        to_goal[network] = tuple(ratios)
    return Row(policy=policy, to_goal=to_goal, makespan=fmean(makespans), switches=fmean(switches))
