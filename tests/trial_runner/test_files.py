"""A trial saves and loads a checkpoint the same way as sub-epochs with its parallel plan."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.trials import TrialOutcome
from cerebro.techniques import Group
from tests.data.rows import write_partition
from tests.techniques.cases import TOKENS, WIDE
from tests.techniques.ranks import Ranks
from tests.trial_runner.sub_epochs import TrialRequest, Wrong, tried
from trial_runner import trial

pytestmark = pytest.mark.processes

HIDDEN = 20_000


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two processes."""
    with Ranks() as started:
        yield started


class Wide(Wrong):
    """Two layers of a few MB, with a declared loss that is right."""

    def __init__(self) -> None:
        super().__init__("mean")

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [nn.Sequential(nn.Linear(WIDE, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, TOKENS))]


def noted(group: Group, trial_request: TrialRequest, max_bytes: int) -> tuple[TrialOutcome, int]:
    """Run the trial; return its outcome and the bytes this rank wrote with `pwrite`."""
    original, written = os.pwrite, 0

    def pwrite(descriptor: int, content: memoryview, place: int) -> int:
        nonlocal written
        done = original(descriptor, content, place)
        written += done
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        patch.setattr(trial, "FILE_BYTES", max_bytes)
        return tried(group, trial_request), written


@pytest.mark.parametrize(
    ("max_bytes", "part"),
    [
        pytest.param(1 << 30, 1.0, id="all", marks=pytest.mark.slow),
        pytest.param(2 << 20, 0.5, id="a part"),
    ],
)
def test_each_rank_writes_its_own_rows(max_bytes: int, part: float, ranks: Ranks, tmp_path: Path) -> None:
    """Only part of a large state is written, and the files are removed."""
    partition, root = tmp_path / "partition", tmp_path / "root"
    partition.mkdir()
    root.mkdir()
    write_partition(partition, [20, 26])
    trial_request = TrialRequest(
        spec=Wide(), parallel_plan=ParallelPlan(technique="fsdp", size=2), partition=partition, root=root
    )
    (outcome, first), (_, second) = ranks.run(2, noted, trial_request, max_bytes)
    assert outcome.is_usable, outcome
    state = 3 * 4 * (HIDDEN * (WIDE + 1 + TOKENS) + TOKENS)
    assert outcome.state_bytes == pytest.approx(state, rel=0.01)
    assert (outcome.save_s > 0, outcome.load_s > 0) == (True, True)
    assert min(first, second) > 0.4 * part * state
    assert first + second < 1.3 * part * state
    assert list(root.iterdir()) == []
