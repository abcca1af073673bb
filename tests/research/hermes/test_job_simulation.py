"""Hermes's jobs, trained by the controller's own core one sub-epoch at a time."""

from __future__ import annotations

import pytest

from research.hermes.comparison import SCENARIOS, compare
from research.hermes.job_simulation import run
from research.hermes.jobs import GPUS, Workload, make_jobs, oracle_s

WORK = Workload()


@pytest.mark.parametrize("policy", ["promising", "rr"])
def test_all_sub_epochs_are_trained(policy: str) -> None:
    """Each job trains on each partition in each epoch, and no policy beats the oracle or the total work."""
    jobs = make_jobs("ResNet50", WORK, 4)
    found = run(jobs, policy, "ResNet50", WORK, epochs=2)
    assert found.switches == len(jobs) * 2 * GPUS
    assert found.makespan_s >= sum(job.total_s for job in jobs) / GPUS
    assert found.to_goal_s >= oracle_s(jobs)


@pytest.mark.slow
def test_promising_finds_good_models_sooner_at_little_more_makespan() -> None:
    """The benchmark's comparison, with a seed the policies were not tuned on."""
    lrptw, promising = compare(SCENARIOS["hermes-4"], ("lrptw", "promising"), seeds=[70], engine=run)
    assert lrptw.mean >= 1.7 * promising.mean
    assert promising.makespan <= 1.1 * lrptw.makespan
