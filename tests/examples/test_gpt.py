"""`examples/gpt.py --small` on one worker with two devices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro import Experiment
from cerebro.local import cluster

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster of one worker with two devices."""
    folder = tmp_path / "home"
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(folder))
    monkeypatch.setenv("CEREBRO_DEVICES", "2")
    cluster.start(folder, workers=1, tensorboard=False)
    yield folder
    cluster.stop(folder)


def trained(name: str, *options: str) -> list[str]:
    """The ways of two models' units, once the example has run to its end."""
    command = [sys.executable, str(ROOT / "examples" / "gpt.py"), "--small", "--texts", "32", "--models", "2"]
    done = subprocess.run(
        [*command, "--name", name, *options],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = Experiment.attach(name).state().runs["fit-1"]
    assert all(model.is_trained for model in run.models.values())
    return [visit.way.label if visit.way else "single" for m in run.models.values() for visit in m.visits]


@pytest.mark.usefixtures("home")
def test_the_example_runs_to_its_end() -> None:
    """Where one device is enough, each model sees the data once there, and nothing is measured."""
    assert trained("gpt") == ["single", "single"]
    run = Experiment.attach("gpt").state().runs["fit-1"]
    assert run.inspection is None
