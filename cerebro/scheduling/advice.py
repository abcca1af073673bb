"""Whether a plan is worth following, when sub-epochs do not take what they were estimated to.

A plan waits for the models it has put in order; dispatch serves whoever is there. Which of the two ends sooner turns on
how far sub-epoch times stray and on how tight the plan is, and no rule of thumb held over all cases (strict plans lose
with more models than workers, and win with as many, up to sigma 0.1 or so): so both are run, in virtual time, under the
noise that was measured. Both meet the same noise. It must not know how plans are made.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from cerebro.scheduling.allotment import of_schedule
from cerebro.scheduling.conditions import Conditions
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.planner import Plan
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from cerebro.scheduling.policies.following import Following
from cerebro.scheduling.policies.policy import Policy
from cerebro.scheduling.problem import Problem

_MOST_SUB_EPOCHS = 5_000
"""Sub-epochs to simulate for one side: some tenths of a second. Large problems get fewer samples, and need fewer."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What is to be expected.

    Attributes:
        follow: the plan, rather than dispatch by LRPTw.
        planned_s, dispatched_s: mean makespans in seconds, following the plan and dispatching.
        samples: how many runs of each these are the means of.
    """

    follow: bool
    planned_s: float
    dispatched_s: float
    samples: int


def choose(problem: Problem, plan: Plan, *, sigma: float, seed: int = 0, samples: int = 20) -> Advice:
    """The better of following the plan and dispatching by LRPTw, with the plan's strategies.

    Args:
        problem: that was planned.
        plan: of it.
        sigma: of the logarithm of sub-epoch times about their estimates, as measured. 0 needs one sample only.
        seed: of the noise.
        samples: how many runs of each to compare, at most; fewer for large problems.

    Returns:
        The advice; of equals, to dispatch, which asks less of what is to come.
    """
    single = problem.with_strategies(of_schedule(problem, plan.schedule))
    policies = {"planned": Following.of(plan.schedule), "dispatched": POLICIES[DEFAULT_POLICY]}
    means, count = mean_makespans(single, policies, sigma=sigma, seed=seed, samples=samples)
    planned, dispatched = means["planned"], means["dispatched"]
    return Advice(follow=planned < dispatched, planned_s=planned, dispatched_s=dispatched, samples=count)


def mean_makespans(
    problem: Problem, policies: Mapping[str, Policy], *, sigma: float, seed: int = 0, samples: int = 20
) -> tuple[dict[str, float], int]:
    """Mean makespans of policies under the same noise, in seconds, and of how many runs.

    Args:
        problem: with one strategy for each model and worker.
        policies: by name, which is the answer's.
        sigma, seed, samples: see `choose`.
    """
    count = max(1, min(samples, _MOST_SUB_EPOCHS // max(1, problem.num_sub_epochs))) if sigma else 1
    conditions = Conditions(sigma=sigma)
    means = {
        name: statistics.fmean(
            dispatch(problem, policy, seed=seed + number, conditions=conditions).makespan
            for number in range(count)
        )
        for name, policy in policies.items()
    }
    return means, count
