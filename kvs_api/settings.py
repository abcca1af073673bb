"""Settings of kvs_api: the only reader of its environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cerebro.errors import ClusterError
from cerebro.runtime.numeric_settings import THREADS, whole


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What kvs_api is told.

    Attributes:
        host, port: address to listen on (``CEREBRO_BIND``, default ``127.0.0.1:7070``).
        redis_url: Redis (``CEREBRO_REDIS_URL``, default ``redis://127.0.0.1:6379``).
        token: bearer token every route but health asks for (``CEREBRO_TOKEN``, required).
        threads: requests served at once (``CEREBRO_THREADS``); each blocking read of a worker, the controller or a
            viewer occupies one. All but 16, and at least half, may block at once; further readers are answered
            within a second with what is there, so that leases are renewed and probes answered all the same.
        health_bind: host:port of a second server, for metrics and for containers' health commands
            (``CEREBRO_HEALTH_BIND``); off when empty. It asks for no token.
        tells_metrics: whether that one tells metrics, too (not with ``CEREBRO_HEALTH_METRICS=0``).
        max_body_bytes: largest request; a code archive is the largest thing sent.
    """

    host: str
    port: int
    redis_url: str = field(repr=False)
    token: str = field(repr=False)
    threads: int = 64
    health_bind: str = ""
    tells_metrics: bool = True
    max_body_bytes: int = 48 * 2**20

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no log line may show."""
        return (self.token, urlsplit(self.redis_url).password or "")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read and check the environment."""
        host, _, port = environment.get("CEREBRO_BIND", "127.0.0.1:7070").rpartition(":")
        token = environment.get("CEREBRO_TOKEN", "")
        if not token:
            raise ClusterError(
                "CEREBRO_TOKEN is not set: set it, because kvs_api does not run without a bearer token"
            )
        if not port.isdigit():
            raise ClusterError(f"CEREBRO_BIND is {environment['CEREBRO_BIND']!r}, expected host:port")
        return cls(
            host=host or "127.0.0.1",
            port=int(port),
            redis_url=environment.get("CEREBRO_REDIS_URL", "redis://127.0.0.1:6379"),
            token=token,
            threads=whole(THREADS, environment, 64),
            health_bind=environment.get("CEREBRO_HEALTH_BIND", ""),
            tells_metrics=environment.get("CEREBRO_HEALTH_METRICS", "") != "0",
        )
