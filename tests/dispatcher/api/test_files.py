"""The gateway sends files of the volumes, whole or by range, and nothing outside the volumes."""

from __future__ import annotations

import os
import socket
import threading
from functools import partial
from pathlib import Path

import pytest
import urllib3
from flask import Flask

from cerebro import errors
from cerebro.client.files import FetchedFiles
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.files.base_file import Layout, Range, base_namer
from cerebro.data.files.durable import checksum
from cerebro.data.files.safe_open import open_below
from cerebro.runtime.volumes import Volumes
from dispatcher.api.files import Files
from tests.dispatcher.api.gateways import BEARER, Served, served
from tests.kvs_api.real import TOKEN
from tests.waiting import HANG_S, until

__all__ = ["served"]

CONTENT = os.urandom(3 << 20)


@pytest.fixture
def checkpoint(served: Served) -> CheckpointRef:
    """Write a file as a worker does."""
    path = served.volumes.checkpoints / "one" / "fit-1" / "m00" / "u00000-e001-p0000-a1.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    written = checksum(path)
    name = str(path.relative_to(served.volumes.checkpoints))
    return CheckpointRef(name=name, checksum=written.checksum, size=written.num_bytes)


@pytest.fixture
def fetched(served: Served, tmp_path: Path) -> FetchedFiles:
    return FetchedFiles(f"{served.address}/api", TOKEN, tmp_path / "cache", timeout_s=HANG_S)


@pytest.mark.parametrize("volume", ["checkpoints", "shared", "metrics", "logs"])
def test_a_file_is_sent_with_its_size(served: Served, volume: str) -> None:
    folder = getattr(served.volumes, volume) / "a folder"
    folder.mkdir()
    (folder / "ü?.bin").write_bytes(CONTENT)
    answer = served.ask("GET", f"/api/volumes/{volume}/a%20folder/%C3%BC%3F.bin")
    assert (answer.status, answer.data) == (200, CONTENT)
    assert answer.headers["Content-Length"] == str(len(CONTENT))
    assert answer.headers["Accept-Ranges"] == "bytes"


def test_only_the_requested_range_is_sent(served: Served) -> None:
    """If the file changed, the whole file is sent; a range beyond its end is refused."""
    path = served.volumes.shared / "x"
    path.write_bytes(CONTENT)
    etag = served.ask("HEAD", "/api/volumes/shared/x").headers["ETag"]
    part = {**BEARER, "Range": "bytes=1000000-1000009", "If-Range": etag}
    answer = served.ask("GET", "/api/volumes/shared/x", headers=part)
    assert (answer.status, answer.data) == (206, CONTENT[1_000_000:1_000_010])
    path.write_bytes(CONTENT[::-1] + b"more")
    assert served.ask("GET", "/api/volumes/shared/x", headers=part).status == 200
    beyond = {**BEARER, "Range": "bytes=99999999-"}
    assert served.ask("GET", "/api/volumes/shared/x", headers=beyond).status == 416


def test_every_kind_of_answer_releases_its_slot(served: Served) -> None:
    """Full, partial, HEAD, 304 and refused answers all release their slot, shortly after they are received."""
    (served.volumes.shared / "x").write_bytes(b"content")

    def status_of(method: str, name: str, headers: dict[str, str] = BEARER) -> int | None:
        status = served.ask(method, f"/api/volumes/shared/{name}", headers=headers).status
        return None if status == 503 else status

    etag = served.ask("HEAD", "/api/volumes/shared/x").headers["ETag"]
    for method, extra, status in (
        ("GET", {}, 200),
        ("HEAD", {}, 200),
        ("GET", {"Range": "bytes=0-1"}, 206),
        ("GET", {"Range": "bytes=99-"}, 416),
        ("GET", {"If-None-Match": etag}, 304),
    ):
        for _ in range(4):
            assert until(partial(status_of, method, "x", {**BEARER, **extra}), "a free slot") == status
    for _ in range(4):
        assert until(partial(status_of, "GET", "absent"), "a free slot") == 404


@pytest.mark.parametrize("path", [
    "shared/../token", "shared/%2e%2e/token", "shared/..%2ftoken", "shared/a/../../token", "shared/a/%2e%2e/x",
    "shared//etc/passwd", "shared/%2fetc/passwd", "shared/./x", "shared/x/", "shared/x%00", "shared/a", "shared/",
    "shared", "shared/link", "shared/linked/passwd", "shared/inside", "shared/pipe", "shared/x/y",
    "shards/secret", "code/secret", "../token", "%2e%2e/token", "nonsense/x", "shared/" + "a" * 300,
])  # fmt: skip
def test_other_files_are_not_sent(served: Served, path: str) -> None:
    """Parent paths, links, folders, pipes and other volumes are refused."""
    shared = served.volumes.shared
    (shared.parent / "token").write_text("secret")
    for volume in ("shards", "code"):
        (shared.parent / volume).mkdir()
        (shared.parent / volume / "secret").write_text("secret")
    (shared / "a").mkdir()
    (shared / "x").write_text("content")
    (shared / "link").symlink_to("/etc/passwd")
    (shared / "linked").symlink_to("/etc")
    (shared / "inside").symlink_to(shared / "x")
    os.mkfifo(shared / "pipe")
    answer = served.ask("GET", f"/api/volumes/{path}")
    assert answer.status == 404
    assert b"secret" not in answer.data
    assert b"root:" not in answer.data


def test_no_path_leaves_the_root(tmp_path: Path) -> None:
    """Also when a front server does not normalise paths."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").touch()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("../secret", "..", ".", "", "/", f"{tmp_path}/secret", "a/../../secret", "\0"):
        with pytest.raises(OSError):
            open_below(root, path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_checkpoint_is_fetched_once(
    served: Served, checkpoint: CheckpointRef, fetched: FetchedFiles
) -> None:
    """The second read uses the cache, also without a cluster. A damaged cache entry is downloaded again."""
    path = fetched.checkpoints(checkpoint) / checkpoint.name
    assert path.read_bytes() == CONTENT
    (served.volumes.checkpoints / checkpoint.name).rename(served.volumes.checkpoints / "away")
    assert (fetched.checkpoints(checkpoint) / checkpoint.name).stat().st_mtime == path.stat().st_mtime
    path.write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(errors.NotFoundError):
        fetched.checkpoints(checkpoint)


class Wire:
    """A proxy that closes the connection after one MiB of each answer."""

    def __init__(self, address: str) -> None:
        parts = urllib3.util.parse_url(address)
        self._there = (parts.host or "", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with ours, socket.create_connection(self._there) as theirs:
                theirs.sendall(ours.recv(1 << 16))
                left = 1 << 20
                while left > 0 and (piece := theirs.recv(min(left, 1 << 16))):
                    ours.sendall(piece)
                    left -= len(piece)

    def close(self) -> None:
        """Stop the proxy."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.mark.slow
def test_an_interrupted_transfer_resumes(served: Served, checkpoint: CheckpointRef, tmp_path: Path) -> None:
    """The client requests the missing range instead of starting over."""
    wire = Wire(served.address)
    try:
        files = FetchedFiles(f"{wire.address}/api", TOKEN, tmp_path / "cache")
        assert (files.checkpoints(checkpoint) / checkpoint.name).read_bytes() == CONTENT
        assert 4 <= wire.connections <= 5
    finally:
        wire.close()
    assert [path for path in (tmp_path / "cache").rglob(".*") if path.is_file()] == []


def test_a_stalled_transfer_times_out(checkpoint: CheckpointRef, tmp_path: Path) -> None:
    """The error names the bytes received, and no partial file remains."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}/api"
        files = FetchedFiles(address, TOKEN, tmp_path / "cache", timeout_s=0.1)
        with pytest.raises(errors.StoreUnavailableError, match=r"sent no data for .* after 0 bytes"):
            files.checkpoints(checkpoint)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_a_damaged_checkpoint_is_not_kept(
    served: Served, checkpoint: CheckpointRef, fetched: FetchedFiles
) -> None:
    """The error names both checksums."""
    (served.volumes.checkpoints / checkpoint.name).write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(errors.CheckpointCorruptError, match=f"expected {checkpoint.checksum}"):
        fetched.checkpoints(checkpoint)
    (served.volumes.checkpoints / checkpoint.name).write_bytes(CONTENT)
    assert (fetched.checkpoints(checkpoint) / checkpoint.name).read_bytes() == CONTENT


def based(served: Served) -> tuple[CheckpointRef, bytes, Path]:
    """Write a checkpoint with a separate frozen-weights file."""
    folder = served.volumes.checkpoints / "one" / "fit-1" / "m00"
    folder.mkdir(parents=True, exist_ok=True)
    part = CONTENT[1 << 20 : 2 << 20]
    (folder / "aside").write_bytes(part)
    base = folder / base_namer()(checksum(folder / "aside"))
    (folder / "aside").rename(base)
    in_base = Range(start=1 << 20, size=1 << 20, at=0)
    layout = Layout(base=base.name, size=len(CONTENT), ranges=(in_base,))
    path = folder / "u00001-e001-p0000-a1.pt"
    path.write_bytes(CONTENT.replace(part, b"") + layout.encoded())
    (folder / "whole").write_bytes(CONTENT)
    written = checksum(folder / "whole")
    name = str(path.relative_to(served.volumes.checkpoints))
    return CheckpointRef(name=name, checksum=written.checksum, size=written.num_bytes), CONTENT, base


def test_a_checkpoint_with_frozen_weights_is_sent_as_one_file(served: Served, fetched: FetchedFiles) -> None:
    """Also by range and for browsers. Without the frozen-weights file the answer is 404."""
    reference, content, base = based(served)
    path = f"/api/volumes/checkpoints/{reference.name}"
    answer = served.ask("GET", path)
    assert (answer.status, answer.data) == (200, content)
    answer = served.ask("GET", path, headers={**BEARER, "Range": f"bytes={(1 << 20) - 7}-{(2 << 20) + 6}"})
    assert (answer.status, answer.data) == (206, content[(1 << 20) - 7 : (2 << 20) + 7])
    assert fetched.merged(reference).read_bytes() == content
    base.unlink()
    assert served.ask("GET", path).status == 404
    base.symlink_to("/etc/passwd")
    assert served.ask("GET", path).status == 404


def test_a_checkpoint_with_a_damaged_layout_is_an_immediate_error(
    served: Served, fetched: FetchedFiles
) -> None:
    """The client does not retry."""
    reference, _, _ = based(served)
    path = served.volumes.checkpoints / reference.name
    path.write_bytes(path.read_bytes()[1:])
    assert served.ask("GET", f"/api/volumes/checkpoints/{reference.name}").status == 422
    with pytest.raises(errors.CheckpointCorruptError, match="its layout is damaged"):
        fetched.merged(reference)


def test_a_name_outside_the_folder_is_not_written(fetched: FetchedFiles, tmp_path: Path) -> None:
    """The client does not trust file names from a cluster."""
    for name in ("../../escaped", "/etc/escaped", f"{tmp_path}/escaped"):
        with pytest.raises(errors.BadRequestError, match="not a path on a volume"):
            fetched.shared(name)


def test_a_growing_file_is_sent_up_to_its_announced_length(tmp_path: Path) -> None:
    """A log can grow while it is sent. Bytes beyond Content-Length would corrupt the next answer."""
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    volumes.logs.mkdir()
    path = volumes.logs / "x.log"
    path.write_bytes(b"begun")
    with Flask("test").test_request_context("/"):
        response = Files(volumes, 1).view("logs", "x.log")
        with path.open("ab") as file:
            file.write(b", and went on")
        assert response.content_length == 5
        assert b"".join(response.iter_encoded()) == b"begun"
        response.close()
