"""Empty volumes for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.runtime.volumes import Volumes


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    return Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
