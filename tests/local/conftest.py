"""Fixtures of fake clusters, which check that every test leaves no process behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cerebro.local import cleaning
from cerebro.local.supervision.processes import marked
from tests.local.fakes import Fake, FakeCluster

MakeCluster = Callable[..., FakeCluster]


@pytest.fixture
def make_cluster(processes: None, tmp_path: Path) -> Iterator[MakeCluster]:
    clusters: list[FakeCluster] = []

    def make(*fakes: Fake) -> FakeCluster:
        clusters.append(FakeCluster(tmp_path / str(len(clusters)), *fakes))
        return clusters[-1]

    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    yield make
    for cluster in clusters:
        cluster.stop()
        assert marked(cluster.home.path) == ()
        assert cleaning.leftovers(cluster.home) == ()
