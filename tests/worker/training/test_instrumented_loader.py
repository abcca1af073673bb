"""The user's loader reports each batch as progress and fetches reported numbers only on demand."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cerebro.contract.tasks.bodies import Position
from cerebro.data.loader import PartitionLoader
from cerebro.data.mapped import MappedRows
from cerebro.errors import SpecError
from cerebro.worker.training import torch_view
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.seeds import generator_states, restore_generator_states, seed_everything
from tests.data.rows import write_partition


class Listener:
    """Records a loader's reports."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, int, dict[str, float]]] = []
        self.is_due = True

    def __call__(self, rows: int, batch: int, values: Mapping[str, float]) -> None:
        self.reports.append((rows, batch, dict(values)))


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def feed(tmp_path: Path, listener: Listener) -> InstrumentedLoader:
    """A loader with ten rows in batches of four."""
    write_partition(tmp_path, [10])
    loader = PartitionLoader(MappedRows.open((tmp_path,)), batch_size=4, seed=1, device=torch.device("cpu"))
    return InstrumentedLoader(loader, listener, lambda: listener.is_due)


def test_values_stay_on_the_device_until_they_are_needed(
    feed: InstrumentedLoader, listener: Listener
) -> None:
    """A GPU synchronization per batch would take longer than the batch."""

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


def test_a_sub_epoch_knows_its_position_and_its_step_at_each_batch(
    feed: InstrumentedLoader, tmp_path: Path
) -> None:
    """Steps continue from the previous sub-epoch; after the last batch the step is the next sub-epoch's first."""
    placed = InstrumentedLoader(
        feed._loader, epoch=2, sub_epoch=3, position=Position(epochs=4, sub_epochs=8, step=30, total_steps=80)
    )
    assert (placed.epoch, placed.epochs, placed.sub_epoch, placed.sub_epochs) == (1, 4, 3, 8)
    assert (placed.step, placed.total_steps) == (30, 80)
    assert [placed.step for _ in placed] == [30, 31, 32]
    assert placed.step == 33


def test_ids_belong_to_the_current_batch(feed: InstrumentedLoader, tmp_path: Path) -> None:
    """They follow the batch order in each pass, are empty before the first batch, and stay after the last."""
    stored = MappedRows.open((tmp_path,))
    _, outputs = next(iter(PartitionLoader(stored, batch_size=10, seed=None)))
    id_of = {int(label): row_id for label, row_id in zip(outputs, stored.ids(), strict=True)}
    assert feed.ids == []
    for _ in range(2):
        observed = []
        for _, labels in feed:
            assert feed.ids == [id_of[int(label)] for label in labels]
            observed += feed.ids
        assert sorted(observed) == sorted(stored.ids())
        assert feed.ids == observed[-2:]
    _, labels = next(iter(feed))
    assert feed.ids == [id_of[int(label)] for label in labels]


def test_the_torch_dataloader_yields_the_same_batches(
    feed: InstrumentedLoader, listener: Listener, tmp_path: Path
) -> None:
    """The DataLoader has the same number of batches in the library's format, and each is reported."""
    again = PartitionLoader(MappedRows.open((tmp_path,)), batch_size=4, seed=1, device=torch.device("cpu"))
    expected = list(again)
    view = feed.as_torch(lambda inputs, outputs: {"labels": outputs, "inputs": inputs})
    assert isinstance(view, torch.utils.data.DataLoader)
    assert len(view) == len(feed) == 3
    assert len(view.dataset) == feed.num_rows == 10  # type: ignore[arg-type]
    for batch, (inputs, outputs) in zip(view, expected, strict=True):
        assert torch.equal(batch["inputs"], inputs)
        assert torch.equal(batch["labels"], outputs)
    assert [batch for _, batch, _ in listener.reports] == [0, 1, 2, 3]
    for batch in feed.as_torch():
        assert isinstance(batch, tuple)


@pytest.mark.parametrize("is_seeded", [False, True])
def test_a_library_that_seeds_before_its_loop_changes_no_number(
    feed: InstrumentedLoader, is_seeded: bool
) -> None:
    """Loops over the view and over the loader draw the same numbers, in a second pass too."""

    def drawn(batches: Iterable[Any]) -> list[float]:
        return [
            *(torch.rand(()).item() + random.random() + np.random.rand() for _ in batches),
            *(torch.rand(()).item() for _ in batches),
        ]

    seed_everything(5)
    torch.rand(3), random.random(), np.random.rand()
    before = generator_states()
    expected = drawn(feed)
    restore_generator_states(before)
    view = feed.as_torch()
    if is_seeded:
        seed_everything(42)
    assert drawn(view) == expected
    seed_everything(42)  # later seeds of user code take effect
    assert drawn(view) != expected


def test_processes_of_a_loader_of_torch_are_refused(
    feed: InstrumentedLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process would yield all rows."""
    monkeypatch.setattr(torch_view, "get_worker_info", object)
    with pytest.raises(SpecError, match="num_workers=0"):
        next(iter(feed.as_torch()))
