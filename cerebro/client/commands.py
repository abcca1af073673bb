"""Commands of `cerebro.Experiment`: stop, resume, retry, add, clone, change, prioritize, archive, delete.

A command returns when it is in the experiment's log, with its author; `watch` and `status` show its effect. When a
command is allowed, and the error otherwise, is defined in `cerebro.commands.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cerebro.client.connection import author
from cerebro.client.models.warm_clone import check_shapes
from cerebro.client.open_experiment import OpenExperiment
from cerebro.client.search import configurations
from cerebro.client.search.requests import pack_procedure
from cerebro.commands.command import Command
from cerebro.commands.command_events import events_of
from cerebro.commands.rules import CommandKind
from cerebro.commands.selection import chosen_fit, find_model
from cerebro.search.procedure import Procedure


class CommandsMixin(OpenExperiment):
    """Commands to a running or ended experiment."""

    def stop(self, run: str | None = None) -> None:
        """Stop a run. Committed sub-epochs are kept; `resume` continues from them.

        Args:
            run: run id. Default: the open run; if several are open, the preprocessing or training run.

        Raises:
            ConflictError: the run has ended.
        """
        self._session.send(Command(kind=CommandKind.STOP_RUN, run=run))

    def resume(self, run: str | None = None, *, search: Procedure | None = None) -> None:
        """Continue a paused or stopped run from its last checkpoints.

        Args:
            run: run id. Default: the newest paused or stopped run.
            search: corrected version of the run's own search procedure. For the events in the log it must make the same
                decisions as the old version.

        Raises:
            ConflictError: the run is neither paused nor stopped, another run is open, or the run has no procedure of
                yours.
            SearchError: `search` is not a procedure, or cannot be pickled.
        """
        procedure, codes = pack_procedure(search, author=author()) if search is not None else (None, [None])
        # The run keeps its sampler, whose code is stored already.
        self._session.send(Command(kind=CommandKind.RESUME_RUN, run=run, procedure=procedure), code=codes[0])

    def stop_model(self, model: str, run: str | None = None) -> None:
        """Stop one model of a fit run; the others continue.

        Args:
            model: model id, such as ``"m03"``.
            run: fit run. Default: the newest.

        Raises:
            NotFoundError: the model does not exist; the message lists similar ids.
            ConflictError: the model is not training.
        """
        self._session.send(Command(kind=CommandKind.STOP_MODEL, run=run, models=(model,)))

    def resume_model(self, model: str, run: str | None = None) -> None:
        """Continue a stopped model from its last checkpoint. An ended run is opened again.

        Args:
            model: model id.
            run: fit run. Default: the newest.

        Raises:
            NotFoundError: the model does not exist.
            ConflictError: the model was not stopped.
        """
        self._session.send(Command(kind=CommandKind.RESUME_MODEL, run=run, models=(model,)))

    def retry_model(self, model: str, run: str | None = None) -> None:
        """Continue a failed model from its last checkpoint, with a fresh set of attempts.

        An ended run is opened again.

        Args:
            model: model id.
            run: fit run. Default: the newest.

        Raises:
            NotFoundError: the model does not exist.
            ConflictError: the model did not fail.
        """
        self._session.send(Command(kind=CommandKind.RETRY_MODEL, run=run, models=(model,)))

    def add_models(
        self, models: Sequence[Mapping[str, Any]], *, epochs: int | None = None, run: str | None = None
    ) -> list[str]:
        """Add models to a fit run. They train from random weights. An ended run is opened again.

        Args:
            models: hyperparameters of each new model.
            epochs: epochs of the new models. Default: as in `run_fit`.
            run: fit run. Default: the newest.

        Returns:
            Ids of the new models.

        Raises:
            SearchSpaceError: a hyperparameter is invalid, such as a batch size above the smallest partition.
            ConflictError: the run has not started, is stopping, or failed for a reason that affects all models.

        Example::

            experiment.add_models([{"lr": 0.02, "batch_size": 32}], epochs=8)
        """
        checked = configurations(list(models))
        (outcome,) = self._session.send_and_check(
            Command(kind=CommandKind.ADD_MODELS, run=run, configurations=tuple(checked), epochs=epochs)
        )
        return list(outcome.added)

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
        """Add a copy of a model, with some hyperparameters changed.

        Args:
            model: id of the parent.
            hyperparams: values to change. Default: none.
            at: state of the parent that a warm clone starts from: ``"last"`` (default), ``"best"`` (its best epoch) or
                an epoch number. Old checkpoints are deleted; the error lists the remaining ones.
            warm: True to start from the parent's weights and optimizer state. Default False: random weights.
                Hyperparameters that change the network require False.
            epochs: total epochs, with the parent's. Default: as the parent.
            run: fit run. Default: the newest.

        Returns:
            Id of the clone.

        Raises:
            NotFoundError: the model or a hyperparameter does not exist.
            SearchSpaceError: a hyperparameter is invalid.
            ConflictError: the run cannot take models (see `add_models`), the checkpoint is missing, or its weights do
                not fit the changed network.

        Example::

            experiment.clone("m03", {"lr": 0.001}, warm=True, epochs=12)
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
        (outcome,) = self._session.send_and_check(command)
        return outcome.added[0]

    def _check_warm(self, model: str, hyperparams: Mapping[str, Any], run: str | None) -> None:
        fit = self.result(run)
        code, encoded = fit.user_code
        if code is not None and encoded is not None:
            current = self._session.state().runs[fit.run].models[model].hyperparams
            check_shapes(model, code, encoded, current, {**current, **hyperparams})

    def change_model(self, model: str, hyperparams: Mapping[str, Any], *, run: str | None = None) -> None:
        """Change hyperparameters of a training model, from its next sub-epoch on.

        The running sub-epoch keeps the old values. A new learning rate requires that the optimizer is restored by
        ``checkpoint.track``: its own `load_state_dict` restores the old rate, and the sub-epoch fails with an
        explanation.

        Args:
            model: model id.
            hyperparams: values to change, by name.
            run: fit run. Default: the newest.

        Raises:
            NotFoundError: the model or a hyperparameter does not exist.
            SearchSpaceError: the batch size exceeds the smallest partition.
            ConflictError: the model is not training, or has these values already.

        Example::

            experiment.change_model("m03", {"lr": 0.0005})
        """
        self._session.send_and_check(
            Command(kind=CommandKind.CHANGE_MODEL, run=run, models=(model,), hyperparams=hyperparams)
        )

    def extend_model(self, model: str, *, epochs: int, run: str | None = None) -> None:
        """Change the number of epochs of a model. An ended run is opened again if necessary.

        Args:
            model: model id.
            epochs: epochs in all; at least the epochs that have begun.
            run: fit run. Default: the newest.

        Raises:
            NotFoundError: the model does not exist.
            ConflictError: the model was stopped or failed, has begun a later epoch, or has this number of epochs
                already.
        """
        self._session.send_and_check(
            Command(kind=CommandKind.EXTEND_MODEL, run=run, models=(model,), epochs=epochs)
        )

    def prioritize(self, priority: str | int, *, model: str | None = None, run: str | None = None) -> None:
        """Change the priority of an open run, or of one model within its fit run.

        A run whose priority is higher by 1 gets four times the share of the cluster; no run starves. If it has too few
        devices then, a run above its share releases one at a savepoint. Within a run, models of higher priority
        start their sub-epochs first. A model's priority preempts nothing and leaves the run's share unchanged.

        Args:
            priority: ``"low"``, ``"normal"`` or ``"high"`` (-1, 0, 1), or an integer from -9 to 9.
            model: model id. Default: the whole run.
            run: run id. Default: the open run; with `model`, the newest fit run.

        Raises:
            BadRequestError: the priority is invalid.
            NotFoundError: the model does not exist.
            ConflictError: the run has ended, or the model is not training.

        Example::

            experiment.prioritize("high", model="m03")
        """
        models = () if model is None else (model,)
        self._session.send_and_check(
            Command(kind=CommandKind.PRIORITIZE, run=run, models=models, priority=priority)
        )

    def stop_search(self, run: str | None = None) -> None:
        """End the search of a fit run: it adds and extends no more models. Its models train on.

        Args:
            run: fit run. Default: the newest.

        Raises:
            ConflictError: the run has ended or has no active search.
        """
        self._session.send_and_check(Command(kind=CommandKind.STOP_SEARCH, run=run))

    def set_scheduler(self, name: str, planner: bool = True, run: str | None = None) -> None:
        """Change the dispatch policy for the remaining sub-epochs of a fit run.

        Args:
            name: policy, as of `run_fit`.
            planner: True (default) to let a planner search for a better order.
            run: fit run. Default: the newest.

        Raises:
            SearchSpaceError: the policy does not exist.
            ConflictError: the run has ended.
        """
        self._session.send(Command(kind=CommandKind.SET_SCHEDULER, run=run, scheduler=name, planner=planner))

    def set_tag(self, key: str, value: str, *, model: str = "", run: str | None = None) -> None:
        """Set a tag of the experiment, or of one of its models.

        Args:
            key: at most 100 letters, digits, blanks and ``_ . / -``. The tag ``"note"`` is free text.
            value: at most 5,000 characters.
            model: model id, such as ``"m03"``. Default: a tag of the experiment.
            run: fit run of the model. Default: the newest.

        Raises:
            BadRequestError: key or value is invalid, or there would be more than 100 tags.
            NotFoundError: the model does not exist.

        Example::

            experiment.set_tag("stage", "baseline")
            experiment.set_tag("note", "diverges after epoch 3", model="m03")
        """
        self._session.change_tags({key: value}, model=model, run=run)

    def delete_tag(self, key: str, *, model: str = "", run: str | None = None) -> None:
        """Delete a tag of the experiment, or of one of its models. A missing tag is no error.

        Args:
            key: key of the tag.
            model: model id. Default: a tag of the experiment.
            run: fit run of the model. Default: the newest.

        Raises:
            NotFoundError: the model does not exist.
        """
        self._session.change_tags({key: None}, model=model, run=run)

    def tags(self, *, model: str = "", run: str | None = None) -> dict[str, str]:
        """Return the tags of the experiment, or of one of its models.

        Args:
            model: model id. Default: the tags of the experiment.
            run: fit run of the model. Default: the newest.

        Raises:
            NotFoundError: the model does not exist.
        """
        state = self._session.state()
        return dict(find_model(chosen_fit(state, run), model).tags if model else state.tags)

    def archive(self) -> None:
        """Hide the experiment from the default list. Nothing else changes."""
        self._session.send(Command(kind=CommandKind.ARCHIVE))

    def unarchive(self) -> None:
        """Show an archived experiment in the list again."""
        self._session.send(Command(kind=CommandKind.UNARCHIVE))

    def restore(self) -> None:
        """Read the log of a quarantined experiment again, for example after an upgrade.

        If the log still cannot be read, the experiment is quarantined again; `status` shows the reason.

        Raises:
            ConflictError: the experiment is not quarantined.
        """
        self._session.restore()

    def delete(self, *, confirm: str) -> None:
        """Delete the experiment with checkpoints, metrics, logs, predictions and partitions.

        The name can be used again a moment later. Metadata and objects of the locators stay. The code of specs and
        archives stays too, in the store and on the volumes, because other experiments may share it: deletion does not
        remove secrets from code.

        Args:
            confirm: the name of the experiment.

        Raises:
            ConflictError: a run is open, or `confirm` is another name.
        """
        self._session.send(Command(kind=CommandKind.DELETE, confirm=confirm))
