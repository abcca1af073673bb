"""Measures what lies on the volumes, in the background: a look takes as long as there are files, and no page waits.

Looks begin when somebody asks, at most one a minute; nobody asks, nothing is done.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from cerebro.runtime.background_query import BackgroundQuery
from cerebro.runtime.volumes import Volumes
from dispatcher.cluster.volumes import NAMES, Measured, Space

_log = logging.getLogger(__name__)

FRESH_S = 60.0
"""A look is used for so long before there is another."""
MOST_FILES = 2_000_000
"""Files that one look counts: about a minute on a disk of its own."""

_TRASH = ".trash"
"""Where what is deleted lies until it is removed, on each volume."""
_FOLDERS: tuple[tuple[str, str, str], ...] = (
    ("checkpoints", "*", "experiment"),
    ("metrics", "tensorboard/*", "experiment"),
    ("logs", "tasks/*", "experiment"),
    ("shared", "predictions/*", "experiment"),
    ("shared", "datasets/*", "dataset"),
    ("shards", "datasets/*", "dataset"),
    ("shards", "*/datasets/*", "dataset"),
    ("shards", "downloads", "downloads"),
    ("shards", "*/downloads", "downloads"),
)
"""(volume, where, what it is), by `cerebro.runtime.volumes`. On one machine the shard volumes lie side by side."""


class Disks:
    """The newest look at the volumes. Safe for several threads; one looks at a time."""

    def __init__(self, volumes: Volumes, clock: Callable[[], float]) -> None:
        self._roots = {name: Path(getattr(volumes, name)) for name in NAMES}
        self._clock = clock
        self._lock = threading.Lock()
        self._query = BackgroundQuery("volumes", self._look)
        self._asked = 0
        self._measured: Measured | None = None

    def newest(self) -> tuple[Measured | None, bool]:
        """The newest look, and whether another one is under way; begins one if it is old. Never waits."""
        with self._lock:
            answered, ended = self._query.newest()
            known = self._measured  # a look that begins now may have ended before the answer is given
            if answered == self._asked and self._clock() - (ended or float("-inf")) > FRESH_S:
                self._asked = self._query.ask()
            return known, answered < self._asked

    def wait(self, timeout_s: float = FRESH_S) -> None:
        """Until the look that is under way has ended."""
        self._query.wait(self._asked, timeout_s)

    def _look(self) -> float:
        """When it ended, whatever came of it: not every poll is to begin another one."""
        try:
            self._measured = measure(self._roots, self._clock)
        except Exception:  # noqa: BLE001 - whatever it is: the next look would meet it at once, without end
            _log.exception("volumes cannot be measured")
        return self._clock()


def measure(roots: dict[str, Path], clock: Callable[[], float]) -> Measured:
    """Look at all volumes, following no link and leaving none of their file systems."""
    began = time.monotonic()
    folders: dict[tuple[str, str, str], int] = defaultdict(int)
    counter = _Counter(MOST_FILES)
    spaces = {name: _space(root) for name, root in roots.items() if name != "shards" or root.is_dir()}
    for name, space in spaces.items():
        if space.problem:
            continue
        patterns = [(where.split("/"), what) for volume, where, what in _FOLDERS if volume == name]
        for path, size in counter.files(roots[name], space.device):
            folders[name, *_owner(path, patterns)] += size
    return Measured(
        time=clock(),
        seconds=time.monotonic() - began,
        spaces=spaces,
        folders=dict(folders),
        is_complete=counter.left > 0,
    )


class _Counter:
    """Walks folders until it has seen `left` files."""

    def __init__(self, left: int) -> None:
        self.left = left

    def files(self, root: Path, device: int) -> Iterator[tuple[tuple[str, ...], int]]:
        """(parts of the path below `root`, bytes on disk) of each file."""
        waiting: list[tuple[str, ...]] = [()]
        while waiting and self.left > 0:
            folder = waiting.pop()
            try:
                with os.scandir(root.joinpath(*folder)) as entries:
                    for entry in entries:
                        self.left -= 1
                        is_folder, found = entry.is_dir(follow_symlinks=False), _found(entry)
                        if found is None:
                            continue
                        if not is_folder:
                            # Blocks, not lengths: what a sparse or tiny file takes.
                            yield (*folder, entry.name), found.st_blocks * 512
                        elif found.st_dev == device:
                            waiting.append((*folder, entry.name))
            except OSError:
                continue  # removed meanwhile, or not ours to read


def _found(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None  # removed meanwhile; its neighbours count


def _owner(path: tuple[str, ...], patterns: list[tuple[list[str], str]]) -> tuple[str, str]:
    if path[0] == _TRASH:
        return "trash", ""
    for pattern, what in patterns:
        if len(path) > len(pattern) and all(
            want in ("*", part) for want, part in zip(pattern, path, strict=False)
        ):
            name = path[len(pattern) - 1] if pattern[-1] == "*" else path[0]
            return what, name
    return "other", path[0] if len(path) > 1 else ""


def _space(root: Path) -> Space:
    try:
        found, status = os.statvfs(root), root.stat()
    except OSError as error:
        return Space(problem=f"not mounted here ({error.strerror})")
    return Space(
        total_bytes=found.f_blocks * found.f_frsize,
        free_bytes=found.f_bavail * found.f_frsize,
        device=status.st_dev,
    )
