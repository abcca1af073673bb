"""A dispatcher and a kvs_api, both served over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from cerebro.runtime.web.serving import Threads, WebServer
from cerebro.runtime.web.wsgi import WsgiOnAsgi
from dispatcher.app import create_app
from dispatcher.settings import Capacity, Settings
from tests.dispatcher.serving import end, start
from tests.kvs_api.real import TOKEN, Service
from tests.waiting import HANG_S

BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Served:
    """A served dispatcher with a store and volumes in a folder."""

    def __init__(self, server: str, folder: Path, *, blocked_reads: int = 4, sent_files: int = 2) -> None:
        self.volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(folder)})
        for root in (self.volumes.shared, self.volumes.checkpoints, self.volumes.metrics, self.volumes.logs):
            root.mkdir(parents=True, exist_ok=True)
        settings = Settings(
            host="127.0.0.1",
            port=0,
            server=server,
            token=TOKEN,
            volumes=self.volumes,
            capacity=Capacity(
                threads=8,
                forwarded_calls=blocked_reads + 1,
                blocked_reads=blocked_reads,
                sent_files=sent_files,
            ),
            retry_for_s=1.0,
        )
        app = create_app(settings, KvsClient(server, TOKEN, retry_for_s=1.0))
        threads = Threads(8)
        self._web = WebServer(WsgiOnAsgi(app, threads), host="127.0.0.1", threads=threads)
        self._loop = start(self._web)
        self.address = f"http://127.0.0.1:{self._web.port}"

    def client(self) -> KvsClient:
        """Make a store client that goes through the gateway."""
        return KvsClient(f"{self.address}/api", TOKEN, retry_for_s=20.0)

    def ask(
        self, method: str, path: str, *, headers: dict[str, str] = BEARER, body: bytes | None = None
    ) -> urllib3.BaseHTTPResponse:
        """Send a request with the path unchanged."""
        parts = urllib3.util.parse_url(self.address)
        with urllib3.HTTPConnectionPool(parts.host or "", parts.port, timeout=HANG_S) as pool:
            return pool.urlopen(method, path, body=body, headers=headers, retries=False, redirect=False)

    def close(self) -> None:
        """Stop serving."""
        end(self._web, self._loop)


@pytest.fixture
def served(service: Service, tmp_path: Path) -> Iterator[Served]:
    served = Served(service.address, tmp_path / "volumes")
    yield served
    served.close()
