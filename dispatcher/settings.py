"""Settings of the dispatcher: the only reader of its environment variables."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from cerebro.contract.base import Contract, Name
from cerebro.contract.identity import PersonRole
from cerebro.errors import ClusterError, found_in
from cerebro.runtime.addresses import bracketed, split_bind
from cerebro.runtime.volumes import Volumes

DEFAULT_BIND = "127.0.0.1:7080"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class GroupRights(Contract):
    """What a group of the identity provider is here."""

    role: PersonRole
    projects: tuple[Name, ...] = ()


_GROUPS: TypeAdapter[dict[str, GroupRights]] = TypeAdapter(dict[str, GroupRights])


@dataclass(frozen=True, kw_only=True)
class Oidc:
    """Whose ID tokens are believed, and what their claims mean.

    Attributes:
        issuer: of the tokens, exactly (``CEREBRO_OIDC_ISSUER``). audience: the client's id at the provider
            (``CEREBRO_OIDC_AUDIENCE``). jwks_url: of its keys; by default its discovery document names it
            (``CEREBRO_OIDC_JWKS_URL``). header: in which the proxy hands them on (``CEREBRO_OIDC_HEADER``).
        name_claim, groups_claim: ``CEREBRO_OIDC_NAME_CLAIM``, ``CEREBRO_OIDC_GROUPS_CLAIM``.
        groups: group -> what it is here, ``*`` for all who have a token (``CEREBRO_OIDC_GROUPS``, as JSON).
    """

    issuer: str
    audience: str
    groups: Mapping[str, GroupRights]
    jwks_url: str = ""
    header: str = "Authorization"
    name_claim: str = "email"
    groups_claim: str = "groups"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the dispatcher is told.

    Attributes:
        host, port: address to listen on (``CEREBRO_BIND``).
        server: base URL of kvs_api (``CEREBRO_SERVER``, required).
        token: bearer token of kvs_api, with which people sign in as well, unless there are users (``CEREBRO_TOKEN``,
            required).
        link_tensorboard, link_notebook, link_grafana: addresses shown as links (``CEREBRO_LINK_TENSORBOARD``,
            ``CEREBRO_LINK_NOTEBOOK``, ``CEREBRO_LINK_GRAFANA``); no link without them.
        auth_header, auth_proxies: a proxy in front signs people in and names them in this header
            (``CEREBRO_AUTH_HEADER``); believed only of these addresses (``CEREBRO_AUTH_PROXIES``: addresses or
            networks, commas between), so the proxy must take the header out of what it is sent.
        public_hosts: further names under which browsers may reach the page (``CEREBRO_PUBLIC_HOSTS``,
            commas between). is_https: a proxy in front speaks TLS, so cookies are for TLS only
            (``CEREBRO_HTTPS=1``). retry_for_s: how long one call waits for a store that is away: a page
            should say so soon. threads: requests served at once; of these, handed_on at most are calls of
            clients outside to the store, blocked_reads of which wait for news, and sent_files send them a
            file: the rest is for pages.
        health_bind: host:port of a second server, for metrics and for containers' health commands
            (``CEREBRO_HEALTH_BIND``); off when empty. It asks for no token.
        tells_metrics: whether that one tells metrics, too (not with ``CEREBRO_HEALTH_METRICS=0``).
        has_object_store: locators are looked at in the object store of the environment (``AWS_ENDPOINT_URL``), also
            where its address is not public, and others than this machine's user reach the page
            (``CEREBRO_OBJECT_STORE=1``).
        has_users: people sign in as themselves, and may do what their roles say (``CEREBRO_AUTH_MODE=users``); `token`
            is the dispatcher's own then. oidc: ID tokens of whom a proxy signs in; `None`: there is no such proxy.
        volumes: what is served of them is read only (``CEREBRO_VOLUMES``, see `cerebro.runtime.volumes`).
    """

    host: str
    port: int
    server: str
    token: str = field(repr=False)
    link_tensorboard: str | None = None
    link_notebook: str | None = None
    link_grafana: str | None = None
    auth_header: str = ""
    auth_proxies: tuple[Network, ...] = ()
    public_hosts: frozenset[str] = frozenset()
    is_https: bool = False
    retry_for_s: float = 3.0
    threads: int = 40
    handed_on: int = 28
    blocked_reads: int = 24
    sent_files: int = 8
    health_bind: str = ""
    tells_metrics: bool = True
    has_object_store: bool = False
    has_users: bool = False
    oidc: Oidc | None = None
    volumes: Volumes = field(default_factory=lambda: Volumes.from_environment({}))

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the page: whoever uses it may ask what the machine's own user may.

        Listening on loopback is not enough: a proxy beside it lets others in, and each of the settings that one
        needs says that it is there.
        """
        is_proxied = bool(self.oidc or self.auth_header or self.public_hosts or self.is_https)
        return self.host in _LOOPBACK and not is_proxied

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read and check the environment.

        Raises:
            ClusterError: names the variable, what it should be and what it was.
        """
        host, port = _address(environment.get("CEREBRO_BIND", DEFAULT_BIND))
        token = environment.get("CEREBRO_TOKEN", "").strip()
        if not token:
            raise ClusterError(
                "CEREBRO_TOKEN is not set: set it, because the dispatcher does not run without the cluster's token"
            )
        server = _link(environment, "CEREBRO_SERVER")
        if server is None:
            raise ClusterError(
                "CEREBRO_SERVER is not set: give the address of kvs_api, like http://127.0.0.1:7070"
            )
        header, proxies = _proxy(environment)
        names = environment.get("CEREBRO_PUBLIC_HOSTS", "").split(",")
        return cls(
            host=host,
            port=port,
            server=bracketed(server),
            token=token,
            link_tensorboard=_link(environment, "CEREBRO_LINK_TENSORBOARD"),
            link_notebook=_link(environment, "CEREBRO_LINK_NOTEBOOK"),
            link_grafana=_link(environment, "CEREBRO_LINK_GRAFANA"),
            auth_header=header,
            auth_proxies=proxies,
            public_hosts=frozenset(name.strip().lower() for name in names if name.strip()),
            is_https=environment.get("CEREBRO_HTTPS", "") == "1",
            health_bind=environment.get("CEREBRO_HEALTH_BIND", ""),
            tells_metrics=environment.get("CEREBRO_HEALTH_METRICS", "") != "0",
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
            "CEREBRO_AUTH_HEADER names people by a bare header, which is not believed where there are users: have the "
            "proxy hand on the ID token (CEREBRO_OIDC_ISSUER), and leave the header out"
        )
    return mode == "users"


def _oidc(environment: Mapping[str, str]) -> Oidc | None:
    issuer = _link(environment, "CEREBRO_OIDC_ISSUER")
    if issuer is None:
        return None
    audience = environment.get("CEREBRO_OIDC_AUDIENCE", "").strip()
    if not audience:
        raise ClusterError(
            "CEREBRO_OIDC_AUDIENCE is not set: give the id of the client at the provider, because a token that was "
            "made for another client must open nothing"
        )
    header = environment.get("CEREBRO_OIDC_HEADER", "").strip() or "Authorization"
    if not _HEADER.fullmatch(header):
        raise ClusterError(f"CEREBRO_OIDC_HEADER is {header!r}, expected the name of a header")
    try:
        groups = _GROUPS.validate_json(environment.get("CEREBRO_OIDC_GROUPS", "") or "{}")
    except ValidationError as cause:
        raise ClusterError(
            f"CEREBRO_OIDC_GROUPS: {found_in(cause.errors())}; expected groups with role and projects, like "
            '{"researchers": {"role": "member", "projects": ["vision"]}}'
        ) from cause
    if not groups:
        raise ClusterError(
            "CEREBRO_OIDC_GROUPS is empty: say what at least one group is, else nobody gets in"
        )
    return Oidc(
        # Exactly as it was given: issuers are compared letter by letter, a slash at the end included.
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


def _proxy(environment: Mapping[str, str]) -> tuple[str, tuple[Network, ...]]:
    header = environment.get("CEREBRO_AUTH_HEADER", "").strip()
    if not header:
        return "", ()
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
        return header, tuple(ipaddress.ip_network(part) for part in named)
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
        # It becomes a link on a page: `javascript:` must not.
        raise ClusterError(f"{name} is {value!r}, expected an address that starts with http:// or https://")
    return value.rstrip("/")
