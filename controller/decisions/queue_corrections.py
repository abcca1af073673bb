"""Queued sub-epochs that must give way: prefetching must never delay a model. Pure.

Workers load the next sub-epoch during the current one, so the queue may be wrong when a device becomes idle or a model
of a higher priority is ready (docs/decisions/0005-queued-sub-epochs-can-be-revoked.md).
"""

from __future__ import annotations

from cerebro.contract.rest import api
from cerebro.contract.tasks.bodies import MEASURING
from cerebro.state import Task, TaskKey, TaskState, Worker
from controller.decisions.assignment_draft import AssignmentDraft
from controller.decisions.device_ends import due_devices
from controller.decisions.fit_dispatch import FitDispatch
from controller.decisions.preemption import revoke_task
from controller.decisions.sub_epoch_choice import SubEpochChoice
from controller.exclusions.model_exclusions import feasible_workers
from controller.sharing.arbiter import DeviceSlot


class QueueCorrections:
    """Revokes a queued sub-epoch of one run per decision, or a queued fused group. The next decision assigns it again.

    Args:
        draft: the decision's assignments.
        choice: chooses sub-epochs for idle devices.
        depth: maximum number of open tasks of a device, including its running one.
    """

    def __init__(
        self, draft: AssignmentDraft, fit: FitDispatch, choice: SubEpochChoice, depth: int, now: float
    ) -> None:
        self._draft, self._fit, self._choice, self._depth, self._now = draft, fit, choice, depth, now
        self._training_workers = [w for w in draft.alive if w.trains]

    def for_idle_device(self) -> list[api.Revoke]:
        """Revoke a queued sub-epoch that an idle device should run now, with the others of its group."""
        draft = self._draft
        idle = [
            w
            for w in self._training_workers
            if not draft.exclusions.stops_all(w.name) and draft.slots.num_free(w.name, 1)
        ]
        queued = self._queued() if idle else []
        for worker in idle:
            for task in queued:
                if self._is_wanted(worker, task.key):
                    return self._revoked(task, f"{worker.name} is idle and can run it now")
        return []

    def for_priority(self) -> list[api.Revoke]:
        """Revoke a queued sub-epoch of the lowest priority in favor of an idle model of a higher one.

        The idle model must be able to start: its slot is due now, or it has no other slot. With other runs
        open, only the first case counts, on slots this run may use, because another run may get a slot that
        is not yet due.
        """
        fit, state = self._fit, self._fit.dispatch_state
        if not state.has_priorities:
            return []
        # Revoking one slot would not start a model that needs several or a whole worker; it would repeat
        # forever.
        idle = {
            m: state.priority[m]
            for m, mask in enumerate(state.open)
            if mask
            and m not in state.running
            and m not in fit.retries.out_of_memory
            and max(state.work.need[m]) == 1
        }
        highest, is_alone = max(idle.values(), default=0), not self._draft.exclusions.slots
        roomy = [w for w in self._training_workers if self._draft.slots.num_free(w.name, self._depth)]
        with_room = {model for w in roomy for model, _ in state.eligible(fit.names.worker(w.name))}
        queued = [
            (state.priority[fit.names.model(t.key.model or "")], t) for t in self._queued() if t.key.model
        ]
        for priority, task in sorted(queued, key=lambda each: each[0]):
            if priority >= highest:
                return []
            worker, devices = task.worker or "", task.attempts[-1].devices
            if (
                task.key.kind != "train"
                or task.key.other_partitions
                or self._draft.exclusions.stops_all(worker)
            ):
                continue
            if any(DeviceSlot(worker, device) in self._draft.exclusions.slots for device in devices):
                continue
            if fit.retries.is_interrupted(task.key):
                continue  # It has precedence regardless of priority: it would be queued there again
            is_due = set(devices) <= set(
                due_devices(fit, self._draft.worker(worker), self._choice.policy(), self._now)
            )
            for model, _ in state.eligible(fit.names.worker(worker)):
                if idle.get(model, priority) > priority and (is_due or (is_alone and model not in with_room)):
                    return self._revoked(task, "a model of a higher priority goes first")
        return []

    def _revoked(self, task: Task, reason: str) -> list[api.Revoke]:
        """Revoke a queued task and the others of its fused group, which form groups with other models again."""
        group = task.attempts[-1].group
        if group is None:
            return [revoke_task(task, reason)]
        return [
            revoke_task(each, reason)
            for each in self._queued()
            if (other := each.attempts[-1].group) is not None and other.id == group.id
        ]

    def _queued(self) -> list[Task]:
        """Return the run's tasks that wait behind others."""
        draft = self._draft
        listed = (
            draft.run.tasks.open.get(key) for w in draft.alive for key in w.open_tasks if not w.is_next(key)
        )
        return [task for task in listed if task and task.state is TaskState.ASSIGNED]

    def _is_wanted(self, worker: Worker, key: TaskKey) -> bool:
        dispatch_state, index = self._fit.dispatch_state, self._fit.names.worker(worker.name)
        if key.kind != "train":
            if self._fit.names.mask(key.partitions) & ~dispatch_state.holders.held[index]:
                return False  # a fold's partition, which another worker has
            return key.kind in worker.kinds and key.kind not in ("etl", "search", "verify", *MEASURING)
        model = self._fit.names.model(key.model or "")
        if (
            not dispatch_state.open[model] & dispatch_state.holders.held[index]
            or model not in dispatch_state.running
        ):
            return False
        if model in self._fit.retries.failed_at and index not in feasible_workers(
            self._fit, model, self._now
        ):
            return False  # it would be queued again on the same worker
        queued = dispatch_state.running.pop(model)
        room = 1 if self._fit.parallel_plans.is_plain else self._draft.slots.num_free(worker.name, 1)
        free, dispatch_state.free[index] = dispatch_state.free[index], room
        try:
            # A model bound to the holders of its interrupted sub-epoch would only be queued there again.
            is_bound = any(m == model and index not in holders for m, _, holders in self._choice.bound())
            choice = None if is_bound else self._choice.choose([index])
        finally:
            dispatch_state.running[model] = queued
            dispatch_state.free[index] = free
        # The sub-epoch itself, or another one of its model, which cannot start while this one is queued.
        return choice is not None and choice.model == model
