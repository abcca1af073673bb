"""A model's results do not depend on models that ran before it on the worker."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from cerebro.contract.events import TaskCommitted
from cerebro.contract.parallel_plans import SINGLE
from cerebro.contract.records import Locator, Locators
from cerebro.contract.tasks.bodies import (
    EtlTask,
    EvaluateTask,
    FittingTask,
    InspectTask,
    Position,
    PredictTask,
    TaskBody,
    TrainTask,
    TrialTask,
)
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.contract.trials import AvailableDevices, DeviceKind
from cerebro.spec import ETLSpec, SubEpochSpec
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from tests.etl_worker.jobs import write_metadata
from tests.forking import Forks
from tests.misdeeds import FATAL, process_state
from tests.misdeeds import MISDEEDS as OF_PROCESSES
from tests.state.stories import DATASET
from tests.worker.agent.agents import LIMIT_S, Agents, agent_forks
from tests.worker.training.handlers import volumes_in, write_split

CACHE: dict[str, int] = {}
"""A global of the user's module."""


def state_of(spec: Watchful) -> str:
    """Return the process state that a task may change, as text."""
    return repr((process_state(), dict(CACHE), Watchful.scale, spec.seen))


MISDEEDS: Mapping[str, Callable[[], Any]] = {
    **OF_PROCESSES,
    "global": lambda: CACHE.update(left=1),
    "class attribute": lambda: setattr(Watchful, "scale", 3.0),
}


def misbehave(which: str) -> None:
    """Misbehave in one way, or with ``all`` in every way that lets the task finish."""
    for name in MISDEEDS.keys() - FATAL if which == "all" else filter(None, [which]):
        MISDEEDS[name]()


class Watchful(SubEpochSpec):
    """A small network with dropout that reports the state of its process. Some models misbehave."""

    scale = 1.0

    def __init__(self) -> None:
        self.seen = 0

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        sequential = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
        return [sequential]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        state = state_of(self)
        print(state)  # noqa: T201 - shows what differs
        (network,) = models
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        checkpoint.track(optimizer=optimizer)
        for inputs, labels in dataloader:
            loss = torch.nn.functional.cross_entropy(network(inputs), labels) * self.scale
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        CACHE["sub_epochs"] = CACHE.get("sub_epochs", 0) + 1
        self.seen += 1
        misbehave(hyperparams["misdeed"])
        return {"state": float(zlib.crc32(state.encode()))}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        total = sum(float(models[0](inputs).sum()) for inputs, _ in dataloader)
        state = state_of(self)
        misbehave(hyperparams["misdeed"])
        return {"total": total, "state": float(zlib.crc32(state.encode()))}


class Printing(Watchful):
    """Prints the process state in `create_models`, which tasks of all kinds call."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        print("state", state_of(self))  # noqa: T201
        model = super().create_models(hyperparams)
        misbehave(hyperparams["misdeed"])
        return model

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        with torch.enable_grad():
            return super().train(models, checkpoint, dataloader, hyperparams)

    def predict(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Any:
        for inputs, _ in dataloader:
            yield {"label": models[0](inputs).argmax(1)}


class PrintingRows(ETLSpec):
    """Prints the process state at the first row; rows may misbehave."""

    seen = 0

    def fit(self, batches: Any, object_dir: str) -> Any:
        for batch in batches:
            self.row_preprocessor(batch.to_pylist()[0], "train", object_dir)
        return 1

    def row_preprocessor(self, row: Any, mode: Any, object_dir: str) -> tuple[Any, Any]:
        if not self.seen:
            print("state", state_of(self))  # type: ignore[arg-type]  # noqa: T201
        self.seen += 1
        misbehave(row["misdeed"])
        return 1.0, 2


class Worker:
    """One worker and one partition, with sub-epochs of well-behaved and misbehaving models."""

    def __init__(self, agents: Agents, root: Path, spec: SubEpochSpec, devices: int = 1) -> None:
        self.agents, self.volumes = agents, volumes_in(root)
        self._count = 0
        write_split(self.volumes, "train", 1)
        self.code, self.rows_code = agents.learn(spec), agents.learn(PrintingRows())
        agents.start(handler="etl_worker model_hopper trial_runner", devices=devices)

    def train(self, misdeed: str = "") -> str:
        """Assign a sub-epoch of a new model; return its key."""
        self._count += 1
        body = TrainTask(
            key=f"fit-{self._count}/train/m00/e1/p0",
            run=f"fit-{self._count}",
            hyperparams={"batch_size": 8, "misdeed": misdeed},
            epoch=1,
            partition=0,
            sub_epoch=0,
            position=Position(epochs=1, sub_epochs=1, step=0, total_steps=8),
            checkpoint=None,
            **self._common,
        )
        return self._give(body)

    def evaluate(self, checkpoint: CheckpointRef, misdeed: str = "") -> str:
        """Assign an evaluation of a trained model; return its key."""
        self._count += 1
        body = EvaluateTask(
            kind="valid",
            key=f"fit-{self._count}/valid/m00/e1",
            run=f"fit-{self._count}",
            hyperparams={"batch_size": 8, "misdeed": misdeed},
            checkpoint=checkpoint,
            epoch=1,
            split="train",
            partitions=(0,),
            **self._common,
        )
        return self._give(body)

    def give(self, kind: str, checkpoint: CheckpointRef, misdeed: str) -> str:
        """Assign a task of a kind that does not train; return its key."""
        self._count += 1
        run, partition = f"fit-{self._count}", self._count
        hyperparams: dict[str, Any] = {"batch_size": 8, "misdeed": misdeed}
        model: dict[str, Any] = {"run": run, "hyperparams": hyperparams, **self._common}
        rows: dict[str, Any] = {
            "experiment": "one",
            "dataset": DATASET,
            "code": self.rows_code,
            "locators": Locators(train=Locator(metadata="train.csv")),
        }
        if kind in ("etl", "fitting"):
            table = pa.table({"id": [0, 1], "misdeed": [misdeed, misdeed]})
            write_metadata(self.volumes.metadata(DATASET, "train", partition), table)
        body: TaskBody
        if kind == "valid":
            return self.evaluate(checkpoint, misdeed)
        if kind == "predict":
            key, output = f"predict-{self._count}/predict/m00/p0", f"predictions/{self._count}.arrow"
            body = PredictTask(
                key=key,
                epoch=1,
                checkpoint=checkpoint,
                split="train",
                partitions=(0,),
                output=output,
                **model,
            )
        elif kind == "trial":
            device = DeviceKind(kind="cpu", name="1 core")
            key = f"{run}/trial/g00/single"
            body = TrialTask(
                key=key, group="g00", id="single", parallel_plan=SINGLE, device=device, partition=0, **model
            )
        elif kind == "inspect":
            del model["model"], model["hang_timeout_s"], model["hyperparams"]
            device_kinds = (AvailableDevices(device=DeviceKind(kind="cpu", name="1 core"), max_devices=1),)
            body = InspectTask(
                key=f"{run}/inspect", models={"m00": hyperparams}, device_kinds=device_kinds, **model
            )
        elif kind == "etl":
            key = f"etl-{self._count}/etl/train/p{partition}"
            body = EtlTask(key=key, split="train", partition=partition, max_failed=1.0, **rows)
        else:
            body = FittingTask(key=f"etl-{self._count}/fitting", partitions=(partition,), **rows)
        return self._give(body)

    def state(self, key: str) -> str:
        """Return the initial process state of a `Printing` task."""
        self.result(key)
        log = self.agents.log_folder / f"{key.replace('/', '.')}.a1.log"
        return next(line for line in log.read_text().splitlines() if line.startswith("state "))

    @property
    def _common(self) -> dict[str, Any]:
        common = {"experiment": "one", "model": "m00", "code": self.code, "dataset": DATASET}
        return common | {"seed": 5, "hang_timeout_s": 4 * LIMIT_S}

    def _give(self, body: TaskBody) -> str:
        self.agents.assign(body, attempt=1, devices=(0,))
        return body.key

    def result(self, key: str) -> TaskResult:
        event = self.agents.end_of(key)
        assert isinstance(event, TaskCommitted), event.model_dump()
        return event.result

    def trained(self) -> CheckpointRef:
        """Train a well-behaved model; return its checkpoint."""
        checkpoint = self.result(self.train()).checkpoint
        assert checkpoint is not None
        return checkpoint

    def computed(self, key: str) -> tuple[Mapping[str, float], list[bytes]]:
        """Return the exact metrics and weights of a sub-epoch."""
        result = self.result(key)
        assert result.checkpoint is not None
        state = checkpoints.load(self.volumes.checkpoints, result.checkpoint, "cpu")
        return result.metrics, [weight.numpy().tobytes() for weight in state["models"][0].values()]


@pytest.fixture(scope="module")
def forks(processes: None) -> Iterator[Forks]:
    """A forkserver with torch imported, for all workers."""
    with agent_forks("model_hopper.handler") as fork_server:
        yield fork_server


@pytest.fixture
def worker(agents: Agents, tmp_path: Path) -> Worker:
    return Worker(agents, tmp_path, Watchful())


@pytest.mark.slow
def test_changes_of_a_model_to_its_process_do_not_affect_other_models(worker: Worker) -> None:
    """A sub-epoch queued behind a misbehaving model has the same results as in a new process."""
    expected, met = worker.computed(worker.train()), []
    for misdeed in MISDEEDS:
        worker.train(misdeed)
        if worker.computed(worker.train()) != expected:
            met.append(misdeed)
    assert met == []


@pytest.mark.slow
def test_changes_of_a_task_to_its_process_do_not_affect_evaluations(worker: Worker) -> None:
    """Covers evaluations after evaluations and after sub-epochs."""
    trained = worker.trained()
    expected = worker.result(worker.evaluate(trained)).metrics
    for misdeed in ("default dtype", "patched layer", "global", "class attribute"):
        worker.result(worker.evaluate(trained, misdeed))
        worker.train(misdeed)
        assert worker.result(worker.evaluate(trained)).metrics == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "devices"),
    [("valid", 1), ("predict", 1), ("trial", 1), ("inspect", 1), ("fitting", 1), ("etl", 1), ("etl", 2)],
)
def test_changes_of_a_task_to_its_process_do_not_affect_other_tasks(
    agents: Agents, tmp_path: Path, kind: str, devices: int
) -> None:
    """Rows of a partition do not depend on earlier partitions either, in one process or several."""
    worker = Worker(agents, tmp_path, Printing(), devices)
    checkpoint = worker.trained()
    expected = worker.state(worker.give(kind, checkpoint, ""))
    worker.result(worker.give(kind, checkpoint, "all"))
    assert worker.state(worker.give(kind, checkpoint, "")) == expected
