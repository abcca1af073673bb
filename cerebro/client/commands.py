"""The part of `cerebro.Experiment` by which users steer what goes on: stop, resume and retry, add, clone and change
models, reschedule, archive, delete.

All of it returns as soon as the command is in the experiment's log, with the name of who gave it; `watch` and `status`
show what becomes of it. Which command is allowed when, and what is said otherwise, says `cerebro.commands.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cerebro.client.search import configurations
from cerebro.client.search.requests import packed_procedure
from cerebro.client.session import Session, author
from cerebro.client.warm_clone import check_shapes
from cerebro.commands.command import Command, events_of
from cerebro.commands.rules import CommandKind
from cerebro.search.procedure import Procedure

if TYPE_CHECKING:
    from cerebro.client.results import FitResult


class CommandsMixin:
    """An experiment that can be steered."""

    _session: Session

    def result(self, run: str | None = None) -> FitResult:
        """As `cerebro.Experiment` has it."""
        raise NotImplementedError

    def stop(self, run: str | None = None) -> None:
        """End a run (the open one); committed work stays, and `resume` goes on from there.

        Raises:
            ConflictError: it has ended.
        """
        self._session.steer(Command(kind=CommandKind.STOP_RUN, run=run))

    def resume(self, run: str | None = None, *, search: Procedure | None = None) -> None:
        """Let a paused or stopped run (the newest of them) go on from its last checkpoints.

        Args:
            search: of a run that searches by a procedure of your own, the mended one, which takes its place. It has to
                order what is in the log already, when it is told the same.

        Raises:
            ConflictError: it is neither, or another run is open; or it has no procedure that could be replaced.
            SearchError: `search` is no procedure, or cannot be sent.
        """
        own, code = packed_procedure(search, author=author()) if search is not None else (None, None)
        self._session.steer(Command(kind=CommandKind.RESUME_RUN, run=run, procedure=own), code=code)

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

    def add_models(
        self, models: Sequence[Mapping[str, Any]], *, epochs: int | None = None, run: str | None = None
    ) -> list[str]:
        """Have a fit run (the newest) train more models, from nothing.

        A run that has ended is open again, for them.

        Args:
            models: hyper-parameters of each.
            epochs: for which they are trained; as the run was asked for, if left out.

        Returns:
            Their ids.

        Raises:
            SearchSpaceError: what one of them has cannot be, such as a batch size above the smallest partition.
            ConflictError: the run has not begun, is stopping, or failed for a reason that concerns all its models.
        """
        found = configurations(list(models))
        (told,) = self._session.steer_and_see(
            Command(kind=CommandKind.ADD_MODELS, run=run, configurations=tuple(found), epochs=epochs)
        )
        return list(told.added)

    def clone(
        self,
        model: str,
        hyperparams: Mapping[str, Any] | None = None,
        *,
        at: Literal["last", "best"] | int = "last",
        warm: bool = False,
        epochs: int | None = None,
        run: str | None = None,
    ) -> str:
        """Add a model with the hyper-parameters of another one, but for those that are given.

        Args:
            warm: whether it goes on from the other one's weights, optimizer and place in the epoch; else it is trained
                from nothing. Hyper-parameters that shape the network can only differ in a cold clone.
            at: of a warm one, from which state: the newest, that of the best epoch, or that of an epoch by its number.
                Each model keeps few checkpoints: `ConflictError` names those that there are.
            epochs: for which it is trained in all, those of the other one included; as the other one, if left out.

        Returns:
            Its id.

        Raises:
            NotFoundError: there is no such model, or it has no such hyper-parameter.
            SearchSpaceError, ConflictError: as `add_models`; and the checkpoint is gone, or was never written; or its
                weights do not fit a network with these hyper-parameters, if user code can make it in this process.
        """
        command = Command(
            kind=CommandKind.CLONE_MODEL,
            run=run,
            models=(model,),
            hyperparams=hyperparams or {},
            at=at,
            warm=warm,
            epochs=epochs,
        )
        if warm and hyperparams:
            events_of(command, self._session.state(), by=author())
            self._check_warm(model, hyperparams, run)
        (told,) = self._session.steer_and_see(command)
        return told.added[0]

    def _check_warm(self, model: str, hyperparams: Mapping[str, Any], run: str | None) -> None:
        """Raise `ConflictError` if the model's weights do not fit a network with these hyper-parameters."""
        found = self.result(run)
        code, encoded = found.user_code
        if code is not None and encoded is not None:
            before = self._session.state().runs[found.run].models[model].hyperparams
            check_shapes(model, code, encoded, before, {**before, **hyperparams})

    def change_model(self, model: str, hyperparams: Mapping[str, Any], *, run: str | None = None) -> None:
        """Change hyper-parameters of a model that is being trained, from its next sub-epoch that has not started.

        The sub-epoch that runs ends with the old values. An optimizer's learning rate changes if it is restored by
        ``checkpoint.track``: its own `load_state_dict` would put the old one back, and the sub-epoch fails with a
        sentence that says so.

        Raises:
            NotFoundError: there is no such model, or it has no such hyper-parameter.
            SearchSpaceError: a batch size above the smallest partition.
            ConflictError: it trains no more, or has these values already.
        """
        self._session.steer_and_see(
            Command(kind=CommandKind.CHANGE_MODEL, run=run, models=(model,), hyperparams=hyperparams)
        )

    def extend_model(self, model: str, *, epochs: int, run: str | None = None) -> None:
        """Have a model trained for so many epochs in all: more than before, or fewer, but not below what it has begun.

        A run that has ended is open again, for a model that is to be trained further.

        Raises:
            NotFoundError: there is no such model.
            ConflictError: it was stopped or failed, has begun a later epoch, or is trained for so many already.
        """
        self._session.steer_and_see(
            Command(kind=CommandKind.EXTEND_MODEL, run=run, models=(model,), epochs=epochs)
        )

    def prioritize(self, priority: str | int, *, model: str | None = None, run: str | None = None) -> None:
        """Give an open run more, or less, of the cluster beside others; or have sub-epochs of one of its models go
        first.

        Of a run, one that has a priority higher by 1 is due four times as much; nobody starves. Of a model of a fit run
        (the newest), its sub-epochs go before those of all models of a lower priority, wherever they can; its run gets
        no more of the cluster for it. What runs is not interrupted, and no worker waits.

        Args:
            priority: ``low``, ``normal`` (that of each run and model) or ``high``; or a whole number from -9 to 9, of
                which these are -1, 0 and 1.

        Raises:
            BadRequestError: there is no such priority.
            NotFoundError: there is no such model.
            ConflictError: the run has ended, or the model trains no more.
        """
        models = () if model is None else (model,)
        self._session.steer_and_see(
            Command(kind=CommandKind.PRIORITIZE, run=run, models=models, priority=priority)
        )

    def stop_search(self, run: str | None = None) -> None:
        """Have a search (of the newest fit run) add no more models and extend none. What it has granted goes on.

        Raises:
            ConflictError: the run has ended or has no search, or that was stopped already.
        """
        self._session.steer_and_see(Command(kind=CommandKind.STOP_SEARCH, run=run))

    def set_scheduler(self, name: str, planner: bool = True, run: str | None = None) -> None:
        """Have the sub-epochs that are left of a fit run (the newest) dispatched by another policy; see `run_fit`.

        Raises:
            SearchSpaceError: there is no such policy.
            ConflictError: the run has ended.
        """
        self._session.steer(Command(kind=CommandKind.SET_SCHEDULER, run=run, scheduler=name, planner=planner))

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
