"""Required checkpoints of finished models, and detection of missing ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.contract.events import DeletionRequested
from cerebro.data.files.lost_files import lost_files
from cerebro.state.models.final_checkpoints import FinalFile, final_files, lost_text
from tests.state.stories import Story


def trained() -> Story:
    """Two models; one of them is finished."""
    story = Story()
    story.fit(models=2)
    story.epoch(1)
    story.epoch(2)
    return story


def test_a_finished_model_needs_its_last_and_its_best_checkpoint() -> None:
    """This is one file if both are the same. Training models find losses themselves, and an experiment under
    deletion needs nothing."""
    story = trained()
    model = story.run.models["m00"]
    found = list(final_files(story.state))
    assert {each.model for each in found} == {"m00"}
    assert model.sub_epochs[-1].checkpoint.name in {each.name for each in found}
    assert {each.name for each in found} <= story.run.kept_checkpoints(model)
    story.state.deletion = DeletionRequested(by="ann")
    assert list(final_files(story.state)) == []


def test_missing_and_empty_files_are_lost(tmp_path: Path) -> None:
    """An unreadable volume gives no information."""
    files = [FinalFile("fit-1", f"m0{number}", f"one/fit-1/m0{number}/u.pt") for number in range(4)]
    for file, content in zip(files, ("state", "", None, None), strict=True):
        if content is not None:
            (tmp_path / file.name).parent.mkdir(parents=True)
            (tmp_path / file.name).write_text(content)
    (tmp_path / "one/fit-1/m03").write_text("no folder")
    assert lost_files(tmp_path, files) == files[1:]
    with pytest.raises(OSError, match="nowhere"):
        lost_files(tmp_path / "nowhere", files)


def test_the_message_names_the_lost_file_and_a_valid_command() -> None:
    """The text names the file and a valid command."""
    said = lost_text("one", FinalFile("fit-1", "m03", "one/fit-1/m03/u.pt"))
    assert "one/fit-1/m03/u.pt" in said
    assert "`cerebro clone one m03 --run fit-1`" in said
