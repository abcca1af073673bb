"""Gangs: the workers that train a sub-epoch on a set of partitions together. Pure.

Sets are stable while no worker joins or leaves. Each worker is in at most one set, so gangs do not wait for
each other's workers (docs/decisions/0041-sub-epochs-on-sets-of-partitions.md). A gang's sub-epoch gets idle
devices only, so a model waits for all workers of a set it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from cerebro.contract.events import ParallelPlansRuledOut
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.runs import FitPlan
from cerebro.contract.tasks.gangs import Gang, Member
from cerebro.scheduling.schedule import Placement
from cerebro.state import ExperimentState, ModelState, Run
from cerebro.state.models.parallel_plans import allowed_plans
from controller.decisions.fit_dispatch import FitDispatch
from controller.sources.task_source import Offer, Proposal

if TYPE_CHECKING:
    from controller.decisions.assignment_draft import AssignmentDraft, DispatchDraft

_Holder = TypeVar("_Holder", int, str)


class Gangs:
    """Proposes sub-epochs on sets of partitions to idle workers.

    Models go by priority, then by remaining work. A model waits for all workers of a set that it still needs
    completely, unless other runs use one of these workers.
    """

    def __init__(self, fit: FitDispatch, dispatch_draft: DispatchDraft) -> None:
        self._fit, self._dispatch_draft = fit, dispatch_draft

    def propose(self, view: AssignmentDraft, offer: Offer) -> Iterator[Proposal]:
        """Yield sub-epochs for idle devices; none for slots of busy ones."""
        fit = self._fit
        if fit.gang_size < 2 or offer.depth > 1:
            return
        dispatch_state = fit.dispatch_state
        addresses = {name: known.address for name, known in view.snapshot.workers.items()}
        used_by_others = {slot.worker for slot in view.exclusions.slots}
        within_reach = {
            w.name
            for w in view.alive
            if w.trains and addresses.get(w.name) and not view.exclusions.stops_all(w.name)
        } - used_by_others
        sets = [
            places
            for places in _sets(fit)
            if all(fit.names.workers[worker] in within_reach for _, worker in places)
        ]

        def precedence(model: int) -> tuple[int, float, int]:
            return -dispatch_state.priority[model], -dispatch_state.work.model_left[model], model

        for model in sorted(range(len(fit.names.models)), key=precedence):
            parallel_plan = fit.parallel_plans.gang_parallel_plan(model)
            if parallel_plan is None or model in fit.retries.out_of_memory:
                continue
            needed = [
                places
                for places in sets
                if all(dispatch_state.open[model] >> partition & 1 for partition, _ in places)
                # A worker with too few devices is in no gang of this parallel plan, and no model waits for it.
                and all(dispatch_state.gpus[worker] >= parallel_plan.size for _, worker in places)
            ]
            ready = [
                places
                for places in needed
                if all(_is_idle(fit, view, worker, parallel_plan.size) for _, worker in places)
            ]
            if ready and model not in dispatch_state.running:
                left_at = dispatch_state.work.worker_left
                places = max(ready, key=lambda places: sum(left_at[worker] for _, worker in places))
                (partition, worker), *other_places = places
                placement = Placement(
                    worker, model, partition, gpus=parallel_plan.size, other_members=tuple(other_places)
                )
                gang = _gang(fit, view, addresses[fit.names.workers[worker]], places, parallel_plan)
                key = fit.key(placement)._replace(
                    other_partitions=tuple(member.partition for member in gang.members[1:])
                )
                self._dispatch_draft.start(placement)
                yield Proposal(key, gang.members[0].worker, gang.members[0].devices, parallel_plan, gang=gang)
            # Also for a queued model: revoking it would be pointless, because it is excluded from the other workers.
            for _, worker in (place for places in needed for place in places):
                self._dispatch_draft.exclude(model, worker)


def out_of_gangs(state: ExperimentState, run: Run, models: Iterable[str]) -> Iterator[ParallelPlansRuledOut]:
    """Yield models that only gangs can train but with a remaining partition that is in no set.

    The partition is in no set because it is surplus, or its holders hold partitions of other sets.

    Args:
        models: as in `controller.sources.parallel_plans.out_of_reach`.
    """
    assert isinstance(run.plan, FitPlan)
    size = run.fit_request.gang
    if size < 2:
        return
    sets = _in_sets(_registered(state, run.plan), size)
    covered = {partition for each in sets for partition, _ in each}
    for name in models:
        model = run.models[name]
        parallel_plans = tuple(allowed_plans(run, model))
        if (
            not parallel_plans
            or any(parallel_plan.workers == 1 for parallel_plan in parallel_plans)
            or model.busy
            or model.state is not ModelState.ACTIVE
        ):
            continue
        needed = model.partitions if model.epoch < model.epochs else model.remaining
        alone = next((partition for partition in sorted(needed) if partition not in covered), None)
        if alone is not None:
            reason = f"partition {alone} is in no set of {size}, and one worker cannot train the model"
            yield ParallelPlansRuledOut(run=run.id, model=name, parallel_plans=parallel_plans, reason=reason)


def _sets(fit: FitDispatch) -> list[list[tuple[int, int]]]:
    """Return the run's sets of (partition, worker), by the present replicas."""
    dispatch_state = fit.dispatch_state

    def find_sets() -> list[list[tuple[int, int]]]:
        return _in_sets(
            ((p, dispatch_state.holders.of[p]) for p in range(len(fit.names.partitions))), fit.gang_size
        )

    return fit.again("sets of gangs", tuple(dispatch_state.holders.held), find_sets)


def _in_sets(holders: Iterable[tuple[int, Iterable[_Holder]]], size: int) -> list[list[tuple[int, _Holder]]]:
    """Group partitions in sets of `size`, each with its own holder; the rest are in no set.

    Args:
        holders: partitions with their holders.
    """
    taken: set[_Holder] = set()
    found = []
    for partition, names in holders:
        holder = next((name for name in names if name not in taken), None)
        if holder is not None:
            taken.add(holder)
            found.append((partition, holder))
    return [found[at : at + size] for at in range(0, len(found) - size + 1, size)]


def _registered(state: ExperimentState, plan: FitPlan) -> Iterator[tuple[int, Iterator[str]]]:
    """Yield the run's partitions with their training holders, alive or not."""
    for partition in sorted(plan.partitions):
        yield partition, (w.name for w in state.holders(plan.dataset, partition) if w.trains)


def _gang(
    fit: FitDispatch,
    draft: AssignmentDraft,
    address: str,
    places: Sequence[tuple[int, int]],
    parallel_plan: ParallelPlan,
) -> Gang:
    named = tuple(
        Member(
            worker=(name := fit.names.workers[worker]),
            partition=fit.names.partitions[partition],
            devices=tuple(sorted(draft.slots.reachable(name, 1)[: parallel_plan.size])),
        )
        for partition, worker in places
    )
    return Gang(address=address, members=named, rows=tuple(fit.rows[each.partition] for each in named))


def _is_idle(fit: FitDispatch, draft: AssignmentDraft, worker: int, size: int) -> bool:
    """True if `size` devices of the worker are idle."""
    return len(draft.slots.reachable(fit.names.workers[worker], 1)) >= size
