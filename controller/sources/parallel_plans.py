"""Which way a sub-epoch of a model gets on a worker. Pure: what is known of each way in, a way out.

Ways are chosen between sub-epochs, where a model's state goes through its checkpoint anyway; a sub-epoch that runs
keeps its own (docs/decisions/0036-ways-between-sub_epochs.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cerebro.contract.events import ParallelPlansRuledOut
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.runs import FitPlan
from cerebro.scheduling.dispatch_state import NEVER
from cerebro.state import ExperimentState, Model, ModelState, Run
from cerebro.state.parallel_plans import left
from controller.projections.sub_epoch_times import SubEpochTimes, technique_of
from controller.sources.trials.known import situation, totals
from controller.sources.trials.parallel_plan_choice import allotted


def options(run: Run, model: Model) -> tuple[ParallelPlan, ...]:
    """The ways that are left of a model, those first that are to be tried first; then those of its run's trials."""
    listed = tuple(left(run, model))
    return (*listed, *_measured(run, model, {parallel_plan.label for parallel_plan in listed}))


def _measured(run: Run, model: Model, listed: set[str]) -> Iterator[ParallelPlan]:
    """Further ways that trials have shown to be right for the model, where the platform chooses."""
    group = run.inspection.group_of(model.id) if run.inspection is not None else None
    if group is None or run.fit_request.techniques is not None:
        return
    for known in group.parallel_plans:
        outcome = run.trials.get((group.id, known.id))
        is_right = outcome is not None and outcome.is_usable and outcome.is_verified and known.is_automatic
        if (
            is_right
            and known.parallel_plan.label not in model.struck
            and known.parallel_plan.label not in listed
        ):
            listed.add(known.parallel_plan.label)
            yield known.parallel_plan


class ParallelPlans:
    """By which way the next sub-epoch of each model of a fit runs on each worker, how long it takes, and by which other
    ways it could run there. Models and workers by their numbers in the dispatch state.

    *Choosing* models are those that have another way than `SINGLE` somewhere, or none.
    """

    def __init__(
        self, state: ExperimentState, run: Run, times: SubEpochTimes, workers: Sequence[str], mean_rows: float
    ) -> None:
        self._models, self._workers = list(run.models), list(workers)
        self._times, self._mean_rows = times, mean_rows
        self._devices = [state.workers[name].devices for name in workers]
        self._alike: dict[int, int] = {}
        """Number of devices -> a worker with that number."""
        for worker, number in enumerate(self._devices):
            self._alike.setdefault(number, worker)
        self._chosen: dict[int, tuple[ParallelPlan | None, ...]] = {}
        """Model -> its way on each worker, of those that are choosing."""
        self._options: dict[int, tuple[ParallelPlan, ...]] = {}
        """Model -> the ways that it has left."""
        self._known: list[tuple[str, ...]] = [()] * len(self._models)
        """Of each model, see `known`: asked for at every decision, and changed for a model at a time."""
        self._gang_parallel_plans: dict[int, ParallelPlan] = {}
        """Model -> by which a sub-epoch of it runs on several workers at once; of those that have such a way left."""
        self._wide = _wide(state, run, times, workers)

    def add_model(self, name: str) -> None:
        """Another model; `allot` says which ways it has."""
        self._models.append(name)
        self._known.append(())

    def of(self, model: int, worker: int) -> ParallelPlan | None:
        """By which the next sub-epoch of a model is to run on a worker; `None`: it cannot."""
        row = self._chosen.get(model)
        return SINGLE if row is None else row[worker]

    def gang_parallel_plan(self, model: int) -> ParallelPlan | None:
        """By which sub-epochs of a model run on several workers at once; `None`: on one."""
        return self._gang_parallel_plans.get(model)

    @property
    def is_plain(self) -> bool:
        """Whether each sub-epoch takes one device."""
        return not self._chosen

    @property
    def choosing(self) -> Iterable[str]:
        """Their names."""
        return (self._models[model] for model in self._chosen)

    def rows(self) -> Iterator[tuple[int, list[float]]]:
        """Each of them, and its `row`."""
        return ((model, self.row(model)) for model in self._chosen)

    def size(self, model: int) -> int:
        """Devices that the next sub-epoch of a model takes at least."""
        row = self._chosen.get(model, (SINGLE,))
        return min((parallel_plan.size for parallel_plan in row if parallel_plan is not None), default=1)

    def allot(self, run: Run, model: Model, index: int) -> bool:
        """See which way the model has on each worker from now on: that of a plan, if it has one, else by what trials
        have shown. Returns whether that is another one than before."""
        found = tuple(parallel_plan for parallel_plan in options(run, model) if parallel_plan.workers == 1)
        gang_parallel_plan = next(
            (parallel_plan for parallel_plan in left(run, model) if parallel_plan.workers > 1), None
        )
        self._gang_parallel_plans |= {index: gang_parallel_plan} if gang_parallel_plan is not None else {}
        if gang_parallel_plan is None:
            self._gang_parallel_plans.pop(index, None)
        planned = run.planned.parallel_plans.get(model.id, {}) if run.planned is not None else {}
        self._options[index] = found
        self.learn(index)
        if not planned and model.id not in self._wide and self._is_single_everywhere(found):
            return self._chosen.pop(index, None) is not None
        wide = self._wide.get(model.id) or (None,) * len(self._workers)

        def chosen(worker: int) -> ParallelPlan | None:
            # Both were chosen before now: a way may have been ruled out since.
            for parallel_plan in (planned.get(self._workers[worker]), wide[worker]):
                if (
                    parallel_plan is not None
                    and parallel_plan in found
                    and self._takes(worker, parallel_plan)
                ):
                    return parallel_plan
            # While nothing is measured, the order in which ways are to be tried is all there is to go by.
            return next(
                (parallel_plan for parallel_plan in found if self._takes(worker, parallel_plan)), None
            )

        row = tuple(map(chosen, range(len(self._workers))))
        is_single = all(parallel_plan is not None and parallel_plan.is_single for parallel_plan in row)
        before = self._chosen.get(index)
        if row == before or (before is None and is_single):
            return False
        self._chosen[index] = row
        if is_single:
            del self._chosen[index]
        return True

    def _is_single_everywhere(self, parallel_plans: Sequence[ParallelPlan]) -> bool:
        """Whether each worker takes one device, by the order of the ways alone: of thousands most are alike."""
        firsts = (
            next(
                (parallel_plan for parallel_plan in parallel_plans if self._takes(worker, parallel_plan)),
                None,
            )
            for worker in self._alike.values()
        )
        return all(parallel_plan is not None and parallel_plan.is_single for parallel_plan in firsts)

    def _takes(self, worker: int, parallel_plan: ParallelPlan) -> bool:
        """Whether a worker can train a sub-epoch by a way."""
        return parallel_plan.size <= self._devices[worker]

    # --- how long they take ----------------------------------------------------------------------

    def cost(self, model: int, worker: int, parallel_plan: ParallelPlan) -> tuple[float, float]:
        """Estimated seconds of the rows of a sub-epoch of mean size by that way, and of its fixed part."""
        name, rows, estimates = self._models[model], self._mean_rows, self._times.estimates
        known = self._known_as(name, parallel_plan)
        seconds = estimates.seconds(name, self._workers[worker], rows=rows, technique=known)
        return seconds, estimates.fixed_s(name, known)

    def fixed(self, model: int) -> list[float]:
        """Estimated seconds of the fixed part of a sub-epoch on each worker, by the way that the model has there."""
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
        """Estimated seconds of the rows of a sub-epoch of mean size on each worker, by the way that the model has
        there."""
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
        """What tells how long sub-epochs take by a way that has not run yet: one device, or else what is typical of all
        models."""
        technique = technique_of(parallel_plan)
        return technique if self._times.estimates.knows(name, technique) else ""

    # --- what a plan may choose ------------------------------------------------------------------

    def learn(self, model: int) -> None:
        """A sub-epoch of the model was committed, or it has other ways left: of other ones the time may be known."""
        knows, name = self._times.estimates.knows, self._models[model]
        techniques = map(technique_of, self._options[model])
        self._known[model] = tuple(technique for technique in techniques if knows(name, technique))

    def known(self) -> tuple[tuple[str, ...], ...]:
        """Of each model, those of the ways it has left of which the time is known: a sub-epoch ran by it, or a
        trial."""
        return tuple(self._known)

    def has_other(self, model: int) -> bool:
        """Whether the model has several ways left, or another one than `SINGLE`."""
        return self._options[model] != (SINGLE,)

    def candidates(self, model: int, worker: int) -> Iterator[ParallelPlan]:
        """The ways by which a plan may run the model there: its present one, and those of which the time is known."""
        present = self.of(model, worker)
        for parallel_plan in self._options[model]:
            is_known = self._times.estimates.knows(self._models[model], technique_of(parallel_plan))
            if parallel_plan == present or (is_known and self._takes(worker, parallel_plan)):
                yield parallel_plan


def _wide(
    state: ExperimentState, run: Run, times: SubEpochTimes, workers: Sequence[str]
) -> dict[str, tuple[ParallelPlan | None, ...]]:
    """Model -> the way on several devices that it has on each worker, by what was measured; `None`: none there."""
    inspection = run.inspection
    if inspection is None or not any(outcome.is_usable for outcome in run.trials.values()):
        return {}
    alive = [worker for name in workers if (worker := state.workers[name]).is_alive]
    places = {place.device: number for number, place in enumerate(inspection.places)}
    found: dict[str, tuple[ParallelPlan | None, ...]] = {}
    for model, by_place in allotted(situation(run, times, alive), totals(run)).items():
        devices = (state.workers[name].device for name in workers)
        found[model] = tuple(
            None if device is None else by_place.get(places.get(device, -1)) for device in devices
        )
    return found


def out_of_reach(state: ExperimentState, run: Run, models: Iterable[str]) -> Iterator[ParallelPlansRuledOut]:
    """Models that can be trained by none of the ways that they have left where one of their partitions is: whoever
    holds it, though perhaps away, has too few devices.

    Args:
        models: to look at; what is ruled out of others is nothing.
    """
    assert isinstance(run.plan, FitPlan)
    for name in models:
        model = run.models[name]
        if not model.struck or model.busy or model.state is not ModelState.ACTIVE:
            continue
        parallel_plans = tuple(
            parallel_plan for parallel_plan in left(run, model) if parallel_plan.workers == 1
        )
        least = min((parallel_plan.size for parallel_plan in parallel_plans), default=0)
        for partition in model.partitions if model.epoch < model.epochs else model.remaining:
            holders = [w for w in state.holders(run.plan.dataset, partition) if w.trains]
            if parallel_plans and holders and max(worker.devices for worker in holders) < least:
                told = ", ".join(f"{worker.name}: {worker.devices}" for worker in holders)
                reason = f"partition {partition} is held by workers with too few devices ({told})"
                yield ParallelPlansRuledOut(
                    run=run.id, model=name, parallel_plans=parallel_plans, reason=reason
                )
                break


def as_sent(parallel_plan: ParallelPlan) -> ParallelPlan | None:
    """A way as assignments tell of it: one device, as user code is written, is told by naming none."""
    return None if parallel_plan.is_single else parallel_plan
