"""The controller's core on Hermes's jobs in virtual time: a job is a model, a quantum is a sub-epoch.

Without preemption: a model trains a whole sub-epoch on each GPU's partition, epoch by epoch, and hops. Each sub-epoch
reports its job's losses like a worker, and the policy learns the same as a live one. ``python -m research simulate
--core`` runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from cerebro.contract.events import RunStarted
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.results import MAX_POINTS, Curve, CurvePoint
from cerebro.scheduling.convergence.curves import condensed
from cerebro.state import CompletedSubEpoch
from research.hermes.jobs import GPUS, NETWORKS, START_S, Job, Workload
from research.hermes.sharing import Outcome
from research.simulation.cluster import Simulation
from research.simulation.scenario import DATASET, Scenario

EPOCHS = 4
_ROWS = 1_000
"""Rows of a partition."""
_HIDDEN = 0.5
"""Share of a switch that a hop hides: the next model loads during the current sub-epoch."""
_LEASE_SUB_EPOCHS = 2
"""Lease in sub-epochs. Heartbeats are most of the work, and no worker is lost here."""


def run(jobs: Sequence[Job], policy: str, network: str, work: Workload, *, epochs: int = EPOCHS) -> Outcome:
    """Train all jobs to completion. Changes the jobs.

    Args:
        policy: name of a dispatch policy.
        epochs: epochs of each job, with a sub-epoch on each GPU's partition.
    """
    models = [f"m{number:02}" for number in range(len(jobs))]
    by_name = dict(zip(models, jobs, strict=True))
    workers = [f"worker-{number}" for number in range(GPUS)]
    sub_epochs = epochs * GPUS

    def fixed_s(body: TaskBody, worker: str) -> float:
        assert isinstance(body, TrainTask)
        return START_S if body.sub_epoch == 0 else (1 - _HIDDEN) * NETWORKS[network].switch_s * work.switch

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        assert isinstance(body, TrainTask)
        return fixed_s(body, worker) + by_name[body.model].total_s / sub_epochs

    def curve(body: TrainTask, seconds: float) -> Curve:
        job = by_name[body.model]
        before = job.progress.done
        samples = condensed(job.train(job.total_s / sub_epochs).samples, MAX_POINTS)
        return Curve(
            name="loss",
            points=tuple(CurvePoint((t - before) * job.total_s, loss, number) for t, loss, number in samples),
        )

    request = FitRequest(
        code="0" * 64,
        models=tuple({"batch_size": 1} for _ in models),
        epochs=epochs,
        metric="loss",
        mode="min",
        scheduler=policy,
        planner=False,
    )
    plan = FitPlan(
        dataset=DATASET,
        models={name: {"batch_size": 1} for name in models},
        partitions=dict.fromkeys(range(GPUS), _ROWS),
    )
    scenario = Scenario(
        replicas={name: [number] for number, name in enumerate(workers)},
        sub_epoch_time=sub_epoch_time,
        fixed_s=fixed_s,
        curve=curve,
        lease_s=_LEASE_SUB_EPOCHS * fmean(job.total_s for job in jobs) / sub_epochs,
    )
    state = Simulation(scenario, request, RunStarted(run="fit-1", plan=plan)).run_whole()
    completed_sub_epochs = {name: model.sub_epochs for name, model in state.runs["fit-1"].models.items()}
    return Outcome(
        to_goal_s=fmean(
            _reached(job, completed_sub_epochs[name], sub_epochs)
            for name, job in by_name.items()
            if job.is_good
        ),
        makespan_s=max(sub_epoch.ended for each in completed_sub_epochs.values() for sub_epoch in each),
        switches=sum(len(each) for each in completed_sub_epochs.values()),
    )


def _reached(job: Job, completed_sub_epochs: Sequence[CompletedSubEpoch], sub_epochs: int) -> float:
    """Return the time when the job reached its goal."""
    number = min(int(job.goal / job.total * sub_epochs), sub_epochs - 1)
    sub_epoch = completed_sub_epochs[number]
    return (
        sub_epoch.started
        + sub_epoch.timings.load_s
        + (job.goal / job.total - number / sub_epochs) * job.total_s
    )
