"""The parallel plan of a model's next sub-epoch on each worker. Pure.

A plan is chosen between sub-epochs, when the model's state is in a checkpoint. A running sub-epoch keeps its
plan (docs/decisions/0036-plans-change-between-sub-epochs.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cerebro.contract.events import ParallelPlansRuledOut
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.runs import FitPlan
from cerebro.contract.trials import DeviceKind
from cerebro.scheduling.remaining_work import NEVER
from cerebro.state import ExperimentState, Model, ModelState, Run
from cerebro.state.models.parallel_plans import allowed_plans
from cerebro.state.runs.parts.stack_times import StackKey
from controller.projections.sub_epoch_times import SubEpochTimes, technique_of
from controller.sources.trials.known import situation, totals
from controller.sources.trials.parallel_plan_choice import measured_plans


def options(run: Run, model: Model, *, without: ParallelPlan | None = None) -> tuple[ParallelPlan, ...]:
    """Return a model's remaining parallel plans in order of preference, then verified plans of trials.

    Args:
        without: a plan to treat as ruled out.
    """
    listed = tuple(allowed_plans(run, model, without=without))
    known = {plan.label for plan in (*listed, *([without] if without is not None else []))}
    return (*listed, *_measured(run, model, known))


def _measured(run: Run, model: Model, listed: set[str]) -> Iterator[ParallelPlan]:
    """Yield further verified plans of trials, unless the user named techniques."""
    group = run.trials.inspection.group_of(model.id) if run.trials.inspection is not None else None
    if group is None or run.fit_request.techniques is not None:
        return
    for known in group.parallel_plans:
        outcome = run.trials.outcomes.get((group.id, known.id))
        is_right = outcome is not None and outcome.is_usable and outcome.is_verified and known.is_automatic
        if (
            is_right
            and known.parallel_plan.label not in model.failures.ruled_out
            and known.parallel_plan.label not in listed
        ):
            listed.add(known.parallel_plan.label)
            yield known.parallel_plan


class ParallelPlans:
    """Parallel plans and times of the models of a fit on each worker.

    Models and workers are indices of the dispatch state. A *choosing* model has another plan than `SINGLE` on
    some worker, or none there.
    """

    def __init__(
        self, state: ExperimentState, run: Run, times: SubEpochTimes, workers: Sequence[str], mean_rows: float
    ) -> None:
        self._models, self._workers = list(run.models), list(workers)
        self._times, self._mean_rows = times, mean_rows
        self._devices = [state.workers[name].devices for name in workers]
        self._device_kinds = [state.workers[name].device for name in workers]
        self._alike: dict[tuple[int, DeviceKind | None], int] = {}
        """Number and kind of devices -> a worker with these."""
        for worker, devices in enumerate(zip(self._devices, self._device_kinds, strict=True)):
            self._alike.setdefault(devices, worker)
        self._chosen: dict[int, tuple[ParallelPlan | None, ...]] = {}
        """Choosing model -> its parallel plan on each worker."""
        self._options: dict[int, tuple[ParallelPlan, ...]] = {}
        """Model -> its remaining parallel plans."""
        self._known: list[tuple[str, ...]] = [()] * len(self._models)
        """Result of `known` for each model, cached because every decision reads it."""
        self._gang_parallel_plans: dict[int, ParallelPlan] = {}
        """Model -> its remaining parallel plan for a gang."""
        self._wide = _wide(state, run, times, workers)

    def add_model(self, name: str) -> None:
        """Add a model; `allot` sets its parallel plans."""
        self._models.append(name)
        self._known.append(())

    def of(self, model: int, worker: int) -> ParallelPlan | None:
        """Return the parallel plan of the model's next sub-epoch on a worker; `None` if it cannot run there."""
        row = self._chosen.get(model)
        return SINGLE if row is None else row[worker]

    def device(self, worker: int) -> DeviceKind | None:
        """Return the kind of a worker's devices; `None` if it is unknown."""
        return self._device_kinds[worker]

    def gang_parallel_plan(self, model: int) -> ParallelPlan | None:
        """Return the parallel plan of a model's gangs; `None` if single workers train it."""
        return self._gang_parallel_plans.get(model)

    @property
    def is_plain(self) -> bool:
        """True if each sub-epoch takes one device."""
        return not self._chosen

    @property
    def has_fused(self) -> bool:
        """True if a model may train in a fused group."""
        return any(plan.fused_models for options in self._options.values() for plan in options)

    @property
    def choosing(self) -> Iterable[str]:
        """Names of the choosing models."""
        return (self._models[model] for model in self._chosen)

    def rows(self) -> Iterator[tuple[int, list[float]]]:
        """Return each choosing model and its `row`."""
        return ((model, self.row(model)) for model in self._chosen)

    def size(self, model: int) -> int:
        """Return the minimum number of devices of the model's next sub-epoch."""
        row = self._chosen.get(model, (SINGLE,))
        return min((parallel_plan.size for parallel_plan in row if parallel_plan is not None), default=1)

    def update(self, run: Run, model: Model, index: int) -> bool:
        """Update the model's parallel plan on each worker; return True if one has changed.

        The run's schedule decides first, then the trials, then the order of preference.
        """
        found = tuple(parallel_plan for parallel_plan in options(run, model) if parallel_plan.workers == 1)
        gang_parallel_plan = next(
            (parallel_plan for parallel_plan in allowed_plans(run, model) if parallel_plan.workers > 1), None
        )
        self._gang_parallel_plans |= {index: gang_parallel_plan} if gang_parallel_plan is not None else {}
        if gang_parallel_plan is None:
            self._gang_parallel_plans.pop(index, None)
        planned = (
            run.scheduling.planned.parallel_plans.get(model.id, {})
            if run.scheduling.planned is not None
            else {}
        )
        self._options[index] = found
        self.learn(index)
        firsts = {each: self._first(run, model, found, worker) for each, worker in self._alike.items()}
        is_single_everywhere = all(plan is not None and plan.is_single for plan in firsts.values())
        if not planned and model.id not in self._wide and is_single_everywhere:
            return self._chosen.pop(index, None) is not None
        wide = self._wide.get(model.id) or (None,) * len(self._workers)

        def chosen(worker: int) -> ParallelPlan | None:
            # Both were chosen earlier: the plan may have been ruled out since.
            for parallel_plan in (planned.get(self._workers[worker]), wide[worker]):
                if (
                    parallel_plan is not None
                    and parallel_plan in found
                    and self._takes(worker, parallel_plan)
                ):
                    return parallel_plan
            # Without measurements, the order of preference decides.
            return firsts[self._devices[worker], self._device_kinds[worker]]

        row = tuple(map(chosen, range(len(self._workers))))
        is_single = all(parallel_plan is not None and parallel_plan.is_single for parallel_plan in row)
        previous_row = self._chosen.get(index)
        if row == previous_row or (previous_row is None and is_single):
            return False
        self._chosen[index] = row
        if is_single:
            del self._chosen[index]
        return True

    def _first(
        self, run: Run, model: Model, parallel_plans: Sequence[ParallelPlan], worker: int
    ) -> ParallelPlan | None:
        """Return the first plan that a worker's devices can take, without stacks that don't pay there."""
        kind = run.trials.similar_models(model) if run.chooses_stacks else None
        key = StackKey(kind, self._device_kinds[worker]) if kind is not None else None
        return next(
            (
                plan
                for plan in parallel_plans
                if self._takes(worker, plan)
                and not (
                    run.chooses_stacks
                    and plan.fused_models
                    and (key is None or not run.trials.stacks.is_worthwhile(key, plan.fused_models))
                )
            ),
            None,
        )

    def _takes(self, worker: int, parallel_plan: ParallelPlan) -> bool:
        return parallel_plan.size <= self._devices[worker]

    # --- times -----------------------------------------------------------------------------------

    def cost(self, model: int, worker: int, parallel_plan: ParallelPlan) -> tuple[float, float]:
        """Return estimated seconds of a mean sub-epoch's rows by this plan, and of its fixed part."""
        name, rows, estimates = self._models[model], self._mean_rows, self._times.estimates
        known = self._known_as(name, parallel_plan)
        seconds = estimates.seconds(name, self._workers[worker], rows=rows, technique=known)
        return seconds, estimates.fixed_s(name, known)

    def fixed(self, model: int) -> list[float]:
        """Return the estimated fixed seconds of a sub-epoch on each worker."""
        name, estimates = self._models[model], self._times.estimates
        if estimates.is_blind:
            return [0.0] * len(self._workers)
        chosen = self._chosen.get(model)
        if chosen is None:
            return [estimates.fixed_s(name)] * len(self._workers)
        return [
            0.0 if parallel_plan is None else estimates.fixed_s(name, self._known_as(name, parallel_plan))
            for parallel_plan in chosen
        ]

    def row(self, model: int) -> list[float]:
        """Return the estimated seconds of a mean sub-epoch's rows on each worker."""
        name, rows, estimates = self._models[model], self._mean_rows, self._times.estimates
        chosen = self._chosen.get(model)
        if chosen is None:
            return estimates.table([name], self._workers, rows=rows)[0]
        if estimates.is_blind:
            return [NEVER if parallel_plan is None else 1.0 for parallel_plan in chosen]
        known = [
            None if parallel_plan is None else self._known_as(name, parallel_plan) for parallel_plan in chosen
        ]
        tables = {
            each: estimates.table([name], self._workers, rows=rows, technique=each)[0]
            for each in set(known)
            if each is not None
        }
        return [NEVER if each is None else tables[each][worker] for worker, each in enumerate(known)]

    def _known_as(self, name: str, parallel_plan: ParallelPlan) -> str:
        """Return the technique with known times for a plan: its own, else one device or the typical model."""
        technique = technique_of(parallel_plan)
        return technique if self._times.estimates.knows(name, technique) else ""

    # --- choices of a schedule -------------------------------------------------------------------

    def learn(self, model: int) -> None:
        """Update `known` after a commit of the model or a change of its remaining plans."""
        knows, name = self._times.estimates.knows, self._models[model]
        techniques = map(technique_of, self._options[model])
        self._known[model] = tuple(technique for technique in techniques if knows(name, technique))

    def known(self) -> tuple[tuple[str, ...], ...]:
        """Return, for each model, the techniques of remaining plans with known times."""
        return tuple(self._known)

    def has_other(self, model: int) -> bool:
        """True if the model has several remaining plans, or a different one from `SINGLE`."""
        return self._options[model] != (SINGLE,)

    def candidates(self, model: int, worker: int) -> Iterator[ParallelPlan]:
        """Yield the plans a schedule may use there: the present one, and those with known times."""
        present = self.of(model, worker)
        for parallel_plan in self._options[model]:
            is_known = self._times.estimates.knows(self._models[model], technique_of(parallel_plan))
            if parallel_plan == present or (is_known and self._takes(worker, parallel_plan)):
                yield parallel_plan


def _wide(
    state: ExperimentState, run: Run, times: SubEpochTimes, workers: Sequence[str]
) -> dict[str, tuple[ParallelPlan | None, ...]]:
    """Return model -> its measured plan for several devices on each worker, or `None` there."""
    inspection = run.trials.inspection
    if inspection is None or not any(outcome.is_usable for outcome in run.trials.outcomes.values()):
        return {}
    alive = [worker for name in workers if (worker := state.workers[name]).is_alive]
    device_kinds = {place.device: number for number, place in enumerate(inspection.device_kinds)}
    found: dict[str, tuple[ParallelPlan | None, ...]] = {}
    for model, by_place in measured_plans(situation(run, times, alive), totals(run)).items():
        devices = (state.workers[name].device for name in workers)
        found[model] = tuple(
            None if device is None else by_place.get(device_kinds.get(device, -1)) for device in devices
        )
    return found


def out_of_reach(state: ExperimentState, run: Run, models: Iterable[str]) -> Iterator[ParallelPlansRuledOut]:
    """Yield models that no remaining plan can train on the holders of one of their partitions.

    All holders, even absent ones, have too few devices.

    Args:
        models: names of the models to check.
    """
    assert isinstance(run.plan, FitPlan)
    for name in models:
        model = run.models[name]
        if not model.failures.ruled_out or model.busy or model.state is not ModelState.ACTIVE:
            continue
        parallel_plans = tuple(
            parallel_plan for parallel_plan in allowed_plans(run, model) if parallel_plan.workers == 1
        )
        least = min((parallel_plan.size for parallel_plan in parallel_plans), default=0)
        for partition in model.partitions if model.epoch < model.epochs else model.remaining:
            holders = [w for w in state.holders(run.plan.dataset, partition) if w.trains]
            if parallel_plans and holders and max(worker.devices for worker in holders) < least:
                device_counts = ", ".join(f"{worker.name}: {worker.devices}" for worker in holders)
                reason = f"partition {partition} is held by workers with too few devices ({device_counts})"
                yield ParallelPlansRuledOut(
                    run=run.id, model=name, parallel_plans=parallel_plans, reason=reason
                )
                break


def as_sent(parallel_plan: ParallelPlan) -> ParallelPlan | None:
    """Return the plan as in assignments: `None` for one device."""
    return None if parallel_plan.is_single else parallel_plan
