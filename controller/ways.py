"""Which way a unit of a model gets on a worker. Pure: what is known of each way in, a way out.

Ways are chosen between units, where a model's state goes through its checkpoint anyway; a unit that runs keeps its own
(docs/decisions/0036-ways-between-units.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cerebro.contract.events import WaysStruckOff
from cerebro.contract.runs import FitPlan
from cerebro.contract.ways import Way
from cerebro.state import ExperimentState, Model, ModelState, Run
from cerebro.state.ways import left


def options(run: Run, model: Model) -> tuple[Way, ...]:
    """The ways that are left of a model, those first that are to be tried first; then those of its run's trials."""
    listed = tuple(left(run, model))
    return (*listed, *_measured(run, model, {way.label for way in listed}))


def _measured(run: Run, model: Model, listed: set[str]) -> Iterator[Way]:
    """Further ways that trials have shown to be right for the model, where the platform chooses."""
    group = run.inspection.group_of(model.id) if run.inspection is not None else None
    if group is None or run.fit_request.techniques is not None:
        return
    for known in group.ways:
        outcome = run.trials.get((group.id, known.id))
        is_right = outcome is not None and outcome.is_usable and outcome.is_verified and known.is_automatic
        if is_right and known.way.label not in model.struck and known.way.label not in listed:
            listed.add(known.way.label)
            yield known.way


def out_of_reach(state: ExperimentState, run: Run, models: Iterable[str]) -> Iterator[WaysStruckOff]:
    """Models that can be trained by none of the ways that they have left where one of their partitions is: whoever
    holds it, though perhaps away, has too few devices.

    Args:
        models: to look at; what is struck off of others is nothing.
    """
    assert isinstance(run.plan, FitPlan)
    for name in models:
        model = run.models[name]
        if not model.struck or model.busy or model.state is not ModelState.ACTIVE:
            continue
        ways = tuple(left(run, model))
        least = min((way.size for way in ways), default=0)
        for partition in model.partitions if model.epoch < model.epochs else model.remaining:
            holders = [w for w in state.holders(run.plan.dataset, partition) if w.trains]
            if ways and holders and max(worker.devices for worker in holders) < least:
                told = ", ".join(f"{worker.name}: {worker.devices}" for worker in holders)
                reason = f"partition {partition} is held by workers with too few devices ({told})"
                yield WaysStruckOff(run=run.id, model=name, ways=ways, reason=reason)
                break


def as_sent(way: Way) -> Way | None:
    """A way as assignments tell of it: one device, as user code is written, is told by naming none."""
    return None if way.is_single else way
