"""`examples/transfer.py`: the pretrained network's file, and a run on its own cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cerebro import Experiment
from cerebro.local import cluster
from examples import transfer
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]


def test_the_pretrained_network_is_written_once(tmp_path: Path) -> None:
    """A second call writes the same bytes, so the data set and stored outputs stay."""
    located = transfer.lay_out(tmp_path)
    content = (tmp_path / transfer.PRETRAINED).read_bytes()
    assert transfer.lay_out(tmp_path) == located
    assert (tmp_path / transfer.PRETRAINED).read_bytes() == content
    spec = transfer.Heads()
    spec.misc_dir = str(tmp_path)
    spec.initialize_worker()
    network, head = spec.create_models({"hidden": 32})
    assert not any(weight.requires_grad for weight in network.parameters())
    assert head(network(torch.zeros(2, 1, 8, 8))).shape == (2, transfer.CLASSES)


@pytest.mark.slow
@pytest.mark.processes
def test_the_example_finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On its own cluster: all heads train, and the best one knows most digits that the network has never learned."""
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(tmp_path))
    try:
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples/transfer.py"), "--epochs", "2"],
            capture_output=True,
            text=True,
            env=dict(os.environ),
            timeout=4 * HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        board = Experiment.attach("transfer").result().leaderboard()
        assert list(board["state"]) == ["finished"] * 8
        assert board["accuracy"].max() > 0.9
        assert list(tmp_path.glob("volumes/shards/*/frozen/*/*"))
    finally:
        cluster.stop(tmp_path)
