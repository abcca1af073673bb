"""A dispatcher that is really served, before a real kvs_api, for tests of what programs outside reach through it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
import waitress

from cerebro.runtime.kvs import KvsClient
from cerebro.runtime.volumes import Volumes
from dispatcher.app import create_app
from dispatcher.settings import Settings
from tests.dispatcher.serving import end
from tests.kvs_api.real import TOKEN, Service

BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Served:
    """The dispatcher over a store, on volumes in a folder, served by threads of this process."""

    def __init__(self, server: str, folder: Path, *, blocked_reads: int = 4, sent_files: int = 2) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self.volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(folder)})
        for root in (self.volumes.shared, self.volumes.checkpoints, self.volumes.metrics, self.volumes.logs):
            root.mkdir(parents=True, exist_ok=True)
        settings = Settings(
            host="127.0.0.1",
            port=port,
            server=server,
            token=TOKEN,
            volumes=self.volumes,
            threads=8,
            forwarded_calls=blocked_reads + 1,
            blocked_reads=blocked_reads,
            sent_files=sent_files,
            retry_for_s=1.0,
        )
        app = create_app(settings, KvsClient(server, TOKEN, retry_for_s=1.0))
        self._sockets: dict[int, Any] = {}
        self._web: Any = waitress.create_server(
            app, map=self._sockets, host="127.0.0.1", port=port, threads=8
        )
        self._loop = threading.Thread(target=self._web.run, daemon=True)
        self._loop.start()
        self.address = f"http://127.0.0.1:{port}"

    def client(self) -> KvsClient:
        """The store's client, through the gateway."""
        return KvsClient(f"{self.address}/api", TOKEN, retry_for_s=20.0)

    def ask(
        self, method: str, path: str, *, headers: dict[str, str] = BEARER, body: bytes | None = None
    ) -> urllib3.BaseHTTPResponse:
        """A request as it stands: the path is not made tidy."""
        parts = urllib3.util.parse_url(self.address)
        with urllib3.HTTPConnectionPool(parts.host or "", parts.port, timeout=30.0) as pool:
            return pool.urlopen(method, path, body=body, headers=headers, retries=False, redirect=False)

    def close(self) -> None:
        """Answer no more."""
        end(self._web, self._sockets, self._loop)


@pytest.fixture
def served(service: Service, tmp_path: Path) -> Iterator[Served]:
    made = Served(service.address, tmp_path / "volumes")
    yield made
    made.close()
