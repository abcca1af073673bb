"""The real store for tests: a Valkey server and kvs_api on a free port."""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import redis
import urllib3

from cerebro.local.database import server_command
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.web.serving import ConnectionLimits, Threads, WebServer
from kvs_api.api.app import App
from kvs_api.settings import Settings
from kvs_api.store.store import Store
from tests.dispatcher.serving import end, start
from tests.forking import Forked, Forks
from tests.kvs_api.in_process import wait_for_news
from tests.servers import reserved_port

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "test-token"


class Database:
    """A Valkey server that tests can kill and restart on the same folder.

    A context manager, which kills the server on exit.
    """

    def __init__(self, folder: Path) -> None:
        self._store, self._socket = folder / "store", folder / "socket"
        self._store.mkdir(exist_ok=True)
        self._log = folder / "log"
        self.log_files = folder / "events"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """The server's URL for a Redis client."""
        return f"unix://{self._socket}"

    def start(self) -> None:
        """Start the server and wait until it answers; kill it if it does not."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                server_command(self._store, self._socket), stdout=log, stderr=log
            )
        try:
            with redis.Redis.from_url(self.url) as client:
                while not _answers(client):
                    assert self._process.poll() is None, self._log.read_text()
                    threading.Event().wait(0.01)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """``kill -9`` the server if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def empty(self) -> None:
        """Delete all data; restart the server if a failed test left it dead."""
        if self._process is None:
            self.start()
        with redis.Redis.from_url(self.url) as client:
            client.flushall()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


class Service:
    """A context manager that serves kvs_api over a database in this process."""

    def __init__(
        self,
        database: Database,
        *,
        max_body_bytes: int = 1 << 20,
        limits: ConnectionLimits | None = None,
        **changes: Any,
    ) -> None:
        self.database = database
        options = {
            "token": TOKEN,
            "max_body_bytes": max_body_bytes,
            "log_files": database.log_files,
            **changes,
        }
        self.settings = Settings(host="127.0.0.1", port=0, redis_url=database.url, **options)
        self._store = Store(database.url, log_files=self.settings.log_files)
        threads, limits = Threads(8), limits or ConnectionLimits()
        self._app = App(self.settings, self._store, threads, max_waiting=limits.waiting)
        self._server = WebServer(
            self._app,
            host="127.0.0.1",
            threads=threads,
            limits=limits,
            before_drain=self._app.answer_waiting,
        )
        self.port = self._server.port
        self._loop = start(self._server)
        # Start its thread here, not in the first test that waits.
        wait_for_news(self._store, lambda: self._store._block({"nothing": 0}, 0.01))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, token: str = TOKEN, *, retry_for_s: float = 20.0, timeout_s: float = 20.0) -> KvsClient:
        """Make a client."""
        return KvsClient(self.address, token, retry_for_s=retry_for_s, timeout_s=timeout_s)

    @property
    def waiting(self) -> int:
        """The number of readers that wait for news."""
        return self._store.waiting

    @property
    def connections(self) -> list[Any]:
        """The open connections."""
        return list(self._server.server_state.connections)

    def answer_waiting(self) -> None:
        """Answer waiting requests, as at shutdown."""
        (connection, *_) = self.connections
        connection.loop.call_soon_threadsafe(self._app.answer_waiting)

    def close(self) -> None:
        """Stop serving; may be called twice."""
        end(self._server, self._loop)
        self._store.close()


class Replica:
    """A context manager of kvs_api as a process whose port stays the same over restarts."""

    def __init__(self, database: Database, forks: Forks) -> None:
        self.database, self._forks = database, forks
        self._reserved = ExitStack()
        self.port = self._reserved.enter_context(reserved_port())
        self.processes: list[Forked] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self._reserved.close()

    def start(self, **variables: str) -> Forked:
        """Start the process with more environment variables and wait until it answers."""
        environment = {
            **os.environ,
            "CEREBRO_BIND": f"127.0.0.1:{self.port}",
            "CEREBRO_REDIS_URL": self.database.url,
            "CEREBRO_TOKEN": TOKEN,
            **variables,
        }
        process = self._forks.start([], environment=environment)
        self.processes.append(process)
        self.client().health()
        return process

    @property
    def waiting(self) -> int:
        """The number of readers that wait for news."""
        address = f"http://127.0.0.1:{self.port}/metrics"
        metrics_text = urllib3.request(
            "GET", address, headers={"Authorization": f"Bearer {TOKEN}"}
        ).data.decode()
        (line,) = [
            each for each in metrics_text.splitlines() if each.startswith("cerebro_kvs_api_waiting_readers ")
        ]
        return int(float(line.rpartition(" ")[2]))

    def client(self) -> KvsClient:
        """Make a client that retries for 30 s."""
        return KvsClient(f"http://127.0.0.1:{self.port}", TOKEN, retry_for_s=30.0)
