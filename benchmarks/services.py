"""The real Redis, kvs_api and controller in a temporary folder, as the local cluster starts them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cerebro.errors import ClusterError
from cerebro.local.home import ClusterHome
from cerebro.local.supervision.ports import HOST, reserve
from cerebro.local.supervision.services import Service, ServiceOptions, services
from cerebro.runtime.isolation.parent_death import with_parent_death_signal

NEEDED = ("redis", "kvs_api", "controller")
_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class ControlPlane:
    """Address of the control plane, and process ids by service."""

    server: str
    page: str
    """Address of the dispatcher, if it runs."""
    token: str
    database: Path
    """Path of its socket."""
    pids: dict[str, int]
    begun: dict[str, float]
    """Service -> start of its process, as `time.monotonic`."""


@contextmanager
def control_plane(folder: Path, needed: Collection[str] = NEEDED) -> Iterator[ControlPlane]:
    """Run the needed services with their files under `folder`; they end with the context.

    Raises:
        ClusterError: kvs_api does not answer.
    """
    home = ClusterHome(folder)
    home.create()
    options = ServiceOptions(workers=0, tensorboard=False)
    reserved = reserve(options.listening, previous={}, seed=home.key)
    ports = {name: port.number for name, port in reserved.items()}
    socket = home.run / "redis.sock"
    found = services(options, home, ports, socket, os.environ)
    server = f"http://{HOST}:{ports['kvs_api']}"
    with ExitStack() as stack:
        pids, begun = {}, {}
        for service in found:
            if service.name in needed:
                begun[service.name] = time.monotonic()
                pids[service.name] = stack.enter_context(_running(service, home)).pid
                _wait_until_ready(service, home)
        page = f"http://{HOST}:{ports['dispatcher']}"
        yield ControlPlane(
            server=server, page=page, token=home.token(), database=socket, pids=pids, begun=begun
        )


@contextmanager
def _running(service: Service, home: ClusterHome) -> Iterator[subprocess.Popen[bytes]]:
    with home.log(service.name).open("ab") as log:
        process = subprocess.Popen(
            with_parent_death_signal(service.command),
            env=dict(service.environment),
            stdout=log,
            stderr=log,
            cwd=home.path,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(service: Service, home: ClusterHome) -> None:
    began = time.monotonic()
    while not service.ready():
        if time.monotonic() > began + _TIMEOUT_S:
            raise ClusterError(f"{service.name} is not ready after {_TIMEOUT_S:g} s: see {home.logs}")
        time.sleep(0.05)
