"""Training: sub-epochs on one worker each, and the devices that they take. Pure.

A sub-epoch takes a free device, else the first to finish. A sub-epoch of several devices is chosen like any other, as
soon as one device of the worker is free. It takes free devices, then the first to finish, and starts when all of its
devices are idle. No other sub-epoch can start on these devices first, so they wait at most for the longest running
task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from cerebro.contract.parallel_plans import SINGLE
from cerebro.scheduling.remaining_work import NEVER
from cerebro.scheduling.schedule import Placement
from controller.decisions.assignment_draft import AssignmentDraft, DispatchDraft
from controller.decisions.device_ends import end_of
from controller.decisions.fit_dispatch import FitDispatch
from controller.decisions.sub_epoch_choice import Choose
from controller.exclusions.memory_retries import reserved, runs_alone
from controller.sources.fused_groups import FusedGroups
from controller.sources.measurement import waits_for_groups
from controller.sources.parallel_plans import as_sent
from controller.sources.task_source import Offer, Proposal


class Training:
    """Proposes training sub-epochs on one worker each, and chooses the worker's devices.

    Args:
        draft: the decision's assignments.
        dispatch_draft: marks proposed sub-epochs as started.
        depth: maximum number of open tasks of a device, including its running one.
        chooser: returns a function that chooses a sub-epoch for one of some workers; called once per pass.
    """

    def __init__(
        self,
        draft: AssignmentDraft,
        fit: FitDispatch,
        dispatch_draft: DispatchDraft,
        depth: int,
        chooser: Callable[[], Choose],
    ) -> None:
        self._draft, self._fit, self._dispatch_draft = draft, fit, dispatch_draft
        self._depth, self._chooser = depth, chooser

    def propose(self, view: AssignmentDraft, offer: Offer) -> Iterator[Proposal]:
        """Yield sub-epochs for the offered devices."""
        if waits_for_groups(view.run, view):
            return
        choose, groups = self._chooser(), FusedGroups(self._fit, view.run)
        depth, offered_devices = offer.depth, offer.offered_devices
        dispatch_state, slots = self._fit.dispatch_state, self._draft.slots
        room = {
            self._fit.names.worker(w.name): count
            for w in self._draft.alive
            if w.trains
            and not self._draft.exclusions.stops_all(w.name)
            and (count := slots.num_free(w.name, depth, offer.devices(w.name)))
        }
        workers = sorted(room)
        # Queued sub-epochs count as running, so their device slots are free for the next ones.
        dispatch_state.free = [max(1, count) for count in dispatch_state.free]
        for worker, count in room.items():
            dispatch_state.free[worker] = self._reach(worker, count)
        while workers and (choice := choose(workers)):
            name = self._fit.names.workers[choice.worker]
            devices = self._devices(choice, depth, offered_devices[name] if offered_devices else None)
            if devices is None or self._waits_needlessly(choice, room):
                self._dispatch_draft.exclude(choice.model, choice.worker)
                continue
            if choice.model in self._fit.retries.out_of_memory and not self._may_be_alone(depth, choice):
                workers = [
                    w for w in workers if not self._draft.exclusions.stops_all(self._fit.names.workers[w])
                ]
                if depth > 1 and choice.worker in workers:
                    # The worker must first become idle.
                    workers.remove(choice.worker)
                continue
            parallel_plan = self._fit.parallel_plans.of(choice.model, choice.worker)
            assert parallel_plan is not None
            key = self._fit.key(choice)
            fused = tuple(groups.partners(choice, parallel_plan)) if parallel_plan.fused_models else ()
            if (
                depth > 1
                and parallel_plan.fused_models
                and groups.should_wait(choice, parallel_plan, 1 + len(fused))
            ):
                workers.remove(choice.worker)
                continue
            group = str(key) if fused else ""
            for each in (choice, *fused):
                self._dispatch_draft.start(each._replace(group=group, sharing=1 + len(fused)))
            if parallel_plan.fused_models and not fused:
                parallel_plan = SINGLE  # faster than a stack of one model
            yield Proposal(key, name, devices, as_sent(parallel_plan), fused=tuple(map(self._fit.key, fused)))
            if choice.model in self._fit.retries.out_of_memory:
                self._draft.exclusions.add(runs_alone(name, key))
            room[choice.worker] = slots.num_free(
                name, depth, offered_devices[name] if offered_devices else None
            )
            dispatch_state.free[choice.worker] = max(1, self._reach(choice.worker, room[choice.worker]))
            if self._draft.exclusions.stops_all(name) or not room[choice.worker]:
                workers.remove(choice.worker)

    def _reach(self, worker: int, room: int) -> int:
        """Return the number of devices that one sub-epoch could take on a worker with `room` free slots."""
        if self._fit.parallel_plans.is_plain or not room:
            return room
        return max(room, len(self._draft.slots.reachable(self._fit.names.workers[worker], self._depth)))

    def _devices(
        self, choice: Placement, depth: int, allowed_devices: Sequence[int] | None
    ) -> tuple[int, ...] | None:
        """Return the chosen sub-epoch's devices, ascending; `None` if there are too few.

        Free devices come first, then the first to finish.
        """
        name, slots = self._fit.names.workers[choice.worker], self._draft.slots
        size = self._fit.dispatch_state.work.need[choice.model][choice.worker]
        if size == 1:
            return (slots.free(name, depth, allowed_devices),)
        reachable = slots.reachable(name, self._depth)
        worker = self._draft.worker(name)
        ends = {device: end_of(self._fit, worker, device) or 0.0 for device in reachable}
        reachable.sort(key=lambda device: (slots.count(name, device), ends[device]))
        return tuple(sorted(reachable[:size])) if len(reachable) >= size else None

    def _waits_needlessly(self, choice: Placement, room: Mapping[int, int]) -> bool:
        """True if the sub-epoch would wait here while its model could start another one elsewhere."""
        dispatch_state, model = self._fit.dispatch_state, choice.model
        need, times = dispatch_state.work.need[model], dispatch_state.work.time[model]
        if need[choice.worker] <= room[choice.worker]:
            return False
        return any(
            need[w] <= count
            and times[w] != NEVER
            and dispatch_state.holders.held[w] & dispatch_state.open[model]
            for w, count in room.items()
            if not self._draft.exclusions.stops_all(self._fit.names.workers[w])
        )

    def _may_be_alone(self, depth: int, choice: Placement) -> bool:
        """True if a model that ran out of memory can have the worker to itself now.

        Otherwise reserves the least loaded suitable worker for it, and keeps the model off busy workers.
        """
        dispatch_state, slots = self._fit.dispatch_state, self._draft.slots
        if not slots.load(self._fit.names.workers[choice.worker]):
            return True
        if depth > 1:
            return False
        needed, times = dispatch_state.open[choice.model], dispatch_state.work.time[choice.model]
        able = [
            self._fit.names.worker(w.name)
            for w in self._draft.alive
            if w.trains
            and not self._draft.exclusions.stops_all(w.name)
            and needed & dispatch_state.holders.held[self._fit.names.worker(w.name)]
            and times[self._fit.names.worker(w.name)] != NEVER
        ]
        loads = {worker: slots.load(self._fit.names.workers[worker]) for worker in able}
        calmest = min(able, key=lambda worker: (loads[worker], worker))
        if loads[calmest]:
            self._draft.exclusions.add(reserved(self._fit.names.workers[calmest], self._fit.key(choice)))
        for worker in able:
            if loads[worker]:
                self._dispatch_draft.exclude(choice.model, worker)
        return False
