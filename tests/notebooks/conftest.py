"""A local cluster for a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.local import cluster
from cerebro.local.home import ClusterHome
from cerebro.local.supervision.processes import marked


@pytest.fixture
def home(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterHome]:
    """The home of the notebook's cluster; the cluster is stopped afterwards."""
    found = ClusterHome(tmp_path / "home")
    for name in ("CEREBRO_SERVER", "CEREBRO_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(found.path))
    yield found
    cluster.stop(found.path)
    assert marked(found.path) == ()
