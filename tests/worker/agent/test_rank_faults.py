"""Faults of torch ranks end the attempt with its cause, and the retry computes the undisturbed weights."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro.contract.events import SubEpochSaved, TaskCommitted, TaskFailed
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.bodies import Position, TrainTask
from cerebro.contract.tasks.checkpoints import CheckpointRef, Savepoint
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.runtime.volumes import Volumes
from cerebro.spec import SubEpochSpec
from cerebro.worker.child.fork_server import members
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from tests.forking import Forks
from tests.state.stories import DATASET
from tests.worker.agent.agents import LIMIT_S, Agents, agent_forks, until
from tests.worker.training.handlers import volumes_in, write_split

pytestmark = pytest.mark.slow

DDP, FSDP = ParallelPlan(technique="ddp", size=2), ParallelPlan(technique="fsdp", size=2)
BOTH = (0, 1)


class Trained(SubEpochSpec):
    """A small network with dropout and momentum, and faults per batch and rank."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [
            torch.nn.Sequential(
                torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2)
            )
        ]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        (network,) = models
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
        checkpoint.track(optimizer=optimizer)
        state = dataloader.progress({"total": 0.0})
        rank, name = dataloader.rank, hyperparams["name"]
        (self.notes / f"{name}.pid{rank}").write_text(f"{os.getpid()} {os.getpgid(0)}")
        for inputs, labels in dataloader:
            if rank == hyperparams.get("rank"):
                befall(hyperparams["what"], dataloader.step, hyperparams.get("step", 2))
            loss = torch.nn.functional.cross_entropy(network(inputs), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            state["total"] += loss.item() * len(labels)
            dataloader.report(loss=loss)
            (self.notes / f"{name}.at{rank}").write_text(str(dataloader.step))
            time.sleep(hyperparams.get("pause_s", 0.0))
        return {"loss": state["total"] / dataloader.num_rows}


def befall(what: str, step: int, at: int) -> None:
    """Inject a fault into a batch."""
    if step != at:
        return
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "memory":
        raise MemoryError("no more")
    if what == "raise":
        raise ValueError("boom")
    if what == "exit":
        os._exit(3)
    if what == "hang":
        time.sleep(1000)


class Training:
    """A worker with two devices, and sub-epochs of one model."""

    def __init__(self, agents: Agents, root: Path, savepoint_s: str = "") -> None:
        self.agents, self.root, self.notes = agents, root, root / "notes"
        self.notes.mkdir()
        self.volumes: Volumes = volumes_in(root)
        write_split(self.volumes, "train", 1)
        self.code = agents.learn(Trained(self.notes))
        self._savepoint_s = savepoint_s
        self.begin()

    def begin(self) -> None:
        """Start the worker or its successor."""
        self.process = self.agents.start(
            devices=2, handler="model_hopper", CEREBRO_SAVEPOINT_S=self._savepoint_s
        )

    def give(
        self,
        name: str,
        *,
        parallel_plan: ParallelPlan | None = DDP,
        sub_epoch: int = 0,
        attempt: int = 1,
        checkpoint: CheckpointRef | None = None,
        savepoint: Savepoint | None = None,
        hang_timeout_s: float = 4 * LIMIT_S,
        run: str = "fit-1",
        **hyperparams: Any,
    ) -> str:
        """Assign a sub-epoch of the model; each run only separates the files."""
        key = f"{run}/train/m00/e{sub_epoch + 1}/p0"
        body = TrainTask(
            key=key,
            experiment="one",
            run=run,
            model="m00",
            hyperparams={"batch_size": 4, "name": name, **hyperparams},
            code=self.code,
            dataset=DATASET,
            seed=5,
            hang_timeout_s=hang_timeout_s,
            epoch=sub_epoch + 1,
            partition=0,
            sub_epoch=sub_epoch,
            position=Position(epochs=9, sub_epochs=9, step=16 * sub_epoch, total_steps=9 * 16),
            checkpoint=checkpoint,
            savepoint=savepoint,
            parallel_plan=parallel_plan,
        )
        devices = BOTH[: parallel_plan.size if parallel_plan else 1]
        self.agents.assign(body, attempt=attempt, devices=devices)
        return key

    def result(self, key: str, attempt: int = 1) -> TaskResult:
        event = self.agents.end_of(key, attempt)
        assert isinstance(event, TaskCommitted), event
        return event.result

    def failure(self, key: str, attempt: int = 1) -> Failure:
        event = self.agents.end_of(key, attempt)
        assert isinstance(event, TaskFailed), event
        return event.failure

    def saves(self, key: str) -> list[Savepoint]:
        """Return the savepoints of a sub-epoch in the log."""
        events = self.agents.bench.log()
        return [event.savepoint for event in events if isinstance(event, SubEpochSaved) and event.task == key]

    def pids(self, name: str) -> list[int]:
        """Return the process ids of both ranks once they train."""
        paths = [self.notes / f"{name}.at{rank}" for rank in BOTH]
        until(lambda: all(path.exists() and path.read_text() for path in paths), f"{name} trains")
        return [self.noted(name, rank)[0] for rank in BOTH]

    def groups(self, name: str) -> list[int]:
        """Return the process groups of both ranks."""
        return [self.noted(name, rank)[1] for rank in BOTH]

    def noted(self, name: str, rank: int) -> list[int]:
        """Return the process id and group of a rank that has started to train."""
        return [int(number) for number in (self.notes / f"{name}.pid{rank}").read_text().split()]

    def damage(self, reference: CheckpointRef) -> None:
        """Flip a byte of a file."""
        path = self.volumes.checkpoint(reference.name)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def weights(self, result: TaskResult) -> list[torch.Tensor]:
        assert result.checkpoint is not None
        state = checkpoints.load(self.volumes.checkpoints, result.checkpoint, "cpu")
        return [
            *state["models"][0].values(),
            *(buffer["momentum_buffer"] for buffer in state["checkpoint"]["optimizer"]["state"].values()),
        ]


@pytest.fixture(scope="module")
def forks(processes: None) -> Iterator[Forks]:
    """A forkserver with torch imported, for all workers and ranks."""
    with agent_forks("model_hopper.handler") as fork_server:
        yield fork_server


@pytest.fixture
def training(agents: Agents, tmp_path: Path) -> Training:
    return Training(agents, tmp_path)


def has_ended(groups: list[int]) -> bool:
    return not any(members(group) for group in groups)


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    """Check that the tensors are bit-identical."""
    for left, right in zip(one, other, strict=True):
        torch.testing.assert_close(left, right, rtol=0.0, atol=0.0)


def test_sub_epochs_by_all_kinds_of_parallel_plans_continue_each_other(training: Training) -> None:
    """Each sub-epoch continues from the previous checkpoint with one result for all rows, in new rank processes."""
    checkpoint, processes = None, set[int]()
    parallel_plans = (
        DDP,
        FSDP,
        None,
        FSDP,
        ParallelPlan(technique="offload"),
        DDP,
        ParallelPlan(technique="pipeline", size=2, processes="one"),
    )
    for sub_epoch, parallel_plan in enumerate(parallel_plans):
        name = f"sub_epoch{sub_epoch}"
        result = training.result(
            training.give(name, parallel_plan=parallel_plan, sub_epoch=sub_epoch, checkpoint=checkpoint)
        )
        assert result.rows == 61
        assert 0 < result.metrics["loss"] < 5
        assert result.peak_bytes > 0
        checkpoint = result.checkpoint
        ranks = BOTH[: parallel_plan.ranks if parallel_plan else 1]
        processes |= {training.noted(name, rank)[0] for rank in ranks}
    assert len(processes) == sum(
        parallel_plan.ranks if parallel_plan else 1 for parallel_plan in parallel_plans
    )
    folder = training.root / "checkpoints/one/fit-1/m00"
    # A thread removes the file after the accepted commit.
    until(lambda: len(list(folder.iterdir())) == 1, "older ones are removed")
    assert checkpoint is not None
    assert training.volumes.checkpoint(checkpoint.name).exists()


def test_errors_before_the_start_of_all_ranks_end_no_process(training: Training) -> None:
    """Covers a technique that refuses the model or is unknown, and a damaged checkpoint."""
    first = training.result(training.give("first"))
    for attempt, (parallel_plan, says) in enumerate(
        (
            (ParallelPlan(technique="tensor", size=2), "plan"),
            (ParallelPlan(technique="sharpest", size=2), "there is no technique 'sharpest'"),
            (ParallelPlan(technique="ddp", size=2, params={"depth": 3}), "has no parameter 'depth'"),
        ),
        1,
    ):
        failure = training.failure(
            training.give("refused", run="fit-2", attempt=attempt, parallel_plan=parallel_plan), attempt
        )
        assert (failure.kind, says in failure.message) == (FailureKind.NOT_APPLICABLE, True), failure
    assert first.checkpoint is not None
    training.damage(first.checkpoint)
    failure = training.failure(training.give("damaged", sub_epoch=1, checkpoint=first.checkpoint))
    assert (failure.kind, "it was damaged" in failure.message) == (FailureKind.CHECKPOINT, True), failure
    training.result(training.give("after", run="fit-3"))
    assert training.groups("after") == training.groups("first")


@pytest.mark.parametrize("rank", BOTH)
def test_a_rank_killed_in_any_batch_changes_no_weight(training: Training, rank: int) -> None:
    """The retry's weights equal an undisturbed training's.

    `benchmarks techniques` measures the detection time.
    """
    expected = training.weights(training.result(training.give("whole", run="fit-2")))
    for attempt, step in enumerate((1, 7, 15), 1):
        name = f"hit{attempt}"
        failure = training.failure(
            training.give(name, attempt=attempt, rank=rank, what="kill", step=step), attempt
        )
        assert (failure.kind, failure.rank) == (FailureKind.CRASH, rank), failure
        assert f"rank {rank} of 2 (device {rank}): the process ended by signal SIGKILL" in failure.message
        assert has_ended(training.groups(name))
    retried = training.result(training.give("after", attempt=4), 4)
    same(training.weights(retried), expected)


@pytest.mark.parametrize(
    ("what", "kind", "says"),
    [
        ("memory", FailureKind.OUT_OF_MEMORY, "MemoryError: no more"),
        ("raise", FailureKind.USER_ERROR, "ValueError: boom"),
        ("exit", FailureKind.CRASH, "exit status 3"),
    ],
)
def test_the_failure_names_the_rank_that_caused_it(
    training: Training, what: str, kind: FailureKind, says: str
) -> None:
    """The other rank's lost connection is not reported."""
    key = training.give("hit", rank=1, what=what)
    failure = training.failure(key)
    assert (failure.kind, failure.rank) == (kind, 1)
    assert says in failure.message
    assert "Connection" not in failure.message
    assert (failure.memory_kind == "host") == (what == "memory")


def test_a_stopped_rank_is_named(training: Training) -> None:
    """The other rank waits for it in a collective operation."""
    key = training.give("still", pause_s=2.0, hang_timeout_s=6.0)
    pids = training.pids("still")
    os.kill(pids[1], signal.SIGSTOP)
    failure = training.failure(key)
    assert (failure.kind, failure.rank) == (FailureKind.HANG, 1)
    assert "rank 1 of 2 (device 1) is stopped by a signal" in failure.message


@pytest.mark.parametrize("rank", BOTH)
def test_a_rank_that_hangs_within_a_batch_is_named(training: Training, rank: int) -> None:
    """Both ranks are in the same batch; this one has started fewer collectives."""
    failure = training.failure(training.give("hangs", rank=rank, what="hang", hang_timeout_s=6.0))
    assert (failure.kind, failure.rank) == (FailureKind.HANG, rank)
    assert f"rank {rank} of 2 (device {rank}) is behind within batch 3" in failure.message


@pytest.mark.parametrize("parallel_plan", [DDP, FSDP], ids=str)
def test_a_worker_that_ends_saves_the_group_first(training: Training, parallel_plan: ParallelPlan) -> None:
    """Ranks of the next worker resume bit-identically, dropout included.

    A single-device sub-epoch restarts instead.
    """
    expected = training.weights(
        training.result(training.give("whole", run="fit-2", parallel_plan=parallel_plan))
    )
    key = training.give("cut", pause_s=1.0, parallel_plan=parallel_plan)
    training.pids("cut")
    training.process.send_signal(signal.SIGTERM)
    failure = training.failure(key)
    assert (failure.kind, "goes on from there" in failure.message) == (FailureKind.PREEMPTED, True), failure
    assert training.process.wait(LIMIT_S) == 0
    assert has_ended(training.groups("cut"))
    (saved,) = training.saves(key)
    assert 0 < saved.batch < 16
    training.begin()
    resumed = training.result(
        training.give("resumed", attempt=2, savepoint=saved, parallel_plan=parallel_plan), 2
    )
    assert resumed.resumed_rows == saved.rows
    same(training.weights(resumed), expected)
    other = training.result(training.give("other", run="fit-3", savepoint=saved, parallel_plan=None))
    assert (other.resumed_rows, other.rows) == (0, 61)


def test_timed_savepoints_include_all_ranks(agents: Agents, tmp_path: Path) -> None:
    """Rank 0 sets the time.

    After a rank is killed, the next attempt resumes bit-identically; a damaged savepoint costs only itself.
    """
    training = Training(agents, tmp_path, savepoint_s="0.2")
    expected = training.weights(training.result(training.give("whole", run="fit-2")))
    key = training.give("hit", pause_s=1.0)
    pids = training.pids("hit")
    until(lambda: bool(training.saves(key)), "a savepoint")
    os.kill(pids[1], signal.SIGKILL)
    assert training.failure(key).kind is FailureKind.CRASH
    newest = training.saves(key)[-1]
    resumed = training.result(training.give("resumed", run="fit-3", savepoint=newest))
    assert resumed.resumed_rows == newest.rows
    same(training.weights(resumed), expected)
    training.damage(newest.checkpoint)
    again = training.result(training.give("again", run="fit-4", savepoint=newest))
    assert again.resumed_rows == 0
    same(training.weights(again), expected)
