"""A store as a long run leaves it: many models, their events and reports, and many small experiments.

Written straight into the database in the form of `kvs_api.store.store`, because the services would take an hour. For
every reader the run is real and still open: `Work` continues it through the services, as a controller and a worker.
"""

from __future__ import annotations

import itertools
import math
import random
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cerebro.contract.events import (
    EpochCompleted,
    Event,
    LivePoint,
    RunFinished,
    RunRequested,
    RunStarted,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskStarted,
    WorkerJoined,
)
from cerebro.contract.records import (
    ExperimentRecord,
    Hyperparameters,
    Locator,
    Locators,
    Replica,
    WorkerRecord,
)
from cerebro.contract.rest import api
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.bodies import TrainTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.runtime.kvs.client import KvsClient
from kvs_api.store import keys

NAME, RUN, DATASET = "large", "fit-1", "d1"
EPOCHS, PARTITIONS, ROWS = 2, 2, 10_000
WORKERS = 8
_CODE = "0" * 64
_KINDS = ("etl", "train", "valid", "test", "predict")
_SUB_EPOCH_S = 0.7
_LEFT = 0.1
"""Share of the models whose last sub-epoch is not done."""
_FAIL_EVERY = 100
_UNNUMBERED = {"seq", "time"}


@dataclass(frozen=True, kw_only=True)
class Size:
    """Amount of data."""

    models: int = 10_000
    points: int = 1_000_000
    experiments: int = 1_000
    """Number of small experiments."""


def seed(database: Path, size: Size) -> None:
    """Write all data through the socket `database`. About half a minute for the full size."""
    with Writer(database) as writer:
        for number in range(size.experiments):
            writer.experiment(f"small-{number:04d}", _small(number), began=time.time() - 86_400 - number)
        writer.experiment(NAME, _large(size), began=time.time() - 3_600, run=RUN)
        writer.points(NAME, _points(size))


# --- events -------------------------------------------------------------------------------------


def _hyperparameters(model: int) -> Hyperparameters:
    return {
        "lr": round(10 ** (-1 - 3 * (model % 100) / 100), 6),
        "batch_size": 32 * 2 ** (model % 4),
        "optimizer": ("sgd", "adam", "lion")[model % 3],
        "layers": 2 + model % 5,
    }


def model_id(model: int) -> str:
    """Return a model's id, as the controller names it."""
    return f"m{model:05d}"


def _fit(models: int, epochs: int) -> tuple[RunRequested, RunStarted]:
    chosen = tuple(_hyperparameters(model) for model in range(models))
    request = FitRequest.model_validate(
        {"code": _CODE, "models": chosen, "epochs": epochs, "metric": "loss", "mode": "min"}
    )
    plan = FitPlan.model_validate(
        {
            "dataset": DATASET,
            "models": {model_id(model): each for model, each in enumerate(chosen)},
            "partitions": dict.fromkeys(range(PARTITIONS), ROWS),
        }
    )
    return RunRequested(run=RUN, request=request, author="ada"), RunStarted(run=RUN, plan=plan)


def _workers() -> Iterator[WorkerJoined]:
    for number in range(WORKERS):
        yield WorkerJoined(
            worker=f"worker-{number}",
            incarnation="a",
            weight=1,
            kinds=_KINDS,
            replicas=tuple(Replica(dataset=DATASET, partition=p) for p in range(PARTITIONS)),
        )


def _small(number: int) -> Iterator[tuple[float, Event]]:
    """Yield the events of a finished fit of two models, each with the seconds since the previous one."""
    begin: tuple[Event, ...] = (*_workers(), *_fit(2, 1))
    for event in begin:
        yield 0.1, event
    for model, partition in itertools.product(range(2), range(PARTITIONS)):
        yield from _sub_epoch(model, 1, partition, worker=partition, value=0.1 + (number * 7 % 100) / 100)
    yield 0.1, RunFinished(run=RUN, outcome="finished")


def _large(size: Size) -> Iterator[tuple[float, Event]]:
    begin: tuple[Event, ...] = (*_workers(), *_fit(size.models, EPOCHS))
    for event in begin:
        yield 0.1, event
    failed = {model for model in range(size.models) if model % _FAIL_EVERY == _FAIL_EVERY - 1}
    for epoch, partition in itertools.product(range(1, EPOCHS + 1), range(PARTITIONS)):
        is_last = (epoch, partition) == (EPOCHS, PARTITIONS - 1)
        models = [m for m in range(size.models) if epoch == 1 or m not in failed]
        models = models[: round(len(models) * (1 - _LEFT))] if is_last else models
        for first in range(0, len(models), WORKERS):
            block = models[first : first + WORKERS]
            sub_epochs = [
                list(_sub_epoch(model, epoch, partition, worker=place, value=_loss(model, epoch)))
                for place, model in enumerate(block)
            ]
            # All workers advance together: first all assignments, then all starts, then all commits.
            for step in zip(*sub_epochs, strict=True):
                yield from ((0.0 if place else takes_s, event) for place, (takes_s, event) in enumerate(step))
        if epoch == 1 and partition == PARTITIONS - 1:
            yield from _failures(sorted(failed))
            idle = {f"worker-{number}": 1.0 for number in range(WORKERS)}
            bound = 0.9 * size.models * PARTITIONS * _SUB_EPOCH_S / WORKERS
            yield (
                0.1,
                EpochCompleted(run=RUN, epoch=1, makespan_s=bound / 0.9, lower_bound_s=bound, idle_s=idle),
            )


def _failures(models: list[int]) -> Iterator[tuple[float, Event]]:
    for model in models:
        task = f"{RUN}/train/{model_id(model)}/e2/p0"
        failure = Failure(
            kind=FailureKind.USER_ERROR, message="ValueError: shapes differ", traceback="Traceback\n  ..."
        )
        yield 0.0, TaskAssigned(task=task, attempt=1, worker="worker-0")
        yield 0.0, TaskStarted(task=task, attempt=1, worker="worker-0")
        yield 0.1, TaskFailed(task=task, attempt=1, worker="worker-0", failure=failure)


def _sub_epoch(
    model: int, epoch: int, partition: int, *, worker: int, value: float
) -> Iterator[tuple[float, Event]]:
    task, name = f"{RUN}/train/{model_id(model)}/e{epoch}/p{partition}", f"worker-{worker}"
    yield 0.01, TaskAssigned(task=task, attempt=1, worker=name)
    yield 0.01, TaskStarted(task=task, attempt=1, worker=name)
    yield (
        _SUB_EPOCH_S,
        TaskCommitted(task=task, attempt=1, worker=name, result=result(model, epoch, partition, value)),
    )


def result(model: int, epoch: int, partition: int, value: float) -> TaskResult:
    """Return the result of a sub-epoch."""
    return TaskResult.model_validate(
        {
            "rows": ROWS,
            "metrics": {"loss": value, "accuracy": 1 / (1 + value)},
            "checkpoint": CheckpointRef(
                name=f"{NAME}/{RUN}/{model_id(model)}/u{epoch:05d}-e{epoch:03d}-p{partition:04d}-a1.pt",
                checksum=f"{model:016x}",
                size=4 << 20,
            ),
            "timings": {"load_s": 0.02, "compute_s": 0.6, "save_s": 0.03},
        }
    )


def _loss(model: int, epoch: int) -> float:
    return math.exp(-epoch / 3) * (1 + (model * 7919 % 1000) / 1000)


def _points(size: Size) -> Iterator[str]:
    """Yield the models' live points, evenly spread, the newest sub-epochs last.

    Formatted like pydantic's `LivePoint` in a tenth of the time.
    """
    noise = random.Random(0)
    sub_epochs = size.models * EPOCHS * PARTITIONS
    for epoch, partition, model in itertools.product(
        range(1, EPOCHS + 1), range(PARTITIONS), range(size.models)
    ):
        number = ((epoch - 1) * PARTITIONS + partition) * size.models + model
        count = (number + 1) * size.points // sub_epochs - number * size.points // sub_epochs
        for step in range(1, count + 1):
            done = epoch - 1 + (partition + step / count) / PARTITIONS
            value = _loss(model, 0) * math.exp(-done / 3) + noise.gauss(0, 0.01)
            yield (
                f'{{"task":"{RUN}/train/{model_id(model)}/e{epoch}/p{partition}","attempt":1,'
                f'"worker":"worker-{model % WORKERS}","rows":{step * ROWS // count},"rows_failed":0,'
                f'"total_rows":{ROWS},"batch":{step},"values":{{"loss":{value!r}}}}}'
            )


# --- writing ------------------------------------------------------------------------------------


class Writer:
    """Writes by the Redis protocol without answers, which would take longer than the writing."""

    def __init__(self, database: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(database))
        self._pieces: list[bytes] = []
        self._bytes = 0

    def __enter__(self) -> Writer:
        self._send("CLIENT", "REPLY", "OFF")
        return self

    def __exit__(self, *_: object) -> None:
        self._send("CLIENT", "REPLY", "ON")
        self._flush()
        while not self._socket.recv(64).endswith(b"+OK\r\n"):
            pass
        self._socket.close()

    def experiment(
        self, name: str, story: Iterable[tuple[float, Event]], *, began: float, run: str = ""
    ) -> None:
        """Write an experiment with its log; `run` is still open."""
        record = ExperimentRecord(
            name=name,
            locators=Locators(train=Locator(metadata="/data/train.csv")),
            author="ada",
            created=began,
        )
        self._send("SET", keys.experiment(name), record.model_dump_json())
        self._send("ZADD", keys.EXPERIMENTS, str(began), name)
        seq, now = 0, began
        for takes_s, event in story:
            seq, now = seq + 1, now + takes_s
            self._entry(keys.log(name), seq, now, event.model_dump_json(exclude=_UNNUMBERED))
            if isinstance(event, RunRequested):
                self._send("HSET", f"{keys.log(name)}:runs", event.run, f"{seq}:")
        self._send("SET", f"{keys.log(name)}:seq", str(seq))
        if run:
            self._send("RPUSH", keys.QUEUE, f"{name}/{run}")

    def task(self, name: str, key: str, worker: str) -> None:
        """Write the record of a committed task."""
        fields = {"state": "committed", "attempt": "1", "worker": worker, "incarnation": "a", "devices": "0"}
        words = itertools.chain.from_iterable({**fields, "lease_until": "1764000000000"}.items())
        self._send("HSET", keys.task(name, key), *words)

    def points(self, name: str, points: Iterable[str]) -> None:
        """Write the live points of an experiment."""
        seq, now = 0, time.time()
        for seq, content in enumerate(points, start=1):
            self._entry(keys.live(name), seq, now, content)
        self._send("SET", f"{keys.live(name)}:seq", str(seq))

    def _entry(self, key: str, seq: int, at: float, content: str) -> None:
        self._send("XADD", key, f"{seq}-0", "t", str(int(at * 1000)), "e", content)

    def _send(self, *words: str) -> None:
        coded = [word.encode() for word in words]
        self._pieces.append(
            b"*%d\r\n" % len(coded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in coded)
        )
        self._bytes += sum(map(len, coded))
        if self._bytes > 1 << 20:
            self._flush()

    def _flush(self) -> None:
        self._socket.sendall(b"".join(self._pieces))
        self._pieces, self._bytes = [], 0


# --- continuation -------------------------------------------------------------------------------


class Work:
    """Continues the large run through the services' routes, as one controller and one worker. For one thread."""

    def __init__(self, kvs: KvsClient, size: Size) -> None:
        self._kvs, self._size = kvs, size
        failed = {m for m in range(size.models) if m % _FAIL_EVERY == _FAIL_EVERY - 1}
        models = [model for model in range(size.models) if model not in failed]
        first = round(len(models) * (1 - _LEFT))
        self._left = models[first:]
        # Models that failed in their second epoch have no further sub-epochs due.
        self._done = (len(models) * EPOCHS + len(failed)) * PARTITIONS - len(self._left)
        self.commits: list[tuple[int, float]] = []
        """(completed sub-epochs, time of the commit's answer in seconds since the epoch)."""
        kvs.register(WorkerRecord(worker="worker-0", incarnation="a", weight=1, cores=1, kinds=_KINDS))

    @property
    def done(self) -> int:
        """Return the number of sub-epochs committed here."""
        return len(self.commits)

    def sub_epoch(self) -> None:
        """Assign, start, report and commit the next sub-epoch."""
        model = self._left.pop()
        task = f"{RUN}/train/{model_id(model)}/e{EPOCHS}/p{PARTITIONS - 1}"
        term = self._kvs.lead("benchmark", 30.0).term
        body = TrainTask.model_validate(
            {
                "key": task,
                "experiment": NAME,
                "run": RUN,
                "model": model_id(model),
                "hyperparams": _hyperparameters(model),
                "code": _CODE,
                "dataset": DATASET,
                "seed": 0,
                "hang_timeout_s": 600.0,
                "epoch": EPOCHS,
                "partition": PARTITIONS - 1,
                "sub_epoch": EPOCHS * PARTITIONS - 1,
                "position": {},
                "checkpoint": None,
            }
        )
        assign = api.Assign(task=task, attempt=1, worker="worker-0", incarnation="a", body=body)
        self._kvs.decide(NAME, api.DecideRequest(term=term, after=api.MAX_SEQ, steps=(assign,)))
        self._report(api.Start(experiment=NAME, task=task, attempt=1))
        point = LivePoint(
            task=task, attempt=1, worker="worker-0", rows=ROWS // 2, total_rows=ROWS, values={"loss": 0.5}
        )
        done = result(model, EPOCHS, PARTITIONS - 1, _loss(model, EPOCHS))
        self._report(api.Renew(experiment=NAME, task=task, attempt=1), point)
        self._report(api.Commit(experiment=NAME, task=task, attempt=1, result=done))
        self._done += 1
        self.commits.append((self._done, time.time()))

    def _report(self, step: api.Report, *points: LivePoint) -> None:
        request = api.ReportRequest(
            incarnation="a", lease_s=60.0, steps=(step,), live={NAME: points} if points else {}
        )
        outcomes = self._kvs.report("worker-0", request).outcomes
        assert [outcome.outcome for outcome in outcomes] == ["done"], outcomes
