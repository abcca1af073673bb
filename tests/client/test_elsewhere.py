"""Connecting from outside the cluster: address types, certificates and foreign servers."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from cerebro.client.connection import connect
from cerebro.client.files import MountedFiles
from cerebro.client.visibility import check_outside
from cerebro.contract import SCHEMA_VERSION
from cerebro.contract.records import Locator, Locators
from cerebro.errors import ClusterError, LocatorError, NotFoundError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from tests.certificates import of_this_machine
from tests.dispatcher.api.gateways import Served, served
from tests.http_server import HttpServer
from tests.kvs_api.real import TOKEN, Service

__all__ = ["served"]


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all settings; use an empty cache."""
    for name in ("CEREBRO_SERVER", "CEREBRO_TOKEN", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CEREBRO_CACHE", str(tmp_path / "cache"))


def test_a_dispatcher_is_distinguished_from_a_store(served: Served, service: Service) -> None:
    """A dispatcher serves the store under a path prefix; a store needs none."""
    outside, inside = connect(served.address + "/", TOKEN), connect(service.address, TOKEN)
    assert (outside.is_remote, outside.kvs.address) == (True, f"{served.address}/api")
    assert outside.page == served.address
    assert (inside.is_remote, inside.kvs.address, inside.page) == (False, service.address, "")
    assert isinstance(inside.files, MountedFiles)
    assert outside.kvs.queue() == inside.kvs.queue() == ()


def test_an_unmounted_volume_is_reported_with_two_remedies(tmp_path: Path) -> None:
    """The message names both ways to get the data."""
    files = MountedFiles(Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)}))
    with pytest.raises(
        NotFoundError, match=r"set CEREBRO_VOLUMES .* or connect to the address of the dispatcher"
    ):
        files.shared("predictions/p0.arrow")


# --- locators ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["data/train.csv", "./train.csv", "file://train.csv"])
def test_a_relative_path_is_refused(uri: str) -> None:
    """A relative path refers to this machine; the error names the locator."""
    far = Locator(metadata="s3://bucket/train.csv")
    for locators in (
        Locators(train=Locator(metadata=uri)),
        Locators(train=far, valid=far.model_copy(update={"objects": uri})),
        Locators(train=far, misc=(uri,)),
    ):
        with pytest.raises(
            LocatorError, match=r"train\.csv is a path of this machine, .* elsewhere: use an object"
        ):
            check_outside(locators, "https://cerebro.example.org")


# --- what answers ------------------------------------------------------------------------------------


class Web:
    """A web server with one answer for all requests."""

    def __init__(self, status: int, content: bytes, context: ssl.SSLContext | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = HttpServer(("127.0.0.1", 0), Handler)
        if context:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if context else "http"
        self.address = f"{scheme}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.parametrize(
    ("status", "content"), [(200, b"<html>welcome</html>"), (404, b"nothing"), (308, b""), (200, b'{"x": 1}')]
)
def test_another_web_server_is_reported(status: int, content: bytes) -> None:
    """Immediately, also for a redirect."""
    web = Web(status, content)
    try:
        with pytest.raises(ClusterError, match="answers, but is no Cerebro"):
            connect(web.address, TOKEN)
    finally:
        web.close()


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a store behind TLS, and the certificate that signed its certificate."""
    context, certificate = of_this_machine(tmp_path)
    health = {"status": "ok", "schema_version": SCHEMA_VERSION, "version": "0"}
    web = Web(200, json.dumps(health).encode(), context)
    yield web.address, certificate
    web.close()


@pytest.mark.commands
@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_a_custom_certificate_authority_is_trusted(
    secure: tuple[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the usual environment variables."""
    address, certificate = secure
    monkeypatch.setenv(name, str(certificate))
    ca_file = str(certificate) if name == "REQUESTS_CA_BUNDLE" else None
    assert KvsClient(address, TOKEN, ca_file=ca_file).health().status == "ok"


@pytest.mark.commands
def test_an_unknown_certificate_authority_is_reported_immediately(secure: tuple[str, Path]) -> None:
    """Without retries; the message names a fix."""
    with pytest.raises(ClusterError, match=r"is not trusted .*SSL_CERT_FILE or REQUESTS_CA_BUNDLE"):
        connect(secure[0], TOKEN)
