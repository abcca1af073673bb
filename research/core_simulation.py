"""The controller's core on a scheduling problem in virtual time.

The object that decides in a cluster decides here, with the same log, inboxes, leases and commits; only the seconds are
virtual. Unlike `cerebro.scheduling.dispatch`, it learns sub-epoch times instead of knowing them, queues each worker's
next sub-epoch ahead, and detects a lost worker by its silence. ``python -m research simulate --core`` runs it.
"""

from __future__ import annotations

from cerebro.contract.events import RunStarted
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.errors import InstanceError
from cerebro.scheduling.conditions import Conditions, Reality
from cerebro.scheduling.policies import DEFAULT_POLICY
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement, Schedule
from cerebro.state import ExperimentState
from research.simulation.cluster import Simulation
from research.simulation.inline import InlinePlanner
from research.simulation.scenario import DATASET, Scenario, WorkerOutage
from research.solve import PLANNER

_ROWS = 10_000
"""Rows of a partition of size 1, which set the precision of sizes."""
_PLAN_S = 0.2
"""Seconds for each plan and each exact solution: less than in a live run, because a study computes hundreds."""
_LEASES = 20
"""Leases per average sub-epoch. In a live cluster, too, a lease is short compared with a sub-epoch."""


def run(
    problem: Problem, policy: str, seed: int, conditions: Conditions, *, leases: int = _LEASES
) -> Schedule:
    """Return the sub-epochs that a fit run commits.

    Args:
        problem: problem whose sub-epochs take one GPU each, at its start. A worker's GPUs are its devices.
        policy: name of a dispatch policy, or `PLANNER` for the default of `run_fit`: the default policy, and plans if
            they are better.
        seed: seed of the run and of the real sub-epoch durations; `dispatch` draws the same ones from the same seed.
        conditions: failures during the run. Its `estimates` are ignored.
        leases: leases per average sub-epoch. Fewer leases mean fewer reports: the simulation is faster, and a lost
            worker is detected later.

    Raises:
        InstanceError: the live platform cannot run such a problem.
    """
    _require_live(problem)
    models, workers = _names("m", problem.num_models), _names("worker-", problem.num_workers)
    reality = Reality(problem, conditions, seed)

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        assert isinstance(body, TrainTask)
        w, now = workers.index(worker), simulation.now
        work = reality.work(models.index(body.model), body.partition, w, body.epoch)
        return reality.end(w, now, work) - now

    request = FitRequest(
        code="0" * 64,
        models=tuple({"batch_size": 1} for _ in models),
        epochs=problem.epochs,
        metric="loss",
        mode="min",
        seed=seed,
        scheduler=DEFAULT_POLICY if policy == PLANNER else policy,
        planner=policy == PLANNER,
        max_attempts=1000,
    )
    plan = FitPlan(
        dataset=DATASET,
        models={name: {"batch_size": 1} for name in models},
        partitions={p: round(_ROWS * size) for p, size in enumerate(problem.sizes)},
    )
    scenario = Scenario(
        replicas={name: _held(problem, w) for w, name in enumerate(workers)},
        sub_epoch_time=sub_epoch_time,
        outages=[
            WorkerOutage(worker=workers[w], start=start, length=end - start)
            for w, absences in enumerate(reality.absences)
            for start, end in absences
            if start > 0
        ],
        joins={workers[w]: away[0][1] for w, away in enumerate(reality.absences) if away and not away[0][0]},
        devices=dict(zip(workers, problem.gpus, strict=True)),
        lease_s=_mean_seconds(problem) / leases,
    )
    started = RunStarted(run="fit-1", plan=plan)
    simulation = Simulation(
        scenario,
        request,
        started,
        InlinePlanner(plan_s=_PLAN_S, solve_s=_PLAN_S) if request.planner else None,
    )
    return _schedule(simulation.run_whole(), models, workers)


def _require_live(problem: Problem) -> None:
    is_fresh = all(mask == problem.all_partitions for mask in problem.remaining_partitions)
    parallel_plans = [
        parallel_plan for row in problem.parallel_plans for cell in row for parallel_plan in cell
    ]
    if not problem.is_single or any(
        parallel_plan.gpus > 1 or parallel_plan.technique for parallel_plan in parallel_plans
    ):
        raise InstanceError(
            "live workers train a sub-epoch on one GPU: give each model one parallel plan, of one GPU and without a "
            "technique"
        )
    if not is_fresh or any(problem.model_ready) or any(map(any, problem.gpu_ready)):
        raise InstanceError(
            "a run starts with nothing done and everybody free: give neither left nor ready times"
        )
    if any(not parallel_plans for row in problem.parallel_plans for parallel_plans in row):
        raise InstanceError("live workers run any model: give each a time on each worker")


def _names(prefix: str, count: int) -> list[str]:
    """Return numbered names whose alphabetical order is numeric, because the controller sorts by name."""
    return [f"{prefix}{number:05}" for number in range(count)]


def _held(problem: Problem, worker: int) -> list[int]:
    return [p for p, holders in enumerate(problem.holders) if worker in holders]


def _mean_seconds(problem: Problem) -> float:
    times = [parallel_plans[0].seconds for row in problem.parallel_plans for parallel_plans in row]
    return sum(times) / len(times) * sum(problem.sizes) / problem.num_partitions


def _schedule(state: ExperimentState, models: list[str], workers: list[str]) -> Schedule:
    run = state.runs["fit-1"]
    return Schedule.of(
        Placement(
            model=m,
            partition=sub_epoch.partition,
            worker=workers.index(sub_epoch.worker),
            start=sub_epoch.started,
            end=sub_epoch.ended,
            epoch=sub_epoch.epoch,
        )
        for m, name in enumerate(models)
        for sub_epoch in run.models[name].sub_epochs
    )
