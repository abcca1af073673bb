"""Results that are files on the cluster's volumes, as paths on this machine: mounted there, or fetched when asked for.

A notebook in the cluster has the volumes mounted; one elsewhere reaches the dispatcher, which serves them. What is
fetched lies in a cache folder, complete or not at all, and a checkpoint's bytes are checked against its checksum.
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
from cerebro.contract.tasks import CheckpointRef
from cerebro.data.based import BasedFile, opened
from cerebro.data.durable import BLOCK_BYTES, DurableFile, Written, checksum, fill
from cerebro.runtime import proxies
from cerebro.runtime.volumes import Volumes

_PIECE = 128 << 10
"""What of it has come when a connection breaks off is fetched again."""
_TIMEOUT = urllib3.Timeout(connect=5.0, read=30.0)
_PAUSE_S = 0.5
_OK, _PARTIAL, _UNAUTHORIZED, _NOT_FOUND, _CORRUPT = 200, 206, 401, 404, 422


class Files(Protocol):
    """Where results are on this machine."""

    def checkpoints(self, reference: CheckpointRef) -> Path:
        """A folder below which `reference.name` is the checkpoint."""
        ...

    def whole(self, reference: CheckpointRef) -> Path:
        """The checkpoint as one file, which needs no base beside it."""
        ...

    def shared(self, name: str) -> Path:
        """A file of the shared volume."""
        ...


class MountedFiles:
    """Volumes are folders of this machine.

    Args:
        cache: folder for what is put together from several files; as a rule that of the user.
    """

    def __init__(self, volumes: Volumes, cache: Path | None = None) -> None:
        self._volumes, self._cache = volumes, cache

    def checkpoints(self, reference: CheckpointRef) -> Path:
        """The folder of all checkpoints; loading one shows whether it is whole."""
        return self._volumes.checkpoints

    def whole(self, reference: CheckpointRef) -> Path:
        """The file itself; of one with a base a copy, which is made once and checked every time.

        Raises:
            CheckpointCorruptError: it cannot be read, or is not what was saved.
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
            # Other clusters may have a checkpoint of this name.
            name = f"{reference.checksum.replace(':', '-')}/{reference.name}"
            copy = _below((self._cache or cache_folder(os.environ)) / "whole", name)
            if not _is_there(copy, reference):
                _require_saved(reference, _copied(file, path, copy), copy)
            return copy

    def shared(self, name: str) -> Path:
        """Where a file of the shared volume is.

        Raises:
            NotFoundError: it is not there; says what to do where no volume is mounted.
        """
        path = self._volumes.shared / name
        if not path.exists():
            raise errors.NotFoundError(
                f"{path} is not on this machine: set CEREBRO_VOLUMES to the folder where the cluster's volumes are "
                "mounted, or "
                "connect to the dispatcher's address instead of kvs_api's, which serves these files"
            )
        return path


class FetchedFiles:
    """Files are fetched from a dispatcher, into a folder per cluster. Nothing is removed from it.

    Args:
        address: of the dispatcher's API, such as ``https://cerebro.example.org/api``.
        cache: folder for all clusters.
        ca_file: certificates to trust instead of the system's.
        timeout_s: how long a transfer may stand still.
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
        """A folder with the checkpoint; fetched once, checked every time.

        Raises:
            CheckpointCorruptError: what came is not what was saved, or is so damaged that it cannot be sent.
            NotFoundError, UnauthorizedError, StoreUnavailableError: it did not come.
        """
        root = self._folder / "checkpoints"
        path = _below(root, reference.name)
        if not _is_there(path, reference):
            _require_saved(reference, self._fetch("checkpoints", reference.name, path), path)
        return root

    def whole(self, reference: CheckpointRef) -> Path:
        """What was fetched: it comes as one file. Raises as `checkpoints`."""
        return self.checkpoints(reference) / reference.name

    def shared(self, name: str) -> Path:
        """A file of the shared volume on this machine.

        Fetched anew each time, because nothing tells an old file of this name from a new one.

        Raises:
            NotFoundError, UnauthorizedError, StoreUnavailableError: it did not come.
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
                before = transfer.num_bytes
                headers = {**self._http.headers, **transfer.headers()}
                try:
                    return transfer.take(
                        self._http.request("GET", url, headers=headers, preload_content=False)
                    )
                except (urllib3.exceptions.HTTPError, errors.StoreUnavailableError) as cause:
                    if transfer.num_bytes > before:
                        deadline = time.monotonic() + self._timeout_s
                    if time.monotonic() > deadline:
                        raise errors.StoreUnavailableError(
                            f"{url} sent nothing more after {transfer.num_bytes:,} bytes, for {self._timeout_s:g} "
                            f"s: {cause}"
                        ) from cause
                    time.sleep(_PAUSE_S)
        finally:
            transfer.discard()


class _Transfer:
    """One file on its way, over as many connections as it takes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = DurableFile(path)
        self._etag = ""

    @property
    def num_bytes(self) -> int:
        """That have come."""
        return self._file.tell()

    def headers(self) -> dict[str, str]:
        """Ask for the rest, if there is a beginning and the file is still the same."""
        return {"Range": f"bytes={self.num_bytes}-", "If-Range": self._etag} if self.num_bytes else {}

    def take(self, answer: urllib3.BaseHTTPResponse) -> Written:
        """Write what comes; what was written once it is all there."""
        try:
            if answer.status not in (_OK, _PARTIAL):
                raise _refusal(answer.status, answer.read(1000))
            if answer.status == _OK and self.num_bytes:
                self._file.discard()
                self._file = DurableFile(self._path)
            self._etag = answer.headers.get("ETag", "")
            for piece in answer.stream(_PIECE):
                self._file.write(piece)
        finally:
            answer.close()
        return self._file.commit()

    def discard(self) -> None:
        """Leave nothing incomplete."""
        self._file.discard()


def _is_there(path: Path, reference: CheckpointRef) -> bool:
    expected = Written(num_bytes=reference.size, checksum=reference.checksum)
    return path.exists() and path.stat().st_size == expected.num_bytes and checksum(path) == expected


def _require_saved(reference: CheckpointRef, found: Written, path: Path) -> None:
    """Keep a copy only if it is what was saved."""
    if (found.checksum, found.num_bytes) != (reference.checksum, reference.size):
        path.unlink()
        raise errors.CheckpointCorruptError(
            f"checkpoint {reference.name} came with checksum {found.checksum} over {found.num_bytes} bytes, "
            f"expected {reference.checksum} over {reference.size}: it was damaged after it was written"
        )


def _copied(file: BasedFile, path: Path, to: Path) -> Written:
    copy, buffer = DurableFile(to), memoryview(bytearray(BLOCK_BYTES))
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
    """Say of which checkpoint it is that it cannot be read."""
    try:
        yield
    except OSError as cause:
        raise errors.CheckpointCorruptError(f"checkpoint {path} cannot be read: {cause.strerror}") from cause


def cache_folder(environment: Mapping[str, str]) -> Path:
    """``CEREBRO_CACHE``, else ``cerebro`` in the user's cache folder."""
    given = environment.get("CEREBRO_CACHE")
    if given:
        return Path(given).expanduser()
    if caches := environment.get("XDG_CACHE_HOME"):
        return Path(caches) / "cerebro"
    try:
        return Path.home() / ".cache" / "cerebro"
    except RuntimeError as error:
        raise errors.ClusterError(
            f"files have no place: user id {os.getuid()} has neither a name nor HOME; set HOME, or CEREBRO_CACHE"
        ) from error


def _below(root: Path, name: str) -> Path:
    path = root / name
    if ".." in path.parts or not path.is_relative_to(root):
        raise errors.BadRequestError(f"the cluster names a file {name!r}, which is no path on a volume")
    return path


def _refusal(status: int, content: bytes) -> errors.CerebroError:
    said = content.decode(errors="replace")
    if status == _NOT_FOUND:
        return errors.NotFoundError(f"the cluster has no such file: {said}")
    if status == _UNAUTHORIZED:
        return errors.UnauthorizedError(f"the cluster refuses the token: {said}")
    if status == _CORRUPT:
        return errors.CheckpointCorruptError(f"the cluster cannot read the checkpoint: {said}")
    return errors.StoreUnavailableError(f"HTTP {status}: {said}")
