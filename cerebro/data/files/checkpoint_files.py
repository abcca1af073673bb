"""List a model's checkpoint files that are no longer needed.

`cerebro.worker.upkeep` and the controller's `pruned_files` remove them. Nothing is removed here, and the caller decides
which checkpoints to keep.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from cerebro.data.files.base_file import UnreadableLayoutError, is_base, layout_of
from cerebro.runtime.volumes import savepoint_of, sub_epoch_of


def outdated(folder: Path, sub_epoch: int, keep: Collection[str]) -> tuple[Path, ...]:
    """List files that can be removed from a model's folder.

    They are files of sub-epochs before `sub_epoch` unless in `keep`, savepoints of `sub_epoch`, leftovers of dead
    writers among these, and bases that no remaining file names.

    Raises:
        OSError: a file cannot be read, so its base is unknown.
    """
    there = {path.name: path for path in folder.iterdir()}
    sub_epochs = {name: sub_epoch_of(name) for name in there if name not in keep}
    removable = [
        path
        for name, path in there.items()
        if (number := sub_epochs.get(name)) is not None
        and (number < sub_epoch or (number == sub_epoch and savepoint_of(path.name)))
    ]
    bases = {name for name in there if is_base(name)}
    if bases:
        bases.difference_update(_base_of(path) for path in there.values() if path not in removable)
    return (*removable, *(there[name] for name in sorted(bases)))


def _base_of(path: Path) -> str:
    """Return the name of a file's base, or "".

    Damaged files, and files that are no longer plain files, have no base.
    """
    if sub_epoch_of(path.name) is None:
        return ""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return ""
        # User code may have replaced it since, and opening a pipe would block forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            layout = layout_of(file)
    except (FileNotFoundError, UnreadableLayoutError):
        return ""
    return layout.base if layout else ""
