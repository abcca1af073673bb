"""Build event logs of experiments; the real fold checks each event."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.contract.events import (
    Event,
    RunFinished,
    RunPaused,
    RunRequested,
    RunStarted,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskStarted,
    WorkerJoined,
    WorkerLost,
)
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.records import (
    ExperimentRecord,
    Hyperparameters,
    Locator,
    Locators,
    Replica,
    WorkerRecord,
    WorkerStatus,
)
from cerebro.contract.runs import (
    EtlPlan,
    EtlRequest,
    EvaluatePlan,
    EvaluateRequest,
    FitPlan,
    FitRequest,
    PartitionPlan,
)
from cerebro.contract.search import Space
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.state import ExperimentState, RunState

CODE = "0" * 64
NOW = 1_800_000_000.0


def record(name: str, **changes: object) -> ExperimentRecord:
    """Make an experiment record with a training split."""
    values: dict[str, object] = {
        "name": name,
        "locators": Locators(train=Locator(metadata="/data/train.csv", objects="/data/images")),
        "author": "ada",
        "created": NOW - 600,
    }
    return ExperimentRecord.model_validate(values | changes)


class Story:
    """An experiment's event log, built by one method per phase; the real fold checks each event."""

    def __init__(self, name: str, *, began: float = NOW - 300, **changes: object) -> None:
        self.record = record(name, created=began, **changes)
        self.state = ExperimentState(name=name)
        self.events: list[Event] = []
        self.time = began

    def append(self, event: Event, takes_s: float = 1.0) -> None:
        """Append an event, `takes_s` seconds after the previous one."""
        self.time += takes_s
        numbered = event.model_copy(update={"seq": len(self.events) + 1, "time": self.time})
        self.state.apply(numbered)
        self.events.append(numbered)

    def workers_join(self, number: int = 2) -> None:
        for index in range(number):
            kinds = ("etl", "train", "valid", "test", "predict")
            self.append(WorkerJoined(worker=f"worker-{index}", incarnation="a", weight=1, kinds=kinds), 0.1)

    def etl(self, rows: int = 898, failed: int = 0, *, run: str = "etl-1", dataset: str = "d1") -> None:
        """Finish preprocessing of two training partitions."""
        parts = tuple(PartitionPlan(partition=p, worker=f"worker-{p}", rows=rows) for p in range(2))
        self.append(RunRequested(run=run, request=EtlRequest(code=CODE, code_fingerprint=CODE), author="ada"))
        self.append(RunStarted(run=run, plan=EtlPlan(dataset=dataset, splits={"train": parts})))
        for part in parts:
            key = f"{run}/etl/train/p{part.partition}"
            self.run_task(key, part.worker, TaskResult(rows=rows - failed, rows_failed=failed))
        self.append(RunFinished(run=run, outcome="finished"))

    def fit(self, models: int = 8, epochs: int = 3, run: str = "fit-1") -> None:
        """Plan a fit without completed sub-epochs."""
        rates = tuple(
            {"learning_rate": 0.1 / 2**i, "layers": 1 + i % 2, "batch_size": 32} for i in range(models)
        )
        request = FitRequest(code=CODE, models=rates, epochs=epochs, metric="accuracy", mode="max")
        self.append(RunRequested(run=run, request=request, author="ada"))
        plan = FitPlan(
            dataset="d1",
            models={f"m{i:02}": rate for i, rate in enumerate(rates)},
            partitions={0: 898, 1: 898},
        )
        self.append(RunStarted(run=run, plan=plan))

    def train(self, model: str, epoch: int, run: str = "fit-1") -> None:
        """Train one epoch of a model on both partitions."""
        for partition in range(2):
            value = 0.9 + 0.02 * epoch - 0.003 * int(model[1:]) + 0.001 * partition
            result = TaskResult(
                rows=898,
                metrics={"accuracy": value, "loss": 1 - value},
                checkpoint=CheckpointRef(name=f"{model}/e{epoch}p{partition}", checksum="0" * 16, size=1),
            )
            self.run_task(f"{run}/train/{model}/e{epoch}/p{partition}", f"worker-{partition}", result)

    def run_task(self, key: str, worker: str, result: TaskResult | None) -> None:
        """Assign, start and, with a result, commit a task."""
        attempt = (
            next((r.tasks.by_key[key].attempt for r in self.state.runs.values() if key in r.tasks.by_key), 0)
            + 1
        )
        self.append(TaskAssigned(task=key, attempt=attempt, worker=worker), 0.1)
        self.append(TaskStarted(task=key, attempt=attempt, worker=worker), 0.1)
        if result is not None:
            self.append(TaskCommitted(task=key, attempt=attempt, worker=worker, result=result), 2.0)

    def fail(self, key: str, worker: str, message: str, traceback: str = "", rows_failed: int = 0) -> None:
        """Let user code of a task raise."""
        self.run_task(key, worker, None)
        failure = Failure(
            kind=FailureKind.USER_ERROR, message=message, traceback=traceback, rows_failed=rows_failed
        )
        self.append(TaskFailed(task=key, attempt=1, worker=worker, failure=failure))

    def pause(self, reason: str, run: str = "fit-1") -> None:
        self.append(RunPaused(run=run, reason=reason, needs_bytes=1))

    def lose(self, worker: str) -> None:
        self.append(WorkerLost(worker=worker, incarnation="a", reason="silent for 15 s"))

    def finish(self, run: str = "fit-1", error: str = "") -> None:
        outcome = "failed" if error else "finished"
        self.append(RunFinished.model_validate({"run": run, "outcome": outcome, "error": error}))

    def test(self, model: str = "m00", *, is_whole: bool = False, is_open: bool = False) -> None:
        """Test one model on two partitions of different sizes, in one task or in two as older versions did."""
        self.append(
            RunRequested(run="test-1", request=EvaluateRequest(kind="test", fit="fit-1", split="test"))
        )
        plan = EvaluatePlan(
            kind="test",
            dataset="d1",
            fit="fit-1",
            models={model: 1},
            partitions={0: 300, 1: 100},
            is_whole=is_whole,
        )
        self.append(RunStarted(run="test-1", plan=plan))
        if is_whole:
            result = TaskResult(rows=400, metrics={"auc": 0.8125})
            self.run_task(f"test-1/test/{model}", "worker-0", None if is_open else result)
            if not is_open:
                self.finish("test-1")
            return
        for partition, (rows, value) in enumerate(((300, 1.0), (100, 0.9))):
            result = TaskResult(rows=rows, metrics={"accuracy": value})
            self.run_task(f"test-1/test/{model}/p{partition}", f"worker-{partition}", result)
        self.finish("test-1")

    @property
    def is_open(self) -> bool:
        return any(run.state is RunState.RUNNING for run in self.state.runs.values())


def status(worker: str, *, silent_s: float = 0.4, running: str | None = None) -> WorkerStatus:
    """Build the latest report of a registered worker."""
    known = WorkerRecord(worker=worker, incarnation="a", weight=1, cores=1, kinds=("train",))
    return WorkerStatus(record=known, silent_s=silent_s, running=running)


def fit_of(models: Sequence[Hyperparameters], *, name: str = "nets", space: Space | None = None) -> Story:
    """Train these models for one epoch."""
    story = Story(name)
    story.workers_join()
    story.etl()
    request = FitRequest(
        code=CODE, models=tuple(models), space=space or {}, epochs=1, metric="accuracy", mode="max"
    )
    story.append(RunRequested(run="fit-1", request=request, author="ada"))
    planned = {f"m{number:02}": each for number, each in enumerate(models)}
    plan = FitPlan(dataset="d1", models=planned, partitions={0: 898, 1: 898})
    story.append(RunStarted(run="fit-1", plan=plan))
    for model in planned:
        story.train(model, 1)
    return story


def running_story(name: str = "digits", **changes: object) -> Story:
    """A fit of eight models, half done, with one failure."""
    story = Story(name, began=NOW - 120, **changes)
    story.workers_join()
    story.etl()
    story.fit()
    for model in ("m00", "m01", "m02", "m03"):
        story.train(model, 1)
    story.train("m00", 2)
    story.fail(
        "fit-1/train/m07/e1/p0",
        "worker-0",
        "ValueError: shapes differ",
        "Traceback\n  ValueError: shapes differ",
    )
    story.run_task("fit-1/train/m04/e1/p1", "worker-1", None)
    story.run_task("fit-1/train/m05/e1/p0", "worker-0", None)
    return story


def story_with_parallel_plans() -> Story:
    """A fit on a worker with two devices. One of two models runs out of memory on one device and continues on both."""
    story = Story("digits")
    story.append(
        WorkerJoined(
            worker="worker-0",
            incarnation="a",
            weight=2,
            kinds=("etl", "train"),
            replicas=(Replica(dataset="d1", partition=0),),
            devices=2,
        )
    )
    rates: tuple[Hyperparameters, ...] = ({"batch_size": 32, "lr": 0.1}, {"batch_size": 32, "lr": 0.2})
    request = FitRequest(code=CODE, models=rates, epochs=2, metric="accuracy", mode="max")
    ddp = ParallelPlan(technique="ddp", size=2)
    plan = FitPlan(
        dataset="d1",
        models={f"m{i:02}": rate for i, rate in enumerate(rates)},
        partitions={0: 898},
        parallel_plans=(SINGLE, ddp, ParallelPlan(technique="fsdp", size=2)),
    )
    story.append(RunRequested(run="fit-1", request=request, author="ada"))
    story.append(RunStarted(run="fit-1", plan=plan))
    key = "fit-1/train/m00/e1/p0"
    story.run_task(key, "worker-0", None)
    failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="CUDA out of memory", memory_kind="device")
    story.append(TaskFailed(task=key, attempt=1, worker="worker-0", failure=failure))
    story.append(TaskAssigned(task=key, attempt=2, worker="worker-0", devices=(0, 1), parallel_plan=ddp))
    story.append(TaskStarted(task=key, attempt=2, worker="worker-0"))
    result = TaskResult(
        rows=898,
        metrics={"accuracy": 0.9},
        checkpoint=CheckpointRef(name="m00/e1p0", checksum="0" * 16, size=1),
    )
    story.append(TaskCommitted(task=key, attempt=2, worker="worker-0", result=result))
    return story


def story_on_two_devices() -> tuple[Story, str]:
    """The same, with a sub-epoch that runs on both devices; return its key, too."""
    story, key = story_with_parallel_plans(), "fit-1/train/m01/e1/p0"
    parallel_plan = ParallelPlan(technique="ddp", size=2)
    story.append(
        TaskAssigned(task=key, attempt=1, worker="worker-0", devices=(0, 1), parallel_plan=parallel_plan)
    )
    story.append(TaskStarted(task=key, attempt=1, worker="worker-0"))
    return story, key
