"""A sub-epoch resumes from savepoints only if it loses no state, or user code permits it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torchmetrics import MeanMetric

from cerebro.data.mapped import MappedRows
from cerebro.spec import Checkpoint, DataLoader
from tests.worker.training.resuming import BATCHES, Loop, learn, sub_epoch, template, tracked
from tests.worker.training.test_checkpoint import assert_equal

pytestmark = pytest.mark.usefixtures("light")


def summing(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer, total = tracked(network, checkpoint), 0.0
    for batch in dataloader:
        total += learn(network, optimizer, batch)


def listing(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer, losses = tracked(network, checkpoint), list[float]()
    for batch in dataloader:
        losses.append(learn(network, optimizer, batch))


def tensors(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer, total = tracked(network, checkpoint), torch.zeros(1)
    for batch in dataloader:
        total += learn(network, optimizer, batch)


def counting(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer = tracked(network, checkpoint)
    for index, batch in enumerate(dataloader):
        if index % 2:
            learn(network, optimizer, batch)


class Meter:
    """A running average, as in many user scripts."""

    def __init__(self) -> None:
        self.sums = np.zeros(2)

    def add(self, value: float) -> None:
        self.sums[0] += value


def metering(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer, meter = tracked(network, checkpoint), Meter()
    for batch in dataloader:
        meter.add(learn(network, optimizer, batch))


def measuring(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer, mean = tracked(network, checkpoint), MeanMetric()
    for batch in dataloader:
        mean.update(learn(network, optimizer, batch))


def untracked(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer = tracked(network, checkpoint)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for batch in dataloader:
        learn(network, optimizer, batch)
        scheduler.step()


def iterating(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer, others = tracked(network, checkpoint), iter(range(100))
    for batch in dataloader:
        batch[0].add_(next(others))
        learn(network, optimizer, batch)


def preparing(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    torch.nn.init.zeros_(next(network.parameters()))
    template(network, dataloader, checkpoint)


def resumable_loop(
    loop: Callable[[torch.nn.Module, DataLoader, Checkpoint], object],
) -> Callable[[torch.nn.Module, DataLoader, Checkpoint], object]:
    """Return the loop with the user's permission to resume."""

    def saying(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
        dataloader.savepoint(every=2)
        loop(network, dataloader, checkpoint)

    return saying


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        (summing, "keeps something in its variable 'total'"),
        (listing, "keeps something in its variable 'losses'"),
        (tensors, "keeps something in its variable 'total'"),
        (counting, "counts batches in its variable 'index'"),
        (metering, "keeps something in its variable 'meter'"),
        (measuring, "keeps something in its variable 'mean'"),
        (untracked, "keeps something in its variable 'scheduler'"),
        (iterating, "keeps something in its variable 'others'"),
        (preparing, "changes the weights before its loop"),
    ],
)
def test_a_sub_epoch_with_unsaved_variables_has_no_savepoints(
    rows: MappedRows,
    caplog: pytest.LogCaptureFixture,
    loop: Callable[[torch.nn.Module, DataLoader, Checkpoint], object],
    why: str,
) -> None:
    """The sub-epoch restarts unless user code permits a resume. The log says so once."""
    with sub_epoch(rows, Loop(loop)) as one:
        one.attempt(set(range(BATCHES)))
        assert one.taken == []
        assert [why in record.getMessage() for record in caplog.records] == [True]
        one.spec = Loop(resumable_loop(loop))
        one.attempt({3, 4, 7})
        assert one.taken == [4]


def test_without_a_declaration_of_user_code_a_sub_epoch_is_repeated_completely(
    rows: MappedRows, caplog: pytest.LogCaptureFixture
) -> None:
    """No savepoint is taken and no message logged."""

    def silent(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for batch in dataloader:
            learn(network, optimizer, batch)

    with sub_epoch(rows, Loop(silent)) as one:
        one.attempt(set(range(BATCHES)))
    assert one.taken == []
    assert caplog.records == []


def test_an_unused_metric_object_permits_savepoints(rows: MappedRows) -> None:
    """Such as one for tests."""

    def testing(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
        optimizer, mean = tracked(network, checkpoint), MeanMetric()
        for batch in dataloader:
            learn(network, optimizer, batch)
        mean.reset()

    with sub_epoch(rows, Loop(testing)) as one:
        one.attempt({3})
    assert one.taken == [3]


def test_a_hook_may_put_the_state_into_the_checkpoint(rows: MappedRows) -> None:
    """For user code that saves its optimizer itself.

    The hook runs before each savepoint, and its random draws do not affect the sub-epoch.
    """

    def hooking(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        if "optimizer" in checkpoint:
            optimizer.load_state_dict(checkpoint["optimizer"])

        def hook() -> None:
            torch.rand(5)
            checkpoint.update(optimizer=optimizer.state_dict())

        dataloader.savepoint(hook)
        for batch in dataloader:
            learn(network, optimizer, batch)
        checkpoint.update(optimizer=optimizer.state_dict())

    with sub_epoch(rows, Loop(hooking)) as never, sub_epoch(rows, Loop(hooking)) as often:
        expected = never.attempt()
        often.attempt({3, 5}, 6)
        often.attempt({9}, 10)
        assert_equal(often.attempt(), expected)
    assert often.taken == [3, 5, 9]


def test_a_second_pass_switches_savepoints_off(rows: MappedRows, caplog: pytest.LogCaptureFixture) -> None:
    """A savepoint of the first pass stays valid, and later batches are repeated."""

    def twice(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
        optimizer = tracked(network, checkpoint)
        for batch in itertools.chain(dataloader, dataloader):
            learn(network, optimizer, batch)

    with sub_epoch(rows, Loop(twice)) as never, sub_epoch(rows, Loop(twice)) as often:
        expected = never.attempt()
        often.attempt({4, BATCHES + 3}, BATCHES + 5)
        assert_equal(often.attempt({5}), expected)
    assert often.taken == [4, 5]
    assert len(caplog.records) == 3
    assert all("passes over its data a second time" in record.getMessage() for record in caplog.records)
