"""Inspections and trials of a fit run, as tasks: when they are given, to which worker, and what they are told. Pure.

An inspection takes no device; sub-epochs go on beside it. A trial takes the devices of its way like a sub-epoch of
several: those that are free, and those that end first, behind what runs there. It goes before the next sub-epochs,
because what it shows concerns all that are left; with one under way, or waiting, on a worker there is no second one
there.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from itertools import islice
from typing import Any, NamedTuple

from cerebro.contract.records import QUEUE_DEPTH, ExperimentRecord
from cerebro.contract.tasks import MEASURING, InspectTask, TrialTask
from cerebro.contract.trials import DeviceKind, DevicePlace
from cerebro.state import Run, TaskKey, Worker
from controller.decisions.assignment_draft import AssignmentDraft
from controller.decisions.device_ends import end_of
from controller.decisions.fit_dispatch import FitDispatch
from controller.sources.trials.known import is_worth_inspecting, situation
from controller.sources.trials.selection import Wanted, trials

TRIAL_S = 120.0
"""A trial that takes longer is ended, and its way ruled out."""


def measure(record: ExperimentRecord, run: Run, fit: FitDispatch, draft: AssignmentDraft) -> None:
    """Give what is worth it now: the inspection, or trials."""
    if run.fit_request.trials == "never" or _is_not_asked_for(run, draft):
        return
    workers = [worker for worker in draft.alive if worker.trains]
    if not (run.counts.struck or run.exhausted) and all(worker.devices == 1 for worker in workers):
        return
    # Who is barred has changed by the next decision: that says where something is measured, not whether it is worth it.
    able = [worker for worker in workers if worker.name not in draft.barred]
    giver, of = _Giver(record, run, fit, draft, able), _queue_position(run, workers)
    if run.inspection is None:
        is_open = any(task.key.kind == "inspect" for task in run.open.values())
        if not is_open and fit.again("inspect", of, lambda: is_worth_inspecting(run, fit.times, workers)):
            giver.inspect()
        return
    if all(worker.devices == 1 for worker in workers):
        return
    for wanted in fit.again("trials", of, lambda: [*trials(situation(run, fit.times, workers))]):
        giver.try_out(wanted)


_SHARE = 20
"""What is worth measuring is asked again after one in so many of the run's sub-epochs; and, because the first ones tell
most, whenever twice as many are committed."""


def _queue_position(run: Run, workers: list[Worker]) -> Hashable:
    """What decides what is worth measuring, but for how much is left and how long it takes: of that, in what steps it
    is looked at."""
    counts = run.counts
    sub_epochs = sum(model.epochs * len(model.partitions) for model in islice(run.models.values(), 1))
    return (
        tuple((worker.name, worker.devices, worker.device) for worker in workers),
        run.inspection is None,
        len(run.trials),
        frozenset(str(task.key) for task in run.open.values() if task.key.kind in MEASURING),
        (counts.struck, len(counts.overflowed), bool(run.exhausted)),
        (
            counts.active,
            counts.sub_epochs.bit_length(),
            _SHARE * counts.sub_epochs // max(1, sub_epochs * len(run.models)),
        ),
    )


def _is_not_asked_for(run: Run, draft: AssignmentDraft) -> bool:
    """Whether nobody named techniques, and all devices are shares of cores.

    There a sub-epoch on several of them computes with what sub-epochs side by side would compute with, and is at best
    as fast: trials, which take turns with sub-epochs, could gain nothing.
    """
    devices = (worker.device for worker in draft.alive if worker.trains)
    return run.fit_request.techniques is None and all(
        device is not None and device.kind == "cpu" for device in devices
    )


def is_pointless(run: Run, key: TaskKey) -> bool:
    """Whether nobody is left to be served by an open inspection or trial."""
    if not run.has_known_models:
        return key.kind in MEASURING and run.has_known_end and not run.counts.active
    # Those that are cut short are not among `reached`.
    return key.kind in MEASURING and min(run.counts.reached, default=math.inf) >= run.fit_request.epochs


# --- tasks -------------------------------------------------------------------------------------------


class _Giver(NamedTuple):
    """Gives out one task."""

    record: ExperimentRecord
    run: Run
    fit: FitDispatch
    draft: AssignmentDraft
    workers: list[Worker]

    def inspect(self) -> None:
        """By a worker without a task beside sub-epochs, rather one that holds data: it can tell how rows are laid
        out."""
        run, request, places = self.run, self.run.fit_request, self.draft.places
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
        self.draft.give(worker.name, key, (), body=body)

    def try_out(self, wanted: Wanted) -> None:
        """On the worker that has most of the devices free, if one has any."""
        run, size = self.run, wanted.known.parallel_plan.size
        assert run.inspection is not None
        # A changed model is not the one that was inspected, and outcomes are kept for other runs.
        alike = (run.models[name] for name in (wanted.model, *wanted.group.models) if name in run.models)
        model = next((each for each in alike if not (each.has_changed or each.is_trained)), None)
        if model is None:
            return
        device = run.inspection.places[wanted.known.place].device
        able = [
            (worker, devices) for worker in self.workers if (devices := self._devices(worker, device, size))
        ]
        if not able:
            return
        places = self.draft.places
        worker, devices = min(
            able, key=lambda pair: (sum(places.count(pair[0].name, d) for d in pair[1]), pair[0].name)
        )
        key = TaskKey(run=run.id, kind="trial", group=wanted.group.id, parallel_plan=wanted.known.id)
        body = TrialTask(
            **self._common(key),
            model=model.id,
            hyperparams=model.hyperparams,
            hang_timeout_s=min(run.fit_request.hang_timeout_s, TRIAL_S),
            group=wanted.group.id,
            id=wanted.known.id,
            parallel_plan=wanted.known.parallel_plan,
            device=device,
            partition=_held(run, worker)[0],
        )
        self.draft.give(worker.name, key, devices, body=body)

    def _devices(self, worker: Worker, kind: DeviceKind, size: int) -> tuple[int, ...]:
        """Those that a trial would take there; none if it cannot be there now."""
        is_busy = any(TaskKey.parse(key).kind in MEASURING for key in worker.open_tasks)
        is_given = any(
            step.worker == worker.name and step.body.kind in MEASURING for step in self.draft.steps
        )
        if (
            worker.device != kind
            or is_busy
            or is_given
            or "trial" not in worker.kinds
            or not _held(self.run, worker)
        ):
            return ()
        places = self.draft.places
        found = places.reachable(worker.name, QUEUE_DEPTH)
        if len(found) < size or places.count(worker.name, found[0]) > 0:
            return ()
        ends = {each: end_of(self.fit, worker, each) or 0.0 for each in found}
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
            "fitted": self.draft.fitted,
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
    return sorted(number for dataset, number in worker.replicas if dataset == run.plan.dataset)
