"""Damaged checkpoints, and a full checkpoint volume."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cerebro import Experiment
from cerebro.contract.events import Event, TaskCommitted
from cerebro.data.files.base_file import layout_of
from cerebro.errors import RunFailedError
from tests.e2e.harness import Lab, Log
from tests.e2e.specs import FrozenTraining, TinyTraining
from tests.small_volume import fill, small_volume

pytestmark = pytest.mark.slow


def corrupt(path: Path) -> None:
    """Flip a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    aside = path.with_suffix(".rot")
    aside.write_bytes(content)
    aside.replace(path)


def is_sub_epoch(event: Event, sub_epoch: int) -> bool:
    """Return a predicate for the commit of a sub-epoch number."""
    checkpoint = event.result.checkpoint if isinstance(event, TaskCommitted) else None
    return checkpoint is not None and f"/u{sub_epoch:05d}-" in checkpoint.name


def corrupt_after(lab: Lab, experiment: Experiment, log: Log, sub_epoch: int) -> None:
    """Finish the sub-epoch at the gate, and damage its checkpoint before any process reads it."""
    knock = lab.gate.knock()
    lab.send("controller", signal.SIGSTOP)
    knock.let_through()
    event = log.until(lambda event: is_sub_epoch(event, sub_epoch), f"the commit of sub-epoch {sub_epoch}")
    assert isinstance(event, TaskCommitted)
    assert event.result.checkpoint is not None
    corrupt(lab.volumes.checkpoint(event.result.checkpoint.name))
    lab.gate.open()
    lab.send("controller", signal.SIGCONT)


@pytest.mark.parametrize(
    ("epochs", "sub_epoch"),
    [
        pytest.param(2, 0, id="within an epoch", marks=pytest.mark.slow),
        pytest.param(2, 1, id="between epochs"),
        pytest.param(1, 1, id="last", marks=pytest.mark.slow),
    ],
)
def test_a_corrupt_checkpoint_is_recomputed(lab: Lab, prepared: str, epochs: int, sub_epoch: int) -> None:
    """The sub-epoch is done again; weights and validations equal an undisturbed run."""
    experiment = lab.attach(prepared)
    log = lab.log(experiment)
    log.skip()
    fit = lab.fit(
        experiment, TinyTraining(gate=lab.gate.port, holds=[("a", sub_epoch)]), tags="a", epochs=epochs
    )
    corrupt_after(lab, experiment, log, sub_epoch)
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    run = lab.check(experiment, result.run, redone=1)
    assert sorted(run.models["m00"].validation.metrics) == list(range(1, epochs + 1))
    assert any(task.failure and task.failure.kind == "checkpoint" for task in run.tasks.by_key.values())


def test_a_test_run_fails_and_names_the_corrupt_checkpoint(lab: Lab, prepared: str) -> None:
    """After the fit the checkpoint cannot be recomputed. The run names the file, and works once it is restored."""
    experiment = lab.attach(prepared)
    result = lab.result(lab.fit(experiment, TinyTraining(), tags="a", epochs=1), experiment)
    path = result.best.path
    kept = path.with_suffix(".kept")
    shutil.copy(path, kept)
    corrupt(path)
    with pytest.raises(RunFailedError, match=rf"{path.name} has checksum .* train again with run_fit"):
        experiment.run_test(split="valid", progress=False)
    kept.replace(path)
    assert experiment.run_test(split="valid", progress=False).loc["m00", "rows"] == 12


def base_of(path: Path) -> Path:
    """Return the frozen-weights file of a checkpoint."""
    with path.open("rb") as file:
        layout = layout_of(file)
    assert layout is not None
    return path.with_name(layout.base)


def test_a_damaged_frozen_weights_file_is_written_again(lab: Lab, prepared: str) -> None:
    """The frozen-weights file is damaged during a run: the model restarts, and the results are the same.

    A user gets one file.
    """
    experiment = lab.attach(prepared)
    log = lab.log(experiment)
    log.skip()
    fit = lab.fit(experiment, FrozenTraining(gate=lab.gate.port, holds=[("a", 1)]), tags="a")
    knock = lab.gate.knock()
    lab.send("controller", signal.SIGSTOP)
    knock.let_through()
    event = log.until(lambda event: is_sub_epoch(event, 1), "the commit of sub-epoch 1")
    assert isinstance(event, TaskCommitted)
    assert event.result.checkpoint is not None
    damaged = base_of(lab.volumes.checkpoint(event.result.checkpoint.name))
    assert (
        event.result.checkpoint.size > 4 * lab.volumes.checkpoint(event.result.checkpoint.name).stat().st_size
    )
    corrupt(damaged)
    lab.gate.open()
    lab.send("controller", signal.SIGCONT)
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    run = lab.check(experiment, result.run, redone=2)
    sub_epochs = run.models["m00"].sub_epochs
    left = {base_of(lab.volumes.checkpoint(sub_epoch.checkpoint.name)) for sub_epoch in sub_epochs[-2:]}
    assert len(left) == 1
    assert damaged not in left
    assert sorted(damaged.parent.glob("frozen-*")) == sorted(left)
    whole = torch.load(result.best.path, weights_only=True)
    assert whole["models"][0]["2.weight"].shape == (2048, 2048)
    assert experiment.run_test(split="valid", progress=False).loc["m00", "rows"] == 12


@pytest.fixture
def checkpoint_volume(lab: Lab) -> Iterator[Path]:
    """A checkpoint volume of 4 MiB."""
    with small_volume(lab.volumes.checkpoints, "4m") as volume:
        yield volume


def test_a_full_volume_pauses_the_run(lab: Lab, prepared: str, checkpoint_volume: Path) -> None:
    """The pause names the reason and keeps the previous checkpoint; with free space the run resumes by itself."""
    experiment = lab.attach(prepared)
    log = lab.log(experiment)
    log.skip()
    fit = lab.fit(experiment, TinyTraining(gate=lab.gate.port, holds=[("a", 1)]), tags="a")
    knock = lab.gate.knock()
    filler = fill(checkpoint_volume)
    knock.let_through()
    paused = log.until_type("RunPaused")
    assert "no space to write in" in paused.reason  # type: ignore[union-attr]
    assert "paused" in experiment.status()
    assert "no space to write in" in experiment.status()
    model = log.state().runs[paused.run].models["m00"]  # type: ignore[union-attr]
    assert [lab.volumes.checkpoint(sub_epoch.checkpoint.name).exists() for sub_epoch in model.sub_epochs] == [
        True
    ]
    lab.gate.open()
    filler.unlink()
    log.until_type("RunResumed")
    assert lab.result(fit, experiment).failures() == {}
    lab.check(experiment)
