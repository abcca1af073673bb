"""The store keeps notes about workers that fail to start."""

from __future__ import annotations

import json

import pytest
import redis

from cerebro.contract.records import WorkerSetStatus
from cerebro.runtime.kvs.client import KvsClient
from kvs_api.store import keys
from tests.kvs_api.real import Service


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ({"schema_version": 2, "pods": {"w-1": "no node"}}, WorkerSetStatus(pods={"w-1": "no node"})),
        ({"note": "none come", "size": 2}, WorkerSetStatus(note="none come", size=2)),
        ({"schema_version": 2, "size": "many"}, WorkerSetStatus()),
        ([], WorkerSetStatus()),
    ],
)
def test_damaged_troubles_count_as_missing(
    stored: object, read: WorkerSetStatus, kvs: KvsClient, service: Service
) -> None:
    """The controller writes them again, so no repair is needed."""
    with redis.Redis.from_url(service.database.url) as database:
        database.set(keys.WORKER_SET, json.dumps(stored))
    assert kvs.worker_set_status() == read
