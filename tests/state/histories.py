"""Random fit runs with failures, lost workers, and users who stop, resume and retry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from cerebro.contract.events import (
    ClientEvent,
    Event,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    RunFinished,
    RunResumed,
    RunStopRequested,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.records import QUEUE_DEPTH
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.gangs import Member
from cerebro.contract.tasks.results import TaskResult, Timings
from cerebro.state import Model, ModelState, RunState, TaskKey, TaskState
from cerebro.state.models.parallel_plans import allowed_plans
from tests.state.stories import Story, joined, lost, sub_epoch, validation

FAILURES = (
    FailureKind.CRASH,
    FailureKind.USER_ERROR,
    FailureKind.CHECKPOINT,
    FailureKind.CHECKPOINT,
    FailureKind.PREEMPTED,
    FailureKind.OUT_OF_MEMORY,
    FailureKind.NOT_APPLICABLE,
)
PARALLEL_PLANS = (
    SINGLE,
    ParallelPlan(technique="offload"),
    ParallelPlan(technique="ddp", size=2),
    ParallelPlan(technique="fsdp", size=2),
)
STARTS = (0.0, 0.0, 0.5, 1e9, -1.0, float("nan"))
"""Process start times in seconds that a worker may report, some invalid."""


class History(Story):
    """A random fit run; worker `p` holds partition `p`.

    A worker has one or more devices, and rejoins with a random number of devices. With gangs, a sub-epoch may
    use any set of partitions.
    """

    def __init__(
        self,
        random: Random,
        *,
        validated: bool,
        epochs: int,
        devices: int = 1,
        models: int = 3,
        has_parallel_plans: bool = False,
        workers: int = 2,
        has_gangs: bool = False,
    ) -> None:
        super().__init__(workers=workers, devices=devices)
        self.random, self._devices, self._has_gangs = random, devices, has_gangs
        self._numbers = range(workers)
        parallel_plans = PARALLEL_PLANS if has_parallel_plans else ()
        self.fit(
            models=models,
            partitions=workers,
            epochs=epochs,
            validated=validated,
            max_attempts=2,
            parallel_plans=parallel_plans,
        )
        self._files = 0

    def step(self) -> None:
        """Apply one random legal change."""
        parallel_plans: list[Callable[[], bool]] = [
            *[self._work] * 12,
            self._trouble,
            self._wish,
            self._steer,
            self._crew,
        ]
        while not self.random.choice(parallel_plans)():
            pass

    def _work(self) -> bool:
        """Assign the next sub-epoch or validation, or start or commit an open task."""
        if self.run.tasks.open and self.random.random() < 0.7:
            task = self.random.choice([*self.run.tasks.open.values()])
            worker = int((task.worker or "").removeprefix("worker-"))
            if task.state is TaskState.ASSIGNED:
                gang = (self.state.workers[name] for name, _ in task.attempts[-1].places)
                if not all(worker.is_next(str(task.key)) for worker in gang):
                    return False
                self.append(TaskStarted(task=str(task.key), attempt=task.attempt, worker=task.worker or ""))
            else:
                self.commit(task.key, worker, self._result(task.key))
            return True
        if self.run.state is not RunState.RUNNING:
            return False
        able = [n for n in self._numbers if self._is_free(n)]
        keys = [
            (sub_epoch(m.epoch, p, m.id), p)
            for m in self._active()
            if not m.busy
            for p in m.remaining
            if p in able
        ]
        keys += [
            (validation(epoch, m.id), able[0])
            for m in self._active()
            if self.run.is_validated and able
            for epoch in range(1, m.completed_epochs + 1)
            if epoch not in m.validation.metrics and epoch not in m.validation.unreadable
        ]
        keys = [(key, worker) for key, worker in keys if self.run.task(key).state is TaskState.PENDING]
        if not keys:
            return False
        key, number = self.random.choice(keys)
        devices = self.random.choice(self._free(number))
        found = allowed_plans(self.run, self.model(key.model or "")) if key.kind == "train" else ()
        parallel_plans = [parallel_plan for parallel_plan in found if parallel_plan.size == len(devices)]
        others: tuple[Member, ...] = ()
        if key.kind == "train" and self._has_gangs:
            others = tuple(self._others(key, devices, able))
            key = key._replace(other_partitions=tuple(member.partition for member in others))
            if self.run.task(key).state is not TaskState.PENDING:
                return False
        self.assign(
            key, number, devices, self.random.choice(parallel_plans) if parallel_plans else None, others
        )
        return True

    def _others(self, key: TaskKey, devices: tuple[int, ...], able: list[int]) -> Iterator[Member]:
        """Return workers above the first that could join a gang with as many devices."""
        for partition in self.model(key.model or "").remaining:
            if partition > (key.partition or 0) and partition in able and self.random.random() < 0.5:
                alike = [free for free in self._free(partition) if len(free) == len(devices)]
                if alike:
                    yield Member(
                        worker=f"worker-{partition}", partition=partition, devices=self.random.choice(alike)
                    )

    def _is_free(self, number: int) -> bool:
        return bool(self._free(number))

    def _free(self, number: int) -> list[tuple[int, ...]]:
        """Return the free device slots of a worker, sometimes as a pair."""
        worker = self.state.workers[f"worker-{number}"]
        free = [d for d in range(worker.devices) if worker.is_alive and len(worker.tasks_in(d)) < QUEUE_DEPTH]
        pairs = [(free[0], free[1])] if len(free) > 1 else []
        return [*((device,) for device in free), *pairs]

    def _active(self) -> list[Model]:
        return [model for model in self.run.models.values() if model.state is ModelState.ACTIVE]

    def _result(self, key: TaskKey) -> TaskResult:
        self._files += 1
        value = self.random.choice([1.0, 2.0, 3.0, float("nan"), self.random.random()])
        checkpoint = (
            CheckpointRef(name=f"c{self._files}", checksum="-", size=1) if key.kind == "train" else None
        )
        return TaskResult(
            rows=self.random.randint(0, 3),
            metrics={"loss": value} if self.random.random() < 0.9 else {"other": value},
            checkpoint=checkpoint,
            timings=Timings(compute_s=self.random.random(), start_s=self.random.choice(STARTS)),
        )

    def _trouble(self) -> bool:
        """Fail or revoke an open task."""
        if not self.run.tasks.open:
            return False
        task = self.random.choice([*self.run.tasks.open.values()])
        named = {"task": str(task.key), "attempt": task.attempt, "worker": task.worker or ""}
        memory_kind = self.random.choice([None, "device", "host"])
        failure = Failure.model_validate(
            {"kind": self.random.choice(FAILURES), "message": "boom", "memory_kind": memory_kind}
        )
        loss = self.random.choice([None, FailureKind.CRASH, FailureKind.OUT_OF_MEMORY])
        events: list[Event] = [
            TaskFailed.model_validate({**named, "failure": failure}),
            TaskRevoked.model_validate({**named, "reason": "gone", "loss": loss}),
        ]
        self.append(self.random.choice(events))
        return True

    def _wish(self) -> bool:
        """Send a random user command for a model, valid or not."""
        model = self.random.choice(["m00", "m01", "m02"])
        commands: list[ClientEvent] = [
            ModelStopRequested(run="fit-1", model=model),
            ModelResumed(run="fit-1", model=model),
            ModelRetried(run="fit-1", model=model),
        ]
        self.append(self.random.choice(commands))
        return True

    def _steer(self) -> bool:
        """Stop, finish or resume the run."""
        if (
            self.run.is_open
            and not self.run.tasks.open
            and (self.run.is_complete() or self.run.state is RunState.STOPPING)
        ):
            is_stopped = self.run.state is RunState.STOPPING
            self.append(RunFinished(run="fit-1", outcome="stopped" if is_stopped else "finished"))
        elif self.run.is_open and self.random.random() < 0.3:
            self.append(RunStopRequested(run="fit-1"))
        else:
            self.append(RunResumed(run="fit-1"))
        return True

    def _crew(self) -> bool:
        """Lose a worker and revoke its tasks, or let it rejoin."""
        number = self.random.choice(self._numbers)
        worker = self.state.workers[f"worker-{number}"]
        if not worker.is_alive:
            devices = self.random.randint(1, self._devices)
            self.append(joined(number, incarnation=str(self.state.seq), devices=devices))
            return True
        self.append(lost(number, incarnation=worker.incarnation))
        for key in list(worker.open_tasks):
            task = self.run.tasks.by_key[key]
            self.append(
                TaskRevoked(
                    task=key,
                    attempt=task.attempt,
                    worker=task.worker or "",
                    reason="lost",
                    loss=FailureKind.CRASH,
                )
            )
        return True
