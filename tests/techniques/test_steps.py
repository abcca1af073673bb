"""A `StepSpec` trains with parallel techniques, and trials verify it, as the same loop by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro import StepSpec
from cerebro.contract.tasks.bodies import Position
from cerebro.data.loader import PartitionLoader
from cerebro.spec import SubEpochSpec
from cerebro.techniques import Group, resolve
from cerebro.techniques.conformance import check
from cerebro.techniques.named import KINDS
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.comparison import differences, trained
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import numbers_of
from cerebro.worker.training.ranks.grouped import prepare
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, train_sub_epoch
from tests.steps.training import BASE, PLACES, Loop, Steps, batches, write_partitions
from tests.techniques.ranks import Ranks


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of pictures, whose last batch has fewer rows."""
    return write_partitions(tmp_path_factory.mktemp("pictures"))[0]


def sub_epoch(
    group: Group, spec: SubEpochSpec, technique: str, folder: Path, hyperparams: dict[str, Any]
) -> tuple[dict[str, float], State]:
    """Train a first sub-epoch on this rank."""
    device = torch.device("cpu")
    trainee = create(spec, hyperparams, seed=0, model="m00", device=device)
    prepared = prepare(spec, trainee, resolve(technique), {}, group)
    seed = sub_epoch_seed(0, "m00", 1, 0)
    loader = PartitionLoader([folder], batch_size=8, seed=seed, share=prepared.share)
    total = sum(batches(partition, hyperparams) for _, partition in PLACES)
    feed = InstrumentedLoader(loader, position=Position(epochs=2, sub_epochs=4, total_steps=total))
    metrics = train_sub_epoch(spec, prepared, feed, hyperparams, seed=0, model="m00", epoch=1, partition=0)
    return numbers_of(metrics), prepared.state()


@pytest.mark.parametrize("technique", ["ddp", "fsdp"])
@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_two_ranks_train_the_same_bits_as_a_loop_by_hand(
    technique: str, network: str, pictures: Path, ranks: Ranks
) -> None:
    """With accumulation and clipping; the last batch has six rows."""
    hyperparams = {**BASE, "network": network, "accumulate": 4, "clip_norm": 0.05}
    (metrics, state), *_ = ranks.run(2, sub_epoch, Steps(), technique, pictures, hyperparams)
    (expected_metrics, expected), *_ = ranks.run(2, sub_epoch, Loop(), technique, pictures, hyperparams)
    assert not list(differences(trained(state), trained(expected)))
    assert metrics == pytest.approx(expected_metrics, abs=1e-6)


class Averaged(StepSpec):
    """All options that work on a CPU, in float64, so that rounding hides no error."""

    accumulate = 2
    clip_norm = 0.5
    ema = 0.9

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        hidden = [layer for _ in range(3) for layer in (torch.nn.Linear(6, 6), torch.nn.Tanh())]
        return [torch.nn.Sequential(*hidden, torch.nn.Linear(6, 3)).double()]

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(models[0](batch[0]), batch[1])

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        optimizer = torch.optim.Adam(models[0].parameters(), lr=0.01)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", ["ddp", "fsdp", "offload", "pipeline"])
def test_techniques_conform_with_all_options(name: str) -> None:
    """Gradients, hops between techniques and files with averaged weights equal those of one device."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(23, 6, generator=generator, dtype=torch.float64)
    check(KINDS[name](), Averaged(), [(row.numpy(), number % 3) for number, row in enumerate(rows)])
