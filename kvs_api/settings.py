"""Settings of kvs_api from environment variables, checked at start. `kvs_api.__main__` reads them once.

No other module of kvs_api reads its own settings from the environment; shared parts such as logs and volumes have
their own. A wrong value raises `ClusterError`, and the process does not start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cerebro.contract.accounts.identity import Role
from cerebro.errors import ClusterError
from cerebro.runtime.numeric_settings import THREADS, integer
from cerebro.runtime.volumes import Volumes
from cerebro.runtime.web.addresses import bracketed, split_bind


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of kvs_api.

    Attributes:
        host, port: address to listen on (``CEREBRO_BIND``, default ``127.0.0.1:7070``).
        redis_url: Redis (``CEREBRO_REDIS_URL``, default ``redis://127.0.0.1:6379``).
        token: bearer token for every route except health (``CEREBRO_TOKEN``, required).
        threads: maximum number of concurrent requests (``CEREBRO_THREADS``). Requests that wait for news use
            no thread.
        health_bind: host:port of a second server without tokens, for metrics and containers' health commands
            (``CEREBRO_HEALTH_BIND``); "" disables it.
        has_metrics: True if the second server has metrics (``CEREBRO_HEALTH_METRICS=0`` disables them).
        has_users: True if people, programs and services have their own tokens and roles
            (``CEREBRO_AUTH_MODE=users``; default ``token``: one token for everything).
        service_tokens: token of each service role (``CEREBRO_CONTROLLER_TOKEN``, ``CEREBRO_WORKER_TOKEN``,
            ``CEREBRO_DISPATCHER_TOKEN``, ``CEREBRO_EXPORT_TOKEN``); only with users.
        max_body_bytes: largest request; code archives are the largest.
        log_files: folder for the older part of logs on the shared volume (``CEREBRO_VOLUMES`` or
            ``CEREBRO_VOLUME_SHARED``); `None` without a volume: logs stay in the database.
    """

    host: str
    port: int
    redis_url: str = field(repr=False)
    token: str = field(repr=False)
    threads: int = 64
    health_bind: str = ""
    has_metrics: bool = True
    max_body_bytes: int = 48 * 2**20
    log_files: Path | None = None
    has_users: bool = False
    service_tokens: Mapping[Role, str] = field(default_factory=dict, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secrets that must not appear in logs."""
        return (self.token, urlsplit(self.redis_url).password or "", *self.service_tokens.values())

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read and check the environment."""
        host, port = split_bind(environment.get("CEREBRO_BIND", "127.0.0.1:7070"))
        token = environment.get("CEREBRO_TOKEN", "")
        if not token:
            raise ClusterError(
                "CEREBRO_TOKEN is not set: set it, because kvs_api does not run without a bearer token"
            )
        if not port.isdigit():
            raise ClusterError(f"CEREBRO_BIND is {environment['CEREBRO_BIND']!r}, expected host:port")
        has_users = _has_users(environment)
        volumes = Volumes.from_environment(environment)
        return cls(
            host=host or "127.0.0.1",
            port=int(port),
            redis_url=bracketed(environment.get("CEREBRO_REDIS_URL", "redis://127.0.0.1:6379")),
            token=token,
            threads=integer(THREADS, environment, 64),
            health_bind=environment.get("CEREBRO_HEALTH_BIND", ""),
            has_metrics=environment.get("CEREBRO_HEALTH_METRICS", "") != "0",
            has_users=has_users,
            service_tokens=_service_tokens(environment, token) if has_users else {},
            log_files=volumes.events if volumes.shared.is_dir() else None,
        )


_SERVICES = (Role.CONTROLLER, Role.WORKER, Role.DISPATCHER, Role.EXPORT)
_SHORTEST = 32
"""Minimum number of characters of a service token."""


def _has_users(environment: Mapping[str, str]) -> bool:
    mode = environment.get("CEREBRO_AUTH_MODE", "") or "token"
    if mode not in ("token", "users"):
        raise ClusterError(f"CEREBRO_AUTH_MODE is {mode!r}, expected token or users")
    return mode == "users"


def _service_tokens(environment: Mapping[str, str], token: str) -> dict[Role, str]:
    """Return the configured service tokens. A service without one cannot connect."""
    names = {role: f"CEREBRO_{role.upper()}_TOKEN" for role in _SERVICES}
    found = {role: environment[name] for role, name in names.items() if environment.get(name)}
    for role, secret in found.items():
        if len(secret) < _SHORTEST:
            raise ClusterError(
                f"{names[role]} has {len(secret)} characters, expected {_SHORTEST} or more by chance, such as of "
                "`openssl rand -hex 32`"
            )
    if len({token, *found.values()}) != 1 + len(found):
        raise ClusterError(
            f"CEREBRO_TOKEN and {', '.join(names[role] for role in found)} must all differ: otherwise "
            "the holder of one has the rights of another"
        )
    return found
