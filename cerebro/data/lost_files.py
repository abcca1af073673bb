"""Which files of a volume are not there any more. Looks; opens nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T", bound=Sequence[str])


def lost_files(root: Path, wanted: Iterable[T]) -> list[T]:
    """Of `wanted`, those whose last field names no file below `root`, or an empty one.

    Raises:
        OSError: the volume is not there, or cannot be looked at: nothing is known of any file then.
    """
    with os.scandir(root):
        pass
    return [each for each in wanted if not _is_there(root / each[-1])]


def _is_there(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
