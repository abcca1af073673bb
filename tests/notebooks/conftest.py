"""A local cluster for a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.local import cluster, processes
from cerebro.local.home import ClusterHome


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterHome]:
    """The home that the notebook's cluster gets; nothing runs there afterwards."""
    found = ClusterHome(tmp_path / "home")
    for name in ("CEREBRO_SERVER", "CEREBRO_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(found.path))
    yield found
    cluster.stop(found.path)
    assert processes.marked(found.path) == ()
