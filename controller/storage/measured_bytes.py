"""Measures what experiments have on volumes, in checkpoints and predictions, and tells the store, which holds it
against quotas.

By the sizes of files and not by the log: a log tells what was written, while pruning, discarding and deleting go on
beside it. Level-triggered, in a thread of its own, without leadership: two controllers measure the same. Experiments
with open runs are measured at each look; of the others, which change rarely, as many as there is time for, in turns.
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
from cerebro.runtime.kvs import KvsClient
from cerebro.runtime.volumes import Volumes

log = logging.getLogger(__name__)

_NAME = TypeAdapter(Name)
MOST_MEASURED = 5_000
"""Experiments that one look tells of."""
LOOK_S = 30.0
"""Between two looks, at least."""
_PAUSES = 20
"""So many times as long as a look took nothing is looked at."""
BUSY_S = 2.0
"""That a look may take for experiments without open runs: a network volume is not kept busy by it."""


class MeasuredBytes:
    """Measures in the background.

    Args:
        monotonic: the clock by which a look ends.
    """

    def __init__(
        self, kvs: KvsClient, volumes: Volumes, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._kvs, self._volumes, self._monotonic = kvs, volumes, monotonic
        self._last = ""
        """Of the experiments without open runs, the one that was measured last."""
        self.stop = threading.Event()

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="measured-bytes", daemon=True).start()

    def _run(self) -> None:
        while not self.stop.is_set():
            began = self._monotonic()
            try:
                self.look()
            except CerebroError as error:
                log.warning("bytes on volumes are not told: %s", error)
            except Exception:
                log.exception("bytes on volumes are not told")
            self.stop.wait(max(LOOK_S, _PAUSES * (self._monotonic() - began)))

    def look(self) -> None:
        """Measure some experiments, and tell what they have; nothing where there are no quotas.

        Raises:
            CerebroError: the store is away.
        """
        known = self._kvs.note_bytes({})
        if known is None:
            return
        busy = {entry.experiment for entry in self._kvs.queued().runs}
        names = {*self._folders(), *known}
        measured = {name: self._bytes(name) for name in sorted(busy)}
        until = self._monotonic() + BUSY_S
        for name in _in_turn(names - busy, self._last):
            if self._monotonic() >= until or len(measured) >= MOST_MEASURED:
                break
            measured[name] = self._bytes(name)
            self._last = name
        if measured:
            self._kvs.note_bytes(measured)

    def _roots(self) -> tuple[Path, Path]:
        return self._volumes.checkpoints, self._volumes.shared / "predictions"

    def _folders(self) -> set[str]:
        """Experiments that have something."""
        found = set[str]()
        for root in self._roots():
            with suppress(OSError), os.scandir(root) as entries:
                found |= {each.name for each in entries if each.is_dir(follow_symlinks=False)}
        return {name for name in found if _is_name(name)}

    def _bytes(self, experiment: str) -> int:
        return sum(folder_bytes(root / experiment) for root in self._roots())


def _is_name(text: str) -> bool:
    """Whether an experiment may be called so; what is called otherwise, as ``.trash``, is none's."""
    with suppress(ValidationError):
        return bool(_NAME.validate_python(text))
    return False


def folder_bytes(folder: Path) -> int:
    """Sizes of all files beneath a folder; what goes meanwhile, or cannot be read, counts as nothing. No link is
    followed."""
    total, left = 0, [str(folder)]
    while left:
        with suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
    return total


def _in_turn(names: Iterable[str], last: str) -> list[str]:
    """In the order of their names, those behind `last` first."""
    ordered = sorted(names)
    return [*(name for name in ordered if name > last), *(name for name in ordered if name <= last)]
