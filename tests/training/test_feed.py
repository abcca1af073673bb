"""The loader that user code sees: every batch is a sign of life, and reported numbers are fetched only when wanted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cerebro.data.loader import PartitionLoader
from cerebro.data.mapped import MappedRows
from cerebro.training.feed import Feed
from tests.data.rows import write_partition


class Listener:
    """Remembers what a feed tells."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, dict[str, float]]] = []
        self.is_due = True

    def __call__(self, rows: int, batch: int, values: Mapping[str, float]) -> None:
        self.told.append((rows, batch, dict(values)))


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def feed(tmp_path: Path, listener: Listener) -> Feed:
    """Ten rows in batches of four."""
    write_partition(tmp_path, [10])
    loader = PartitionLoader(MappedRows.open((tmp_path,)), batch_size=4, seed=1, device=torch.device("cpu"))
    return Feed(loader, listener, lambda: listener.is_due)


def test_each_batch_is_told_before_it_is_given_and_the_end_too(feed: Feed, listener: Listener) -> None:
    """Rows and batches so far; at the end all of them."""
    sizes = [len(outputs) for _, outputs in feed]
    assert (sum(sizes), len(sizes)) == (feed.num_rows, len(feed)) == (10, 3)
    assert [(rows, batch) for rows, batch, _ in listener.told] == [(0, 0), (4, 1), (8, 2), (10, 3)]


def test_reported_numbers_go_with_the_next_batch(feed: Feed, listener: Listener) -> None:
    """The newest of each name; names of earlier batches stay until they are replaced."""
    for number, _ in enumerate(feed):
        feed.report(loss=float(number))
        if number == 0:
            feed.report(first=7.0)
    assert [values for _, _, values in listener.told] == [
        {},
        {"loss": 0.0, "first": 7.0},
        {"loss": 1.0, "first": 7.0},
        {"loss": 2.0, "first": 7.0},
    ]
    assert feed.values() == {"loss": 2.0, "first": 7.0}


def test_numbers_are_not_fetched_before_they_are_wanted(feed: Feed, listener: Listener) -> None:
    """Waiting for a GPU at each batch would cost more than the batch."""

    class OnTheGpu:
        fetched = 0

        def item(self) -> float:
            OnTheGpu.fetched += 1
            return 0.5

    listener.is_due = False
    for _ in feed:
        feed.report(loss=OnTheGpu())
    assert OnTheGpu.fetched == 0
    assert feed.values() == {"loss": 0.5}
    assert OnTheGpu.fetched == 1


@pytest.mark.parametrize(
    "value", [1, 0.5, np.float32(0.5), torch.tensor(0.5), torch.ones(1, requires_grad=True)]
)
def test_numbers_of_any_kind_may_be_reported(feed: Feed, value: Any) -> None:
    """They become floats."""
    feed.report(x=value)
    assert type(feed.values()["x"]) is float


def test_two_passes_in_one_unit_are_both_told(feed: Feed, listener: Listener) -> None:
    """A user may pass over the data several times: each pass shows that the unit is alive."""
    list(feed)
    told = len(listener.told)
    list(feed)
    assert len(listener.told) == 2 * told
