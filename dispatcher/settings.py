"""Settings of the dispatcher: the only reader of its environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cerebro.errors import ClusterError
from cerebro.volumes import Volumes

DEFAULT_BIND = "127.0.0.1:7080"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the dispatcher is told.

    Attributes:
        host, port: address to listen on (``CEREBRO_BIND``).
        server: base URL of kvs_api (``CEREBRO_SERVER``, required).
        token: bearer token of kvs_api, with which people sign in as well (``CEREBRO_TOKEN``, required).
        link_tensorboard, link_notebook: addresses shown as links (``CEREBRO_LINK_TENSORBOARD``,
            ``CEREBRO_LINK_NOTEBOOK``); no link without them.
        public_hosts: further names under which browsers may reach the page (``CEREBRO_PUBLIC_HOSTS``,
            commas between). is_https: a proxy in front speaks TLS, so cookies are for TLS only
            (``CEREBRO_HTTPS=1``). patience_s: how long one call waits for a store that is away: a page
            should say so soon. threads: requests served at once; of these, blocked_reads at most wait for
            news on behalf of clients outside, and sent_files send them a file.
        volumes: what is served of them is read only (``CEREBRO_VOLUMES``, see `cerebro.volumes`).
    """

    host: str
    port: int
    server: str
    token: str = field(repr=False)
    link_tensorboard: str | None = None
    link_notebook: str | None = None
    public_hosts: frozenset[str] = frozenset()
    is_https: bool = False
    patience_s: float = 3.0
    threads: int = 40
    blocked_reads: int = 24
    sent_files: int = 8
    volumes: Volumes = field(default_factory=lambda: Volumes.from_environment({}))

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
                "CEREBRO_TOKEN is not set: the dispatcher does not run without the cluster's token"
            )
        server = _link(environment, "CEREBRO_SERVER")
        if server is None:
            raise ClusterError(
                "CEREBRO_SERVER is not set: give the address of kvs_api, like http://127.0.0.1:7070"
            )
        names = environment.get("CEREBRO_PUBLIC_HOSTS", "").split(",")
        return cls(
            host=host,
            port=port,
            server=server,
            token=token,
            link_tensorboard=_link(environment, "CEREBRO_LINK_TENSORBOARD"),
            link_notebook=_link(environment, "CEREBRO_LINK_NOTEBOOK"),
            public_hosts=frozenset(name.strip().lower() for name in names if name.strip()),
            is_https=environment.get("CEREBRO_HTTPS", "") == "1",
            volumes=Volumes.from_environment(environment),
        )


def _address(bind: str) -> tuple[str, int]:
    host, _, port = bind.rpartition(":")
    if not port.isascii() or not port.isdigit():
        raise ClusterError(f"CEREBRO_BIND is {bind!r}, expected host:port, like {DEFAULT_BIND}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _link(environment: Mapping[str, str], name: str) -> str | None:
    value = environment.get(name, "").strip()
    if not value:
        return None
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        # It becomes a link on a page: `javascript:` must not.
        raise ClusterError(f"{name} is {value!r}, expected an address that starts with http:// or https://")
    return value.rstrip("/")
