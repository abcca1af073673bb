"""A warm clone is refused if its parent's weights do not fit its network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cerebro import SubEpochSpec
from cerebro.client.commands import CommandsMixin
from cerebro.client.files import MountedFiles
from cerebro.client.results import FitResult
from cerebro.commands.command import Command
from cerebro.commands.command_events import events_of, outcomes
from cerebro.contract.events import ModelsAdded
from cerebro.contract.records import CodeRecord, ExperimentRecord, Locator, Locators
from cerebro.errors import ConflictError
from cerebro.runtime.volumes import Volumes
from cerebro.usercode.encoding import encode
from cerebro.usercode.in_process import UserCode
from tests.state.stories import Story


class Wide(SubEpochSpec):
    """A layer with a width from a hyperparameter; a width below 1 raises."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        if hyperparams["width"] < 1:
            raise FileNotFoundError("weights.bin")
        return [torch.nn.Linear(hyperparams["width"], 1)]


class Steered(CommandsMixin):
    """An experiment with one trained model, whose commands are appended to its log."""

    def __init__(self, volumes: Volumes, folder: Path) -> None:
        self.story = Story()
        self.story.etl()
        self.story.fit(hyperparams={"m00": {"batch_size": 1, "lr": 0.1, "width": 3}})
        self.story.epoch(1)
        self.volumes = volumes
        self.record = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="m.csv")))
        self.code = UserCode(record=self.record, archive=lambda _: b"", folder=lambda: folder)
        session: Any = SimpleNamespace(state=lambda: self.story.state, send_and_check=self.send_and_check)
        self._session = session

    def send_and_check(self, command: Command) -> Any:
        (event,) = events_of(command, self.story.state, by="ann")
        assert isinstance(event, ModelsAdded)
        self.story.append(event)
        return outcomes(command, self.story.state, {self.story.state.seq}, by="ann")

    def result(self, run: str | None = None) -> FitResult:
        sent = encode(Wide())

        def code(_: str) -> CodeRecord:
            return sent

        files = MountedFiles(self.volumes)
        return FitResult(self.story.state, self.story.run, files, self.record, code, user_code=self.code)


@pytest.fixture
def steered(tmp_path: Path) -> Steered:
    return Steered(Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)}), tmp_path / "cache")


def test_a_warm_clone_with_another_shape_is_refused(steered: Steered) -> None:
    """The message names the mismatch, and no model is added."""
    message = (
        r"m00 cannot be cloned warm: its weights do not fit a network with width=5 "
        r"\(weight \(1, 3\) -> \(1, 5\)\). Pass warm=False"
    )
    with pytest.raises(ConflictError, match=message):
        steered.clone("m00", {"width": 5}, warm=True)
    assert list(steered.story.run.models) == ["m00"]


def test_clones_with_the_same_shape_and_cold_clones_are_added(steered: Steered) -> None:
    assert steered.clone("m00", {"lr": 0.5}, warm=True) == "m01"
    assert steered.clone("m00", {"width": 5}) == "m02"


def test_code_that_cannot_run_here_is_checked_by_the_worker(steered: Steered) -> None:
    assert steered.clone("m00", {"width": 0}, warm=True) == "m01"
