"""Inspections and trials of a fit run as tasks: their time, worker and body. Pure.

An inspection takes no device; sub-epochs continue during it. A trial takes the devices of its parallel plan:
free devices, then the first to finish. It precedes the next sub-epochs, because its result concerns all later
ones. Each worker has at most one open trial or inspection.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from cerebro.contract.records import QUEUE_DEPTH, ExperimentRecord
from cerebro.contract.tasks.bodies import MEASURING, InspectTask, TrialTask
from cerebro.contract.trials import AvailableDevices, DeviceKind
from cerebro.state import Run, RunState, Task, TaskKey, Worker
from cerebro.state.models.parallel_plans import parallel_plans_of
from controller.decisions.device_ends import end_of
from controller.decisions.fit_dispatch import FitDispatch
from controller.sources.task_source import Offer, Proposal
from controller.sources.trials.known import is_worth_inspecting, situation
from controller.sources.trials.selection import Wanted, trials

if TYPE_CHECKING:
    from controller.decisions.assignment_draft import AssignmentDraft

TRIAL_S = 120.0
"""Maximum seconds of a trial; a longer one is ended and rules its parallel plan out."""


class Measurements:
    """Proposes the inspection, or the trials that are worthwhile now."""

    kinds = frozenset(MEASURING)
    reason = "the measurement is no longer needed"

    def __init__(self, record: ExperimentRecord, run: Run, fit: FitDispatch | None = None) -> None:
        self._record, self._run, self._fit = record, run, fit

    def propose(self, view: AssignmentDraft, offer: Offer) -> Iterator[Proposal]:
        """Yield an inspection for a slot without a device, or trials for devices."""
        run, fit = self._run, self._fit
        if fit is None or run.state is not RunState.RUNNING:
            return
        workers = [worker for worker in view.alive if worker.trains]
        if _needs_groups(run) and not any(task.key.kind == "inspect" for task in run.tasks.open.values()):
            yield from _Maker(self._record, run, fit, view, _open_to_tasks(view)).inspection()
            return
        if run.fit_request.trials == "never" or _is_not_asked_for(run, view):
            return
        if not (run.counts.struck or run.tasks.exhausted) and all(worker.devices == 1 for worker in workers):
            return
        maker = _Maker(self._record, run, fit, view, _open_to_tasks(view))
        known = _queue_position(run, workers)
        if run.trials.inspection is None:
            is_open = any(task.key.kind == "inspect" for task in run.tasks.open.values())
            if not is_open and fit.again(
                "inspect", known, lambda: is_worth_inspecting(run, fit.times, workers)
            ):
                yield from maker.inspection()
            return
        if all(worker.devices == 1 for worker in workers):
            return
        for wanted in fit.again("trials", known, lambda: [*trials(situation(run, fit.times, workers))]):
            yield from maker.trial(wanted)

    def is_still_needed(self, task: Task) -> bool:
        """True while sub-epochs remain that the result concerns."""
        run = self._run
        if not run.has_known_models:
            return not run.has_known_end or bool(run.counts.active)
        # Stopped and failed models are not in `reached`.
        return min(run.counts.reached, default=math.inf) < run.fit_request.epochs


def waits_for_groups(run: Run, view: AssignmentDraft) -> bool:
    """True if training waits for an inspection, which finds the models that can train in fused groups.

    A run that chooses begins with separate training, which is measured first.
    """
    if run.chooses_stacks or not _needs_groups(run):
        return False
    is_open = any(task.key.kind == "inspect" for task in run.tasks.open.values())
    return is_open or bool(_inspectors(_open_to_tasks(view)))


def _needs_groups(run: Run) -> bool:
    """True if models may train in fused groups, but it is not known yet which models are alike."""
    is_unknown = run.trials.inspection is None and bool(run.models)
    return is_unknown and any(plan.fused_models for plan in parallel_plans_of(run))


def _open_to_tasks(view: AssignmentDraft) -> list[Worker]:
    """Return the training workers without an exclusion. Exclusions may change before the next decision."""
    return [worker for worker in view.alive if worker.trains and not view.exclusions.stops_all(worker.name)]


def _inspectors(workers: list[Worker]) -> list[Worker]:
    """Return the workers that can inspect models, now or after a task; none while no kind of device is known."""
    return [worker for worker in workers if "inspect" in worker.kinds] if _kinds(workers) else []


_SHARE = 20
"""Worthwhile trials are recomputed after each 1/20 of the run's sub-epochs, and when the commits have
doubled, because the first ones tell most.
"""


def _queue_position(run: Run, workers: list[Worker]) -> Hashable:
    """Return the facts that decide which trials are worthwhile; remaining work counts in steps."""
    counts = run.counts
    sub_epochs = sum(model.epochs * len(model.partitions) for model in islice(run.models.values(), 1))
    return (
        tuple((worker.name, worker.devices, worker.device) for worker in workers),
        run.trials.inspection is None,
        len(run.trials.outcomes),
        frozenset(str(task.key) for task in run.tasks.open.values() if task.key.kind in MEASURING),
        (counts.struck, len(counts.overflowed), bool(run.tasks.exhausted)),
        (
            counts.active,
            counts.sub_epochs.bit_length(),
            _SHARE * counts.sub_epochs // max(1, sub_epochs * len(run.models)),
        ),
    )


def _is_not_asked_for(run: Run, draft: AssignmentDraft) -> bool:
    """True if the user named no techniques and all devices are shares of cores.

    Several shares compute with the same cores as parallel sub-epochs would, so trials could gain nothing.
    """
    devices = (worker.device for worker in draft.alive if worker.trains)
    return run.fit_request.techniques is None and all(
        device is not None and device.kind == "cpu" for device in devices
    )


# --- tasks -------------------------------------------------------------------------------------------


class _Maker(NamedTuple):
    """Makes one inspection or trial."""

    record: ExperimentRecord
    run: Run
    fit: FitDispatch
    draft: AssignmentDraft
    workers: list[Worker]

    def inspection(self) -> Iterator[Proposal]:
        """Propose the inspection to a worker without such a task, preferably one with data, to see the row layout."""
        run, request, slots = self.run, self.run.fit_request, self.draft.slots
        able = [w for w in _inspectors(self.workers) if slots.num_deviceless(w.name) == 0]
        worker = min(able, key=lambda w: (not _held(run, w), w.name), default=None)
        if worker is None:
            return
        key = TaskKey(run=run.id, kind="inspect")
        body = InspectTask(
            **self._common(key),
            models={name: model.hyperparams for name, model in run.models.items()},
            techniques=request.techniques,
            gpus=request.gpus,
            device_kinds=_kinds(self.workers),
        )
        yield Proposal(key, worker.name, body=body)

    def trial(self, wanted: Wanted) -> Iterator[Proposal]:
        """Propose a trial to the worker with the most idle devices of the right kind."""
        run, size = self.run, wanted.known.parallel_plan.size
        assert run.trials.inspection is not None
        # A changed model differs from the inspected one, and outcomes are kept for other runs.
        alike = (run.models[name] for name in (wanted.model, *wanted.group.models) if name in run.models)
        model = next((each for each in alike if not (each.configs.has_changed or each.is_trained)), None)
        if model is None:
            return
        device = run.trials.inspection.device_kinds[wanted.known.device_kind].device
        able = [
            (worker, devices) for worker in self.workers if (devices := self._devices(worker, device, size))
        ]
        if not able:
            return
        slots = self.draft.slots
        worker, devices = min(
            able, key=lambda pair: (sum(slots.count(pair[0].name, d) for d in pair[1]), pair[0].name)
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
        yield Proposal(key, worker.name, devices, body=body)

    def _devices(self, worker: Worker, kind: DeviceKind, size: int) -> tuple[int, ...]:
        """Return the devices a trial would take on a worker; () if it cannot run there now."""
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
        slots = self.draft.slots
        found = slots.reachable(worker.name, QUEUE_DEPTH)
        if len(found) < size or slots.count(worker.name, found[0]) > 0:
            return ()
        ends = {each: end_of(self.fit, worker, each) or 0.0 for each in found}
        found.sort(key=lambda each: (slots.count(worker.name, each), ends[each]))
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


def _kinds(workers: list[Worker]) -> tuple[AvailableDevices, ...]:
    most: dict[DeviceKind, int] = {}
    for worker in sorted(workers, key=lambda worker: worker.name):
        if worker.device is not None:
            most[worker.device] = max(most.get(worker.device, 1), worker.devices)
    return tuple(AvailableDevices(device=device, max_devices=count) for device, count in most.items())


def _held(run: Run, worker: Worker) -> list[int]:
    """Return the run's training partitions that the worker holds."""
    assert run.plan is not None
    return sorted(number for dataset, number in worker.replicas if dataset == run.plan.dataset)
