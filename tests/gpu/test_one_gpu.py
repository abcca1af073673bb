"""What must hold of sub-epochs, checkpoints, generators and lacks of memory on a real GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.bodies import Position, TrainTask
from cerebro.contract.tasks.failures import FailureKind
from cerebro.data.loader import PartitionLoader
from cerebro.data.shards import write_rows
from cerebro.spec import Checkpoint, DataLoader, SubEpochSpec
from cerebro.techniques import resolve
from cerebro.techniques.ranks import Alone
from cerebro.worker.child.task_loop import failure_of
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.ranks.grouped import prepare
from cerebro.worker.training.seeds import (
    generator_states,
    restore_generator_states,
    seed_everything,
    sub_epoch_seed,
)
from cerebro.worker.training.sub_epoch import create, restore, train_sub_epoch
from cerebro.worker.training.trainee import Trainee
from tests.data.rows import SOURCE
from tests.state.stories import DATASET, SHA
from tests.worker.training.handlers import ROWS, handler_of, volumes_in, write_split

pytestmark = pytest.mark.gpu

CPU = torch.device("cpu")
HYPERPARAMS: dict[str, Any] = {"batch_size": 8}


class Network(SubEpochSpec):
    """Two layers with dropout, and Adam. `too_much` asks for more memory than the GPU has."""

    too_much = False

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 2))]

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        optimizer = torch.optim.Adam(models[0].parameters())
        checkpoint.track(optimizer=optimizer)
        return {"loss": loop(models[0], optimizer, dataloader, too_much=self.too_much)}


def loop(
    network: nn.Module, optimizer: torch.optim.Optimizer, batches: Any, *, too_much: bool = False
) -> float:
    """The usual loop; returns the loss of the last batch."""
    loss = torch.zeros(())
    for inputs, labels in batches:
        if too_much:
            torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device=inputs.device)
        loss = functional.cross_entropy(network(inputs), labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return loss.item()


def partition(folder: Path) -> Path:
    """The rows of the one partition of a split."""
    write_split(volumes_in(folder), "train", 1)
    return volumes_in(folder).partition(DATASET, "train", 0)


def train(trainee: Trainee, rows: Path, device: torch.device, epoch: int = 1) -> None:
    """One sub-epoch, as a worker trains it."""
    seed = sub_epoch_seed(1, "m00", epoch, 0)
    feed = InstrumentedLoader(PartitionLoader([rows], batch_size=8, seed=seed, device=device))
    train_sub_epoch(Network(), trainee, feed, HYPERPARAMS, seed=1, model="m00", epoch=epoch, partition=0)


def weights(trainee: Trainee) -> list[torch.Tensor]:
    """On the host."""
    return [parameter.detach().cpu() for parameter in trainee.modules[0].parameters()]


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    """Equal to the bit."""
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_sub_epoch_equals_the_same_loop_by_hand(tmp_path: Path, gpu: torch.device) -> None:
    """To the bit: rows, their order, weights and dropout."""
    rows = partition(tmp_path)
    trainee = create(Network(), HYPERPARAMS, seed=1, model="m00", device=gpu)
    network = create(Network(), HYPERPARAMS, seed=1, model="m00", device=gpu).modules[0]
    train(trainee, rows, gpu)
    seed = sub_epoch_seed(1, "m00", 1, 0)
    host = [*PartitionLoader([rows], batch_size=8, seed=seed)]
    seed_everything(seed)
    loop(network, torch.optim.Adam(network.parameters()), [(a.to(gpu), b.to(gpu)) for a, b in host])
    assert_same(weights(trainee), [parameter.detach().cpu() for parameter in network.parameters()])


@pytest.mark.parametrize("where", ["cpu", "cuda:0"])
def test_a_checkpoint_of_a_gpu_is_read_on_any_device(tmp_path: Path, gpu: torch.device, where: str) -> None:
    """And Adam's step stays on the host, where reading it takes no time."""
    rows = partition(tmp_path)
    trainee = create(Network(), HYPERPARAMS, seed=1, model="m00", device=gpu)
    train(trainee, rows, gpu)
    reference = checkpoints.save(tmp_path, "u0.pt", trainee.state())
    other = create(Network(), HYPERPARAMS, seed=2, model="m00", device=torch.device(where))
    restore(other, checkpoints.load(tmp_path, reference, where))
    assert_same(weights(other), weights(trainee))
    for state in other.checkpoint["optimizer"]["state"].values():
        assert state["step"].device == CPU
        assert state["exp_avg"].device == torch.device(where)
    train(other, rows, torch.device(where), epoch=2)


def test_a_hop_changes_nothing(tmp_path: Path, gpu: torch.device) -> None:
    """Two sub-epochs with a checkpoint between them give the bits of two without."""
    rows = partition(tmp_path)
    stays, hops = (create(Network(), HYPERPARAMS, seed=1, model="m00", device=gpu) for _ in range(2))
    for trainee in (stays, hops):
        train(trainee, rows, gpu)
    reference = checkpoints.save(tmp_path, "u0.pt", hops.state())
    hops = create(Network(), HYPERPARAMS, seed=1, model="m00", device=gpu)
    restore(hops, checkpoints.load(tmp_path, reference, gpu))
    for trainee in (stays, hops):
        train(trainee, rows, gpu, epoch=2)
    assert_same(weights(stays), weights(hops))


def test_a_lack_of_memory_is_reported_and_the_next_model_trains(tmp_path: Path, gpu: torch.device) -> None:
    """In the same process, with the GPU's peak."""
    partition(tmp_path)
    task = TrainTask(
        key="fit-1/train/m00/e1/p0",
        experiment="one",
        run="fit-1",
        model="m00",
        hyperparams=HYPERPARAMS,
        code=SHA,
        dataset=DATASET,
        seed=0,
        hang_timeout_s=60.0,
        epoch=1,
        partition=0,
        sub_epoch=0,
        position=Position(),
        checkpoint=None,
    )
    greedy = Network()
    greedy.too_much = True
    with handler_of(greedy, volumes_in(tmp_path)) as handler, pytest.raises(torch.OutOfMemoryError) as caught:
        handler.handle(task, 1)
    failure = failure_of(caught.value)
    assert (failure.kind, failure.memory_kind) == (FailureKind.OUT_OF_MEMORY, "device")
    assert failure.peak_bytes
    with handler_of(Network(), volumes_in(tmp_path)) as handler:
        result = handler.handle(task, 2)
    assert result.rows == ROWS
    assert result.peak_gpu_bytes


def test_the_generator_of_a_gpu_continues_where_it_was(gpu: torch.device) -> None:
    """As a savepoint needs it."""
    seed_everything(7)
    torch.rand(3, device=gpu)
    state = generator_states()
    expected = torch.rand(3, device=gpu)
    torch.rand(5, device=gpu)
    restore_generator_states(state)
    assert torch.equal(torch.rand(3, device=gpu), expected)


@pytest.mark.parametrize("technique", ["checkpointing", "offload"])
def test_a_parallel_plan_trains_as_the_plain_code(tmp_path: Path, gpu: torch.device, technique: str) -> None:
    """Up to rounding; offload steps on the host."""
    rows = partition(tmp_path)
    plan = ParallelPlan(technique=technique, size=1, processes="one")
    plain = create(Blocks(), HYPERPARAMS, seed=1, model="m00", device=gpu)
    train(plain, rows, gpu)
    group, chosen = Alone((str(gpu),)), resolve(plan)
    try:
        device = torch.device(chosen.made_on(group, {}))
        trainee = create(Blocks(), HYPERPARAMS, seed=1, model="m00", device=device)
        trainee = prepare(Blocks(), trainee, chosen, {}, group)
        train(trainee, rows, gpu)
        found = trainee.state()["models"][0]
    finally:
        group.leave()
    for name, expected in plain.modules[0].state_dict().items():
        torch.testing.assert_close(found[name].cpu(), expected.cpu(), rtol=1e-4, atol=1e-5)


def test_pinned_memory_is_not_reused_before_its_copy_ends(tmp_path: Path, gpu: torch.device) -> None:
    """Copies of all batches wait for the busy GPU while later batches are gathered."""
    images = np.random.default_rng(0).integers(0, 256, (256, 3, 100, 100), np.uint8)
    write_rows(tmp_path / "p", [(image, number) for number, image in enumerate(images)], SOURCE)
    found = []
    for inputs, numbers in PartitionLoader([tmp_path / "p"], batch_size=8, seed=1, device=gpu):
        torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # cycles
        found.append((inputs.clone(), numbers.clone()))
    for inputs, numbers in found:
        assert torch.equal(inputs.cpu(), torch.from_numpy(images[numbers.cpu().numpy()]))


class Blocks(Network):
    """Layers that repeat."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        blocks = (nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))
        return [nn.Sequential(nn.Linear(3, 16), *blocks, nn.Linear(16, 2))]
