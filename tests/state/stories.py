"""Logs of fit runs, built event by event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from cerebro.contract.events import (
    Event,
    RunFinished,
    RunRequested,
    RunStarted,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskStarted,
    WorkerJoined,
    WorkerLost,
)
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.records import Hyperparameters, Replica
from cerebro.contract.runs import Constraint, EtlPlan, EtlRequest, FitPlan, FitRequest, Mode, PartitionPlan
from cerebro.contract.search import SearchRequest, Space
from cerebro.contract.tasks.bodies import KINDS
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.gangs import Member
from cerebro.contract.tasks.results import TaskResult, Timings
from cerebro.state import ExperimentState, Model, Run, TaskKey

DATASET = "one-d"
SHA = "0" * 64


def etl_plan(workers: int, splits: Mapping[str, int]) -> EtlPlan:
    """Return a plan with one partition per worker; `splits` gives the rows per partition."""
    return EtlPlan(
        dataset=DATASET,
        splits={
            split: tuple(PartitionPlan(partition=p, worker=f"worker-{p}", rows=rows) for p in range(workers))
            for split, rows in splits.items()
        },
        misc="",
    )


def joined(
    number: int, *, incarnation: str = "a", partitions: tuple[int, ...] | None = None, devices: int = 1
) -> WorkerJoined:
    """A worker with the partition of its number, or with `partitions`."""
    held = (number,) if partitions is None else partitions
    return WorkerJoined(
        worker=f"worker-{number}",
        incarnation=incarnation,
        weight=1.0,
        kinds=KINDS,
        replicas=tuple(Replica(dataset=DATASET, partition=p) for p in held),
        devices=devices,
    )


def lost(number: int, *, incarnation: str = "a", reason: str = "silent") -> WorkerLost:
    return WorkerLost(worker=f"worker-{number}", incarnation=incarnation, reason=reason)


class Story:
    """The state of an experiment, and its log. Each event is applied at once."""

    def __init__(self, *, workers: int = 2, devices: int = 1) -> None:
        self.state = ExperimentState(name="one")
        self.log: list[Event] = []
        self.time = 100.0
        for number in range(workers):
            self.append(joined(number, devices=devices))

    def append(self, *events: Event) -> None:
        """Apply events, numbered and one second apart. A refused event does not enter the log."""
        for event in events:
            self.time += 1.0
            numbered = event.model_copy(update={"seq": self.state.seq + 1, "time": self.time})
            self.state.apply(numbered)
            self.log.append(numbered)

    # --- ETL -------------------------------------------------------------------------------------

    def etl(
        self,
        *,
        workers: int = 2,
        splits: Mapping[str, int] | None = None,
        run: str = "etl-1",
    ) -> None:
        plan = etl_plan(workers, splits or {"train": 10, "valid": 4})
        self.append(
            RunRequested(run=run, request=EtlRequest(code=SHA, code_fingerprint=SHA)),
            RunStarted(run=run, plan=plan),
        )
        for split, parts in plan.splits.items():
            for part in parts:
                self.do(
                    TaskKey(run=run, kind="etl", split=split, partition=part.partition),
                    part.partition,
                    TaskResult(rows=part.rows),
                )
        self.append(RunFinished(run=run, outcome="finished"))

    # --- fits ------------------------------------------------------------------------------------

    def fit(
        self,
        *,
        models: int = 2,
        partitions: int = 2,
        epochs: int = 2,
        validated: bool = False,
        metric: str = "loss",
        mode: Literal["min", "max"] = "min",
        hyperparams: Mapping[str, Hyperparameters] | None = None,
        max_attempts: int = 3,
        parallel_plans: tuple[ParallelPlan, ...] = (),
        search: SearchRequest | None = None,
        space: Space | None = None,
        objectives: Mapping[str, Mode] | None = None,
        constraints: tuple[Constraint, ...] = (),
    ) -> Run:
        """Start the fit run ``fit-1``."""
        given = hyperparams or {f"m{n:02}": {"batch_size": 1, "lr": 0.1 * (n + 1)} for n in range(models)}
        self.append(
            RunRequested(
                run="fit-1",
                request=FitRequest(
                    code=SHA,
                    models=tuple(given.values()),
                    epochs=epochs,
                    metric=metric,
                    mode=mode,
                    max_attempts=max_attempts,
                    search=search,
                    space=space or {},
                    objectives=dict(objectives or {}),
                    constraints=constraints,
                ),
            ),
            RunStarted(
                run="fit-1",
                plan=FitPlan(
                    dataset=DATASET,
                    models=dict(given),
                    partitions=dict.fromkeys(range(partitions), 10),
                    valid_partitions=(0,) if validated else (),
                    parallel_plans=parallel_plans,
                ),
            ),
        )
        return self.run

    @property
    def run(self) -> Run:
        return self.state.runs["fit-1"]

    def model(self, name: str = "m00") -> Model:
        return self.run.models[name]

    def train(
        self,
        epoch: int,
        partition: int,
        *,
        model: str = "m00",
        rows: int = 10,
        worker: int | None = None,
        size: int = 1,
        peak_bytes: int = 0,
        **metrics: float,
    ) -> None:
        """Commit a sub-epoch. Its checkpoint's name has the model, sub-epoch number and attempt."""
        key = TaskKey(run="fit-1", kind="train", model=model, epoch=epoch, partition=partition)
        attempt = self.attempt(key)
        name = f"{model}-u{len(self.model(model).sub_epochs)}-a{attempt}"
        result = TaskResult(
            rows=rows,
            metrics=metrics or {"loss": 1.0},
            checkpoint=CheckpointRef(name=name, checksum="-", size=size),
            timings=Timings(compute_s=2.0),
            peak_bytes=peak_bytes,
        )
        self.do(key, partition if worker is None else worker, result)

    def validate(self, epoch: int, *, model: str = "m00", worker: int = 0, **metrics: float) -> None:
        key = TaskKey(run="fit-1", kind="valid", model=model, epoch=epoch)
        timings = Timings(compute_s=2.0)
        self.do(key, worker, TaskResult(rows=4, metrics=metrics or {"loss": 1.0}, timings=timings))

    def epoch(self, epoch: int, *, model: str = "m00", partitions: int = 2, **metrics: float) -> None:
        """Commit a model's whole epoch, with the same metrics for each sub-epoch."""
        for partition in range(partitions):
            self.train(epoch, partition, model=model, rows=10, worker=None, size=1, peak_bytes=0, **metrics)

    # --- tasks -----------------------------------------------------------------------------------

    def attempt(self, key: TaskKey) -> int:
        """Return the number of the next attempt."""
        return self.state.runs[key.run].task(key).attempt + 1

    def assign(
        self,
        key: TaskKey,
        worker: int,
        devices: tuple[int, ...] = (0,),
        parallel_plan: ParallelPlan | None = None,
        others: tuple[Member, ...] = (),
    ) -> int:
        """Assign a task to a worker, or to a gang with this leader; return the attempt."""
        attempt = self.attempt(key)
        is_sub_epoch = key.kind == "train" and key.model in self.state.runs[key.run].models
        event = TaskAssigned(
            task=str(key),
            attempt=attempt,
            worker=f"worker-{worker}",
            devices=devices,
            parallel_plan=parallel_plan,
            other_members=others,
            config_version=self.model(key.model or "").version_for(str(key)) if is_sub_epoch else 0,
        )
        self.append(event)
        return attempt

    def start(
        self,
        key: TaskKey,
        worker: int,
        devices: tuple[int, ...] = (0,),
        parallel_plan: ParallelPlan | None = None,
    ) -> int:
        """Assign and start a task; return the attempt."""
        attempt = self.assign(key, worker, devices, parallel_plan)
        self.start_assigned(key, worker)
        return attempt

    def start_assigned(self, key: TaskKey, worker: int) -> None:
        """Start the newest attempt."""
        self.append(TaskStarted(task=str(key), attempt=self.attempt(key) - 1, worker=f"worker-{worker}"))

    def do(self, key: TaskKey, worker: int, result: TaskResult) -> None:
        self.start(key, worker)
        self.commit(key, worker, result)

    def commit(self, key: TaskKey, worker: int, result: TaskResult | None = None) -> None:
        """Commit the newest attempt with `result`, or with a checkpoint by default."""
        attempt = self.attempt(key) - 1
        committed_result = result or TaskResult(
            rows=10,
            metrics={"loss": 1.0},
            checkpoint=CheckpointRef(name=f"{key}-a{attempt}", checksum="-", size=1),
        )
        self.append(
            TaskCommitted(task=str(key), attempt=attempt, worker=f"worker-{worker}", result=committed_result)
        )

    def fail(
        self, key: TaskKey, worker: int, kind: FailureKind, message: str = "boom", needs: int = 0
    ) -> None:
        self.break_off(key, worker, self.start(key, worker), kind, message, needs)

    def break_off(
        self,
        key: TaskKey,
        worker: int,
        attempt: int,
        kind: FailureKind,
        message: str = "boom",
        needs: int = 0,
    ) -> None:
        """Fail an attempt."""
        failure = Failure(kind=kind, message=message, traceback="Traceback", needs_bytes=needs)
        self.append(TaskFailed(task=str(key), attempt=attempt, worker=f"worker-{worker}", failure=failure))


def sub_epoch(epoch: int, partition: int, model: str = "m00") -> TaskKey:
    return TaskKey(run="fit-1", kind="train", model=model, epoch=epoch, partition=partition)


def validation(epoch: int, model: str = "m00") -> TaskKey:
    return TaskKey(run="fit-1", kind="valid", model=model, epoch=epoch)
