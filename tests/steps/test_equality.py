"""A `StepSpec` trains the same weights, to the bit, as the same loop by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro import Ratio
from cerebro.data.loader import PartitionLoader
from cerebro.steps import averages
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.comparison import differences, trained
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import PerRowValues
from tests.steps.training import Hopping, Loop, Steps

NETWORKS = ("mlp", "cnn", "lstm")
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"accumulate": 3},
    {"clip_norm": 0.05},
    {"accumulate": 2, "clip_norm": 0.05},
)


def assert_equal(one: State, other: State) -> None:
    assert list(differences(trained(one), trained(other))) == []


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_steps_train_the_same_bits_as_a_loop_by_hand(
    network: str, options: dict[str, Any], partitions: list[Path]
) -> None:
    """Weights, buffers, optimizer and schedule are equal after four sub-epochs; metrics are equal up to rounding."""
    steps, loop = (Hopping(spec, partitions, network=network, **options) for spec in (Steps(), Loop()))
    assert_equal(steps.train(), loop.train())
    for found, expected in zip(steps.metrics, loop.metrics, strict=True):
        assert found == pytest.approx(expected, abs=1e-6)
    assert steps.warnings == []


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("stop", [1, 4])
def test_a_savepoint_between_accumulated_batches_changes_no_bit(
    network: str, stop: int, partitions: list[Path]
) -> None:
    """Each sub-epoch is stopped once; batch 1 and batch 4 are inside a window of three batches."""
    options: dict[str, Any] = {"network": network, "accumulate": 3, "clip_norm": 0.05}
    stopped = Hopping(Steps(), partitions, stop=stop, **options)
    undisturbed = Hopping(Steps(), partitions, **options)
    assert_equal(stopped.train(), undisturbed.train())
    assert stopped.metrics == undisturbed.metrics
    assert stopped.saved_batches == [stop] * 4


def test_validation_averages_over_all_rows(partitions: list[Path]) -> None:
    """The last of seven batches has four rows of 46."""
    hopping = Hopping(Steps(), partitions)
    state = hopping.train()
    model = hopping.trainee(state).modules[0].eval()
    loader = hopping.in_order()
    correct = sum(int((model(pictures).argmax(1) == labels).sum()) for pictures, labels in loader)
    assert hopping.evaluate(state) == pytest.approx({"accuracy": correct / 46})


class PerRow(Steps):
    """Metrics as one value per row, as numbers and as ratios."""

    def validation_step(self, models: list[Any], batch: Any, hyperparams: Any) -> Any:
        correct = models[0](batch[0]).argmax(1) == batch[1]
        of_ones = Ratio((correct & (batch[1] == 1)).sum(), (batch[1] == 1).sum())
        return {"per_row": correct, "mean": correct.float().mean().item(), "ones": of_ones}


def test_a_metric_per_row_is_exact(partitions: list[Path]) -> None:
    """Models with the same number of correct rows tie, in batches of any size; ratios are sums of their terms."""
    hopping = Hopping(PerRow(), partitions)
    state = hopping.train()
    model = hopping.trainee(state).modules[0].eval()
    (pictures, labels), *_ = InstrumentedLoader(PartitionLoader([partitions[0]], batch_size=46, seed=None))
    correct = model(pictures).argmax(1) == labels
    found = hopping.evaluate(state)
    assert found["per_row"] == int(correct.sum()) / 46
    assert found["mean"] == pytest.approx(found["per_row"])
    assert found["ones"] == Ratio(int((correct & (labels == 1)).sum()), int((labels == 1).sum()))
    per_row: PerRowValues = {}
    hopping.evaluate(state, per_row)
    assert {name: values.tolist() for name, values in per_row.items()} == {
        "per_row": correct.double().tolist()
    }


def test_a_last_batch_of_one_row_may_have_no_axis() -> None:
    """As after `squeeze()`; a mean of each batch is still no metric per row. The batch's memory is not kept."""
    sums: averages.Sums = {}
    values: averages.RowValues = {}
    right = torch.tensor([1.0, 0.0, 1.0])
    for rows, one in ((2, right[:2]), (1, right[2])):
        averages.add(sums, {"right": one, "mean": one.mean()}, rows, "validation_step", values=values)
    found = averages.per_row(values, 3)
    assert list(found) == ["right"]
    assert found["right"].values.tolist() == [1.0, 0.0, 1.0]
    assert [one.untyped_storage().nbytes() for one in values["right"] if one is not None] == [8, 4]
    assert not averages.per_row({"mean": [torch.tensor(0.5)]}, 1)
