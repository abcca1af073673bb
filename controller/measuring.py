"""Inspections and trials of a fit run, as tasks: when they are given, to which worker, and what they are told. Pure.

An inspection takes no device; units go on beside it. A trial takes the devices of its way like a unit of several: those
that are free, and those that end first, behind what runs there. It goes before the next units, because what it shows
concerns all that are left; with one under way, or waiting, on a worker there is no second one there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cerebro.contract.records import QUEUE_DEPTH, ExperimentRecord
from cerebro.contract.runs import FitPlan
from cerebro.contract.tasks import MEASURING, FailureKind, InspectTask, TrialTask
from cerebro.contract.trials import DeviceKind, DevicePlace, Inspection
from cerebro.state import Model, ModelState, Run, TaskKey, Worker
from controller.assigner import Assigner
from controller.fit_dispatch import FitDispatch
from controller.trials.choice import Wanted, is_there_a_choice, trials
from controller.trials.situation import Situation

TRIAL_S = 120.0
"""A trial that takes longer is ended, and its way struck off."""


def measure(record: ExperimentRecord, run: Run, fit: FitDispatch, assigner: Assigner) -> None:
    """Give what is worth it now: the inspection, or trials."""
    if run.fit_request.trials == "never":
        return
    workers = [w for w in assigner.alive if w.trains and w.name not in assigner.barred]
    if run.inspection is None:
        if not _is_open(run, "inspect") and _is_there_a_choice(run, fit, workers):
            _Giver(record, run, fit, assigner, workers).inspect()
        return
    if all(worker.devices == 1 for worker in workers) and not _struck(run, run.inspection):
        return
    for wanted in trials(situation(run, fit, workers)):
        _Giver(record, run, fit, assigner, workers).try_out(wanted)


def situation(run: Run, fit: FitDispatch, workers: list[Worker]) -> Situation:
    """What the run knows and has left to do, to choose trials by."""
    inspection, request = run.inspection, run.fit_request
    assert inspection is not None
    numbers = {place.device: number for number, place in enumerate(inspection.places)}
    devices: dict[int, list[int]] = {}
    for worker in workers:
        if worker.device in numbers:
            devices.setdefault(numbers[worker.device], []).append(worker.devices)
    techniques = request.techniques
    return Situation(
        inspection=inspection,
        left=_left(run),
        unit=_units(run),
        batch_s=_batch_s(run, fit, workers),
        outcomes=run.trials,
        struck=_struck(run, inspection),
        fits=_fitting(run, inspection),
        under_way={
            (key.group, key.way)
            for task in run.open.values()
            if (key := task.key).kind == "trial" and key.group is not None and key.way is not None
        },
        devices=devices,
        wanted=None if techniques is None else frozenset(each.name for each in techniques),
    )


def is_pointless(run: Run, key: TaskKey) -> bool:
    """Whether nobody is left to be served by an open inspection or trial."""
    return key.kind in MEASURING and not _left(run)


# --- what is known -----------------------------------------------------------------------------------


def _is_open(run: Run, kind: str) -> bool:
    return any(task.key.kind == kind for task in run.open.values())


def _is_there_a_choice(run: Run, fit: FitDispatch, workers: list[Worker]) -> bool:
    has_overflowed = bool(run.exhausted) or any(
        struck.kind is FailureKind.OUT_OF_MEMORY
        for model in run.models.values()
        for struck in model.struck.values()
    )
    if not has_overflowed and all(worker.devices == 1 for worker in workers):
        return False
    return is_there_a_choice(
        [worker.devices for worker in workers],
        _left(run),
        _units(run),
        _batch_s(run, fit, workers),
        has_overflowed=has_overflowed,
    )


def _left(run: Run) -> dict[str, float]:
    """Model -> batches that it has left, of those that have any."""
    return {name: left for name, model in run.models.items() if (left := _batches_left(run, model)) > 0}


def _units(run: Run) -> dict[str, float]:
    """Model -> batches of its longest unit."""
    if not isinstance(run.plan, FitPlan):
        return {}
    rows = max(run.plan.partitions.values())
    return {name: rows / _batch_size(model) for name, model in run.models.items()}


def _batch_size(model: Model) -> int:
    given = model.hyperparams.get("batch_size")
    return given if isinstance(given, int) and given > 0 else 1


def _batches_left(run: Run, model: Model) -> float:
    if model.state is not ModelState.ACTIVE or model.is_trained or not isinstance(run.plan, FitPlan):
        return 0.0
    rows = sum(run.plan.partitions[number] for number in model.remaining)
    return (rows + (model.epochs - model.epoch) * sum(run.plan.partitions.values())) / _batch_size(model)


def _batch_s(run: Run, fit: FitDispatch, workers: list[Worker]) -> Mapping[str, float]:
    """Model -> seconds of a batch on one device, of those whose units have shown it."""
    estimates, found = fit.times.estimates, {}
    for name, model in run.models.items():
        if workers and estimates.knows(name):
            size = _batch_size(model)
            seconds = [estimates.seconds(name, worker.name, rows=size) for worker in workers]
            found[name] = sum(seconds) / len(seconds)
    return found


def _struck(run: Run, inspection: Inspection) -> set[tuple[str, str]]:
    """Ways that units have failed by, of a model of the group."""
    return {
        (group.id, known.id)
        for group in inspection.groups
        for model in group.models
        if run.models[model].struck
        for known in group.ways
        if known.way.label in run.models[model].struck
    }


def _fitting(run: Run, inspection: Inspection) -> set[tuple[str, str]]:
    """Ways by which units of the group were committed."""
    found = set()
    for group in inspection.groups:
        labels = {
            visits[-1].way.label if visits[-1].way is not None else "single"
            for model in group.models
            if (visits := run.models[model].visits)
        }
        found |= {(group.id, known.id) for known in group.ways if known.way.label in labels}
    return found


# --- tasks -------------------------------------------------------------------------------------------


class _Giver(NamedTuple):
    """Gives out one task."""

    record: ExperimentRecord
    run: Run
    fit: FitDispatch
    assigner: Assigner
    workers: list[Worker]

    def inspect(self) -> None:
        """By a worker without a task beside units, rather one that holds data: it can tell how rows are laid out."""
        run, request, places = self.run, self.run.fit_request, self.assigner.places
        able = [w for w in self.workers if "inspect" in w.kinds and places.beside(w.name) == 0]
        worker = min(able, key=lambda w: (not _held(run, w), w.name), default=None)
        kinds = _kinds(self.workers)
        if worker is None or not kinds:
            return
        key = TaskKey(run=run.id, kind="inspect")
        body = InspectTask(
            **self._common(key),
            models={name: model.hyperparams for name, model in run.models.items()},
            techniques=request.techniques,
            gpus=request.gpus,
            places=kinds,
        )
        self.assigner.give(worker.name, key, (), body=body)

    def try_out(self, wanted: Wanted) -> None:
        """On the worker that has most of the devices free, if one has any."""
        run, size = self.run, wanted.known.way.size
        assert run.inspection is not None
        device = run.inspection.places[wanted.known.place].device
        able = [
            (worker, devices) for worker in self.workers if (devices := self._devices(worker, device, size))
        ]
        if not able:
            return
        places = self.assigner.places
        worker, devices = min(
            able, key=lambda pair: (sum(places.count(pair[0].name, d) for d in pair[1]), pair[0].name)
        )
        key = TaskKey(run=run.id, kind="trial", group=wanted.group.id, way=wanted.known.id)
        body = TrialTask(
            **self._common(key),
            model=wanted.model,
            hyperparams=run.models[wanted.model].hyperparams,
            hang_timeout_s=min(run.fit_request.hang_timeout_s, TRIAL_S),
            group=wanted.group.id,
            id=wanted.known.id,
            way=wanted.known.way,
            device=device,
            partition=_held(run, worker)[0],
        )
        self.assigner.give(worker.name, key, devices, body=body)

    def _devices(self, worker: Worker, kind: DeviceKind, size: int) -> tuple[int, ...]:
        """Those that a trial would take there; none if it cannot be there now."""
        is_busy = any(TaskKey.parse(key).kind in MEASURING for key in worker.open_tasks)
        is_given = any(
            step.worker == worker.name and step.body.kind in MEASURING for step in self.assigner.steps
        )
        if (
            worker.device != kind
            or is_busy
            or is_given
            or "trial" not in worker.kinds
            or not _held(self.run, worker)
        ):
            return ()
        places = self.assigner.places
        found = places.reachable(worker.name, QUEUE_DEPTH)
        if len(found) < size or places.count(worker.name, found[0]) > 0:
            return ()
        ends = {each: self.fit.present(worker, each) or 0.0 for each in found}
        found.sort(key=lambda each: (places.count(worker.name, each), ends[each]))
        return tuple(sorted(found[:size]))

    def _common(self, key: TaskKey) -> dict[str, Any]:
        record, request, plan = self.record, self.run.fit_request, self.run.plan
        assert plan is not None
        return {
            "key": str(key),
            "experiment": record.name,
            "run": self.run.id,
            "code": request.code,
            "archive": record.archive,
            "misc": record.locators.misc,
            "dataset": plan.dataset,
            "seed": request.seed,
        }


def _kinds(workers: list[Worker]) -> tuple[DevicePlace, ...]:
    most: dict[DeviceKind, int] = {}
    for worker in sorted(workers, key=lambda worker: worker.name):
        if worker.device is not None:
            most[worker.device] = max(most.get(worker.device, 1), worker.devices)
    return tuple(DevicePlace(device=device, most=count) for device, count in most.items())


def _held(run: Run, worker: Worker) -> list[int]:
    """Training partitions of the run's data that the worker holds."""
    assert run.plan is not None
    return sorted(number for dataset, number in worker.holdings if dataset == run.plan.dataset)
