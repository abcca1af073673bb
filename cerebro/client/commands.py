"""The part of `cerebro.Experiment` by which users steer what goes on: stop, resume, retry, reschedule, archive, delete.

All of it returns as soon as the command is in the experiment's log, with the name of who gave it; `watch` and `status`
show what becomes of it. Which command is allowed when, and what is said otherwise, says `cerebro.commands.rules`.
"""

from __future__ import annotations

from cerebro.client.session import Session
from cerebro.commands.command import Command
from cerebro.commands.rules import CommandKind


class CommandsMixin:
    """An experiment that can be steered."""

    _session: Session

    def stop(self, run: str | None = None) -> None:
        """End a run (the open one); committed work stays, and `resume` goes on from there.

        Raises:
            ConflictError: it has ended.
        """
        self._session.steer(Command(kind=CommandKind.STOP_RUN, run=run))

    def resume(self, run: str | None = None) -> None:
        """Let a paused or stopped run (the newest of them) go on from its last checkpoints.

        Raises:
            ConflictError: it is neither, or another run is open.
        """
        self._session.steer(Command(kind=CommandKind.RESUME_RUN, run=run))

    def stop_model(self, model: str, run: str | None = None) -> None:
        """Train a model of a fit run (the newest) no further; the others go on, `resume_model` takes it up again.

        Raises:
            NotFoundError: there is no such model; the message names similar ones.
            ConflictError: it trains no more anyway.
        """
        self._session.steer(Command(kind=CommandKind.STOP_MODEL, run=run, models=(model,)))

    def resume_model(self, model: str, run: str | None = None) -> None:
        """Let a stopped model go on from its last checkpoint, as if it had not been stopped.

        A run that has ended is open again, for this model.

        Raises:
            NotFoundError, ConflictError: as `stop_model`.
        """
        self._session.steer(Command(kind=CommandKind.RESUME_MODEL, run=run, models=(model,)))

    def retry_model(self, model: str, run: str | None = None) -> None:
        """Let a model that failed go on from its last checkpoint, with as many attempts as at first.

        A run that has ended is open again, for this model.

        Raises:
            NotFoundError, ConflictError: as `stop_model`.
        """
        self._session.steer(Command(kind=CommandKind.RETRY_MODEL, run=run, models=(model,)))

    def set_scheduler(self, name: str, planner: bool = True, run: str | None = None) -> None:
        """Have the units that are left of a fit run (the newest) dispatched by another policy; see `run_fit`.

        Raises:
            SearchSpaceError: there is no such policy.
            ConflictError: the run has ended.
        """
        self._session.steer(Command(kind=CommandKind.SET_SCHEDULER, run=run, scheduler=name, planner=planner))

    def set_priority(self, priority: str, run: str | None = None) -> None:
        """Have an open run get more, or less, of the cluster beside others: ``low``, ``normal`` or ``high``.

        Raises:
            BadRequestError: there is no such priority.
            ConflictError: the run has ended.
        """
        self._session.steer(Command(kind=CommandKind.SET_PRIORITY, run=run, priority=priority))

    def archive(self) -> None:
        """Take the experiment out of the list that is shown at first. Nothing else changes."""
        self._session.steer(Command(kind=CommandKind.ARCHIVE))

    def unarchive(self) -> None:
        """Put an archived experiment back into the list."""
        self._session.steer(Command(kind=CommandKind.UNARCHIVE))

    def restore(self) -> None:
        """Let the experiment go on whose log could not be read, for example once a newer version is installed.

        Its log is read anew. What still cannot be read quarantines it again a moment later; `status` says why.

        Raises:
            ConflictError: it was not quarantined.
        """
        self._session.restore()

    def delete(self, *, confirm: str) -> None:
        """Delete the experiment with its checkpoints, metrics, logs, predictions and partitions, for good.

        It is gone a moment later; its name is free then. Two things stay: metadata and objects that its locators name,
        as they are; and the code it ran (specs and archives), kept by its hash in the store and on the volumes, because
        other experiments may run the same. So do not count on this to remove a secret that was written into code.

        Args:
            confirm: the experiment's name once more.

        Raises:
            ConflictError: a run has not ended, or `confirm` is another name.
        """
        self._session.steer(Command(kind=CommandKind.DELETE, confirm=confirm))
