"""An empty log volume and a dispatcher that reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.runtime.volumes import Volumes
from tests.dispatcher.fakes import Bench, settings
from tests.dispatcher.stories import running_story


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    found = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    found.logs.mkdir()
    return found


@pytest.fixture
def bench(volumes: Volumes) -> Bench:
    bench = Bench(settings=settings(volumes=volumes))
    bench.store.add(running_story())
    return bench
