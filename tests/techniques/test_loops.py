"""User code runs on a share of the rows; unsupported models and loops give a clear error."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cerebro.data.loader import PartitionLoader
from cerebro.errors import NotApplicableError, RanksDifferError
from cerebro.spec import Checkpoint, DataLoader, Hints, Ratio, SubEpochSpec
from cerebro.techniques import Group, resolve
from cerebro.techniques.pipeline import balanced
from cerebro.techniques.ranks import Alone
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import numbers_of
from cerebro.worker.training.ranks.grouped import prepare
from cerebro.worker.training.sub_epoch import create, train_sub_epoch
from tests.techniques.ranks import Ranks

CPU = torch.device("cpu")

Loop = Callable[[list[Any], Checkpoint, DataLoader], dict[str, Any]]


class Spec(SubEpochSpec):
    """A spec built from the given loop, models and hints."""

    def __init__(self, loop: Loop, make: Callable[[], list[Any]], hints: Hints) -> None:
        self.loop, self.make, self.said = loop, make, hints

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return self.make()

    def hints(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Hints:
        return self.said

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        return self.loop(models, checkpoint, dataloader)


def by(
    group: Group | None,
    technique: str,
    loop: Loop,
    partition: Path,
    make: Callable[[], list[Any]] | None = None,
    hints: Hints | None = None,
    size: int = 1,
    batch_size: int = 9,
    **params: Any,
) -> tuple[dict[str, float], dict[str, Any], Any]:
    """Train a sub-epoch with a technique; return its metrics, state and `models[0].observed`."""
    group = group or Alone(("cpu",) * size)
    try:
        spec = Spec(loop, make or linear, hints or Hints())
        trainee = create(spec, {"batch_size": batch_size}, seed=1, model="m00", device=CPU)
        prepared = prepare(spec, trainee, resolve(technique), params, group)
        loader = PartitionLoader([partition], batch_size=batch_size, seed=1, share=prepared.share)
        feed = InstrumentedLoader(loader)
        metrics = train_sub_epoch(spec, prepared, feed, {}, seed=1, model="m00", epoch=1, partition=0)
        return numbers_of(metrics), prepared.state(), getattr(trainee.modules[0], "observed", None)
    finally:
        if isinstance(group, Alone):
            group.leave()


def linear() -> list[Any]:
    return [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))]


def steps(models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader) -> dict[str, Any]:
    """Run the usual training loop."""
    optimizer = torch.optim.SGD(models[0].parameters(), lr=0.01)
    for inputs, outputs in dataloader:
        loss = (models[0](inputs / 46)[:, 0] - outputs / 46).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": loss.item()}


# --- training loops -----------------------------------------------------------------------------


def counting(models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader) -> dict[str, Any]:
    observed, own_counts = [], []
    for _ in dataloader:
        observed.append(list(dataloader.ids))
        own_counts += [] if dataloader.is_lent else observed[-1]
    odd = Ratio(sum(row % 2 for row in own_counts), len(own_counts))
    values = {
        "rank": dataloader.rank,
        "ranks": dataloader.ranks,
        "batches": len(dataloader),
        "rows": dataloader.num_rows,
        "step": dataloader.step,
        "seen": observed,
        "python": random.random(),
        "torch": float(torch.rand(1)),
    }
    models[0].observed = values
    return {"rows": sum(map(len, observed)) / dataloader.num_rows, "odd": odd}


def test_a_rank_counts_its_own_rows_and_all_batches(partition: Path, ranks: Ranks) -> None:
    """Ranks share the Python random state; each rank's torch device has its own."""
    answers = ranks.run(2, by, "ddp", counting, partition)
    metrics, messages = [answer[0] for answer in answers], [answer[2] for answer in answers]
    assert metrics == [{"rows": 1.0, "odd": 23 / 46}] * 2
    assert [each["rank"] for each in messages] == [0, 1]
    # 46 rows in batches of 9: 4 and 5 of each, and the last row twice, for the rank without one.
    assert [each["rows"] for each in messages] == [5 * 4 + 1, 5 * 5 + 1]
    assert {(each["ranks"], each["batches"], each["step"]) for each in messages} == {(2, 6, 6)}
    assert messages[0]["python"] == messages[1]["python"]
    assert messages[0]["torch"] != messages[1]["torch"]
    first, second = (each["seen"] for each in messages)
    assert first[-1] == second[-1]
    assert sorted(row for batch in (*first[:-1], *second) for row in batch) == list(range(46))


class Twice(nn.Module):
    """A model with a second method that uses parameters, and a part that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.idle = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(2, 2)

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        encoded: torch.Tensor = self.first(rows).tanh()
        return encoded

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.encode(rows))
        return found


def twice() -> list[Any]:
    return [Twice().double()]


def by_method(models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader) -> dict[str, Any]:
    (network,) = models
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for inputs, outputs in dataloader:
        loss = network.encode(inputs.double() / 46).square().mean() + outputs.double().mean() * 0
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {}


def by_with(
    group: Group, technique: str, loop: Loop, partition: Path, make: Any, hints: Hints, params: dict[str, Any]
) -> Any:
    """Call `by` with parameters for the technique."""
    return by(group, technique, loop, partition, make, hints, **params)


def test_a_model_may_be_called_twice_before_the_backward_pass(partition: Path, ranks: Ranks) -> None:
    _, expected, _ = by(None, "single", paired, partition, twice)
    for technique, params in (("ddp", {"unused_parameters": True}), ("fsdp", {})):
        found = ranks.run(2, by_with, technique, paired, partition, twice, Hints(), params)[0][1]
        for name, tensor in expected["models"][0].items():
            assert torch.allclose(found["models"][0][name], tensor, rtol=1e-11), (technique, name)


def paired(models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader) -> dict[str, Any]:
    (network,) = models
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for inputs, outputs in dataloader:
        rows = inputs.double() / 46
        loss = (network(rows) - network(rows * 2)).square().mean() + outputs.double().mean() * 0
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {}


def copying(models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader) -> dict[str, Any]:
    (network,) = models
    first = copy.deepcopy(network)
    metrics = steps(models, checkpoint, dataloader)
    rows = torch.ones(2, 3)
    with torch.no_grad():
        checkpoint["same"] = bool(torch.equal(first(rows), network(rows)))
    assert isinstance(network, nn.Sequential)
    return metrics


# --- what cannot be ------------------------------------------------------------------------------


def keeping_rows(models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader) -> dict[str, Any]:
    steps(models, checkpoint, dataloader)
    checkpoint["seen"] = {"rows": dataloader.num_rows}
    return {}


def counting_in_buffers(models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader) -> dict[str, Any]:
    models[0].register_buffer("seen", torch.tensor(float(dataloader.rank)))
    return {}


def naming_by_rank(models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader) -> dict[str, Any]:
    for _ in dataloader:
        pass
    return {f"loss{dataloader.rank}": 1.0}


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (
            keeping_rows,
            r"ranks 0 and 1 differ in \['checkpoint'\]\['seen'\]\['rows'\]: rank 0 has 21, rank 1 26",
        ),
        (counting_in_buffers, r"differ in \['models'\]\[0\]\['seen'\]: rank 0 has a tensor of shape \(\)"),
        (naming_by_rank, r"'loss0' on some ranks only \(rank 0 1.0, nothing on rank 1\)"),
    ],
)
def test_differences_between_ranks_are_named(loop: Loop, message: str, partition: Path, ranks: Ranks) -> None:
    """All ranks raise the error with the key, the ranks and both values, so that none waits for another."""
    with pytest.raises(RanksDifferError, match=message):
        ranks.run(2, by, "ddp", loop, partition)


def with_plain_tensors(models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader) -> dict[str, Any]:
    weight = next(iter(models[0].parameters()))
    return {"sum": float((weight * torch.ones(weight.shape)).sum())}


def normed() -> list[Any]:
    return [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))]


def flat() -> list[Any]:
    return [nn.Linear(3, 1)]


class Shared(nn.Module):
    """Two stages with a shared weight, and a parameter outside both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.first(rows)) * self.scale
        return found


def shared() -> list[Any]:
    return [Shared()]


def both() -> list[Any]:
    layer = nn.Linear(3, 1)
    return [nn.Sequential(layer), nn.Sequential(nn.Tanh(), layer)]


def drawn_anew() -> list[Any]:
    module = nn.Linear(3, 1)
    with torch.no_grad():
        module.weight.fill_(float(os.getpid()))
    return [module]


def repeated() -> list[Any]:
    layer = nn.Linear(3, 3)
    return [nn.Sequential(layer, nn.Tanh(), layer)]


@pytest.mark.parametrize(
    ("technique", "make", "loop", "hints", "message"),
    [
        (
            "ddp",
            twice,
            by_method,
            Hints(methods=("encode",)),
            r"without a gradient; use Ddp\(unused_parameters=True",
        ),
        ("ddp", normed, steps, Hints(), r"1 \(BatchNorm1d\) computes over all rows"),
        ("fsdp", normed, steps, Hints(), r"1 \(BatchNorm1d\) computes over all rows"),
        ("fsdp", linear, copying, Hints(), r"copies a module by copy.deepcopy\(\)"),
        (
            "fsdp",
            linear,
            with_plain_tensors,
            Hints(),
            "computes with parameters themselves and plain tensors",
        ),
        ("ddp", both, steps, Hints(), "1.weight of module 1 is also in module 0; return one module"),
        (
            "fsdp",
            both,
            steps,
            Hints(),
            "1.weight of module 1 is also in module 0; return one module",
        ),
        ("fsdp", drawn_anew, steps, Hints(), r"ranks 0 and 1 differ in \['models'\]\[0\]\['weight'\]"),
        ("tensor", linear, steps, Hints(), r"there is no tensor plan"),
        ("tensor", linear, steps, Hints(tensor_plan={"9": "colwise"}), "names '9', but no module"),
        ("tensor", linear, steps, Hints(tensor_plan={"0": "diagonal"}), "'diagonal', expected 'colwise' or"),
        ("tensor", linear, steps, Hints(tensor_plan={"1": "colwise"}), "splits 1, a Tanh, expected Linear"),
        (
            "tensor",
            linear,
            steps,
            Hints(tensor_plan={"0": "rowwise"}),
            "3 columns or rows of 0 cannot be divided between 2",
        ),
    ],
)
def test_a_model_that_a_parallel_plan_cannot_train_is_reported_with_the_reason(
    technique: str, make: Any, loop: Loop, hints: Hints, message: str, partition: Path, ranks: Ranks
) -> None:
    """The error says the plan does not apply; it does not blame the user."""
    with pytest.raises(NotApplicableError, match=message):
        ranks.run(2, by, technique, loop, partition, make, hints)


@pytest.mark.parametrize(
    ("technique", "make", "hints", "message"),
    [
        ("checkpointing", flat, Hints(), r"no repeated block; name a class"),
        ("pipeline", normed, Hints(), r"1 \(BatchNorm1d\) computes over all rows"),
        ("pipeline", shared, Hints(), r"not known to be a sequence"),
        ("pipeline", shared, Hints(stages=("first", "third")), r"names what is no module: .*third"),
        ("pipeline", shared, Hints(stages=("first", "second")), "scale is in no stage"),
        ("pipeline", repeated, Hints(), r"0\.weight is in the stages 0 and 2"),
        ("pipeline", flat, Hints(stages=("",)), "1 stages for 2 devices"),
    ],
)
def test_a_model_that_one_process_cannot_train_is_reported_with_the_reason(
    technique: str, make: Any, hints: Hints, message: str, partition: Path
) -> None:
    with pytest.raises(NotApplicableError, match=message):
        by(None, technique, steps, partition, make, hints, size=2)


def placed_batch(models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader) -> dict[str, Any]:
    inputs, outputs = next(iter(dataloader))
    models[0].observed = inputs.device.type, outputs.device.type
    return {}


def test_a_pipeline_puts_labels_on_the_device_of_its_results(partition: Path) -> None:
    """Results are on the last device, and inputs on the first."""
    group = Alone(("cpu", "meta"))
    assert by(group, "pipeline", placed_batch, partition)[2] == ("cpu", "meta")


@pytest.mark.parametrize(
    ("sizes", "devices", "places"),
    [
        ([1, 1, 1, 1], 2, [0, 0, 1, 1]),
        ([9, 1, 1, 1], 2, [0, 1, 1, 1]),
        ([0, 5, 0, 5], 2, [0, 0, 1, 1]),
        ([3, 1, 4, 1, 5], 3, [0, 0, 1, 1, 2]),
        ([2, 2], 2, [0, 1]),
        ([0, 0, 7], 3, [0, 1, 2]),
    ],
)
def test_pipeline_stages_are_balanced(sizes: list[int], devices: int, places: list[int]) -> None:
    """Layers stay in order, each device has some, and the largest sum is minimal."""
    found = balanced(sizes, devices)
    assert found == sorted(found)
    assert set(found) == set(range(devices))

    def largest(chosen: list[int]) -> int:
        return max(
            sum(size for size, at in zip(sizes, chosen, strict=True) if at == n) for n in range(devices)
        )

    assert largest(found) == largest(places)
