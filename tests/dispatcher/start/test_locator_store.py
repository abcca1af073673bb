"""On a cluster, the page reads only the configured object store."""

from __future__ import annotations

import http.server
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from cerebro.contract.records import Locator, Locators
from cerebro.runtime.volumes import Volumes
from dispatcher.settings import Settings
from dispatcher.start.locator_check import LocatorCheck, LocatorFinding
from tests.data.objects.s3 import BUCKET, put, s3_server
from tests.dispatcher import fakes
from tests.http_server import HttpServer

pytestmark = [pytest.mark.slow, pytest.mark.processes]

KEYS = {"AWS_ACCESS_KEY_ID": "AKIAOFTHEPAGE", "AWS_SECRET_ACCESS_KEY": "secret-of-the-page"}


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """A local S3 server with a table of three rows and two of their objects."""
    image = io.BytesIO()
    Image.new("RGB", (4, 3)).save(image, "PNG")
    with s3_server() as endpoint:
        put("data/train.csv", b"id,file,label\n" + b"".join(b"%d,im%d.png,1\n" % (i, i) for i in range(3)))
        for number in range(2):
            put(f"data/images/im{number}.png", image.getvalue())
        yield endpoint


@contextmanager
def _service(status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """Run another service of the same machine; yield the list of requested paths."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_PUT = do_GET  # noqa: N815 - the names that the base class looks for

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HttpServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        server.server_close()


def _settings(tmp_path: Path, *, has_object_store: bool = True) -> Settings:
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    return fakes.settings(host="0.0.0.0", has_object_store=has_object_store, volumes=volumes)


def _found(settings: Settings, metadata: str, objects: str | None = None) -> tuple[LocatorFinding, ...]:
    return LocatorCheck(settings).check(Locators(train=Locator(metadata=metadata, objects=objects)))


TRAIN, IMAGES = f"s3://{BUCKET}/data/train.csv", f"s3://{BUCKET}/data/images"


def test_the_configured_store_is_checked(store: str, tmp_path: Path) -> None:
    """Columns, first rows, the object column, missing objects, and one object."""
    start_settings = _settings(tmp_path)
    assert not start_settings.is_local
    table, objects = _found(start_settings, TRAIN, IMAGES)
    assert (table.state, table.rows, table.message) == ("fine", 3, "")
    assert table.columns == (("id", "int64"), ("file", "string"), ("label", "int64"))
    assert table.preview[0] == ("0", "im0.png", "1")
    assert (objects.state, objects.column, objects.missing) == ("fine", "file", ("im2.png",))
    assert objects.sample == "im0.png"
    assert objects.image.startswith("data:image/png;base64,")


def test_without_the_option_the_store_is_not_checked(store: str, tmp_path: Path) -> None:
    """Although endpoint and keys are set."""
    (finding,) = _found(_settings(tmp_path, has_object_store=False), TRAIN)
    assert finding.state == "unseen"
    assert "not a public address" in finding.message
    assert "try again" not in finding.message


@pytest.mark.slow
def test_other_services_get_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another port of the same machine, which the environment names as a credential source or endpoint."""
    with _service() as (store, requests), _service() as (other, others):
        monkeypatch.setenv("AWS_ENDPOINT_URL", store)
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", other)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", other)
        for name in KEYS:
            monkeypatch.delenv(name, raising=False)
        (without,) = _found(_settings(tmp_path), TRAIN)
        for name, key in KEYS.items():
            monkeypatch.setenv(name, key)
        monkeypatch.setenv("HTTP_PROXY", other)  # connections would really go there
        (proxied,) = _found(_settings(tmp_path), TRAIN)
        assert (requests, others) == ([], [])
        monkeypatch.delenv("HTTP_PROXY")
        _found(_settings(tmp_path), TRAIN)
        assert (set(requests), others) == ({f"/{BUCKET}/data/train.csv"}, [])
    assert (without.state, proxied.state) == ("unseen", "unseen")
    assert "no AWS credentials" in without.message
    assert "not a public address" in proxied.message


@pytest.mark.slow
def test_the_s3_endpoint_precedes_the_common_endpoint(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3's order; the other endpoint gets no request."""
    with _service() as (other, others):
        monkeypatch.setenv("AWS_ENDPOINT_URL", other)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store)
        (finding,) = _found(_settings(tmp_path), TRAIN)
    assert (finding.state, others) == ("fine", [])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KEYS, "AWS_SESSION_TOKEN"])
def test_messages_contain_no_keys(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A key with a line break cannot be sent, and boto3's error contains it. Page and log must not."""
    for each, key in KEYS.items():
        monkeypatch.setenv(each, key)
    monkeypatch.setenv(name, "a-key-that-is-secret\nX: y")
    (finding,) = _found(_settings(tmp_path), TRAIN)
    said = finding.message + capfd.readouterr().err
    for part in ("a-key-that-is-secret", *KEYS.values()):
        assert part not in said
