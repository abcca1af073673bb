"""A stand-in cluster of one node with a default storage class for local folders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.cluster.objects import Objects
from tests.deploy.cluster.release import Cluster, storage_class
from tests.deploy.cluster.serving import serving


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster with a default storage class."""
    objects = Objects()
    objects.create(("storageclasses", "", "fast"), storage_class("fast", is_default=True))
    objects.create(("storageclasses", "", "standard"), storage_class("standard", is_default=False))
    objects.create(("nodes", "", "a"), {"kind": "Node", "metadata": {"name": "a"}, "spec": {}})
    with serving(objects) as address:
        yield Cluster(objects, address)
