"""The files of one story, written without pauses."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.projections import tensorboard as projection
from tests.controller.projection.written import LogStore, Once, points, story


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the pauses for gathering commits and for retries."""
    monkeypatch.setattr(projection, "_GATHER_S", 0.0)
    monkeypatch.setattr(projection, "_PAUSE_S", 0.0)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with all files of the story."""
    Once(LogStore(story().log, points()), tmp_path / "whole").write()
    return tmp_path / "whole"
