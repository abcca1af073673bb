"""The remaining work of a fit run as a scheduling problem, and plans in the names of the log. Pure.

`controller.planning.planner_process` makes the query and sends its problem as JSON, which
`controller.planning.answering` reads; `ready` also serves forecasts. Time 0 of a problem is now. Running and queued
sub-epochs are not part; their models and devices are ready at the expected ends. It covers about 400 sub-epochs
(`HORIZON`). Gangs, fused groups, folds and epochs of more than 5,000 sub-epochs are not planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.runs import PlannedSubEpoch
from cerebro.scheduling.planning.plan_table import NOT_HERE, PlanTable
from cerebro.scheduling.problem import Problem, TimedPlan
from cerebro.scheduling.remaining_work import NEVER
from cerebro.scheduling.schedule import Placement
from controller.decisions.fit_dispatch import FitDispatch
from controller.projections.sub_epoch_times import technique_of

HORIZON = 400
"""Sub-epochs covered by a problem, at least through the present epoch.

The problem includes the next epoch if less than half of the present one remains, because that half may finish
before the plan is ready. Further ahead, noise undoes any plan.
"""

MAX_SUB_EPOCHS = 5000
"""Maximum sub-epochs per epoch: beyond it dispatch has enough choice, and a planner no time."""


@dataclass(frozen=True, kw_only=True)
class PlannerQuery:
    """A problem, and the names of its indices, because the dispatch state's indices may change.

    Attributes:
        problem: the remaining work.
        models, workers, partitions: behind its indices.
        first_epochs: the run's epoch that is epoch 1 of each model here.
        now: time 0 of the problem, by the store's clock.
        parallel_plans: by the name of a parallel plan's technique.
        present: ``present[m][w]``, the present parallel plan of model `m` on worker `w`.
    """

    problem: Problem
    models: tuple[str, ...]
    workers: tuple[str, ...]
    partitions: tuple[int, ...]
    first_epochs: tuple[int, ...]
    now: float
    parallel_plans: Mapping[str, ParallelPlan]
    present: PlanTable

    def named(self, table: PlanTable) -> dict[str, dict[str, ParallelPlan]]:
        """Return a plan table in the names of the log, without models that have no choice."""
        found: dict[str, dict[str, ParallelPlan]] = {}
        for name, row, cells in zip(self.models, table, self.problem.parallel_plans, strict=True):
            chosen = {
                worker: self.parallel_plans[cell[s].technique]
                for worker, s, cell in zip(self.workers, row, cells, strict=True)
                if s != NOT_HERE
            }
            if any(len(cell) > 1 for cell in cells):
                found[name] = chosen
        return found

    def table(self, named: Mapping[str, Mapping[str, ParallelPlan]]) -> PlanTable:
        """Return the inverse of `named`; the present plan replaces an unavailable one."""
        found: list[list[int]] = []
        for name, row, cells in zip(self.models, self.present, self.problem.parallel_plans, strict=True):
            techniques = {w: technique_of(parallel_plan) for w, parallel_plan in named.get(name, {}).items()}
            found.append(
                [
                    next(
                        (
                            s
                            for s, parallel_plan in enumerate(cell)
                            if parallel_plan.technique == techniques.get(worker, "")
                        ),
                        now,
                    )
                    for worker, now, cell in zip(self.workers, row, cells, strict=True)
                ]
            )
        return found

    def planned(self, order: Sequence[Placement]) -> tuple[PlannedSubEpoch, ...]:
        """Return a plan in the names of the log."""
        return tuple(
            PlannedSubEpoch(
                worker=self.workers[entry.worker],
                model=self.models[entry.model],
                epoch=self.first_epochs[entry.model] + entry.epoch - 1,
                partition=self.partitions[entry.partition],
                start_s=round(entry.start, 3),
            )
            for entry in order
        )

    def order(self, planned: Sequence[PlannedSubEpoch], *, since: float) -> tuple[Placement, ...]:
        """Return the inverse of `planned` for a plan with zero time `since`, without completed parts."""
        models = {name: m for m, name in enumerate(self.models)}
        workers = {name: w for w, name in enumerate(self.workers)}
        partitions = {number: p for p, number in enumerate(self.partitions)}
        found = []
        for sub_epoch in planned:
            if (
                sub_epoch.model in models
                and sub_epoch.worker in workers
                and sub_epoch.partition in partitions
            ):
                m, p = models[sub_epoch.model], partitions[sub_epoch.partition]
                epoch = sub_epoch.epoch - self.first_epochs[m] + 1
                if epoch > 1 or (epoch == 1 and self.problem.remaining_partitions[m] >> p & 1):
                    found.append(
                        Placement(
                            workers[sub_epoch.worker], m, p, epoch, sub_epoch.start_s - (self.now - since)
                        )
                    )
        return tuple(found)


def planner_query(fit: FitDispatch) -> PlannerQuery | None:
    """Return the remaining work; `None` if it is too little or too much to plan."""
    dispatch_state = fit.dispatch_state
    if fit.gang_size > 1 or fit.parallel_plans.has_fused or fit.has_folds:
        return None  # plans support neither gangs nor fused groups nor folds
    partitions = tuple(p for p in range(len(dispatch_state.sizes)) if dispatch_state.holders.of[p])
    # A model in its last sub-epoch needs no plan. The plan covers the epochs that all models still have.
    models = tuple(
        m
        for m, mask in enumerate(dispatch_state.open)
        if mask and (dispatch_state.epoch[m] < dispatch_state.epochs[m] or _num_remaining(fit, m, partitions))
    )
    if not models or not partitions or len(models) * len(partitions) > MAX_SUB_EPOCHS:
        return None
    remaining_masks = tuple(_num_remaining(fit, m, partitions) for m in models)
    epochs = min(dispatch_state.epochs[m] - dispatch_state.epoch[m] + 1 for m in models)
    if len(partitions) < len(dispatch_state.sizes):
        epochs = 1  # no model can complete its epoch before the lost partition is back
    in_epoch, now = len(models) * len(partitions), sum(mask.bit_count() for mask in remaining_masks)
    epochs = min(epochs, max(1 + (2 * now < in_epoch), HORIZON // in_epoch))
    if now + (epochs - 1) * in_epoch < 2:
        return None
    models_ready, gpus_ready = ready(fit)
    parallel_plans: dict[str, ParallelPlan] = {}
    table, present = [], []
    for m in models:
        cells = [_parallel_plans_on(fit, m, w, parallel_plans) for w in range(len(fit.names.workers))]
        table.append(tuple(cell for cell, _ in cells))
        present.append([now for _, now in cells])
    if any(
        not any(table[i][w] for w in dispatch_state.holders.of[p])
        for i in range(len(models))
        for p in partitions
    ):
        return None  # no present worker can run it
    problem = Problem(
        models=tuple(fit.names.models[m] for m in models),
        workers=tuple(fit.names.workers),
        gpus=dispatch_state.gpus,
        parallel_plans=tuple(table),
        holders=tuple(dispatch_state.holders.of[p] for p in partitions),
        sizes=tuple(dispatch_state.sizes[p] for p in partitions),
        epochs=epochs,
        remaining_partitions=remaining_masks,
        model_ready=tuple(models_ready.get(m, 0.0) for m in models),
        gpu_ready=gpus_ready,
    )
    return PlannerQuery(
        problem=problem,
        models=problem.models,
        workers=problem.workers,
        partitions=tuple(fit.names.partitions[p] for p in partitions),
        first_epochs=tuple(dispatch_state.epoch[m] for m in models),
        now=dispatch_state.now,
        parallel_plans=parallel_plans,
        present=present,
    )


def _parallel_plans_on(
    fit: FitDispatch, model: int, worker: int, parallel_plans: dict[str, ParallelPlan]
) -> tuple[tuple[TimedPlan, ...], int]:
    """Return a model's parallel plans on a worker, and the index of the present one or `NOT_HERE`.

    Adds their parallel plans to `parallel_plans`.
    """
    if not fit.parallel_plans.has_other(model):
        seconds, fixed = (
            fit.dispatch_state.work.time[model][worker],
            fit.dispatch_state.work.fixed[model][worker],
        )
        parallel_plans[""] = SINGLE
        return ((TimedPlan(seconds=seconds, fixed=fixed),), 0) if seconds != NEVER else ((), NOT_HERE)
    found: list[TimedPlan] = []
    present = NOT_HERE
    for parallel_plan in fit.parallel_plans.candidates(model, worker):
        technique = technique_of(parallel_plan)
        parallel_plans[technique] = parallel_plan
        if parallel_plan == fit.parallel_plans.of(model, worker):
            present = len(found)
        seconds, fixed = fit.parallel_plans.cost(model, worker, parallel_plan)
        found.append(TimedPlan(seconds=seconds, gpus=parallel_plan.size, technique=technique, fixed=fixed))
    return tuple(found), present


def _num_remaining(fit: FitDispatch, model: int, partitions: Sequence[int]) -> int:
    mask = fit.dispatch_state.open[model]
    running = fit.dispatch_state.running.get(model)
    if running:
        mask &= ~(1 << running.partition)
    return sum((mask >> p & 1) << place for place, p in enumerate(partitions))


def ready(fit: FitDispatch) -> tuple[dict[int, float], tuple[tuple[float, ...], ...]]:
    """Return the expected seconds until each busy model and each device is idle.

    A worker runs its sub-epochs in order of assignment, each on the first free device.
    """
    dispatch_state = fit.dispatch_state
    # Ascending: (time when free, True if it runs something until then).
    free = [[(0.0, False)] * gpus for gpus in dispatch_state.gpus]
    models: dict[int, float] = {}
    for model, running in sorted(dispatch_state.running.items(), key=lambda item: item[1].start):
        expected = dispatch_state.seconds(model, running.partition, running.worker)
        devices = free[running.worker]
        begin, is_queued = max(devices[: running.gpus])
        end = begin + expected if is_queued else max(0.0, running.start + expected - dispatch_state.now)
        free[running.worker] = sorted([(end, True)] * running.gpus + devices[running.gpus :])
        models[model] = end
    return models, tuple(tuple(at for at, _ in devices) for devices in free)


# --- JSON for a separate process -------------------------------------------------------------


def to_json(problem: Problem) -> dict[str, Any]:
    """Return a problem as plain values."""
    return {
        "gpus": problem.gpus,
        "parallel_plans": [
            [
                [
                    (parallel_plan.seconds, parallel_plan.gpus, parallel_plan.technique, parallel_plan.fixed)
                    for parallel_plan in parallel_plans
                ]
                for parallel_plans in row
            ]
            for row in problem.parallel_plans
        ],
        "holders": problem.holders,
        "sizes": problem.sizes,
        "epochs": problem.epochs,
        "remaining_partitions": problem.remaining_partitions,
        "model_ready": problem.model_ready,
        "gpu_ready": problem.gpu_ready,
    }


def from_json(value: Mapping[str, Any]) -> Problem:
    """Return the inverse of `to_json`; names are numbers."""
    rows = value["parallel_plans"]
    return Problem(
        models=tuple(map(str, range(len(rows)))),
        workers=tuple(map(str, range(len(rows[0])))),
        gpus=tuple(value["gpus"]),
        parallel_plans=tuple(
            tuple(
                tuple(TimedPlan(seconds=s, gpus=g, technique=t, fixed=f) for s, g, t, f in parallel_plans)
                for parallel_plans in row
            )
            for row in rows
        ),
        holders=tuple(map(tuple, value["holders"])),
        sizes=tuple(value["sizes"]),
        epochs=value["epochs"],
        remaining_partitions=tuple(value["remaining_partitions"]),
        model_ready=tuple(value["model_ready"]),
        gpu_ready=tuple(map(tuple, value["gpu_ready"])),
    )


def order_from_json(value: Sequence[Sequence[Any]]) -> tuple[Placement, ...]:
    """Return a plan from JSON lists, without `other_members`: plans have no gangs."""
    return tuple(Placement(*fields[: Placement._fields.index("other_members")]) for fields in value)
