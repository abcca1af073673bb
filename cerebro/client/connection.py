"""Which cluster a client talks to: an address it was given, the environment's, or the local one, started if need be.

An address may be kvs_api's, in the cluster, where the volumes are mounted; or the dispatcher's, from anywhere, which
hands the store's API on and serves files. Which of both it is, its ``/health`` says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cerebro.client.files import FetchedFiles, Files, MountedFiles, cache_folder
from cerebro.errors import ClusterError, StoreUnavailableError
from cerebro.local import cluster
from cerebro.local.home import ClusterHome, find_running
from cerebro.runtime.kvs import KvsClient
from cerebro.runtime.volumes import Volumes

_CONTACT_S, _CONTACT_TRY_S = 6.0, 3.0
"""How long an address that was given is tried, and a single try of these: a wrong one is told within ten seconds."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A client of kvs_api, and what a person may open in a browser."""

    kvs: KvsClient
    volumes: Volumes
    files: Files
    page: str = ""
    tensorboard: str = ""
    token: str = field(default="", repr=False)
    is_local: bool = False
    """Whether all of the cluster runs on this machine."""

    @property
    def is_outside(self) -> bool:
        """Whether the cluster is reached through its dispatcher: nothing of this machine is known to be there."""
        return isinstance(self.files, FetchedFiles)


def connect(
    server: str | None = None, token: str | None = None, *, home: str | None = None, start: bool = True
) -> Connection:
    """Connect to `server`, else to ``CEREBRO_SERVER``, else join the local cluster; with `start`, start it if need be.

    Certificates of ``https://`` are checked against the system's authorities, or those in the file that
    ``SSL_CERT_FILE`` or ``REQUESTS_CA_BUNDLE`` names.

    Raises:
        ClusterError: a server without a token, no Cerebro behind it, or the local cluster does not run or start.
        UnauthorizedError: the token is wrong.
    """
    address = server or os.environ.get("CEREBRO_SERVER")
    if address:
        secret = token or os.environ.get("CEREBRO_TOKEN")
        if not secret:
            raise ClusterError(f"there is no token for {address}: pass token=..., or set CEREBRO_TOKEN")
        return _checked(_at(address, secret, os.environ))
    info = cluster.start(home) if start else cluster.join(home)
    secret = token or info.token()
    volumes = _local_volumes(info.home)
    return _checked(
        Connection(
            kvs=KvsClient(info.kvs, secret, gone=lambda: _stopped(info.home)),
            volumes=volumes,
            files=MountedFiles(volumes),
            page=info.dispatcher,
            tensorboard=info.tensorboard or "",
            token=secret,
            is_local=True,
        )
    )


def _at(address: str, token: str, environment: Mapping[str, str]) -> Connection:
    # OpenSSL knows SSL_CERT_FILE by itself, but not the name that other Python programs use.
    ca_file = environment.get("REQUESTS_CA_BUNDLE") or None
    volumes = Volumes.from_environment(environment)
    prefix = _prefix(address, token, ca_file)
    if not prefix:
        kvs = KvsClient(address, token, ca_file=ca_file)
        return Connection(kvs=kvs, volumes=volumes, files=MountedFiles(volumes), token=token)
    page = address.rstrip("/")
    api = page + prefix
    return Connection(
        kvs=KvsClient(api, token, ca_file=ca_file),
        volumes=volumes,
        files=FetchedFiles(api, token, cache_folder(environment), ca_file=ca_file),
        page=page,
        token=token,
    )


def _prefix(address: str, token: str, ca_file: str | None) -> str:
    """The path below which the store's API is at an address (`KvsClient.api_prefix`).

    A user who has just typed an address learns soon that nothing answers there. Once something has
    answered, an outage is waited for.

    Raises:
        ClusterError: nothing answers, or no Cerebro.
    """
    kvs = KvsClient(address, token, retry_for_s=_CONTACT_S, timeout_s=_CONTACT_TRY_S, ca_file=ca_file)
    try:
        return kvs.api_prefix()
    except StoreUnavailableError as cause:
        why = cause.__cause__ or "its store is away"
        raise ClusterError(
            f"no Cerebro answers at {address} ({why}): give the address of its web page, with http:// or https://, as "
            "server=... or in CEREBRO_SERVER. A cluster on Kubernetes that is not open to the "
            "outside is reached with `kubectl -n NAMESPACE port-forward service/RELEASE-dispatcher 7080:80` (`helm "
            'status RELEASE` prints that line) and server="http://127.0.0.1:7080". If it is being started, try again'
        ) from cause
    finally:
        kvs.close()


def _stopped(home: Path) -> str:
    """What to tell somebody whose local cluster does not answer because it was stopped; empty if it runs."""
    if find_running(ClusterHome(home)) is not None:
        return ""
    return (
        f"the local cluster at {home} was stopped, and its runs wait: start it with `cerebro up`, then "
        "Experiment.attach(NAME).watch() follows them"
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
