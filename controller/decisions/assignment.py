"""Assign ready tasks to devices: the assignments of one decision. Pure.

`assign` works in three passes. It gives each idle device a task. It revokes a queued sub-epoch if the policy
would run it on an idle device. It queues the next sub-epoch on devices that will finish soon, so its model
loads during the current one (docs/decisions/0005-queued-sub-epochs-can-be-revoked.md). The policy chooses sub-epochs
and workers; this module chooses the worker's devices: a free one, else the first to finish.

A sub-epoch of several devices is chosen like any other, as soon as one device of the worker is free. It takes
free devices, then the first to finish, and starts when all of its devices are idle. No other sub-epoch
can start on these devices first, so they wait at most for the longest running task.

Interrupted sub-epochs have priority: they restart as soon as their model is idle and a worker with the
partition has room. While such a worker is alive, the model trains nowhere else. A run has hundreds of
sub-epochs, so this hardly changes the makespan, and a user who loses a worker sees its sub-epoch continue at
once. A sub-epoch with a savepoint also waits for an absent worker with the partition, because the savepoint
is useless after the model has trained elsewhere. It waits at most for the time it had been trained. Policies
that preempt choose interrupted sub-epochs by priority score like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from cerebro.contract.records import ExperimentRecord
from cerebro.contract.rest import api
from cerebro.contract.tasks import MEASURING
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES, CriticalFirst, Policy
from cerebro.scheduling.policies.following import Following
from cerebro.scheduling.remaining_work import NEVER
from cerebro.scheduling.schedule import Placement
from cerebro.state import ExperimentState, Run, Task, TaskKey, TaskState, Worker
from controller.decisions.assignment_draft import AssignmentDraft, DispatchDraft
from controller.decisions.device_ends import due_s, end_of
from controller.decisions.fit_dispatch import FitDispatch
from controller.decisions.preemption import for_better_model, revoke_task
from controller.exclusions.memory_retries import reserved, runs_alone
from controller.exclusions.model_exclusions import feasible_workers
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.sharing.arbiter import Place
from controller.sources.etl_and_evaluation import EtlAndEvaluation
from controller.sources.gangs import Gangs
from controller.sources.measurement import Measurements
from controller.sources.parallel_plans import as_sent
from controller.sources.replication import Replicas
from controller.sources.search import Searching
from controller.sources.search_tasks import SearchRequests
from controller.sources.task_source import Offer, Proposal
from controller.sources.verification import Reexecutions

_Choose = Callable[[list[int]], Placement | None]


def assign(
    record: ExperimentRecord,
    state: ExperimentState,
    run: Run,
    fit: FitDispatch | None,
    snapshot: ClusterSnapshot,
    *,
    search: Searching | None = None,
) -> list[api.Assign | api.Revoke | api.Preempt]:
    """Return assignments and revocations of queued sub-epochs for one run.

    Also assigns verifications and requests preemptions. `fit` may be the dispatch state of another run of the
    experiment; it ends unchanged. `search` is the run's search, if it has one.
    """
    draft = AssignmentDraft(record, state, run, fit, snapshot)
    if fit is not None and fit.run != run.id:
        fit = None
    draft.accept(Replicas(state, run, fit))
    draft.accept(SearchRequests(record, run, search), Offer(snapshot.depth))
    if run.kind != "fit" or fit is None:
        for depth in range(1, snapshot.depth + 1):
            draft.accept(EtlAndEvaluation(state, run), Offer(depth))
        return [*draft.steps]
    draft.accept(Measurements(record, run, fit))
    sub_epochs = _SubEpochs(record, state, draft, fit, snapshot)
    try:
        return sub_epochs.decide()
    finally:
        sub_epochs.undo()


class Training:
    """Proposes training sub-epochs on one worker each, chosen by the policy.

    Args:
        sub_epochs: the choices of this decision.
        chooser: returns a function that chooses for one of these workers; called once per pass.
    """

    def __init__(self, sub_epochs: _SubEpochs, chooser: Callable[[], _Choose]) -> None:
        self._sub_epochs, self._chooser = sub_epochs, chooser

    def propose(self, view: AssignmentDraft, offer: Offer) -> Iterator[Proposal]:
        """Yield sub-epochs for the offered devices."""
        return self._sub_epochs.propose(offer, self._chooser())


class _SubEpochs:
    """Chooses training sub-epochs with the policy, tentatively on the dispatch state."""

    def __init__(
        self,
        record: ExperimentRecord,
        state: ExperimentState,
        draft: AssignmentDraft,
        fit: FitDispatch,
        snapshot: ClusterSnapshot,
    ) -> None:
        self._draft, self._fit, self._now, self._depth = draft, fit, snapshot.now, snapshot.depth
        self._evaluation = EtlAndEvaluation(state, draft.run)
        self._verifications = Reexecutions(record, state, draft.run)
        self._overdue = Reexecutions(record, state, draft.run, is_overdue=True)
        self._training_workers = [w for w in draft.alive if w.trains]
        self._dispatch_draft = DispatchDraft(fit)
        self._exclude_models()
        # Only workers with room for another task: few of a thousand.
        self._soon = {
            w.name: self._due(w) for w in self._training_workers if draft.places.num_free(w.name, self._depth)
        }

    def _due(self, worker: Worker) -> list[int]:
        """Return devices that may get a queued task now, ordered by expected end."""
        devices = [
            device for device in range(worker.devices) if not due_s(self._fit, worker, device, self._now)
        ]
        if worker.devices > 1 and isinstance(self._policy(), Following):
            # An idle device starts a sub-epoch only now: a plan means the next one for the first device to
            # end.
            devices = [device for device in devices if worker.first_in(device)]
        if len(devices) > 1:
            devices.sort(key=lambda device: end_of(self._fit, worker, device) or 0.0)
        return devices

    def decide(self) -> list[api.Assign | api.Revoke | api.Preempt]:
        """Return the steps of `assign` for an open fit run."""
        draft, remaining = self._draft, self._fit.dispatch_state.work.worker_left
        if not self._fit.preempts:
            draft.accept(Training(self, lambda: self._interrupted))
        # Validation delays training, so it goes to the worker with the least remaining training.
        calmest_first = sorted(
            draft.alive, key=lambda w: remaining[self._fit.names.worker(w.name)] if w.trains else 0.0
        )
        sources = (
            self._evaluation,
            self._overdue,
            Gangs(self._fit, self._dispatch_draft),
            Training(self, self._in_turn),
        )
        for source in sources:
            draft.accept(source, Offer(order=calmest_first))
        taken_back = self._taken_back()
        if taken_back is not None:
            return [*draft.steps, taken_back]
        if self._depth > 1:
            soon = [w for w in calmest_first if w.name in self._soon]
            for source in sources:
                draft.accept(source, Offer(self._depth, self._soon, soon))
            outranked = self._outranked()
            if outranked is not None:
                return [*draft.steps, outranked]
        draft.accept(self._verifications)
        return [*draft.steps] or self._preempted()

    def _preempted(self) -> list[api.Assign | api.Revoke | api.Preempt]:
        workers = [w for w in self._training_workers if not self._draft.exclusions.stops_all(w.name)]
        is_alone = not self._draft.exclusions.slots
        return [*for_better_model(self._draft.run, self._fit, workers, self._now, is_alone=is_alone)]

    def undo(self) -> None:
        """Restore the dispatch state. The log will report the steps that took effect."""
        self._dispatch_draft.undo()

    def _exclude_models(self) -> None:
        dispatch_state = self._fit.dispatch_state
        bound = {model for model, _, _ in self._fit.retries.interrupted}
        for model in sorted(
            bound | self._fit.retries.out_of_memory.keys() | self._fit.retries.failed_at.keys()
        ):
            if model in dispatch_state.running:
                continue
            able, times = feasible_workers(self._fit, model, self._now), dispatch_state.work.time[model]
            if model in self._fit.retries.out_of_memory:
                # It should not wait for a faster worker, which it might never have to itself.
                places, names = self._draft.places, self._fit.names.workers
                able = {w for w in able if not places.load(names[w])} or able
            for worker, held in enumerate(dispatch_state.holders.held):
                if held & dispatch_state.open[model] and worker not in able and times[worker] != NEVER:
                    self._dispatch_draft.exclude(model, worker)

    def propose(self, offer: Offer, choose: _Choose) -> Iterator[Proposal]:
        """Yield sub-epochs for the offered devices."""
        depth, offered_devices = offer.depth, offer.offered_devices
        dispatch_state, places = self._fit.dispatch_state, self._draft.places
        room = {
            self._fit.names.worker(w.name): count
            for w in self._training_workers
            if not self._draft.exclusions.stops_all(w.name)
            and (count := places.num_free(w.name, depth, offer.devices(w.name)))
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
            self._dispatch_draft.start(choice)
            yield Proposal(key, name, devices, as_sent(parallel_plan))
            if choice.model in self._fit.retries.out_of_memory:
                self._draft.exclusions.add(runs_alone(name, key))
            room[choice.worker] = places.num_free(
                name, depth, offered_devices[name] if offered_devices else None
            )
            dispatch_state.free[choice.worker] = max(1, self._reach(choice.worker, room[choice.worker]))
            if self._draft.exclusions.stops_all(name) or not room[choice.worker]:
                workers.remove(choice.worker)

    def _reach(self, worker: int, room: int) -> int:
        """Return the number of devices that one sub-epoch could take on a worker with `room` free slots."""
        if self._fit.parallel_plans.is_plain or not room:
            return room
        return max(room, len(self._draft.places.reachable(self._fit.names.workers[worker], self._depth)))

    def _devices(
        self, choice: Placement, depth: int, allowed_devices: Sequence[int] | None
    ) -> tuple[int, ...] | None:
        """Return the chosen sub-epoch's devices, ascending; `None` if there are too few.

        Free devices come first, then the first to finish.
        """
        name, places = self._fit.names.workers[choice.worker], self._draft.places
        size = self._fit.dispatch_state.work.need[choice.model][choice.worker]
        if size == 1:
            return (places.free(name, depth, allowed_devices),)
        reachable = places.reachable(name, self._depth)
        worker = self._draft.worker(name)
        ends = {device: end_of(self._fit, worker, device) or 0.0 for device in reachable}
        reachable.sort(key=lambda device: (places.count(name, device), ends[device]))
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
        dispatch_state, places = self._fit.dispatch_state, self._draft.places
        if not places.load(self._fit.names.workers[choice.worker]):
            return True
        if depth > 1:
            return False
        needed, times = dispatch_state.open[choice.model], dispatch_state.work.time[choice.model]
        able = [
            self._fit.names.worker(w.name)
            for w in self._training_workers
            if not self._draft.exclusions.stops_all(w.name)
            and needed & dispatch_state.holders.held[self._fit.names.worker(w.name)]
            and times[self._fit.names.worker(w.name)] != NEVER
        ]
        loads = {worker: places.load(self._fit.names.workers[worker]) for worker in able}
        calmest = min(able, key=lambda worker: (loads[worker], worker))
        if loads[calmest]:
            self._draft.exclusions.add(reserved(self._fit.names.workers[calmest], self._fit.key(choice)))
        for worker in able:
            if loads[worker]:
                self._dispatch_draft.exclude(choice.model, worker)
        return False

    def _choose(self, workers: list[int]) -> Placement | None:
        if self._fit.preempts:
            return self._at_savepoint(self._by_policy(workers))
        return self._interrupted(workers) or self._by_policy(workers)

    def _at_savepoint(self, choice: Placement | None) -> Placement | None:
        """Continue the model's interrupted sub-epoch, if it has one, instead of starting another one."""
        if choice is None:
            return None
        for model, partition, holders in self._bound():
            if model == choice.model and choice.worker in holders:
                return choice._replace(partition=partition)
        return choice

    def _in_turn(self) -> _Choose:
        """Return a function like `_choose`, for repeated calls with shrinking sets of workers."""
        policy = self._policy()
        if not isinstance(policy, CriticalFirst):
            return self._choose
        dispatch_state = self._fit.dispatch_state
        ahead: Iterator[Placement] = iter(())

        def choose(workers: list[int]) -> Placement | None:
            nonlocal ahead
            interrupted = self._interrupted(workers)
            if interrupted is not None:
                return interrupted
            for choice in ahead:
                is_kept_off = dispatch_state.work.time[choice.model][choice.worker] == NEVER
                if (
                    choice.worker in workers
                    and choice.model not in dispatch_state.running
                    and not is_kept_off
                ):
                    return choice
            ahead = policy.choices(dispatch_state, tuple(workers))
            return next(ahead, None)

        return choose

    def _interrupted(self, workers: list[int]) -> Placement | None:
        """Choose an interrupted sub-epoch, on the suitable worker with the least remaining training."""
        dispatch_state = self._fit.dispatch_state
        for model, partition, holders in self._bound():
            able = [w for w in holders if w in workers]
            if able:
                return Placement(
                    min(able, key=lambda w: (dispatch_state.work.worker_left[w], w)), model, partition
                )
        return None

    def _bound(self) -> Iterator[tuple[int, int, list[int]]]:
        """Yield (model, partition, suitable workers) of open interrupted sub-epochs of idle models.

        Includes sub-epochs that have no suitable worker yet but still wait for one.
        """
        dispatch_state = self._fit.dispatch_state
        for (model, epoch, partition), until in sorted(self._fit.retries.interrupted.items()):
            is_open = dispatch_state.epoch[model] == epoch and dispatch_state.open[model] >> partition & 1
            holders = [
                w for w in dispatch_state.holders.of[partition] if dispatch_state.work.time[model][w] != NEVER
            ]
            if is_open and (holders or until > self._now) and model not in dispatch_state.running:
                yield model, partition, holders

    def _by_policy(self, workers: list[int]) -> Placement | None:
        dispatch_state, rng = self._fit.dispatch_state, self._draft.rng
        choice = self._policy().choose(dispatch_state, workers, rng)
        if choice is None and not dispatch_state.running:
            # Nothing is running, so the policy has no end to wait for.
            return POLICIES[DEFAULT_POLICY].choose(dispatch_state, workers, rng)
        return choice

    def _policy(self) -> Policy:
        # A plan does not know about workers that a model is kept off.
        return self._fit.dispatch if self._dispatch_draft.has_excluded else self._fit.policy

    def _taken_back(self) -> api.Revoke | None:
        """Revoke a queued sub-epoch that an idle device should run now: prefetching must never delay a model."""
        draft = self._draft
        idle = [
            w
            for w in self._training_workers
            if not draft.exclusions.stops_all(w.name) and draft.places.num_free(w.name, 1)
        ]
        queued = self._queued() if idle else []
        for worker in idle:
            for task in queued:
                if self._is_wanted(worker, task.key):
                    return revoke_task(task, f"{worker.name} is idle and can run it now")
        return None

    def _queued(self) -> list[Task]:
        """Return the run's tasks that wait behind others."""
        draft = self._draft
        listed = (draft.run.open.get(key) for w in draft.alive for key in w.open_tasks if not w.is_next(key))
        return [task for task in listed if task and task.state is TaskState.ASSIGNED]

    def _outranked(self) -> api.Revoke | None:
        """Revoke a queued sub-epoch of the lowest priority in favor of an idle model of a higher one.

        The idle model must be able to start: its slot is due now, or it has no other slot. With other runs
        open, only the first case counts, on slots this run may use, because another run may get a slot that
        is not yet due.
        """
        fit, state = self._fit, self._fit.dispatch_state
        if not state.has_priorities:
            return None
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
        roomy = [w for w in self._training_workers if self._draft.places.num_free(w.name, self._depth)]
        with_room = {model for w in roomy for model, _ in state.eligible(fit.names.worker(w.name))}
        queued = [
            (state.priority[fit.names.model(t.key.model or "")], t) for t in self._queued() if t.key.model
        ]
        for priority, task in sorted(queued, key=lambda each: each[0]):
            if priority >= highest:
                return None
            worker, devices = task.worker or "", task.attempts[-1].devices
            if (
                task.key.kind != "train"
                or task.key.other_partitions
                or self._draft.exclusions.stops_all(worker)
            ):
                continue
            if any(Place(worker, device) in self._draft.exclusions.slots for device in devices):
                continue
            if fit.retries.is_interrupted(task.key):
                continue  # It has precedence regardless of priority: it would be queued there again
            is_due = set(devices) <= set(self._due(self._draft.worker(worker)))
            for model, _ in state.eligible(fit.names.worker(worker)):
                if idle.get(model, priority) > priority and (is_due or (is_alone and model not in with_room)):
                    return revoke_task(task, "a model of a higher priority goes first")
        return None

    def _is_wanted(self, worker: Worker, key: TaskKey) -> bool:
        if key.kind != "train":
            return key.kind in worker.kinds and key.kind not in ("etl", "search", "verify", *MEASURING)
        dispatch_state, index = self._fit.dispatch_state, self._fit.names.worker(worker.name)
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
        room = 1 if self._fit.parallel_plans.is_plain else self._draft.places.num_free(worker.name, 1)
        free, dispatch_state.free[index] = dispatch_state.free[index], room
        try:
            # A model bound to the holders of its interrupted sub-epoch would only be queued there again.
            is_bound = any(m == model and index not in holders for m, _, holders in self._bound())
            choice = None if is_bound else self._choose([index])
        finally:
            dispatch_state.running[model] = queued
            dispatch_state.free[index] = free
        # The sub-epoch itself, or another one of its model, which cannot start while this one is queued.
        return choice is not None and choice.model == model
