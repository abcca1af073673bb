"""The control plane alone: Redis, kvs_api and the controller, as the local cluster starts them, in a "
"folder of its own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cerebro.errors import ClusterError
from cerebro.kvs import KvsClient
from cerebro.local.home import ClusterHome
from cerebro.local.ports import HOST, reserve
from cerebro.local.services import Plan, Service, services
from cerebro.tether import tethered

_NEEDED = ("redis", "kvs_api", "controller")
_PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class ControlPlane:
    """Where it answers, and the process ids by service."""

    server: str
    token: str
    pids: dict[str, int]


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Run the control plane with its files under `folder`; ends it with the context.

    Raises:
        ClusterError: kvs_api does not answer.
    """
    home = ClusterHome(folder)
    home.create()
    reserved = reserve(("kvs_api", "dispatcher"), previous={}, seed=home.key)
    ports = {name: port.number for name, port in reserved.items()}
    socket = home.run / "redis.sock"
    found = services(Plan(workers=0, tensorboard=False), home, ports, socket, os.environ)
    server = f"http://{HOST}:{ports['kvs_api']}"
    with ExitStack() as stack:
        pids = {}
        for service in found:
            if service.name in _NEEDED:
                pids[service.name] = stack.enter_context(_running(service, home)).pid
            if service.name == "kvs_api":
                _wait_until_ready(server, home)
        yield ControlPlane(server=server, token=home.token(), pids=pids)


@contextmanager
def _running(service: Service, home: ClusterHome) -> Iterator[subprocess.Popen[bytes]]:
    with home.log(service.name).open("ab") as log:
        process = subprocess.Popen(
            tethered(service.command), env=dict(service.environment), stdout=log, stderr=log, cwd=home.path
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(server: str, home: ClusterHome) -> None:
    kvs = KvsClient(server, home.token(), patience_s=_PATIENCE_S)
    deadline = time.monotonic() + _PATIENCE_S
    while kvs.health().status != "ok":
        if time.monotonic() > deadline:
            raise ClusterError(f"kvs_api is not ready after {_PATIENCE_S:g} s: see {home.logs}")
        time.sleep(0.05)
    kvs.close()
