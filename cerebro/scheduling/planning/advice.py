"""Comparison of policies, such as following a plan and dispatch, when sub-epoch times deviate from their estimates.

The controller follows a plan only if it wins this comparison, which its planner process makes.

A plan waits for the models it has put in order; dispatch uses any idle model. Which one ends sooner depends
on the deviation of sub-epoch times and on the slack of the plan. No simple rule covered all cases (strict
plans lose with more models than workers; with equal numbers they win up to about sigma 0.1), so both are
simulated under the same noise, at the measured level. Must not depend on how plans are computed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from cerebro.scheduling.conditions import Conditions
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.policies.policy import Policy
from cerebro.scheduling.problem import Problem

_MAX_SUB_EPOCHS = 5_000
"""Limit of simulated sub-epochs for one side: some tenths of a second. Large problems get fewer samples."""


def mean_makespans(
    problem: Problem, policies: Mapping[str, Policy], *, sigma: float, seed: int = 0, samples: int = 20
) -> tuple[dict[str, float], int]:
    """Return the mean makespan of each policy in seconds, and the number of samples.

    Args:
        problem: must have one parallel plan for each model and worker.
        policies: by name; the result has the same names.
        sigma: measured standard deviation of the logarithm of sub-epoch times about their estimates. 0 needs
            one sample only.
        seed: seed of the noise.
        samples: maximum number of simulations of each; large problems get fewer.
    """
    count = max(1, min(samples, _MAX_SUB_EPOCHS // max(1, problem.num_sub_epochs))) if sigma else 1
    conditions = Conditions(sigma=sigma)
    means = {
        name: statistics.fmean(
            dispatch(problem, policy, seed=seed + number, conditions=conditions).makespan
            for number in range(count)
        )
        for name, policy in policies.items()
    }
    return means, count
