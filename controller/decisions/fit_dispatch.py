"""The active fit run as its policy sees it: the dispatch state, the names behind its indices, and the retries.

This is a second fold of the log besides `cerebro.state`, because building a dispatch state at every decision
would cost a pass over all models and partitions. It decides nothing. `FitDispatch.of` builds it from the
state when a controller has read the log, and when an unknown worker joins. Both ways give the same open and
running sub-epochs (tests/controller/test_fit_dispatch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

from cerebro.contract.events import (
    Event,
    ModelExtended,
    ModelResumed,
    ModelRetried,
    ModelsAdded,
    ModelsRepeated,
    ModelStopRequested,
    ParallelPlansRuledOut,
    PriorityChanged,
    ReplicasChanged,
    SchedulePlanned,
    SchedulerChanged,
    SearchDecided,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskGivenUp,
    TaskRevoked,
    TaskStarted,
    TrialsRecalled,
    WorkerJoined,
    WorkerLost,
    WorkerRemoved,
)
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.errors import IllegalEventError
from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES, ByPriorityScore
from cerebro.scheduling.policies.following import Following
from cerebro.scheduling.policies.policy import Policy
from cerebro.scheduling.schedule import Placement
from cerebro.state import ExperimentState, Model, Run, TaskKey
from cerebro.state.tasks.task import Attempt
from cerebro.state.workers import Worker
from controller.decisions.fit_names import FitNames
from controller.decisions.retries import Retries
from controller.projections.sub_epoch_times import SubEpochTimes
from controller.sources.parallel_plans import ParallelPlans

_Answer = TypeVar("_Answer")


class FitDispatch:
    """Dispatch state and names of one fit run.

    Attributes:
        run: id of the run.
        names: names of its models, workers and partitions, and their indices.
        rows: rows of each partition, by its number.
        gang_size: workers that train a sub-epoch together; 1 without gangs.
        dispatch_state: updated by `apply`; its replicas by `observe_holders`.
        times: estimates of sub-epoch times. The caller feeds it commits.
        parallel_plans: the parallel plan of each model's next sub-epoch on each worker.
        policy: the deciding policy; a plan if the run has one.
        retries: open sub-epochs with an unsuccessful attempt.
    """

    def __init__(self, state: ExperimentState, run: Run, times: SubEpochTimes) -> None:
        if not isinstance(run.plan, FitPlan) or not isinstance(run.request, FitRequest):
            raise IllegalEventError(f"{run.id} is not a fit run that has started")
        self.run = run.id
        self._dataset = run.plan.dataset
        self.names = FitNames(run.models, _training_workers(state, run), run.plan.partitions)
        self.retries = Retries(self.names)
        self.rows = run.plan.partitions
        rows = [self.rows[number] for number in self.names.partitions]
        self.mean_rows = sum(rows) / len(rows)
        times.observe_trials(run)
        times.expect(run, state.workers)
        self.times = times
        self._settled = 0
        self.gang_size = run.request.gang
        self._is_replica_known = True
        held = self._held(state)
        self.dispatch_state = DispatchState.of_equals(
            models=len(self.names.models),
            sizes=[count / self.mean_rows for count in rows],
            held=held,
            epochs=run.request.epochs,
            gpus=[state.workers[name].devices for name in self.names.workers],
        )
        self.has_folds = bool(run.plan.folds)
        if self.has_folds:
            self.dispatch_state.set_partitions(
                [self.names.mask(model.partitions) for model in run.models.values()]
            )
        for index, model in enumerate(run.models.values()):
            self.dispatch_state.epochs[index] = model.epochs
            self.dispatch_state.set_priority(index, model.priority)
        self._doubtful: dict[str, None] = {}
        """Models with ruled out parallel plans, in order; see `of_doubtful`."""
        self._answers: dict[str, tuple[Hashable, Any]] = {}
        """Question -> (dependencies of the newest answer, answer)."""
        self.parallel_plans = ParallelPlans(state, run, times, self.names.workers, self.mean_rows)
        self._stack_choices = -1
        self._follow_stacks(run)
        self.dispatch: Policy = POLICIES[DEFAULT_POLICY]
        self.policy = self.dispatch
        self._follow(run)

    @classmethod
    def of(cls, state: ExperimentState, run: Run, times: SubEpochTimes | None = None) -> FitDispatch:
        """Build the dispatch state from a run's state. Without `times`, learn them from the committed sub-epochs."""
        dispatch = cls(state, run, times or SubEpochTimes.of(run))
        for index, model in enumerate(run.models.values()):
            is_over = model.is_trained or (model.is_cut_short and model.busy is None)
            dispatch.dispatch_state.epoch[index] = model.epochs if is_over else model.epoch
            dispatch.dispatch_state.open[index] = 0 if is_over else dispatch.names.mask(model.remaining)
        latest = run.clock.newest_commit
        for task in run.tasks.open.values():
            if task.key.kind == "train":
                newest = task.attempts[-1]
                began = newest.started or newest.assigned
                dispatch._start(task.key, newest, began)
                latest = max(latest, newest.assigned)
        dispatch.dispatch_state.now = latest
        for task in run.tasks.by_key.values():
            if task.key.kind == "train":
                dispatch.retries.update(task)
        dispatch._estimate()
        return dispatch

    def key(self, choice: Placement) -> TaskKey:
        """Return the key of a choice's task."""
        return TaskKey(
            run=self.run,
            kind="train",
            model=self.names.models[choice.model],
            epoch=self.dispatch_state.epoch[choice.model],
            partition=self.names.partitions[choice.partition],
        )

    @property
    def preempts(self) -> bool:
        """True if the policy preempts a running model for one with a higher priority score."""
        return isinstance(self.dispatch, ByPriorityScore) and self.dispatch.preempts

    # --- caches ----------------------------------------------------------------------------------

    def again(self, question: str, of: Hashable, compute: Callable[[], _Answer]) -> _Answer:
        """Return a cached answer, recomputed when `of` changes.

        For questions that cost a pass over all models. A new dispatch state starts with an empty cache.
        """
        known = self._answers.get(question)
        if known is None or known[0] != of:
            known = self._answers[question] = of, compute()
        return cast(_Answer, known[1])

    def of_doubtful(
        self, run: Run, compute: Callable[[Iterable[str]], Sequence[ParallelPlansRuledOut]]
    ) -> Sequence[ParallelPlansRuledOut]:
        """Return the answer of `compute` for models whose parallel plans may be out of reach.

        A model is checked after its parallel plans, the workers or its remaining partitions have changed; a
        busy model is checked again once idle.
        """
        if not self._doubtful:
            return ()
        found = compute(self._doubtful)
        reported = {event.model for event in found}
        for name in [n for n in self._doubtful if run.models[n].busy is None and n not in reported]:
            del self._doubtful[name]
        return found

    # --- the fold --------------------------------------------------------------------------------

    def knows(self, event: Event) -> bool:
        """True if `apply` can process the event; otherwise a new dispatch state is needed.

        It cannot process an unknown training worker, changed devices, trials, or a sub-epoch
        assigned just before its model was known to be over.
        """
        if isinstance(event, TrialsRecalled) or (
            isinstance(event, TaskCommitted) and TaskKey.parse(event.task).kind == "trial"
        ):
            return False  # other parallel plans may be better after this
        if isinstance(event, TaskAssigned):
            key = TaskKey.parse(event.task)
            is_sub_epoch = key.run == self.run and key.kind == "train"
            return not is_sub_epoch or self.dispatch_state.open[self.names.model(key.model or "")] != 0
        if not isinstance(event, WorkerJoined) or "train" not in event.kinds:
            return True
        if event.worker not in self.names.workers:
            return False
        worker = self.names.worker(event.worker)
        known = self.dispatch_state.gpus[worker], self.parallel_plans.device(worker)
        return known == (event.devices, event.device)

    def apply(self, state: ExperimentState, event: Event) -> None:
        """Process an event that `state` has just processed."""
        match event:
            case WorkerJoined() | WorkerLost() | WorkerRemoved() | ReplicasChanged():
                self._holders_changed(state)
            case SchedulePlanned() | SchedulerChanged() if event.run == self.run:
                if isinstance(event, SchedulePlanned):
                    for model in state.runs[self.run].models.values():
                        self._update_parallel_plans(state.runs[self.run], model)
                self._follow(state.runs[self.run])
            case PriorityChanged(model="") if event.run == self.run:
                pass  # the run's priority concerns only the arbiter
            case SearchDecided() | ModelsAdded() | ModelsRepeated() | ModelExtended() | PriorityChanged() if (
                event.run == self.run
            ):
                self.times.expect(state.runs[self.run], state.workers)
                self._see_models(state.runs[self.run], event)
            case ModelStopRequested() | ModelResumed() | ModelRetried() | ParallelPlansRuledOut() if (
                event.run == self.run
            ):
                self._steer(state.runs[self.run], event.model)
            case (
                TaskAssigned()
                | TaskStarted()
                | TaskCommitted()
                | TaskFailed()
                | TaskRevoked()
                | TaskGivenUp()
            ):
                key = TaskKey.parse(event.task)
                if key.run == self.run and key.model is not None:
                    self._task(state, event, key, key.model)
                elif key.kind == "etl" and isinstance(event, TaskCommitted):
                    self._holders_changed(state)

    def observe_holders(self, state: ExperimentState) -> None:
        """Update replicas and priority scores. Call before reading the dispatch state.

        It costs a pass over all models and partitions, so several changes of workers share one pass.
        """
        if not self._is_replica_known:
            self._is_replica_known = True
            self.dispatch_state.hold(self._held(state))
        self.dispatch_state.priority_score = self.times.priority_scores.of(
            state, state.runs[self.run], self.dispatch
        )

    def _see_models(
        self,
        run: Run,
        event: SearchDecided | ModelsAdded | ModelsRepeated | ModelExtended | PriorityChanged,
    ) -> None:
        """Add new models; update models with a changed resource or priority."""
        for name in islice(run.models, len(self.names.models), None):
            self.names.add_model(name)
            estimates = self.times.estimates
            (seconds,) = (
                estimates.table([name], self.names.workers, rows=self.mean_rows)
                if self._settled
                else [[1.0] * len(self.names.workers)]
            )
            self.dispatch_state.add_model(seconds)
            self.parallel_plans.add_model(name)
            self._update_parallel_plans(run, run.models[name])
            self._regrade(run, name)
        if isinstance(event, SearchDecided):
            for name in (*event.stop, *(each.model for each in event.extend)):
                self._regrade(run, name)
        elif isinstance(event, ModelExtended | PriorityChanged):
            self._regrade(run, event.model)
        self._follow(run)

    def _regrade(self, run: Run, name: str) -> None:
        """Update a model's remaining epochs and priority."""
        model = run.models.get(name)
        if model is None:
            return
        index = self.names.model(name)
        state = self.dispatch_state
        is_over = model.is_trained or (model.is_cut_short and model.busy is None)
        remaining = 0 if is_over else self.names.mask(model.remaining)
        state.set_priority(index, model.priority)
        state.set_epochs(index, model.epochs, model.epochs if is_over else model.epoch, remaining)

    def _steer(self, run: Run, name: str) -> None:
        """Apply the effect of a user's command on a model."""
        model = run.models.get(name)
        if model is None or model.busy is not None:
            return
        if model.is_cut_short:
            self._drop(name)
        elif not self.dispatch_state.open[self.names.model(name)] and not model.is_trained:
            self.dispatch_state.restore(self.names.model(name), model.epoch, self.names.mask(model.remaining))
        self._update_parallel_plans(run, model)
        for task in run.tasks.by_key.values():
            if task.key.kind == "train" and task.key.model == name:
                self.retries.update(task)

    def _task(self, state: ExperimentState, event: Event, key: TaskKey, name: str) -> None:
        model, index = state.runs[self.run].models[name], self.names.model(name)
        if key.kind == "train":
            match event:
                case TaskAssigned():
                    self._start(key, event, event.time)
                case TaskStarted():
                    running = self.dispatch_state.running
                    running[index] = running[index]._replace(start=event.time)
                case TaskCommitted():
                    self.dispatch_state.finish(index, at=event.time)
                    self._learn(name)
                    self._follow_stacks(state.runs[self.run])
                case TaskFailed() | TaskRevoked():
                    group = self.dispatch_state.running[index].group
                    self.dispatch_state.release(index)
                    if group:
                        self._follow_group(state.runs[self.run], group)
                    self._update_parallel_plans(state.runs[self.run], model)
        self._reopen_lost(state.runs[self.run], model, index)
        if key.kind == "train":
            self.retries.update(state.runs[self.run].task(key))
        if model.is_cut_short and model.busy is None:
            self._drop(name)

    def _follow_stacks(self, run: Run) -> None:
        """Update all models after a measurement of stacks or separate training that changes plans."""
        if run.trials.stacks.choices != self._stack_choices:
            self._stack_choices = run.trials.stacks.choices
            for model in run.models.values():
                self._update_parallel_plans(run, model)

    def _holders_changed(self, state: ExperimentState) -> None:
        self._is_replica_known = False
        self._doubtful |= {
            model.id: None for model in state.runs[self.run].models.values() if model.failures.ruled_out
        }
        self._follow(state.runs[self.run])

    def _start(self, key: TaskKey, assignment: TaskAssigned | Attempt, at: float) -> None:
        dispatch_state, devices = self.dispatch_state, len(assignment.devices)
        placement = Placement(
            self.names.worker(assignment.worker),
            self.names.model(key.model or ""),
            self.names.partition(key.partition or 0),
            gpus=devices,
            other_members=tuple(
                (self.names.partition(m.partition), self.names.worker(m.worker))
                for m in assignment.other_members
            ),
            group=assignment.group.id if assignment.group is not None else "",
            sharing=assignment.group.size if assignment.group is not None else 1,
        )
        dispatch_state.start(placement, at=at)
        started = dispatch_state.running[placement.model]
        if started.gpus and started.gpus != devices:  # the model has another parallel plan now
            dispatch_state.free[placement.worker] += started.gpus - devices
            dispatch_state.running[placement.model] = started._replace(gpus=devices)

    def _follow_group(self, run: Run, group: str) -> None:
        """Update the size of a fused group that a member may have left before its start."""
        running = self.dispatch_state.running
        for model, placement in [*running.items()]:
            if placement.group == group:
                task = run.tasks.open[run.models[self.names.models[model]].busy or ""]
                running[model] = placement._replace(sharing=task.attempts[-1].num_sharing)

    def _reopen_lost(self, run: Run, model: Model, index: int) -> None:
        """Reopen sub-epochs after a checkpoint was lost: one partition or set, or several if earlier
        checkpoints were removed.
        """
        counted = (
            self.dispatch_state.epoch[index] * self.dispatch_state.epoch_masks[index].bit_count()
            - self.dispatch_state.open[index].bit_count()
        )
        if not model.is_cut_short and model.progress.trained < counted:
            remaining = {self.names.partition(p) for p in model.remaining}
            is_last = self.dispatch_state.epoch[index] > model.epoch
            lost = (
                remaining
                if is_last
                else {p for p in remaining if not self.dispatch_state.open[index] >> p & 1}
            )
            if counted - model.progress.trained > len(lost):
                self._regrade(run, model.id)
            else:
                for partition in sorted(lost):
                    self.dispatch_state.reopen(index, partition)
            if model.failures.ruled_out:
                self._doubtful[model.id] = None

    def _drop(self, name: str) -> None:
        if self.dispatch_state.open[self.names.model(name)]:
            self.dispatch_state.drop(self.names.model(name))

    def _held(self, state: ExperimentState) -> list[int]:
        """Return for each worker the mask of partitions it can train on now."""
        found = []
        for name in self.names.workers:
            worker = state.workers[name]
            found.append(self.stored(worker) if worker.is_alive and worker.trains else 0)
        return found

    def stored(self, worker: Worker) -> int:
        """Return the mask of partitions on a worker's volume, even of an absent worker."""
        return self.names.mask(p for dataset, p in worker.replicas if dataset == self._dataset)

    def _follow(self, run: Run) -> None:
        """Follow the run's plan, or dispatch by its policy without one."""
        # The store accepts any name of a policy; `controller.loop.log_reading` reports unknown ones.
        self.policy = self.dispatch = POLICIES.get(run.scheduling.scheduler, POLICIES[DEFAULT_POLICY])
        if run.scheduling.planned is not None and run.scheduling.planned.order:
            self.policy = Following(
                Placement(
                    worker=self.names.worker(u.worker),
                    model=self.names.model(u.model),
                    epoch=u.epoch,
                    partition=self.names.partition(u.partition),
                    start=run.scheduling.planned.time + u.start_s,
                )
                for u in run.scheduling.planned.order
            )

    # --- estimates -------------------------------------------------------------------------------

    def _learn(self, name: str) -> None:
        """Learn from a committed sub-epoch of the model."""
        index = self.names.model(name)
        self.parallel_plans.learn(index)
        if self.times.settled != self._settled:
            self._estimate()
            return
        if not self._settled:  # no sub-epoch has given a time yet
            return
        for worker, times in enumerate(
            zip(self.parallel_plans.row(index), self.parallel_plans.fixed(index), strict=True)
        ):
            self.dispatch_state.set_time(index, worker, *times)

    def _estimate(self) -> None:
        self._settled = self.times.settled
        if not self._settled:
            self.dispatch_state.recount()
            return
        time = self.times.estimates.table(self.names.models, self.names.workers, rows=self.mean_rows)
        for model, seconds in self.parallel_plans.rows():
            time[model] = seconds
        self.dispatch_state.set_times(time, [self.parallel_plans.fixed(model) for model in range(len(time))])

    def _update_parallel_plans(self, run: Run, model: Model) -> None:
        if model.failures.ruled_out:
            self._doubtful[model.id] = None
        index = self.names.model(model.id)
        if self.parallel_plans.update(run, model, index):
            times = zip(self.parallel_plans.row(index), self.parallel_plans.fixed(index), strict=True)
            for worker, (seconds, fixed) in enumerate(times):
                parallel_plan = self.parallel_plans.of(index, worker)
                size = parallel_plan.size if parallel_plan is not None else 1
                self.dispatch_state.set_parallel_plan(index, worker, seconds, size, fixed)


def _training_workers(state: ExperimentState, run: Run) -> set[str]:
    """Return workers that train, and workers that trained in this run, even removed ones."""
    names = {worker.name for worker in state.workers.values() if worker.trains and not worker.is_removed}
    for task in run.tasks.by_key.values():
        if task.key.kind == "train":
            names.update(attempt.worker for attempt in task.attempts)
    names.update(run.device_time.trained_s)
    return names
