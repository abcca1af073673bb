"""Unwritable values and unreadable logs do not block other experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cerebro.contract.events import Event
from cerebro.contract.records import ExperimentSummary
from controller.projections import event_file
from tests.controller.projection.written import (
    LogStore,
    Once,
    contents,
    file_of,
    points,
    records,
    sessions,
    story,
)
from tests.state.stories import Story


def test_numbers_outside_the_range_of_the_file_format_are_written(tmp_path: Path) -> None:
    """An integer too large for a double becomes text; a value too large for a 32-bit float becomes the
    largest float."""
    story = Story()
    story.fit(
        models=1, hyperparams={"m00": {"batch_size": 1, "lr": 0.1, "huge": 10**400, "small": -(10**400)}}
    )
    story.train(1, 0, loss=1e300)
    Once(LogStore(story.log), tmp_path).write()
    ((_, start),) = sessions(file_of(tmp_path))
    assert start.hparams["huge"].string_value == str(10**400)
    assert start.hparams["small"].string_value == str(-(10**400))
    ((_, _, _, value),) = records(file_of(tmp_path))
    assert value == pytest.approx(3.4028235e38)


def test_an_unwritable_commit_does_not_block_later_commits(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit is dropped with a logged cause, also after a restart; later commits are written."""
    scalar = event_file._scalar

    def unforeseen(one: event_file.Scalar) -> Any:
        if (one.tag, one.step) == ("sub_epoch/train/loss", 2):
            raise ValueError("nobody thought of this")
        return scalar(one)

    monkeypatch.setattr(event_file, "_scalar", unforeseen)
    root = tmp_path / "own"
    Once(LogStore(story().log, points()), root).write()
    of_sub_epoch = [
        r
        for r in records(file_of(written))
        if not (r[0].startswith(("sub_epoch", "live")) and r[1] in (2, 30))
    ]
    left = [r for r in of_sub_epoch if r[:2] not in (("epoch/train/loss", 1), ("epoch/train/accuracy", 1))]
    assert records(file_of(root)) == left
    assert contents(root).keys() == contents(written).keys()
    assert "fit-1/train/m00/e1/p1" in caplog.text
    assert "nobody thought of this" in caplog.text
    before = contents(root)
    Once(LogStore(story().log, points()), root).write()
    assert contents(root) == before


def test_an_unreadable_log_does_not_block_other_experiments(tmp_path: Path, written: Path) -> None:
    """One log does not fold; the next experiment is still written."""

    class Two(LogStore):
        def experiments(self) -> tuple[ExperimentSummary, ...]:
            (one,) = super().experiments()
            broken = one.experiment.model_copy(update={"name": "broken"})
            return (one.model_copy(update={"experiment": broken}), one)

        def events(self, experiment: str, after: int = 0) -> tuple[Event, ...]:
            found = super().events(experiment, after)
            return found[1:] if experiment == "broken" else found

    Once(Two(story().log, points()), tmp_path / "own").write()
    assert contents(tmp_path / "own") == contents(written)
