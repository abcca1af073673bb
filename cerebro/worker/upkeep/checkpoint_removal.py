"""Remove a model's unneeded checkpoints after a sub-epoch is committed.

A slot lists the files with `outdated_by` before it commits, and a `Discarder` removes them afterwards; `Reports`
triggers the removal of old savepoints. Checkpoints of ended or deleted runs are the controller's duty.

Only an attempt with an accepted commit or savepoint removes files, and only files that existed before: while it held
the model, no other attempt wrote any. An attempt that lost its lease removes nothing: the model may have moved to
another worker, and a re-execution may have written a newer file of an older sub-epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cerebro.contract.rest import api
from cerebro.contract.tasks.bodies import TrainTask, VerificationTask
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.contract.tasks.results import TaskResult
from cerebro.data.files.checkpoint_files import outdated
from cerebro.runtime.volumes import Volumes, savepoint_of, sub_epoch_of

log = logging.getLogger(__name__)


def outdated_by(volumes: Volumes, item: InboxItem, result: TaskResult) -> tuple[Path, ...]:
    """List the files that a task's result makes unneeded. Call before the commit."""
    body = item.body
    if isinstance(body, VerificationTask):
        # If it differs, another worker repeats the sub-epoch.
        is_equal = result.verification is not None and not result.verification.differences
        return tuple(volumes.checkpoint(name) for name in body.spare) if is_equal else ()
    if not isinstance(body, TrainTask):
        return ()
    folder = volumes.model_checkpoints(body.experiment, body.run, body.model)
    try:
        return outdated(folder, body.sub_epoch, {Path(checkpoint).name for checkpoint in body.keep})
    except OSError as error:  # the experiment was deleted in the meantime, or the volume does not answer
        log.info("older checkpoints of %s stay for now: %s", body.model, error)
        return ()


def outdated_by_savepoint(volumes: Volumes, save: api.Save) -> tuple[Path, ...]:
    """List earlier savepoints of the same sub-epoch, after the store has accepted `save`."""
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
    """Removes files in its own thread. Large files take long, and a hanging volume takes forever."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes
        self._thread = ThreadPoolExecutor(1, "discarding")

    def discard_savepoints_before(self, save: api.Save) -> None:
        """Remove savepoints older than an accepted one."""
        self._thread.submit(lambda: _remove(outdated_by_savepoint(self._volumes, save)))

    def discard(self, paths: Collection[Path]) -> None:
        """Remove files soon. Missing files are ignored."""
        if paths:
            self._thread.submit(_remove, paths)


def _remove(paths: Collection[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s stays: %s", path, error)
