"""`examples/gpt.py` with a text file, and `--small` on one worker with two devices."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cerebro import Experiment
from cerebro.errors import LocatorError
from cerebro.local import cluster
from examples import gpt
from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]
LARGE = ("--layers", "12", "--width", "128", "--context", "512")
"""About 500 MiB with the plain user code; the first plan below 400 MiB depends on the allocator."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster of one worker with two devices."""
    with running(tmp_path / "home", monkeypatch) as folder:
        yield folder


@contextmanager
def running(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Start such a cluster with this process's settings."""
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(folder))
    monkeypatch.setenv("CEREBRO_DEVICES", "2")
    try:
        cluster.start(folder, workers=1, tensorboard=False, timeout_s=HANG_S)
        yield folder
    finally:
        cluster.stop(folder)


def trained(name: str, *options: str) -> list[str]:
    """Run the example; return the parallel plans of two models' sub-epochs."""
    command = [sys.executable, str(ROOT / "examples" / "gpt.py"), "--small", "--texts", "32", "--models", "2"]
    done = subprocess.run(
        [*command, "--name", name, *options],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=4 * HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = Experiment.attach(name).state().runs["fit-1"]
    assert all(model.is_trained for model in run.models.values())
    return [
        sub_epoch.parallel_plan.label if sub_epoch.parallel_plan else "single"
        for m in run.models.values()
        for sub_epoch in m.sub_epochs
    ]


@pytest.mark.slow
@pytest.mark.processes
def test_a_model_that_does_not_fit_its_device_uses_another_parallel_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table rules `single` out for memory.

    The run finishes with the next plan, and a larger device gives the same models.
    """
    monkeypatch.setenv("CEREBRO_DEVICE_MEMORY", "400MiB")
    with running(tmp_path / "home", monkeypatch):
        parallel_plans = trained("gpt", *LARGE)
        assert "single" not in parallel_plans
        experiment = Experiment.attach("gpt")
        table = experiment.result().parallel_plans().set_index(["model", "parallel_plan"])["ruled out"]
        for model, parallel_plan in zip(("m00", "m01"), parallel_plans, strict=True):
            assert "MiB of its device, which has 400 MiB" in table[model, "single"]
            assert table[model, parallel_plan] == ""
        assert not any(task.failures for task in experiment.state().runs["fit-1"].tasks.by_key.values())
        replay = [sys.executable, "-m", "cerebro.cli", "replay", "gpt", "--tolerance", "1e-4"]
        done = subprocess.run(replay, capture_output=True, text=True, timeout=4 * HANG_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("home")
def test_the_example_finishes() -> None:
    """If one device is enough, each model trains there for one epoch without any trial."""
    assert trained("gpt") == ["single", "single"]
    run = Experiment.attach("gpt").state().runs["fit-1"]
    assert run.trials.inspection is None


def test_text_rows_of_a_file_are_consecutive(tmp_path: Path) -> None:
    """A sequence's output is its input shifted by one byte; the last bytes form the validation split."""
    (tmp_path / "text.txt").write_bytes(bytes(range(101)))
    located = gpt.lay_out_file(tmp_path, tmp_path / "text.txt", 2, None)
    etl = gpt.ByteETL(2)
    observed: list[int] = []
    for split in ("train", "valid"):
        with Path(located[split]["metadata"]).open() as file:
            rows = [{**row, "begin": int(row["begin"])} for row in csv.DictReader(file)]
        text_rows = [etl.row_preprocessor(row, split, located[split]["objects"]) for row in rows]
        assert all((inputs + 1 == outputs).all() for inputs, outputs in text_rows)
        observed += [token for inputs, _ in text_rows for token in inputs.tolist()]
    assert observed == list(range(100))
    with pytest.raises(LocatorError, match="has 101 bytes, which are 2 texts of 50: expected 40 at least"):
        gpt.lay_out_file(tmp_path, tmp_path / "text.txt", 50, None)
