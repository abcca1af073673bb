"""Removing the checkpoints of a model that nothing needs any more, once the sub-epoch that made them so is committed.

Only an attempt whose commit, or whose savepoint, was accepted removes anything, and only files that were there before
it: while it held the model, nobody else wrote any. An attempt that lost its lease, however late it ends, removes
nothing: the model may have gone on elsewhere, and a sub-epoch done again has written a newer file of an older
sub-epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cerebro.contract import api
from cerebro.contract.tasks import AuditTask, InboxItem, TaskResult, TrainTask
from cerebro.data.checkpoint_files import outdated
from cerebro.runtime.volumes import Volumes, savepoint_of, sub_epoch_of

log = logging.getLogger(__name__)


def outdated_by(volumes: Volumes, item: InboxItem, result: TaskResult) -> tuple[Path, ...]:
    """Files that the task of `item`, with its result, makes superfluous; to be asked before it is committed."""
    body = item.body
    if isinstance(body, AuditTask):
        # If it differs, somebody else is to do the sub-epoch.
        is_equal = result.audit is not None and not result.audit.differences
        return tuple(volumes.checkpoint(name) for name in body.spare) if is_equal else ()
    if not isinstance(body, TrainTask):
        return ()
    folder = volumes.model_checkpoints(body.experiment, body.run, body.model)
    try:
        return outdated(folder, body.sub_epoch, {Path(kept).name for kept in body.keep})
    except OSError as error:  # the experiment was deleted meanwhile, or the volume does not answer
        log.info("older checkpoints of %s stay for now: %s", body.model, error)
        return ()


def outdated_by_savepoint(volumes: Volumes, save: api.Save) -> tuple[Path, ...]:
    """Savepoints of the same sub-epoch from before this one, of which the store knows: nobody goes on from them."""
    path = volumes.checkpoint(save.savepoint.checkpoint.name)
    newest = savepoint_of(path.name)
    try:
        files = [
            other for other in path.parent.iterdir() if sub_epoch_of(other.name) == sub_epoch_of(path.name)
        ]
    except OSError as error:  # as above
        log.info("older savepoints of %s stay for now: %s", save.task, error)
        return ()
    found = ((other, savepoint_of(other.name)) for other in files)
    return tuple(other for other, place in found if place and newest and place < newest)


class Discarder:
    """Removes files in a thread of its own: removing a large one takes long, and on a volume that hangs for ever."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes
        self._thread = ThreadPoolExecutor(1, "discarding")

    def discard_savepoints_before(self, save: api.Save) -> None:
        """Remove the savepoints that this one, which the store knows of, makes superfluous."""
        self._thread.submit(lambda: _remove(outdated_by_savepoint(self._volumes, save)))

    def discard(self, paths: Collection[Path]) -> None:
        """Remove them soon; files that are gone already are no error."""
        if paths:
            self._thread.submit(_remove, paths)


def _remove(paths: Collection[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s stays: %s", path, error)
