"""User code is called as documented, its results are checked, and sub-epochs are deterministic."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, cast

import numpy as np
import pytest
import torch

from cerebro.errors import MetricError, NonFiniteMetricError, SpecError
from cerebro.spec import DataLoader, SubEpochSpec, Validation
from cerebro.worker.training.metrics import Measured, checked_metrics
from cerebro.worker.training.seeds import model_seed, order_seed, seed_everything, sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, evaluate, restore, train_sub_epoch
from cerebro.worker.training.trainee import Trainee

CPU = torch.device("cpu")


class Rows:
    """A loader with a few batches in memory."""

    num_rows = 8
    epoch = epochs = sub_epochs = 1
    sub_epoch = step = rank = 0
    total_steps = 2
    ranks = 1
    ids: list[Any] = []  # noqa: RUF012 - never changed
    validation: Validation | None = None

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        inputs = torch.arange(24, dtype=torch.float32).reshape(8, 3) / 24
        for start in range(0, 8, 4):
            yield inputs[start : start + 4], inputs[start : start + 4].sum(1, keepdim=True)

    def __len__(self) -> int:
        return 2

    is_lent = False

    def report(self, **values: Any) -> None:
        """Ignore the values."""

    def progress(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return dict(values)

    def as_torch(self, arrange: Callable[[Any, Any], Any] | None = None) -> Any:
        raise NotImplementedError

    def savepoint(self, hook: Callable[[], object] | None = None, *, every: int = 1) -> None:
        """Ignore the call."""


class Spec(SubEpochSpec):
    """A small regression with dropout, whose optimizer state is in the checkpoint."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))]

    def train(
        self,
        models: list[Any],
        checkpoint: MutableMapping[str, Any],
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        optimizer = torch.optim.Adam(models[0].parameters(), lr=0.01)
        if "optimizer" in checkpoint:
            optimizer.load_state_dict(checkpoint["optimizer"])
        total = 0.0
        for inputs, outputs in dataloader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(
                models[0](inputs + random.random()), outputs + np.random.rand()
            )
            torch.autograd.backward(loss)
            optimizer.step()
            total += loss.item()
        checkpoint["optimizer"] = optimizer.state_dict()
        return {"loss": total, "training": float(models[0].training), "grad": float(torch.is_grad_enabled())}

    def test(
        self,
        models: list[Any],
        checkpoint: MutableMapping[str, Any],
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        loss = sum(torch.nn.functional.mse_loss(models[0](x), y).item() for x, y in dataloader)
        return {"loss": loss, "training": float(models[0].training), "grad": float(torch.is_grad_enabled())}


def new_trainee(seed: int = 0, model: str = "m00") -> Trainee:
    return create(Spec(), {"batch_size": 4}, seed=seed, model=model, device=CPU)


def trained(trainee: Trainee, *, epoch: int = 1, partition: int = 0, seed: int = 0) -> Measured:
    return train_sub_epoch(
        Spec(), trainee, Rows(), {"batch_size": 4}, seed=seed, model="m00", epoch=epoch, partition=partition
    )


def weights(trainee: Trainee) -> bytes:
    """Return all parameters as bytes."""
    return b"".join(
        tensor.numpy().tobytes() for module in trainee.modules for tensor in module.state_dict().values()
    )


# --- seeds -------------------------------------------------------------------------------------------


def test_the_same_sub_epoch_is_bit_identical() -> None:
    """Covers initial weights, dropout, and the generators of Python and NumPy, after any earlier draws."""
    one = new_trainee()
    first = trained(one)
    seed_everything(12345)
    torch.rand(7), random.random(), np.random.rand(3)
    other = new_trainee()
    assert trained(other) == first
    assert weights(other) == weights(one)


def test_seeds_are_distinct_and_unrelated() -> None:
    """Sums or products of numbers would give collisions."""
    seeds = [
        sub_epoch_seed(run, f"m{model:02}", epoch, partition)
        for run in range(3) for model in range(5) for epoch in range(5) for partition in range(5)
    ]  # fmt: skip
    seeds += [model_seed(run, f"m{model:02}") for run in range(3) for model in range(5)]
    seeds += [
        order_seed(run, "m00", epoch, partition, is_shared=True)
        for run in range(3) for epoch in range(5) for partition in range(5)
    ]  # fmt: skip
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert abs(np.corrcoef(seeds[:-1], seeds[1:])[0, 1]) < 0.2


def test_models_of_a_run_read_batches_in_the_same_order_unless_the_run_is_old() -> None:
    """Only the seed, the epoch and the partition determine the order of a new run's batches."""
    one, other = (order_seed(0, model, 1, 2, is_shared=True) for model in ("m00", "m01"))
    assert one == other != order_seed(0, "m00", 2, 2, is_shared=True)
    assert order_seed(0, "m01", 1, 2, is_shared=False) == sub_epoch_seed(0, "m01", 1, 2)


def test_a_restored_model_continues_bit_identically() -> None:
    """Two sub-epochs on one worker equal two with a hop in between, optimizer state included."""
    stayed = new_trainee()
    trained(stayed)
    trained(stayed, partition=1)
    first = new_trainee()
    trained(first)
    hopped = new_trainee()
    restore(hopped, first.state())
    trained(hopped, partition=1)
    assert weights(hopped) == weights(stayed)


def test_a_restored_model_copies_weights_and_reuses_other_state() -> None:
    """Weights are copied into the module; other state, which may be larger, is not duplicated."""
    first = new_trainee()
    trained(first)
    hopped = new_trainee()
    loaded = first.state()
    before = [weight.clone() for weight in loaded["models"][0].values()]
    restore(hopped, loaded)
    assert hopped.checkpoint["optimizer"] is loaded["checkpoint"]["optimizer"]
    trained(hopped, partition=1)
    assert all(
        torch.equal(one, other) for one, other in zip(before, loaded["models"][0].values(), strict=True)
    )


# --- modes -------------------------------------------------------------------------------------------


def test_training_and_evaluation_have_different_modes() -> None:
    """`train` has training mode and gradients, `test` neither; the next sub-epoch trains again."""
    trainee = new_trainee()
    assert (trained(trainee)["training"], trained(trainee)["grad"]) == (1.0, 1.0)
    before = weights(trainee)
    metrics = evaluate(Spec(), trainee, Rows(), {}, seed=0)
    assert (metrics["training"], metrics["grad"]) == (0.0, 0.0)
    assert weights(trainee) == before
    assert torch.is_grad_enabled()
    assert trained(trainee)["training"] == 1.0


def test_user_code_may_change_its_hyperparameters() -> None:
    """User code may pop a value without effect on the next sub-epoch."""

    class Popping(Spec):
        def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
            cast(dict[str, Any], hyperparams).pop("batch_size")
            return super().create_models(hyperparams)

    given = {"batch_size": 4}
    create(Popping(), given, seed=0, model="m00", device=CPU)
    assert given == {"batch_size": 4}


# --- results of user code ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returned", [None, [], torch.nn.Linear(1, 1), [1], {}, "net", [torch.nn.Linear(1, 1), None]]
)
def test_models_must_be_a_list_of_modules(returned: Any) -> None:
    class Bad(Spec):
        def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
            return returned  # type: ignore[no-any-return]

    with pytest.raises(SpecError, match=r"create_models\(\) returned"):
        create(Bad(), {}, seed=0, model="m00", device=CPU)


def test_the_number_of_models_must_not_change() -> None:
    """A state of one module does not fit two."""
    trainee = new_trainee()
    state = trainee.state()
    trainee.modules.append(torch.nn.Linear(1, 1))
    with pytest.raises(SpecError, match="returned 2 modules, but 1 were saved"):
        restore(trainee, state)


@pytest.mark.parametrize("returned", [None, 0.5, [0.5], "loss", torch.ones(2)])
def test_a_result_that_is_no_dict_is_named(returned: Any) -> None:
    """The error has the returned type."""
    with pytest.raises(MetricError, match=r"train\(\) returned a \w+.*expected a dict"):
        checked_metrics(returned, "train", "here")


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), torch.tensor(float("nan")), np.float32("inf")]
)
def test_a_non_finite_metric_has_its_own_error(value: Any) -> None:
    """The error has the metric's name and the place."""
    with pytest.raises(NonFiniteMetricError, match=r"loss became (nan|inf|-inf) in epoch 2, partition 1"):
        checked_metrics({"loss": value}, "train", "epoch 2, partition 1")
