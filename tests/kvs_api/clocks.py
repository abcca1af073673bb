"""Machines with test clocks: kvs_api processes over one real database, and a worker with a task."""

from __future__ import annotations

import pytest
import redis

from cerebro.contract.records import ExperimentRecord
from cerebro.contract.rest import api
from kvs_api.store import database
from kvs_api.store.store import Store
from tests.kvs_api.bench import LOCATORS, TASK, body, worker, worker_step
from tests.kvs_api.real import Database

NOON = 1_800_000_000.0
HOUR_S = 3600.0
LEASE_S = 10.0


class Machines:
    """Several kvs_api machines whose monotonic clocks have different origins.

    Args:
        patch: makes the Lua script read the test's wall clock instead of the database's.
    """

    def __init__(
        self, held: Database, patch: pytest.MonkeyPatch, *, origins: tuple[float, ...] = (17.0,)
    ) -> None:
        self.database = held
        self._redis = redis.Redis.from_url(held.url)
        self._script = database.script()
        assert self._script.count("redis.call('TIME')") == 1
        patch.setattr(database, "script", self._with_wall)
        self.elapsed = 0.0
        self._origins = origins
        self.set_wall(NOON)
        self.stores = [self._process(index) for index in range(len(origins))]
        self.term = 0

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()

    def _with_wall(self) -> str:
        return self._script.replace("redis.call('TIME')", "redis.call('LRANGE', 'test:wall', 0, 1)")

    def _process(self, index: int) -> Store:
        return Store(self.database.url, elapsed=lambda: self._origins[index] + self.elapsed)

    def restart(self, index: int = 0) -> None:
        """Restart kvs_api on a machine."""
        self.stores[index] = self._process(index)

    def set_wall(self, seconds: float) -> None:
        """Set the database's wall clock."""
        self._wall = seconds
        self._write_wall()

    def _write_wall(self) -> None:
        with self._redis.pipeline() as pipe:
            pipe.delete("test:wall")
            pipe.rpush("test:wall", int(self._wall), int(self._wall % 1 * 1e6))
            pipe.execute()

    def turn_wall(self, seconds: float) -> None:
        """Move the database's wall clock."""
        self.set_wall(self._wall + seconds)

    def go_on(self, seconds: float) -> None:
        """Advance all clocks."""
        self.elapsed += seconds
        self.turn_wall(seconds)

    # --- calls -----------------------------------------------------------------------------------

    def begin(self, name: str = "worker-0", task: str = TASK, *, at: int = 0) -> None:
        """Register a worker, assign it a task and start it."""
        self.stores[at].create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
        self.lead(at=at)
        self.stores[at].register(worker("a", name))
        step = api.Assign(task=task, attempt=1, worker=name, incarnation="a", body=body(task))
        assert self._decide(step, at) == "done"
        assert self.report("start", name, task, at=at) == "done"

    def lead(self, holder: str = "controller-0", ttl_s: float = 5.0, *, at: int = 0) -> int:
        """Renew the controller's lease; return its term, or 0 if another one leads."""
        term = self.stores[at].lead(api.LeaderRequest(holder=holder, ttl_s=ttl_s)).term
        self.term = term or self.term
        return term

    def report(self, op: str, name: str = "worker-0", task: str = TASK, *, at: int = 0) -> str:
        """Send a worker's step and return the outcome."""
        request = api.ReportRequest(incarnation="a", lease_s=LEASE_S, steps=(worker_step(op, 1, task=task),))
        outcome: str = self.stores[at].report(name, request)["outcomes"][0]["outcome"]
        return outcome

    def revoke(self, name: str = "worker-0", task: str = TASK, *, at: int = 0) -> str:
        """Revoke the attempt if its lease has expired; return the outcome."""
        return self._decide(api.Revoke(task=task, attempt=1, worker=name, reason="silent"), at)

    def _decide(self, step: api.Decision, at: int) -> str:
        count = len(self.stores[at].read_log("one", 0, 0))
        request = api.DecideRequest(term=self.term, after=count, steps=(step,))
        return self.stores[at].decide("one", request)[0][0]["outcome"]

    def silent_s(self, *, at: int = 0) -> float:
        """Return the time since worker-0's last report."""
        return self.stores[at].workers()[0].silent_s
