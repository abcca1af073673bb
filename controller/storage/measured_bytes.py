"""Bytes of experiments' checkpoints and predictions, measured for quotas.

The source is file sizes, because a log shows written files, which pruning and deletion remove.
Level-triggered, in its own thread, without leadership: two controllers get the same result. Each pass
measures experiments with open runs, and as many of the others as time permits, in rotation.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cerebro.contract.base import Name
from cerebro.errors import CerebroError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes

log = logging.getLogger(__name__)

_NAME = TypeAdapter(Name)
MAX_MEASURED = 5_000
"""Maximum experiments reported in one pass."""
LOOK_S = 30.0
"""Minimum seconds between two passes."""
_PAUSES = 20
"""Pause after a pass, as a multiple of its duration."""
BUSY_S = 2.0
"""Seconds per pass for experiments without open runs, to spare network volumes."""


class MeasuredBytes:
    """Measures in the background.

    Args:
        monotonic: clock for the time limit of a pass.
    """

    def __init__(
        self, kvs: KvsClient, volumes: Volumes, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._kvs, self._volumes, self._monotonic = kvs, volumes, monotonic
        self._last = ""
        """The last measured experiment without open runs."""
        self.stop = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="measured-bytes", daemon=True).start()

    def _run(self) -> None:
        while not self.stop.is_set():
            began = self._monotonic()
            try:
                self.measure()
            except CerebroError as error:
                log.warning("bytes on volumes are not told: %s", error)
            except Exception:
                log.exception("bytes on volumes are not told")
            self.stop.wait(max(LOOK_S, _PAUSES * (self._monotonic() - began)))

    def measure(self) -> None:
        """Measure some experiments and report; does nothing without quotas.

        Raises:
            CerebroError: the store is unavailable.
        """
        known = self._kvs.note_bytes({})
        if known is None:
            return
        busy = {entry.experiment for entry in self._kvs.queued().runs}
        names = {*self._folders(), *known}
        measured = {name: self._bytes(name) for name in sorted(busy)}
        until = self._monotonic() + BUSY_S
        for name in _in_turn(names - busy, self._last):
            if self._monotonic() >= until or len(measured) >= MAX_MEASURED:
                break
            measured[name] = self._bytes(name)
            self._last = name
        if measured:
            self._kvs.note_bytes(measured)

    def _roots(self) -> tuple[Path, Path]:
        return self._volumes.checkpoints, self._volumes.shared / "predictions"

    def _folders(self) -> set[str]:
        """Return experiments with files."""
        found = set[str]()
        for root in self._roots():
            with suppress(OSError), os.scandir(root) as entries:
                found |= {each.name for each in entries if each.is_dir(follow_symlinks=False)}
        return {name for name in found if _is_name(name)}

    def _bytes(self, experiment: str) -> int:
        return sum(folder_bytes(root / experiment) for root in self._roots())


def _is_name(text: str) -> bool:
    """True if it is a valid name of an experiment, unlike ``.trash``."""
    with suppress(ValidationError):
        return bool(_NAME.validate_python(text))
    return False


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; missing and unreadable ones count as 0. Follows no links."""
    total, folders = 0, [str(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
    return total


def _in_turn(names: Iterable[str], last: str) -> list[str]:
    """Sort names, starting after `last`."""
    ordered = sorted(names)
    return [*(name for name in ordered if name > last), *(name for name in ordered if name <= last)]
