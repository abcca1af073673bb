"""Access to files on the cluster's volumes, mounted or downloaded.

`cerebro.client.results` reads checkpoints, predictions and failed rows through `Files`. Inside the cluster the volumes
are mounted. Elsewhere the dispatcher serves files, which are downloaded to a cache folder, completely or not at all.
Checksums of checkpoints are verified. Only the cache folder is written, and only damaged copies are deleted from it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import urllib3

from cerebro import errors
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.files.base_file import BasedFile, opened
from cerebro.data.files.durable import BLOCK_BYTES, DurableFile, Written, checksum, fill
from cerebro.runtime.volumes import Volumes
from cerebro.runtime.web import proxies

_CHUNK_BYTES = 128 << 10
"""Size of a download chunk; an incomplete chunk is requested again after a broken connection."""
_TIMEOUT = urllib3.Timeout(connect=5.0, read=30.0)
_PAUSE_S = 0.5
_OK, _PARTIAL, _UNAUTHORIZED, _NOT_FOUND, _CORRUPT = 200, 206, 401, 404, 422


class Files(Protocol):
    """Result files as paths on this machine."""

    def checkpoints(self, reference: CheckpointRef) -> Path:
        """Return the folder below which `reference.name` is the checkpoint."""
        ...

    def merged(self, reference: CheckpointRef) -> Path:
        """Return the checkpoint as one file, including frozen weights."""
        ...

    def shared(self, name: str) -> Path:
        """Return the path of a file of the shared volume."""
        ...


class MountedFiles:
    """Files on mounted volumes.

    Args:
        volumes: mount points.
        cache: folder for merged checkpoints. Default: the user's cache folder.
    """

    def __init__(self, volumes: Volumes, cache: Path | None = None) -> None:
        self._volumes, self._cache = volumes, cache

    def checkpoints(self, reference: CheckpointRef) -> Path:
        """Return the folder of all checkpoints; loading verifies the checksum."""
        return self._volumes.checkpoints

    def merged(self, reference: CheckpointRef) -> Path:
        """Return the file, or a cached copy that includes its frozen weights.

        Raises:
            CheckpointCorruptError: the file cannot be read or does not match its checksum.
            StorageFullError, OSError: the copy cannot be written.
        """
        path = self._volumes.checkpoint(reference.name)
        if not path.exists():
            return path
        with _readable(path):
            file = opened(path)
        with file:
            if not isinstance(file, BasedFile):
                return path
            # The checksum is part of the path, because another cluster may have a checkpoint with this name.
            name = f"{reference.checksum.replace(':', '-')}/{reference.name}"
            copy = _below((self._cache or cache_folder(os.environ)) / "merged", name)
            if not _is_complete(copy, reference):
                _require_unchanged(reference, _copy(file, path, copy), copy)
            return copy

    def shared(self, name: str) -> Path:
        """Return the path of a file of the shared volume.

        Raises:
            NotFoundError: the file is not here; the message explains how to mount or fetch it.
        """
        path = self._volumes.shared / name
        if not path.exists():
            raise errors.NotFoundError(
                f"{path} is not on this machine: set CEREBRO_VOLUMES to the mount point of the cluster's volumes, or "
                "connect to the address of the dispatcher, which serves files, instead of kvs_api's"
            )
        return path


class FetchedFiles:
    """Files downloaded from a dispatcher into one folder per cluster. Nothing is deleted from it.

    Args:
        address: address of the dispatcher's API, such as ``https://cerebro.example.org/api``.
        token: access token.
        cache: cache folder of all clusters.
        ca_file: certificates to trust instead of the system's.
        timeout_s: maximum time without data.
    """

    def __init__(
        self, address: str, token: str, cache: Path, *, ca_file: str | None = None, timeout_s: float = 60.0
    ) -> None:
        self._address, self._timeout_s = address, timeout_s
        self._folder = cache / hashlib.sha256(address.encode()).hexdigest()[:16]
        self._http = proxies.pool(
            address,
            headers={"Authorization": f"Bearer {token}"},
            retries=False,
            timeout=_TIMEOUT,
            ca_certs=ca_file,
        )

    def checkpoints(self, reference: CheckpointRef) -> Path:
        """Download a checkpoint if necessary, and return its folder. The checksum is always verified.

        Raises:
            CheckpointCorruptError: the checkpoint does not match its checksum or cannot be read.
            NotFoundError, UnauthorizedError, StoreUnavailableError: the download failed.
        """
        root = self._folder / "checkpoints"
        path = _below(root, reference.name)
        if not _is_complete(path, reference):
            _require_unchanged(reference, self._fetch("checkpoints", reference.name, path), path)
        return root

    def merged(self, reference: CheckpointRef) -> Path:
        """Return the downloaded file, which includes frozen weights. Raises as `checkpoints`."""
        return self.checkpoints(reference) / reference.name

    def shared(self, name: str) -> Path:
        """Download a file of the shared volume. Never cached, because file names are reused.

        Raises:
            NotFoundError, UnauthorizedError, StoreUnavailableError: the download failed.
        """
        path = _below(self._folder / "shared", name)
        self._fetch("shared", name, path)
        return path

    def _fetch(self, volume: str, name: str, path: Path) -> Written:
        url = f"{self._address}/volumes/{volume}/{quote(name)}"
        transfer = _Transfer(path)
        deadline = time.monotonic() + self._timeout_s
        try:
            while True:
                num_received = transfer.num_bytes
                headers = {**self._http.headers, **transfer.headers()}
                try:
                    return transfer.take(
                        self._http.request("GET", url, headers=headers, preload_content=False)
                    )
                except (urllib3.exceptions.HTTPError, errors.StoreUnavailableError) as cause:
                    if transfer.num_bytes > num_received:
                        deadline = time.monotonic() + self._timeout_s
                    if time.monotonic() > deadline:
                        raise errors.StoreUnavailableError(
                            f"{url} sent no data for {self._timeout_s:g} s, after {transfer.num_bytes:,} bytes: {cause}"
                        ) from cause
                    time.sleep(_PAUSE_S)
        finally:
            transfer.discard()


class _Transfer:
    """Download of one file, over several connections if necessary."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = DurableFile(path)
        self._etag = ""

    @property
    def num_bytes(self) -> int:
        """Received bytes."""
        return self._file.tell()

    def headers(self) -> dict[str, str]:
        """Request the remaining bytes, provided that the file is unchanged."""
        return {"Range": f"bytes={self.num_bytes}-", "If-Range": self._etag} if self.num_bytes else {}

    def take(self, answer: urllib3.BaseHTTPResponse) -> Written:
        """Write the response, and commit the file when it is complete."""
        try:
            if answer.status not in (_OK, _PARTIAL):
                raise _refusal(answer.status, answer.read(1000))
            if answer.status == _OK and self.num_bytes:
                self._file.discard()
                self._file = DurableFile(self._path)
            self._etag = answer.headers.get("ETag", "")
            for chunk in answer.stream(_CHUNK_BYTES):
                self._file.write(chunk)
        finally:
            answer.close()
        return self._file.commit()

    def discard(self) -> None:
        self._file.discard()


def _is_complete(path: Path, reference: CheckpointRef) -> bool:
    expected = Written(num_bytes=reference.size, checksum=reference.checksum)
    return path.exists() and path.stat().st_size == expected.num_bytes and checksum(path) == expected


def _require_unchanged(reference: CheckpointRef, copy: Written, path: Path) -> None:
    """Delete a copy that differs from the saved checkpoint, and raise."""
    if (copy.checksum, copy.num_bytes) != (reference.checksum, reference.size):
        path.unlink()
        raise errors.CheckpointCorruptError(
            f"checkpoint {reference.name} has checksum {copy.checksum} over {copy.num_bytes} bytes, expected "
            f"{reference.checksum} over {reference.size}: it was damaged after it was written"
        )


def _copy(file: BasedFile, path: Path, target: Path) -> Written:
    copy, buffer = DurableFile(target), memoryview(bytearray(BLOCK_BYTES))
    try:
        while True:
            with _readable(path):
                block = fill(file, buffer)
            if not block:
                return copy.commit()
            copy.write(block)
    finally:
        copy.discard()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Name the checkpoint in read errors."""
    try:
        yield
    except OSError as cause:
        raise errors.CheckpointCorruptError(f"checkpoint {path} cannot be read: {cause.strerror}") from cause


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return ``CEREBRO_CACHE``, or ``cerebro`` in the user's cache folder."""
    folder = environment.get("CEREBRO_CACHE")
    if folder:
        return Path(folder).expanduser()
    if caches := environment.get("XDG_CACHE_HOME"):
        return Path(caches) / "cerebro"
    try:
        return Path.home() / ".cache" / "cerebro"
    except RuntimeError as error:
        raise errors.ClusterError(
            f"no cache folder: user id {os.getuid()} has neither a name nor HOME. Set HOME or CEREBRO_CACHE"
        ) from error


def _below(root: Path, name: str) -> Path:
    path = root / name
    if ".." in path.parts or not path.is_relative_to(root):
        raise errors.BadRequestError(
            f"the cluster sent the file name {name!r}, which is not a path on a volume"
        )
    return path


def _refusal(status: int, content: bytes) -> errors.CerebroError:
    text = content.decode(errors="replace")
    if status == _NOT_FOUND:
        return errors.NotFoundError(f"the cluster has no such file: {text}")
    if status == _UNAUTHORIZED:
        return errors.UnauthorizedError(f"the cluster refuses the token: {text}")
    if status == _CORRUPT:
        return errors.CheckpointCorruptError(f"the cluster cannot read the checkpoint: {text}")
    return errors.StoreUnavailableError(f"HTTP {status}: {text}")
