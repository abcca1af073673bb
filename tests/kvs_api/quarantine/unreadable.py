"""The real store with unreadable experiments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import redis

from cerebro.contract.records import ExperimentRecord, Locator, Locators, Unreadable
from kvs_api.store import keys
from tests.kvs_api.bench import requested
from tests.kvs_api.real import Service

Work = Callable[[Callable[[], object]], None]
"""Runs a controller until a condition holds."""

NEWER = '{"type":"ModelSold","model":"m00"}'
"""An event of a newer version."""


class Store:
    """The real store, with database access for writes that kvs_api would refuse."""

    def __init__(self, service: Service) -> None:
        self.service, self.kvs = service, service.client()
        self._redis = redis.Redis.from_url(service.database.url)

    def close(self) -> None:
        """Close all connections."""
        self.kvs.close()
        self._redis.close()

    def begin(self, name: str, folder: Path) -> None:
        """Create an experiment with a run whose data is missing, so planning fails at once."""
        locators = Locators(train=Locator(metadata=str(folder / "none.csv")))
        self.kvs.create_experiment(ExperimentRecord(name=name, locators=locators))
        self.kvs.append(name, requested("etl-1"))

    def write(self, name: str, event: str) -> int:
        """Append a raw event; return its sequence number."""
        seq: Any = self._redis.incr(f"{keys.log(name)}:seq")
        self._redis.xadd(keys.log(name), {"t": 1_000, "e": event}, id=f"{seq}-0")
        return int(seq)

    def write_cluster_log(self, event: str) -> int:
        """Append a raw event to the cluster log; return its sequence number."""
        seq: Any = self._redis.incr(f"{keys.CLUSTER_LOG}:seq")
        self._redis.xadd(keys.CLUSTER_LOG, {"t": 1_000, "e": event}, id=f"{seq}-0")
        return int(seq)

    def mend_cluster_log(self, seq: int) -> None:
        """Replace the newest cluster event with a readable one."""
        self._cut(keys.CLUSTER_LOG, seq)
        self.write_cluster_log('{"type":"ReplicasChanged","volume":"nobody"}')

    def mend(self, name: str, seq: int) -> None:
        """Remove an event and all later ones, to simulate a newer version that understands them."""
        self._cut(keys.log(name), seq)

    def _cut(self, log: str, seq: int) -> None:
        kept = cast(Any, self._redis.xrange(log, max=f"{seq - 1}-0"))
        self._redis.delete(log)
        for identity, fields in kept:
            self._redis.xadd(log, fields, id=identity)
        self._redis.set(f"{log}:seq", seq - 1)

    def damage(self, name: str) -> None:
        """Replace the experiment's record with a newer version's."""
        self._redis.set(keys.experiment(name), json.dumps({"schema_version": 99, "name": name}))

    def mark(self, name: str) -> Unreadable | None:
        """Return the reason of the quarantine."""
        return next(found.unreadable for found in self.kvs.experiments() if found.experiment.name == name)

    def types(self, name: str) -> list[str]:
        """Return the types of the readable events."""
        return [event.type for event in self.kvs.events(name)]
