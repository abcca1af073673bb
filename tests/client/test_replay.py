"""Which run `cerebro replay` chooses, its errors, and its bit-exact comparison."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cerebro.client import replay as replays
from cerebro.client.replay import ReplayResult, by_final_state, choose_models
from cerebro.contract.events import RunFinished
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.errors import ConflictError, NotFoundError
from cerebro.keras.backend import CORES
from cerebro.runtime.volumes import Volumes
from cerebro.worker.training.checkpoints.comparison import differences
from tests.state.stories import Story


def fitted(story: Story, *, is_finished: bool = True) -> Story:
    """A fit of two models; the first one has trained an epoch."""
    story.fit(epochs=1)
    story.epoch(1)
    if is_finished:
        story.append(RunFinished(run="fit-1", outcome="finished"))
    return story


def second(story: Story, *, trains: bool) -> Story:
    """Start another fit, ``fit-2``."""
    first = story.state.runs["fit-1"]
    story.append(
        *[e.model_copy(update={"run": "fit-2"}) for e in story.log if getattr(e, "run", "") == first.id][:2]
    )
    if trains:
        task = story.state.runs["fit-2"].find("fit-2/train/m01/e1/p0")
        story.start(task.key, 0)
        story.commit(task.key, 0)
    return story


def test_the_newest_finished_fit_is_replayed() -> None:
    """With its trained models. A named fit may be running."""
    story = second(fitted(Story()), trains=True)
    run, models = choose_models(story.state, None, None)
    assert (run.id, [model.id for model in models]) == ("fit-1", ["m00"])
    run, models = choose_models(story.state, "fit-2", None)
    assert (run.id, [model.id for model in models]) == ("fit-2", ["m01"])
    assert choose_models(fitted(Story(), is_finished=False).state, None, "m00")[0].id == "fit-1"


def test_a_pruned_model_does_not_stop_the_others() -> None:
    """A model whose final checkpoint the search removed has no state to compare with."""
    story = Story()
    story.fit(epochs=1)
    story.epoch(1)
    models = [model for model in story.state.runs["fit-1"].models.values() if model.sub_epochs]
    assert by_final_state(models) == (models, [])
    models[0].checkpoints.removed.add(models[0].sub_epochs[-1].checkpoint.name)
    assert by_final_state(models) == (models[1:], models[:1])


@pytest.mark.parametrize(
    ("run", "model", "error", "said"),
    [
        ("fit-7", None, NotFoundError, r"no run 'fit-7' in experiment 'one'; there is etl-1, fit-1, fit-2"),
        (
            "etl-1",
            None,
            NotFoundError,
            r"etl-1 .* is a run of run_etl, expected a fit run: name one of fit-1, fit-2",
        ),
        (None, "m07", NotFoundError, r"fit-1 has no model 'm07'; there is m0"),
        (None, "m01", ConflictError, r"no sub-epoch of m01 is committed in fit-1 .* which is finished"),
        (
            "fit-2",
            None,
            ConflictError,
            r"no sub-epoch of any model is committed in fit-2 .* which is running",
        ),
    ],
)
def test_an_impossible_replay_is_refused_with_alternatives(
    run: str | None, model: str | None, error: type[Exception], said: str
) -> None:
    """The error lists the alternatives."""
    story = Story()
    story.etl()
    second(fitted(story), trains=False)
    with pytest.raises(error, match=said):
        choose_models(story.state, run, model)


def test_each_model_is_announced_before_it_is_replayed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With its number of sub-epochs."""
    story = Story()
    story.etl()
    fitted(story)
    record = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="m.csv")))
    code = SimpleNamespace(encoded="")
    kvs = SimpleNamespace(experiment=lambda _: record, code=lambda _: code, workers=list)
    connection: Any = SimpleNamespace(
        kvs=kvs,
        volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)}),
        files=SimpleNamespace(checkpoints=lambda _: tmp_path),
    )
    monkeypatch.setattr(replays, "Session", lambda *_, **__: SimpleNamespace(state=lambda: story.state))
    monkeypatch.setattr(replays, "_partitions", lambda *_: nullcontext(({}, ())))
    monkeypatch.setenv(CORES, "1")
    lines: list[str] = []
    monkeypatch.setattr(replays, "fork_with_folder", lambda _, name: lines.append(name))
    list(replays.replay(connection, "one", notify=lines.append))
    assert lines == ["m00: replaying 2 sub-epochs", "the replay of m00"]


_REPLAY = """
import signal
from cerebro.client.replay import exit_on_sigterm, fork_with_folder

def work(folder):
    print(folder, flush=True)
    signal.pause()

with exit_on_sigterm():
    fork_with_folder(work, "the replay of m00")
"""


@pytest.mark.processes
def test_a_replay_that_is_ended_leaves_no_folder(tmp_path: Path) -> None:
    """SIGTERM removes the folder, after the process that uses it was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", _REPLAY],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.parent == tmp_path
        assert folder.is_dir()
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


_SIGNAL_IN_HOOK = """
import os, signal
from cerebro.client.replay import exit_on_sigterm, fork_with_folder

os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))
with exit_on_sigterm():
    fork_with_folder(lambda folder: None, "the replay of m00")
"""


@pytest.mark.processes
def test_a_signal_during_a_fork_ends_the_replay() -> None:
    """Python ignores exceptions in hooks of a fork, so the signal must wait for the end of the fork."""
    done = subprocess.run(
        [sys.executable, "-c", _SIGNAL_IN_HOOK], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")


_ARCHIVE_REPLAY = """
import sys
from types import SimpleNamespace
from cerebro.client import replay

_, archive, python = sys.argv
kvs = SimpleNamespace(experiment=lambda name: SimpleNamespace(archive=archive))
replay.connect = lambda home: SimpleNamespace(kvs=kvs, volumes=None)
replay.Session = lambda *_: SimpleNamespace(state=lambda: None)
replay.choose_models = lambda *_: (SimpleNamespace(id="fit-1"), [])
replay.writable_volumes = lambda volumes: volumes
replay.archive_folder = lambda *_: archive
replay.python_for = lambda *_: python
replay.main("one")
"""


@pytest.mark.processes
def test_a_replay_with_a_code_archive_that_is_ended_leaves_no_folder(tmp_path: Path) -> None:
    """SIGTERM reaches the process in the archive's environment, which removes its folder first."""
    archive, folders, python = tmp_path / "archive", tmp_path / "folders", tmp_path / "python"
    archive.mkdir()
    folders.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "$CEREBRO_TEST_REPLAY"\n')
    python.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", _ARCHIVE_REPLAY, archive, python],
        env=os.environ | {"TMPDIR": str(folders), "CEREBRO_TEST_REPLAY": _REPLAY},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.parent == folders
        assert folder.is_dir()
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not list(folders.iterdir())


def test_a_different_state_names_the_rebuilt_partitions() -> None:
    """The objects may have changed with the same number of rows, so the error names the rebuilt data."""
    found = ReplayResult(model="m00", sub_epochs=4, differences=("state",), rebuilt=(0, 2))
    assert str(found).endswith(
        "DIFFERENT in state (partitions 0, 2 were preprocessed again: their objects may have changed)"
    )
    assert str(replace(found, rebuilt=())) == "m00: 4 sub-epochs replayed, final state DIFFERENT in state"
    assert str(replace(found, differences=())) == "m00: 4 sub-epochs replayed, final state equal to the bit"


@given(st.floats(width=32), st.floats(width=32))
def test_numbers_differ_if_their_bits_do(one: float, other: float) -> None:
    """Also the sign of zero and NaN payloads; differences are listed by name."""
    first, second = ({"models": [{"w": torch.tensor([value])}]} for value in (one, other))
    is_same = first["models"][0]["w"].numpy().tobytes() == second["models"][0]["w"].numpy().tobytes()
    expected = [] if is_same else ["state['models'][0]['w']"]
    assert list(differences(first, second)) == expected


def test_a_difference_on_a_gpu_names_deterministic_algorithms() -> None:
    """Equal states need no advice, and a tolerance covers rounding."""
    advice = "torch.use_deterministic_algorithms(True)"
    found = ReplayResult(model="m00", sub_epochs=4, differences=("state",), is_inexact=True)
    assert advice in str(found)
    assert advice not in str(replace(found, differences=()))
    assert advice not in str(replace(found, tolerance=1e-4))
    assert advice not in str(replace(found, is_inexact=False))


def test_an_inapplicable_tolerance_is_explained() -> None:
    """A tolerance covers rounding, but not other random numbers."""
    found = ReplayResult(model="m00", sub_epochs=4, differences=("state",), tolerance=1e-4, is_random=True)
    assert "a tolerance covers only rounding, and train() uses random numbers, such as dropout" in str(found)
    assert "tolerance" not in str(
        ReplayResult(model="m00", sub_epochs=4, differences=("state",), is_random=True)
    )
    assert "random" not in str(
        ReplayResult(model="m00", sub_epochs=4, differences=(), tolerance=1e-4, is_random=True)
    )
