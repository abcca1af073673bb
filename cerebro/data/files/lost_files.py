"""Find recorded files that are missing from a volume, for ``cerebro doctor`` and the page. Opens no file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T", bound=Sequence[str])


def lost_files(root: Path, wanted: Iterable[T]) -> list[T]:
    """Return the items of `wanted` whose file is missing or empty.

    Args:
        root: root of the volume.
        wanted: tuples with a path below `root` as their last field.

    Raises:
        OSError: the volume is missing or unreadable, so the state of its files is unknown.
    """
    with os.scandir(root):
        pass
    return [each for each in wanted if not _is_there(root / each[-1])]


def _is_there(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
