"""Copies of registered model versions, which outlive their experiments.

Level-triggered: the store lists versions with unfinished copies. A copy is written to a temporary name,
compared with the log's checksum and renamed. Two controllers copy the same bytes, and the store accepts the
first result, so no leadership is needed. A failed copy removes only its temporary file: the final name may be
another controller's finished copy.

It has its own thread, because a checkpoint may have gigabytes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

from cerebro.contract.stored.registry import ModelVersion, VersionOutcome
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.files.base_file import BasedFile, UnreadableLayoutError, joined
from cerebro.data.files.durable import BLOCK_BYTES, DurableFile, Written, discard_stale, fill
from cerebro.data.files.safe_open import ABSENT, open_below
from cerebro.errors import CerebroError, RetryableError, StorageFullError, VolumeError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes

log = logging.getLogger(__name__)

_POLL_S = 1.0
"""Seconds between two checks for versions to copy."""
_TIDY_S = 3600.0
"""Seconds between two cleanups, and without writes after which a copy is abandoned."""


class Registering:
    """Copies in the background.

    Args:
        clock: seconds since the epoch. monotonic: seconds that never go back.
    """

    def __init__(
        self,
        kvs: KvsClient,
        volumes: Volumes,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kvs, self._volumes, self._clock, self._monotonic = kvs, volumes, clock, monotonic
        self._tidied = -math.inf
        self.stop = threading.Event()

    def start(self) -> None:
        """Start the thread. It first finishes the work of an earlier process."""
        threading.Thread(target=self._run, name="registering", daemon=True).start()

    def _run(self) -> None:
        while not self.stop.is_set():
            try:
                self.copy_due()
            except CerebroError as error:
                log.warning("registered models wait: %s", error)
            except Exception:
                log.exception("registered models wait")
            self.stop.wait(_POLL_S)

    def copy_due(self) -> None:
        """Copy the versions that are due.

        Raises:
            RetryableError: the store is unavailable.
        """
        for model in self._kvs.registry(copying=True):
            for version in model.versions:
                if version.state == "copying" and self._is_still_copying(version):
                    self._settle(version)
        if self._monotonic() >= self._tidied + _TIDY_S:
            self._tidied = self._monotonic()
            self.tidy()

    def tidy(self) -> None:
        """Remove files of killed copies. Another controller's running copy has recent writes and stays."""
        abandoned_s = self._clock() - _TIDY_S
        for folder in self._volumes.registry.glob("*/v*"):
            for path in discard_stale(folder, abandoned_s):
                log.info("removed %s, which a copy that was cut short had left", path)

    def _is_still_copying(self, version: ModelVersion) -> bool:
        """True if the version still needs a copy: earlier copies take long, and another controller may have
        made it.
        """
        waiting = (found for model in self._kvs.registry(copying=True) for found in model.versions)
        return any((found.name, found.version) == (version.name, version.version) for found in waiting)

    def _settle(self, version: ModelVersion) -> None:
        try:
            outcome = self.copy(version)
        except RetryableError as error:
            log.warning("version %d of %s waits: %s", version.version, version.name, error)
            return
        settled = self._kvs.settle_version(version.name, outcome)
        log.info("version %d of %s is %s", version.version, version.name, settled.state)

    def copy(self, version: ModelVersion) -> VersionOutcome:
        """Copy a version's files and return the result.

        Raises:
            VolumeError: a volume does not answer; try again.
        """
        copies: list[CheckpointRef] = []
        source, volumes = version.source, self._volumes
        files = [(source.checkpoint, volumes.checkpoints, "model.pt")]
        if source.fitted is not None:
            reference = CheckpointRef.model_validate(source.fitted.model_dump())
            files.append((reference, volumes.shared, "fitted.pickle"))
        for reference, root, file in files:
            name = volumes.registered(version.name, version.version, file)
            problem = _copied(root, reference, volumes.checkpoint(name))
            if problem:
                return VersionOutcome(version=version.version, error=problem)
            copies.append(reference.model_copy(update={"name": name}))
        checkpoint, *fitted = copies
        return VersionOutcome(
            version=version.version, checkpoint=checkpoint, fitted=fitted[0] if fitted else None
        )


class _DamagedError(Exception):
    """The copy differs from the saved file."""


def _copied(root: Path, reference: CheckpointRef, to: Path) -> str:
    """Copy one file; return an error, or "" for a verified copy."""
    again = "register the model once more after it was trained again, or bring the file back from a backup"
    try:
        source = _open_assembled(root, reference.name)
    except UnreadableLayoutError:
        return f"{reference.name} is damaged: {again}"
    except OSError as error:
        if error.errno in ABSENT:
            return f"{reference.name} is gone: {again}"
        raise _away(root, error) from error
    copy: DurableFile | None = None
    try:
        with source:
            copy = DurableFile(to)
            _pour(source, copy.write, root)
        copy.commit(named=lambda written: _checked(written, reference, to.name))
    except _DamagedError as damaged:
        return f"{reference.name} has {damaged}: it was damaged after it was written. To go on, {again}"
    except StorageFullError as error:
        return f"there is no room for its {reference.size:,} bytes: {error}. Make room, and register it once more"
    finally:
        if copy is not None:
            copy.discard()
    return ""


def _checked(written: Written, reference: CheckpointRef, name: str) -> str:
    """Return the final name of a verified copy; called before the rename, so a damaged one never gets it."""
    if (written.checksum, written.num_bytes) != (reference.checksum, reference.size):
        raise _DamagedError(
            f"checksum {written.checksum} over {written.num_bytes:,} bytes, expected {reference.checksum} over "
            f"{reference.size:,}"
        )
    return name


def _open_assembled(root: Path, name: str) -> BufferedReader | BasedFile:
    """Open an assembled file, following no links, because user code writes to these volumes.

    Raises:
        OSError: the file cannot be opened.
    """
    folder = name.rpartition("/")[0]
    file = open_below(root, name)
    return joined(file, lambda base: open_below(root, f"{folder}/{base}")) or file


def _pour(source: BufferedReader | BasedFile, write: Callable[[memoryview], int], root: Path) -> None:
    buffer = memoryview(bytearray(BLOCK_BYTES))
    while True:
        try:
            block = fill(source, buffer)
        except OSError as error:
            raise _away(root, error) from error
        if not block:
            return
        write(block)


def _away(root: Path, error: OSError) -> VolumeError:
    return VolumeError(
        f"{root} does not let a file be read ({error.strerror}): check whether the volume works"
    )
