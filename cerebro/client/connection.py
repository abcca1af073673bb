"""Connection of a client to a cluster, for notebooks, the command line and the self-test.

The caller, the environment or the local cluster provides the address; `connect` may start the local cluster. Inside the
cluster, with mounted volumes, the address is kvs_api's. From anywhere else it is the dispatcher's, which forwards the
store's API and serves files. ``/health`` distinguishes them. A wrong address is reported within ten seconds.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from cerebro.client.files import FetchedFiles, Files, MountedFiles, cache_folder
from cerebro.errors import ClusterError, StoreUnavailableError
from cerebro.local import cluster
from cerebro.local.home import ClusterHome, find_running
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes

_CONTACT_S, _CONTACT_TRY_S = 6.0, 3.0
"""Time limit of the first contact and of each try, so a wrong address is reported within ten seconds."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A client of kvs_api, access to files, and addresses for a browser.

    Attributes:
        kvs: client of the store.
        volumes: mount points on this machine.
        files: access to files of the cluster.
        page: address of the web page; empty when unknown.
        tensorboard: address of TensorBoard; empty without one.
        token: access token.
        is_local: True if the whole cluster runs on this machine.
    """

    kvs: KvsClient
    volumes: Volumes
    files: Files
    page: str = ""
    tensorboard: str = ""
    token: str = field(default="", repr=False)
    is_local: bool = False

    def page_of(self, experiment: str, fit: str = "") -> str:
        """Return the page of an experiment, or of one of its fit runs; an empty text if unknown."""
        if not self.page:
            return ""
        return f"{self.page}/experiments/{experiment}" + (f"?fit={fit}" if fit else "")

    def sign_in_link(self, path: str = "") -> str:
        """Make a link that signs a browser in once, within ten minutes, with the rights of `token`.

        Args:
            path: page to show then, such as ``/experiments/digits``. Default: the list of experiments.

        Raises:
            ClusterError: the address of the page is unknown.
            ForbiddenError: the token is a service's, or may not read.
        """
        return sign_in_link(self.kvs, self.page, path)

    @property
    def is_remote(self) -> bool:
        """True if the cluster is reached through its dispatcher and cannot see local files."""
        return isinstance(self.files, FetchedFiles)


def author() -> str:
    """Return the user's login name, or the numeric user id without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def sign_in_link(kvs: KvsClient, page: str, path: str = "") -> str:
    """See `Connection.sign_in_link`. The one-time code is in the fragment, which browsers do not send."""
    if not page:
        raise ClusterError(
            f"the address of the web page is unknown, because {kvs.address} is the store: set CEREBRO_SERVER to the "
            "address of the page"
        )
    code = kvs.make_sign_in_code(author()).code
    target = f"?next={quote(path, safe='/')}" if path else ""
    return f"{page}/sign-in{target}#{code}"


def connect(
    server: str | None = None, token: str | None = None, *, home: str | None = None, start: bool = True
) -> Connection:
    """Connect to `server`, to the local cluster in `home`, to ``CEREBRO_SERVER``, or to the default local cluster.

    Certificates of ``https://`` are checked against the system's authorities, or the file in ``SSL_CERT_FILE`` or
    ``REQUESTS_CA_BUNDLE``.

    Args:
        server: address of the web page or of kvs_api.
        token: access token. Default: ``CEREBRO_TOKEN``, or the local cluster's.
        home: folder of the local cluster. Default: ``CEREBRO_HOME`` or ``~/.cerebro``.
        start: True to start the local cluster if necessary.

    Raises:
        ClusterError: no token, no answer, not a Cerebro server, or the local cluster does not start.
        UnauthorizedError: the token is wrong.
    """
    address = server or (os.environ.get("CEREBRO_SERVER") if home is None else None)
    if address:
        secret = token or os.environ.get("CEREBRO_TOKEN")
        if not secret:
            raise ClusterError(f"no token for {address}: pass token=... or set CEREBRO_TOKEN")
        return _checked(_at(address, secret, os.environ))
    info = cluster.start(home) if start else cluster.join(home)
    secret = token or info.token()
    volumes = _local_volumes(info.home)
    return _checked(
        Connection(
            kvs=KvsClient(info.kvs, secret, explain_absence=lambda: _stopped_text(info.home)),
            volumes=volumes,
            files=MountedFiles(volumes),
            page=info.dispatcher,
            tensorboard=info.tensorboard or "",
            token=secret,
            is_local=True,
        )
    )


def _at(address: str, token: str, environment: Mapping[str, str]) -> Connection:
    # OpenSSL reads SSL_CERT_FILE, but not this variable, which other Python programs use.
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
    """Return the path prefix of the store's API at an address (`KvsClient.api_prefix`).

    The first contact fails fast, because the address may be mistyped. Later outages are waited for.

    Raises:
        ClusterError: no answer, or not a Cerebro server.
    """
    kvs = KvsClient(address, token, retry_for_s=_CONTACT_S, timeout_s=_CONTACT_TRY_S, ca_file=ca_file)
    try:
        return kvs.api_prefix()
    except StoreUnavailableError as cause:
        reason = cause.__cause__ or "its store does not answer"
        raise ClusterError(
            f"no Cerebro answers at {address} ({reason}): set server=... or CEREBRO_SERVER to the address of its web "
            "page, with http:// or https://, or try again if it is starting. For a Kubernetes cluster without an "
            "external address, run `kubectl -n NAMESPACE port-forward service/RELEASE-dispatcher 7080:80` (printed by "
            '`helm status RELEASE`) and use server="http://127.0.0.1:7080"'
        ) from cause
    finally:
        kvs.close()


def _stopped_text(home: Path) -> str:
    """Explain that the local cluster was stopped. Empty text for a running cluster."""
    if find_running(ClusterHome(home)) is not None:
        return ""
    return (
        f"the local cluster at {home} was stopped and its runs are paused: start it with `cerebro up`, then follow "
        "them with Experiment.attach(NAME).watch()"
    )


def _checked(connection: Connection) -> Connection:
    connection.kvs.health()
    # `health` works without a token, so make a call that checks it.
    connection.kvs.queue()
    return connection


def _local_volumes(home: Path) -> Volumes:
    folders = ClusterHome(home)
    return Volumes.from_environment(
        {"CEREBRO_VOLUMES": str(folders.volumes), "CEREBRO_VOLUME_LOGS": str(folders.logs)}
    )
