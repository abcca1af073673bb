"""Facts about a fit run for the choice of trials and parallel plans, read from its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebro.contract.parallel_plans import SINGLE
from cerebro.contract.runs import FitPlan
from cerebro.contract.trials import Inspection
from cerebro.state import Model, ModelState, Run, Worker
from controller.projections.sub_epoch_times import SubEpochTimes, technique_of
from controller.sources.trials.selection import is_there_a_choice
from controller.sources.trials.situation import Situation


def situation(run: Run, times: SubEpochTimes, workers: Sequence[Worker]) -> Situation:
    """Return the facts for choosing trials."""
    inspection, request = run.trials.inspection, run.fit_request
    assert inspection is not None
    numbers = {kind.device: number for number, kind in enumerate(inspection.device_kinds)}
    devices: dict[int, list[int]] = {}
    for worker in workers:
        if worker.device in numbers:
            devices.setdefault(numbers[worker.device], []).append(worker.devices)
    techniques = request.techniques
    return Situation(
        inspection=inspection,
        remaining_batches=left_in(run),
        sub_epoch=_sub_epochs(run),
        batch_s=_batch_s(run, times, workers),
        outcomes=run.trials.outcomes,
        struck=ruled_out(run, inspection),
        fits=_fitting(run, inspection),
        under_way={
            (key.group, key.parallel_plan)
            for task in run.tasks.open.values()
            if (key := task.key).kind == "trial" and key.group is not None and key.parallel_plan is not None
        },
        devices=devices,
        wanted=None if techniques is None else frozenset(each.name for each in techniques),
    )


def is_worth_inspecting(run: Run, times: SubEpochTimes, workers: Sequence[Worker]) -> bool:
    """True if an inspection of the run's models could be useful."""
    if run.tasks.exhausted or run.counts.overflowed:
        return True  # checked first: it is called after each sub-epoch that runs out of memory
    if all(worker.devices == 1 for worker in workers):
        return False
    return is_there_a_choice(
        [worker.devices for worker in workers],
        left_in(run),
        _sub_epochs(run),
        _batch_s(run, times, workers),
    )


def left_in(run: Run) -> dict[str, float]:
    """Return model -> remaining batches, if it has any."""
    return {name: batches for name, model in run.models.items() if (batches := _batches_left(run, model)) > 0}


def _sub_epochs(run: Run) -> dict[str, float]:
    """Return model -> batches of its longest sub-epoch."""
    if not isinstance(run.plan, FitPlan):
        return {}
    rows = max(run.plan.partitions.values())
    return {name: rows / _batch_size(model) for name, model in run.models.items()}


def totals(run: Run) -> dict[str, float]:
    """Return model -> batches of its whole training, without stopped and failed models."""
    assert isinstance(run.plan, FitPlan)
    rows = sum(run.plan.partitions.values())
    models = run.models.items()
    return {
        name: model.epochs * rows / _batch_size(model) for name, model in models if not model.is_cut_short
    }


def _batch_size(model: Model) -> int:
    batch_size = model.hyperparams.get("batch_size")
    return batch_size if isinstance(batch_size, int) and batch_size > 0 else 1


def _batches_left(run: Run, model: Model) -> float:
    if model.state is not ModelState.ACTIVE or model.is_trained or not isinstance(run.plan, FitPlan):
        return 0.0
    rows = sum(run.plan.partitions[number] for number in model.remaining)
    return (rows + (model.epochs - model.epoch) * sum(run.plan.partitions.values())) / _batch_size(model)


def _batch_s(run: Run, times: SubEpochTimes, workers: Sequence[Worker]) -> Mapping[str, float]:
    """Return model -> measured seconds of a batch on one device.

    If the model does not fit one device, by the plan of its last sub-epoch.
    """
    estimates, found = times.estimates, {}
    for name, model in run.models.items():
        is_single = SINGLE.label not in model.failures.ruled_out or not model.sub_epochs
        technique = "" if is_single else technique_of(model.sub_epochs[-1].parallel_plan)
        if workers and estimates.knows(name, technique):
            size = _batch_size(model)
            seconds = [
                estimates.seconds(name, worker.name, rows=size, technique=technique) for worker in workers
            ]
            found[name] = sum(seconds) / len(seconds)
    return found


def ruled_out(run: Run, inspection: Inspection) -> set[tuple[str, str]]:
    """Return plans that failed in sub-epochs of a model that has not changed since."""
    return {
        (group.id, known.id)
        for group in inspection.groups
        for model in group.models
        if run.models[model].failures.ruled_out and not run.models[model].configs.has_changed
        for known in group.parallel_plans
        if known.parallel_plan.label in run.models[model].failures.ruled_out
    }


def _fitting(run: Run, inspection: Inspection) -> set[tuple[str, str]]:
    """Return plans of committed sub-epochs of models that have not changed since."""
    found = set()
    for group in inspection.groups:
        labels = {
            sub_epochs[-1].parallel_plan.label if sub_epochs[-1].parallel_plan is not None else "single"
            for model in group.models
            if (sub_epochs := run.models[model].sub_epochs) and not run.models[model].configs.has_changed
        }
        found |= {
            (group.id, known.id) for known in group.parallel_plans if known.parallel_plan.label in labels
        }
    return found
