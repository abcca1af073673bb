"""Settings of the dispatcher, read from ``CEREBRO_*`` variables and fixed at the start.

`__main__` calls `Settings.from_environment`, which checks all values; a wrong one ends the process with a message. No
other module of the dispatcher reads these variables; logging reads its own.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from cerebro.contract.accounts.identity import PersonRole
from cerebro.contract.base import Contract, Name
from cerebro.errors import ClusterError, validation_summary
from cerebro.runtime.volumes import Volumes
from cerebro.runtime.web.addresses import bracketed, split_bind

DEFAULT_BIND = "127.0.0.1:7080"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class GroupRights(Contract):
    """Role and projects of a group of the identity provider."""

    role: PersonRole
    projects: tuple[Name, ...] = ()


_GROUPS: TypeAdapter[dict[str, GroupRights]] = TypeAdapter(dict[str, GroupRights])


@dataclass(frozen=True, kw_only=True)
class Oidc:
    """Accepted ID tokens, and the meaning of their claims.

    Attributes:
        issuer: exact issuer of the tokens (``CEREBRO_OIDC_ISSUER``).
        audience: id of the client at the provider (``CEREBRO_OIDC_AUDIENCE``).
        groups: group -> rights, ``*`` for everybody with a token (``CEREBRO_OIDC_GROUPS``, JSON).
        jwks_url: address of its keys; default: from its discovery document (``CEREBRO_OIDC_JWKS_URL``).
        header: header with the forwarded token (``CEREBRO_OIDC_HEADER``).
        name_claim, groups_claim: ``CEREBRO_OIDC_NAME_CLAIM``, ``CEREBRO_OIDC_GROUPS_CLAIM``.
    """

    issuer: str
    audience: str
    groups: Mapping[str, GroupRights]
    jwks_url: str = ""
    header: str = "Authorization"
    name_claim: str = "email"
    groups_claim: str = "groups"


@dataclass(frozen=True, kw_only=True)
class Links:
    """Addresses shown as links.

    Attributes:
        tensorboard, notebook, grafana: ``CEREBRO_LINK_TENSORBOARD``, ``CEREBRO_LINK_NOTEBOOK``,
          ``CEREBRO_LINK_GRAFANA``.
        docs: ``CEREBRO_LINK_DOCS``, the page *The web page* of the documentation site, whose headings the ``?`` of
          each tab links. Default: the site that `make docs` built in this checkout; without one there is no ``?``.
    """

    tensorboard: str | None = None
    notebook: str | None = None
    grafana: str | None = None
    docs: str | None = None


@dataclass(frozen=True, kw_only=True)
class AuthProxy:
    """Proxies that authenticate users.

    Attributes:
        header: header with the user's name (``CEREBRO_AUTH_HEADER``). The proxies must remove this header from
          incoming requests.
        networks: addresses or networks of the proxies, separated by commas (``CEREBRO_AUTH_PROXIES``).
    """

    header: str
    networks: tuple[Network, ...]


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Maximum number of concurrent requests.

    Attributes:
        threads: all requests.
        forwarded_calls: requests forwarded to the store.
        blocked_reads: forwarded requests that wait for news.
        sent_files: file transfers. The remaining threads serve pages.
    """

    threads: int = 40
    forwarded_calls: int = 28
    blocked_reads: int = 24
    sent_files: int = 8


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the dispatcher.

    Attributes:
        host, port: address to listen on (``CEREBRO_BIND``).
        server: base URL of kvs_api (``CEREBRO_SERVER``, required).
        token: token for kvs_api; without users mode also the sign-in token (``CEREBRO_TOKEN``, required).
        auth_proxy: proxies that authenticate users; None without.
        public_hosts: additional host names of the page, separated by commas (``CEREBRO_PUBLIC_HOSTS``).
        is_https: a proxy terminates TLS, so cookies require TLS (``CEREBRO_HTTPS=1``).
        retry_for_s: maximum seconds to retry a call to the store. Short, so pages report an outage soon.
        health_bind: host:port of a server for metrics and container health checks, without token
          (``CEREBRO_HEALTH_BIND``); default: off.
        has_metrics: False if that server has no metrics (``CEREBRO_HEALTH_METRICS=0``).
        has_object_store: allow locators in the object store at ``AWS_ENDPOINT_URL`` even if its address is not public
          and other users reach the page (``CEREBRO_OBJECT_STORE=1``).
        has_users: users mode: everybody has a token, and roles limit rights (``CEREBRO_AUTH_MODE=users``).
        oidc: settings of ID tokens; None without such a proxy.
        volumes: mounted volumes, read-only (``CEREBRO_VOLUMES``, see `cerebro.runtime.volumes`).
    """

    host: str
    port: int
    server: str
    token: str = field(repr=False)
    links: Links = field(default_factory=Links)
    auth_proxy: AuthProxy | None = None
    public_hosts: frozenset[str] = frozenset()
    is_https: bool = False
    retry_for_s: float = 3.0
    capacity: Capacity = field(default_factory=Capacity)
    health_bind: str = ""
    has_metrics: bool = True
    has_object_store: bool = False
    has_users: bool = False
    oidc: Oidc | None = None
    volumes: Volumes = field(default_factory=lambda: Volumes.from_environment({}))

    @property
    def is_local(self) -> bool:
        """True if only this machine's user can reach the page. Locators may then name all files of this user.

        Loopback is not sufficient, because a proxy on the same machine may admit others. Each setting for a proxy
        shows that one exists.
        """
        is_proxied = bool(self.oidc or self.auth_proxy or self.public_hosts or self.is_https)
        return self.host in _LOOPBACK and not is_proxied

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read and check the environment.

        Raises:
            ClusterError: a variable is invalid; the message has its name, the expected and the actual value.
        """
        host, port = _address(environment.get("CEREBRO_BIND", DEFAULT_BIND))
        token = environment.get("CEREBRO_TOKEN", "").strip()
        if not token:
            raise ClusterError("CEREBRO_TOKEN is not set: set it to the cluster's token")
        server = _link(environment, "CEREBRO_SERVER")
        if server is None:
            raise ClusterError(
                "CEREBRO_SERVER is not set: set it to the address of kvs_api, like http://127.0.0.1:7070"
            )
        names = environment.get("CEREBRO_PUBLIC_HOSTS", "").split(",")
        return cls(
            host=host,
            port=port,
            server=bracketed(server),
            token=token,
            links=Links(
                tensorboard=_link(environment, "CEREBRO_LINK_TENSORBOARD"),
                notebook=_link(environment, "CEREBRO_LINK_NOTEBOOK"),
                grafana=_link(environment, "CEREBRO_LINK_GRAFANA"),
                docs=_link(environment, "CEREBRO_LINK_DOCS"),
            ),
            auth_proxy=_proxy(environment),
            public_hosts=frozenset(name.strip().lower() for name in names if name.strip()),
            is_https=environment.get("CEREBRO_HTTPS", "") == "1",
            health_bind=environment.get("CEREBRO_HEALTH_BIND", ""),
            has_metrics=environment.get("CEREBRO_HEALTH_METRICS", "") != "0",
            has_object_store=environment.get("CEREBRO_OBJECT_STORE", "") == "1",
            has_users=_has_users(environment),
            oidc=_oidc(environment) if _has_users(environment) else None,
            volumes=Volumes.from_environment(environment),
        )


def _has_users(environment: Mapping[str, str]) -> bool:
    mode = environment.get("CEREBRO_AUTH_MODE", "") or "token"
    if mode not in ("token", "users"):
        raise ClusterError(f"CEREBRO_AUTH_MODE is {mode!r}, expected token or users")
    if mode == "users" and environment.get("CEREBRO_AUTH_HEADER", "").strip():
        raise ClusterError(
            "CEREBRO_AUTH_HEADER names people by a bare header, which users mode does not accept: make the proxy "
            "forward the ID token (CEREBRO_OIDC_ISSUER), and remove CEREBRO_AUTH_HEADER"
        )
    return mode == "users"


def _oidc(environment: Mapping[str, str]) -> Oidc | None:
    issuer = _link(environment, "CEREBRO_OIDC_ISSUER")
    if issuer is None:
        return None
    audience = environment.get("CEREBRO_OIDC_AUDIENCE", "").strip()
    if not audience:
        raise ClusterError(
            "CEREBRO_OIDC_AUDIENCE is not set: set it to the id of the client at the provider, because tokens of "
            "other clients must be refused"
        )
    header = environment.get("CEREBRO_OIDC_HEADER", "").strip() or "Authorization"
    if not _HEADER.fullmatch(header):
        raise ClusterError(f"CEREBRO_OIDC_HEADER is {header!r}, expected the name of a header")
    try:
        groups = _GROUPS.validate_json(environment.get("CEREBRO_OIDC_GROUPS", "") or "{}")
    except ValidationError as cause:
        raise ClusterError(
            f"CEREBRO_OIDC_GROUPS: {validation_summary(cause.errors())}; expected groups with role and projects, like "
            '{"researchers": {"role": "member", "projects": ["vision"]}}'
        ) from cause
    if not groups:
        raise ClusterError(
            "CEREBRO_OIDC_GROUPS is empty: give at least one group a role, otherwise nobody can sign in"
        )
    return Oidc(
        # Unmodified: issuers are compared exactly, including a trailing slash.
        issuer=environment["CEREBRO_OIDC_ISSUER"].strip(),
        audience=audience,
        groups=groups,
        jwks_url=_link(environment, "CEREBRO_OIDC_JWKS_URL") or "",
        header=header,
        name_claim=environment.get("CEREBRO_OIDC_NAME_CLAIM", "").strip() or "email",
        groups_claim=environment.get("CEREBRO_OIDC_GROUPS_CLAIM", "").strip() or "groups",
    )


def _address(bind: str) -> tuple[str, int]:
    host, port = split_bind(bind)
    if not port.isascii() or not port.isdigit():
        raise ClusterError(f"CEREBRO_BIND is {bind!r}, expected host:port, like {DEFAULT_BIND}")
    return host or "127.0.0.1", int(port)


def _proxy(environment: Mapping[str, str]) -> AuthProxy | None:
    header = environment.get("CEREBRO_AUTH_HEADER", "").strip()
    if not header:
        return None
    if not _HEADER.fullmatch(header):
        raise ClusterError(
            f"CEREBRO_AUTH_HEADER is {header!r}, expected the name of a header, like X-Forwarded-User"
        )
    named = [part.strip() for part in environment.get("CEREBRO_AUTH_PROXIES", "").split(",") if part.strip()]
    if not named:
        raise ClusterError(
            "CEREBRO_AUTH_HEADER needs CEREBRO_AUTH_PROXIES, the addresses of the proxies that may set it: "
            "without it, anybody could claim any name"
        )
    try:
        return AuthProxy(header=header, networks=tuple(ipaddress.ip_network(part) for part in named))
    except ValueError as cause:
        raise ClusterError(
            f"CEREBRO_AUTH_PROXIES: {cause}; expected addresses or networks, like 10.0.0.7,10.1.0.0/16"
        ) from cause


def _link(environment: Mapping[str, str], name: str) -> str | None:
    value = environment.get(name, "").strip()
    if not value:
        return None
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        # The value becomes a link on a page, so reject `javascript:`.
        raise ClusterError(f"{name} is {value!r}, expected an address that starts with http:// or https://")
    return value.rstrip("/")
