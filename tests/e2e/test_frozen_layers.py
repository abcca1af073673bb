"""Frozen layers on a cluster: kills during their computation, and the sandbox."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cerebro import Frozen
from cerebro.runtime.isolation import landlock
from cerebro.worker.training.frozen_layers.output_cache import OutputCache
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import FEATURES, TinyTraining, knock

pytestmark = pytest.mark.slow


class Encoder(nn.Module):
    """Layers that stop at the gate in each call."""

    def __init__(self, gate: int) -> None:
        super().__init__()
        self.gate = gate
        self.weight = nn.Parameter(torch.linspace(-1, 1, 64 * 64).reshape(64, 64) / 8)

    def forward(self, inputs: Tensor) -> Tensor:
        knock(self.gate, "encoding")
        hidden = nn.functional.pad(inputs, (0, 64 - FEATURES))
        return torch.tanh(hidden @ self.weight + inputs.sum(1, keepdim=True))


class FrozenTraining(TinyTraining):
    """Trains a layer on frozen features, which workers store however long that takes."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        if "CEREBRO_WORKER" in os.environ:
            OutputCache.__init__.__defaults__ = (lambda *_: True,)
        return [nn.Sequential(Frozen(Encoder(self.gate)), nn.Dropout(0.3), nn.Linear(64, 3))]


def stored(home: Path) -> list[str]:
    """Return the names of entries and leftovers in the caches of all workers."""
    found = [path.name for path in home.glob("volumes/shards/*/frozen/*/*")]
    return [name for name in found if not name.endswith(".direct")]


@pytest.mark.parametrize("victim", ["worker", "child"])
def test_a_kill_during_the_computation_leaves_no_trace(lab: Lab, prepared: str, victim: str) -> None:
    """The process that computes frozen layers is killed. Each sub-epoch counts once, and all weights equal a replay.

    The replay has no files, so stored and computed outputs are equal to the bit.
    """
    experiment = lab.attach(prepared)
    fit = lab.fit(experiment, FrozenTraining(gate=lab.gate.port), tags="abc", epochs=2)
    held = lab.gate.knock()
    lab.kill(held.worker if victim == "worker" else held.pid)
    lab.gate.open()
    assert lab.result(fit, experiment).failures() == {}
    lab.check(experiment)
    names = stored(lab.home.path)
    assert names
    assert not [name for name in names if name.startswith(".")]


@pytest.mark.skipif(bool(landlock.why_unavailable()), reason=f"not here: {landlock.why_unavailable()}")
def test_sandboxed_models_share_outputs(own_lab: MakeLab, tmp_path: Path) -> None:
    """With the sandbox on, models may write the cache of their data set."""
    (tmp_path / "temporary").mkdir()
    lab = own_lab(workers=2, CEREBRO_SANDBOX="on", TMPDIR=str(tmp_path / "temporary"), HOME=str(tmp_path))
    experiment = lab.prepared()
    result = lab.result(lab.fit(experiment, FrozenTraining()), experiment)
    assert result.failures() == {}
    assert not [text for text in result.leaderboard().get("warnings", []) if text]
    lab.check(experiment)
    assert stored(lab.home.path)
