"""Which cluster a client talks to: an address it was given, the environment's, or the local one, started if need be."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from cerebro.errors import ClusterError
from cerebro.kvs import KvsClient
from cerebro.local import cluster
from cerebro.local.home import ClusterHome
from cerebro.volumes import Volumes


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A client of kvs_api, and what a person may open in a browser."""

    kvs: KvsClient
    volumes: Volumes
    page: str = ""
    tensorboard: str = ""
    token: str = field(default="", repr=False)


def connect(server: str | None = None, token: str | None = None, *, home: str | None = None) -> Connection:
    """Connect to `server`, else to ``CEREBRO_SERVER``, else start or join the local cluster.

    Raises:
        ClusterError: a server without a token, or the local cluster does not start.
        UnauthorizedError: the token is wrong.
    """
    address = server or os.environ.get("CEREBRO_SERVER")
    if address:
        secret = token or os.environ.get("CEREBRO_TOKEN")
        if not secret:
            raise ClusterError(f"no token for {address}: pass token=..., or set CEREBRO_TOKEN")
        return _checked(
            Connection(
                kvs=KvsClient(address, secret), volumes=Volumes.from_environment(os.environ), token=secret
            )
        )
    info = cluster.start(home)
    secret = token or info.token()
    return _checked(
        Connection(
            kvs=KvsClient(info.kvs, secret),
            volumes=_local_volumes(info.home),
            page=info.dispatcher,
            tensorboard=info.tensorboard or "",
            token=secret,
        )
    )


def _checked(connection: Connection) -> Connection:
    connection.kvs.health()
    # Health needs no token: this call tells a wrong one at once.
    connection.kvs.queue()
    return connection


def _local_volumes(home: Path) -> Volumes:
    place = ClusterHome(home)
    return Volumes.from_environment(
        {"CEREBRO_VOLUMES": str(place.volumes), "CEREBRO_VOLUME_LOGS": str(place.logs)}
    )
