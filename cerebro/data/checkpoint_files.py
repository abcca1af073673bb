"""What of the files in a model's folder nothing needs. Looks; removes nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from cerebro.data.based import UnreadableLayoutError, is_base, layout_of
from cerebro.runtime.volumes import savepoint_of, sub_epoch_of


def outdated(folder: Path, sub_epoch: int, keep: Collection[str]) -> tuple[Path, ...]:
    """Files of sub-epochs before `sub_epoch` whose name is not in `keep`, and savepoints of `sub_epoch`; what dead
    writers have left of them is among these. And each base that none of the files names that stay.

    Raises:
        OSError: a file cannot be read, so nobody knows what it names.
    """
    there = {path.name: path for path in folder.iterdir()}
    sub_epochs = {name: sub_epoch_of(name) for name in there if name not in keep}
    gone = [
        path
        for name, path in there.items()
        if (found := sub_epochs.get(name)) is not None
        and (found < sub_epoch or (found == sub_epoch and savepoint_of(path.name)))
    ]
    bases = {name for name in there if is_base(name)}
    if bases:
        bases.difference_update(_base_of(path) for path in there.values() if path not in gone)
    return (*gone, *(there[name] for name in sorted(bases)))


def _base_of(path: Path) -> str:
    """Name of the base of a file; empty if it has none, or is gone or damaged, or no plain file, and names none."""
    if sub_epoch_of(path.name) is None:
        return ""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return ""
        # User code may have put another there since: a pipe would keep the thread for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            layout = layout_of(file)
    except (FileNotFoundError, UnreadableLayoutError):
        return ""
    return layout.base if layout else ""
