"""Files with outputs of frozen layers, on the worker's shard volume.

    {shards}/frozen/{dataset}/{key}/   one partition of rows, in the format of shards, for one set of layers
    {shards}/frozen/{dataset}/{key}/measured.json   seconds to compute, write and read it
    {shards}/frozen/{dataset}/{key}.direct   the same for outputs that cost more to store than to compute

`FrozenLayers` asks for entries and computes missing ones. An entry is written aside and renamed, so it is complete or
absent. The least recently used entries go when the cache exceeds its limit. `upkeep.shard_space` removes the folder of
an unused data set. The module knows no models.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cerebro.data.files.durable import verify
from cerebro.data.manifests import Source
from cerebro.data.partitions import PARTITION_FILE, read_manifest
from cerebro.data.shards import write_batches
from cerebro.data.trees import first_leaf
from cerebro.errors import CerebroError, StorageFullError, VolumeError
from cerebro.worker.training.frozen_layers.outputs import num_bytes, to_arrays

log = logging.getLogger(__name__)

_RESERVE = 0.05
"""Fraction of the volume that the cache leaves free."""
_READS = 20
"""Expected number of reads of an entry: models times epochs. Writing counts for each read with this fraction."""
_POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Result of `OutputCache.store`.

    Attributes:
        folder: the entry; `None` if it was not stored.
        warning: why, if the user should know.
    """

    folder: Path | None = None
    warning: str = ""


class OutputCache:
    """Cache of one data set. Several processes of a worker may use it at once.

    Args:
        root: folder of all data sets.
        dataset: the data set.
        limit: maximum bytes of all data sets; 0 for no cache.
        does_pay: returns True if an entry that took these seconds to compute, write and read is worth storing.
    """

    def __init__(
        self,
        root: Path,
        dataset: str,
        limit: int,
        does_pay: Callable[[float, float, float], bool] = lambda compute_s, write_s, read_s: (
            read_s + write_s / _READS < compute_s
        ),
    ) -> None:
        self._root, self._folder, self._limit, self._does_pay = root, root / dataset, limit, does_pay

    def find(self, key: str) -> Path | None:
        """Return the folder of an entry after checking its bytes; `None` if it is absent or damaged."""
        folder = self._folder / key
        if not self._limit:
            return None
        try:
            manifest = read_manifest(folder)
            for shard in manifest.shards:
                verify(folder / shard.file, shard.written)
            os.utime(folder / PARTITION_FILE)
        except (CerebroError, OSError) as error:
            if folder.exists():
                log.warning("stored outputs of frozen layers are damaged and computed again: %s", error)
                shutil.rmtree(folder, ignore_errors=True)
            return None
        return folder

    def is_direct(self, key: str) -> bool:
        """True if storing these outputs costs more than computing them."""
        return not self._limit or self._marker(key).exists()

    @contextmanager
    def writing(self, key: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Wait until no other process computes this entry, and keep others out.

        Args:
            on_wait: called while waiting; may raise.

        Raises:
            OSError: the volume refuses the lock.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = self._folder / f".{key}.lock"
        descriptor = _locked(lock, on_wait)
        try:
            for leftover in self._folder.glob(f".{key}.*.aside"):  # its writer was killed
                shutil.rmtree(leftover, ignore_errors=True)
            yield
        finally:
            with suppress(OSError):
                lock.unlink()
            os.close(descriptor)

    def store(self, key: str, chunks: Iterable[Any], rows: int, label: str) -> Stored:
        """Compute and store an entry. Call it within `writing`.

        Args:
            chunks: outputs of consecutive rows, as trees of tensors; computed while it is iterated.
            rows: number of rows in all chunks.
            label: name of the layers for messages.
        """
        clock = _Clock()
        chunks = clock.timed(chunks)
        first = next(chunks)
        size = num_bytes(first) * rows // len(first_leaf(first))
        if problem := self._make_room(size):
            return Stored(warning=f"{problem}. The outputs of {label} are computed in each sub-epoch instead")
        aside = self._folder / f".{key}.{uuid.uuid4().hex[:8]}.aside"
        began, computed_s = time.perf_counter(), clock.spent_s
        try:
            write_batches(
                aside, map(to_arrays, chain([first], chunks)), rows, Source(fingerprint=key, metadata="")
            )
            aside.rename(self._folder / key)
        except (StorageFullError, VolumeError, OSError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            if isinstance(error.__cause__, FileNotFoundError):
                return Stored()  # the data set is being removed
            return Stored(warning=f"{error}. The outputs of {label} are computed in each sub-epoch instead")
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        written = time.perf_counter()
        folder = self.find(key)
        read_s = time.perf_counter() - written
        write_s = written - began - (clock.spent_s - computed_s)
        does_pay = self._does_pay(clock.spent_s, write_s, read_s)
        log.info(
            "%s: %d rows computed in %.3g s, %.1f MB written in %.3g s and read in %.3g s: %s",
            *(label, rows, clock.spent_s, size / 1e6, write_s, read_s),
            "stored" if does_pay else "computed in each sub-epoch, because storing costs more",
        )
        measured = json.dumps(
            {
                "layers": label,
                "rows": rows,
                "bytes": size,
                "compute_s": clock.spent_s,
                "write_s": write_s,
                "read_s": read_s,
            }
        )
        with suppress(OSError):
            (self._folder / key / "measured.json" if does_pay else self._marker(key)).write_text(measured)
        if not does_pay:
            shutil.rmtree(self._folder / key, ignore_errors=True)
            return Stored()
        return Stored(folder=folder)

    def _marker(self, key: str) -> Path:
        return self._folder / f"{key}.direct"

    def _make_room(self, size: int) -> str:
        """Remove the least recently used entries until `size` bytes fit. Return why they don't fit, or ""."""
        if size > self._limit:
            return f"{size:,} bytes exceed the limit of the cache, {self._limit:,} (CEREBRO_FROZEN_CACHE_MIB)"
        entries = sorted(_entries(self._root))
        used = sum(num for _, num, _ in entries)
        while True:
            disk = shutil.disk_usage(self._folder)
            room = disk.free - disk.total * _RESERVE
            if used + size <= self._limit and size < room:
                return ""
            if not entries or size >= room + used:
                return f"{self._folder} has no room for {size:,} bytes: its volume has {disk.free:,} free"
            _, num, folder = entries.pop(0)
            used -= num
            log.info("removing stored outputs of frozen layers, %s", folder)
            shutil.rmtree(folder, ignore_errors=True)


class _Clock:
    """Adds up the time of a computation that is iterated."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def timed(self, chunks: Iterable[Any]) -> Iterator[Any]:
        remaining = iter(chunks)
        while True:
            began = time.perf_counter()
            chunk = next(remaining, None)
            self.spent_s += time.perf_counter() - began
            if chunk is None:
                return
            yield chunk


def _entries(root: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield time of the latest use, bytes and folder of each entry."""
    for manifest in root.glob(f"*/*/{PARTITION_FILE}"):
        with suppress(OSError):  # removed concurrently
            size = sum(path.stat().st_size for path in manifest.parent.iterdir())
            yield manifest.stat().st_mtime, size, manifest.parent


def _locked(path: Path, on_wait: Callable[[], None]) -> int:
    """Lock a file that its holder removes at the end. Return its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            while not _is_locked(descriptor):
                on_wait()
                time.sleep(_POLL_S)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the former holder removed this file


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
