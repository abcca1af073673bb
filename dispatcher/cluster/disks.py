"""Disk use of the volumes, measured in the background. Deletes nothing.

The cluster page and the confirmation of a deletion read the newest measurement. A measurement takes long if there are
many files, and no page waits for it. It starts when a page is requested, at most once a minute, and stops after 2
million files. `dispatcher.cluster.volumes` interprets the result.
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
"""Seconds until a measurement is repeated."""
MAX_FILES = 2_000_000
"""Maximum number of files in one measurement: about a minute on a dedicated disk."""

_TRASH = ".trash"
"""Folder on each volume with deleted files until their removal."""
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
"""(volume, path pattern, kind), as in `cerebro.runtime.volumes`. On one machine all shard volumes share a root."""


class Disks:
    """Newest measurement. Safe for several threads; one measurement runs at a time."""

    def __init__(self, volumes: Volumes, clock: Callable[[], float]) -> None:
        self._roots = {name: Path(getattr(volumes, name)) for name in NAMES}
        self._clock = clock
        self._lock = threading.Lock()
        self._query = BackgroundQuery("volumes", self._measure)
        self._requested = 0
        self._measured: Measured | None = None

    def newest(self) -> tuple[Measured | None, bool]:
        """Return the newest measurement, and True if another one is running. Starts one if it is old. Never waits."""
        with self._lock:
            answered, ended = self._query.newest()
            known = self._measured  # read first: a measurement that starts now may end before this returns
            if answered == self._requested and self._clock() - (ended or float("-inf")) > FRESH_S:
                self._requested = self._query.request()
            return known, answered < self._requested

    def wait(self, timeout_s: float = FRESH_S) -> None:
        """Wait until the running measurement has ended."""
        self._query.wait(self._requested, timeout_s)

    def _measure(self) -> float:
        """Measure the volumes. Returns the time even after an error, so polls do not retry at once."""
        try:
            self._measured = measure(self._roots, self._clock)
        except Exception:  # noqa: BLE001 - any error would otherwise repeat without pause
            _log.exception("volumes cannot be measured")
        return self._clock()


def measure(roots: dict[str, Path], clock: Callable[[], float]) -> Measured:
    """Measure all volumes. Follows no links and does not leave a volume's file system."""
    began = time.monotonic()
    folders: dict[tuple[str, str, str], int] = defaultdict(int)
    counter = _Counter(MAX_FILES)
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
        is_complete=counter.budget > 0,
    )


class _Counter:
    """Walks folders until it has visited `budget` files."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def files(self, root: Path, device: int) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield (parts of the path below `root`, bytes on disk) of each file."""
        waiting: list[tuple[str, ...]] = [()]
        while waiting and self.budget > 0:
            folder = waiting.pop()
            try:
                with os.scandir(root.joinpath(*folder)) as entries:
                    for entry in entries:
                        self.budget -= 1
                        is_folder, found = entry.is_dir(follow_symlinks=False), _stat(entry)
                        if found is None:
                            continue
                        if not is_folder:
                            # Count blocks, not lengths: sparse and tiny files differ.
                            yield (*folder, entry.name), found.st_blocks * 512
                        elif found.st_dev == device:
                            waiting.append((*folder, entry.name))
            except OSError:
                continue  # removed in between, or not readable


def _stat(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None  # removed in between; count the other files


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
