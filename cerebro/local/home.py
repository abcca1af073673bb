"""Home folder of a local cluster (`ClusterHome`), and the record of its services (`ClusterInfo`).

Defines the layout, the token and ``run/cluster.json``. One supervisor writes that file atomically; command line,
client and notebooks read it to find the cluster. It outlives the cluster, so that the next start can keep the ports.
Starting and stopping is in `cluster`.

    home/store                  append-only file of Redis or Valkey
    home/volumes/...            shared, checkpoints, metrics, code, and shards/worker-N: see `cerebro.runtime.volumes`
    home/notebooks              root folder of JupyterLab, if it runs
    home/logs                   output of services and of tasks
    home/run                    cluster.json, token, lock, size, redis.sock, tmp: for this user only
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from stat import S_IMODE, S_ISDIR

from cerebro.errors import ClusterError
from cerebro.local.supervision.processes import ProcessId, is_alive

logger = logging.getLogger(__name__)

_PRIVATE = 0o700
_OTHERS_MASK = 0o077
LONGEST_SOCKET_PATH = 100
"""Bytes; the kernel takes 107, and file systems that encrypt names or containers may lengthen a path."""


@dataclass(frozen=True, kw_only=True)
class ServiceInfo:
    """One service, as the supervisor last saw it."""

    name: str
    state: str
    """A `cerebro.local.supervision.service_process.ProcessState`."""
    process: ProcessId | None
    since: float
    """Start time of the present process, in seconds since the epoch."""
    restarts: int
    required: bool
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterInfo:
    """A local cluster, as its supervisor last recorded it."""

    home: Path
    state: str
    """A `cerebro.local.supervision.supervisor.ClusterState`."""
    version: str
    python: str
    python_version: str
    supervisor: ProcessId
    since: float
    workers: int
    ports: Mapping[str, int]
    """Loopback port per service that listens."""
    socket: Path
    services: tuple[ServiceInfo, ...] = ()
    problem: str = ""
    devices: int = 1
    """Devices per worker: the number of its concurrent sub-epochs."""

    @property
    def kvs(self) -> str:
        """Base URL of kvs_api."""
        return f"http://127.0.0.1:{self.ports['kvs_api']}"

    @property
    def dispatcher(self) -> str:
        """Address of the web page."""
        return f"http://127.0.0.1:{self.ports['dispatcher']}"

    @property
    def tensorboard(self) -> str | None:
        """Address of TensorBoard; `None` if it does not run."""
        port = self.ports.get("tensorboard")
        return None if port is None else f"http://127.0.0.1:{port}"

    @property
    def notebook(self) -> str | None:
        """Address of JupyterLab; `None` if it does not run."""
        port = self.ports.get("notebook")
        return None if port is None else f"http://127.0.0.1:{port}"

    def token(self) -> str:
        """Return the bearer token of this cluster."""
        return ClusterHome(self.home).token()

    def to_json(self) -> str:
        """Return the text of ``cluster.json``."""
        return json.dumps(asdict(self), indent=1, default=str)

    @classmethod
    def from_json(cls, text: str) -> ClusterInfo:
        """Parse the text of a ``cluster.json``.

        Raises:
            ValueError: the text is incomplete, or a version with other fields wrote it.
        """
        try:
            fields = json.loads(text)
            services = tuple(
                ServiceInfo(**{**service, "process": service["process"] and ProcessId(**service["process"])})
                for service in fields.pop("services")
            )
            supervisor = ProcessId(**fields.pop("supervisor"))
            home, socket = Path(fields.pop("home")), Path(fields.pop("socket"))
            return cls(home=home, socket=socket, supervisor=supervisor, services=services, **fields)
        except (KeyError, TypeError, AttributeError) as cause:
            raise ValueError(f"not a cluster record: {cause}") from cause


class ClusterHome:
    """Paths in the home of a local cluster. Creating the object changes nothing on disk.

    Args:
        path: the folder; by default ``$CEREBRO_HOME``, or ``~/.cerebro``.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        chosen = path or os.environ.get("CEREBRO_HOME") or "~/.cerebro"
        try:
            self.path = Path(chosen).expanduser().resolve()
        except RuntimeError as error:
            raise ClusterError(
                f"{chosen} has no place: user id {os.getuid()} has neither a name nor HOME; set HOME, or CEREBRO_HOME "
                "to a folder"
            ) from error
        self.store = self.path / "store"
        self.volumes = self.path / "volumes"
        self.logs = self.path / "logs"
        self.notebooks = self.path / "notebooks"
        self.run = self.path / "run"
        self.record = self.run / "cluster.json"
        self.lock = self.run / "lock"
        self.token_file = self.run / "token"
        self.scratch = self.run / "tmp"
        self.size = self.run / "size"
        """Requested number of workers. The supervisor reads it on a signal."""
        self.notebook_request = self.run / "notebook"
        """Exists if JupyterLab is requested. The supervisor reads it on a signal."""

    @property
    def key(self) -> str:
        """Eight hexadecimal digits that stand for this home where its path is too long."""
        return f"{zlib.crc32(os.fsencode(self.path)):08x}"

    def log(self, service: str) -> Path:
        """Return the path of the output of a service, or of the ``supervisor``."""
        return self.logs / f"{service}.log"

    def shards(self, worker: str) -> Path:
        """Return the shard volume of one worker."""
        return self.volumes / "shards" / worker

    def create(self) -> None:
        """Create all folders and the token, and restrict access to this user. Calling twice is safe.

        Raises:
            ClusterError: a folder cannot be created or written, or the home belongs to another user.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
            self._require_own()
            self._close()
            for name in ("shared", "checkpoints", "metrics", "code", "shards"):
                (self.volumes / name).mkdir(parents=True, exist_ok=True)
            self.token()
        except OSError as cause:
            raise ClusterError(
                f"the cluster's home {self.path} cannot be used ({cause.strerror}: {cause.filename}): make "
                "it writable, or choose another folder with --home or CEREBRO_HOME"
            ) from cause

    def _require_own(self) -> None:
        owner = self.path.stat().st_uid
        if owner != os.getuid():
            raise ClusterError(
                f"the cluster's home {self.path} belongs to another user (number {owner}), who could read and change "
                "all that is in it: choose a folder of your own with --home or CEREBRO_HOME"
            )

    def _close(self) -> None:
        """Remove other users' access to the cluster's folders, which hold data, code and tokens."""
        own_folders = (self.store, self.volumes, self.logs, self.notebooks, self.run)
        for folder in (self.store, self.volumes, self.logs, self.run, self.scratch):
            folder.mkdir(exist_ok=True, mode=_PRIVATE)
        # A folder with other content (`~`, or `/srv`) may be readable for others on purpose.
        is_home_alone = all(path in own_folders for path in self.path.iterdir())
        opened = [
            folder
            for folder in (*([self.path] if is_home_alone else []), *own_folders, self.scratch)
            if folder.is_dir() and S_IMODE(folder.stat().st_mode) & _OTHERS_MASK
        ]
        for folder in opened:
            folder.chmod(_PRIVATE)
        if opened:
            note = "" if is_home_alone else f" ({self.path} itself is not changed: other things are in it)"
            logger.warning(
                "open to other users of this machine until now, and closed to them: %s%s",
                ", ".join(map(str, opened)),
                note,
            )

    def token(self) -> str:
        """Return the bearer token of this home's cluster; create it at the first call. Concurrent first calls agree."""
        if not self.token_file.exists():
            import secrets

            aside = self.token_file.with_name(f"token.{os.getpid()}.{secrets.token_hex(4)}")
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
            try:
                os.link(
                    aside, self.token_file
                )  # unlike a rename it never replaces the token of another start
            except FileExistsError:
                pass
            finally:
                aside.unlink()
        return self.token_file.read_text().strip()

    def service_token(self, role: str) -> str:
        """Return the token of one service in users mode. It is derived from `token` but does not reveal it."""
        import hashlib
        import hmac

        return hmac.new(
            self.token().encode(), f"cerebro service {role} 1".encode(), hashlib.sha256
        ).hexdigest()

    @property
    def socket(self) -> Path:
        """The database's socket: in the run folder, or in a temporary folder if that path would be too long."""
        path = self.run / "redis.sock"
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            return path
        import tempfile

        return Path(tempfile.gettempdir()) / f"cerebro-{os.getuid()}-{self.key}" / "redis.sock"

    def prepare_socket(self) -> Path:
        """Create the socket's folder if it is not the run folder. Return the socket's path.

        Raises:
            ClusterError: another user created the folder.
        """
        folder = self.socket.parent
        try:
            folder.mkdir(mode=_PRIVATE, exist_ok=True)
            found = folder.lstat()
        except OSError as cause:
            raise ClusterError(f"the folder of the database's socket cannot be made: {cause}") from cause
        if not (S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and found.st_mode & 0o077 == 0):
            raise ClusterError(
                f"{folder} is to hold the database's socket, but another user made it: remove it, or choose "
                "a home with a shorter path"
            )
        return self.socket

    def take_lock(self) -> int | None:
        """Lock the home against other supervisors and cleaners. Return `None` if it is locked.

        The lock lasts until the returned descriptor is closed, or the process ends in any way.
        """
        descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def read(self) -> ClusterInfo | None:
        """Read the last record of a running or ended cluster; `None` if there is no readable record."""
        try:
            return ClusterInfo.from_json(self.record.read_text())
        except (OSError, ValueError):
            return None

    def write(self, info: ClusterInfo) -> None:
        """Replace the record. Only the supervisor, which holds the lock, calls this."""
        aside = self.record.with_suffix(".aside")
        aside.write_text(info.to_json())
        aside.replace(self.record)


def find_running(home: ClusterHome) -> ClusterInfo | None:
    """Return the running cluster at `home` in any state, or `None`."""
    info = home.read()
    return info if info is not None and is_alive(info.supervisor) else None
