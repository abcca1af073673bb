"""Registered models: register a trained model, find a version, load it.

`RegistryMixin` gives `Experiment.register`; `load_model` is public; `cerebro models` and its siblings check names here.
The store keeps the record, and the controller copies the files; this module waits for the copy, at most ten minutes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from cerebro.client.connection import Connection, author, connect
from cerebro.client.files import cache_folder
from cerebro.client.open_experiment import OpenExperiment
from cerebro.client.results.model import TrainedModel
from cerebro.commands.registration import registration_of
from cerebro.contract.base import Name
from cerebro.contract.stored.registry import Alias, AliasRequest, ModelVersion, Registration
from cerebro.contract.stored.registry import RegisteredModel as RegisteredName
from cerebro.errors import (
    BadRequestError,
    CheckpointCorruptError,
    ClusterError,
    ConflictError,
    NotFoundError,
    UnreadableError,
)
from cerebro.usercode.fitted import read_fitted
from cerebro.usercode.in_process import UserCode

Value = TypeVar("Value")

_NAME: TypeAdapter[str] = TypeAdapter(Name)
_ALIAS: TypeAdapter[str] = TypeAdapter(Alias)
_COPY_TIMEOUT_S = 600.0
"""Time to wait for a copy. Gigabytes on a slow volume take minutes; a slower copy completes later."""
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class RegisteredModel(TrainedModel):
    """A version of a registered model. It does not depend on its experiment.

    Attributes:
        name: registered name.
        version: version number, from 1.
        experiment: experiment of the model `id`.
        dataset: id of the data set that it was trained on.
        metrics: metrics at its epoch, as ``train/NAME`` and ``valid/NAME``.
        author: user who registered it.
        created: time of registration, in seconds since the epoch.

    Example::

        (network,) = load_model("digits@champion").modules()
    """

    name: str
    version: int
    experiment: str
    dataset: str
    metrics: dict[str, float]
    author: str
    created: float

    @property
    def path(self) -> Path:
        """Path of the checkpoint as one file on this machine.

        Raises:
            CheckpointCorruptError: the file is missing or damaged.
            StoreUnavailableError: the cluster does not answer.
        """
        return self._with_version(lambda: super(RegisteredModel, self).path)

    @cached_property
    def fitted(self) -> Any:
        """Result of `ETLSpec.fit` for the training data; `None` without this method. Restoring it runs user code.

        Raises:
            DataError: the file is missing or damaged.
            SpecError: it cannot be restored here.
            StoreUnavailableError: the cluster does not answer.

        Example::

            column = (hours - model.fitted["mean"]) / model.fitted["std"]
        """
        return None if self.code is None else self.code.fitted_value()

    def _state(self, device: str) -> dict[str, Any]:
        return self._with_version(lambda: super(RegisteredModel, self)._state(device))

    def _with_version(self, get: Callable[[], Value]) -> Value:
        try:
            return get()
        except (CheckpointCorruptError, NotFoundError) as error:
            raise CheckpointCorruptError(
                f"version {self.version} of the registered model {self.name!r} cannot be loaded: {error}. Restore "
                f"{self.checkpoint.name} from a backup of the checkpoint volume, or register {self.id} of {self.run} "
                f"of {self.experiment!r} again"
            ) from error


class RegistryMixin(OpenExperiment):
    """Registration of models of an experiment."""

    def register(
        self,
        name: str,
        model: str | None = None,
        *,
        fit: str | None = None,
        epoch: int | None = None,
        alias: str | None = None,
    ) -> RegisteredModel:
        """Register a model as a new version of `name`.

        It returns when the files are copied. The version outlives the experiment.

        Args:
            name: lower-case letters, digits and dashes, at most 50 characters.
            model: model id, such as ``"m03"``. Default: the best model of `fit`, or of all fits with the newest fit's
                metric and data set.
            fit: fit run. Default with `model`: the newest.
            epoch: completed epoch. Default: the best one.
            alias: alias to set on this version, such as ``"champion"``. Default: none.

        Returns:
            The new version.

        Raises:
            BadRequestError: `name` or `alias` is invalid.
            NotFoundError: the model or its checkpoint does not exist.
            RunFailedError: the fit has no best model.
            CheckpointCorruptError: the checkpoint is missing or damaged.
            ClusterError: the copy took longer than ten minutes.

        Example::

            experiment.register("digits", alias="champion")
        """
        check_name(name)
        if alias is not None:
            check_alias(alias)
        return self._register(name, self._registration(model, fit=fit, epoch=epoch), alias=alias)

    def _registration(
        self, model: str | None = None, *, fit: str | None = None, epoch: int | None = None
    ) -> Registration:
        session = self._session
        result = self.result(fit)
        if model is None:
            best = result.best
            result, model = self.result(best.run), best.id
        trained = result.model(model, epoch)
        if trained.removal_text:
            raise NotFoundError(trained.removal_text)
        return registration_of(session.state(), model, run=result.run, epoch=epoch, author=author())

    def _register(self, name: str, registration: Registration, *, alias: str | None) -> RegisteredModel:
        connection = self._session.connection
        version = _await_copy(connection, connection.kvs.register_model(name, registration))
        if alias is not None:
            connection.kvs.move_alias(name, AliasRequest(alias=alias, version=version.version))
        return _registered_model(connection, version)


def load_model(reference: str, *, server: str | None = None, token: str | None = None) -> RegisteredModel:
    """Load a version of a registered model.

    Works also after its experiment was deleted. It does not start a cluster.

    Args:
        reference: ``NAME/VERSION`` or ``NAME@ALIAS``, such as ``"digits/3"`` or ``"digits@champion"``.
        server: address of the cluster. Default: ``CEREBRO_SERVER``, or the local cluster.
        token: access token. Default: ``CEREBRO_TOKEN``.

    Returns:
        The version; `modules()` returns its modules, `load()` its state, `fitted` the result of `ETLSpec.fit`.

    Raises:
        BadRequestError: `reference` is malformed.
        ClusterError: no cluster answers.
        NotFoundError: the model, version or alias does not exist; the message lists the existing ones.
        ConflictError: the version is still being copied, or its copy failed.
        UnreadableError: its record cannot be read.

    Example::

        (network,) = cerebro.load_model("digits@champion").modules()
    """
    name, alias, number = parse_reference(reference)
    connection = connect(server, token, start=False)
    version = find_version(connection.kvs.registered_model(name), alias, number)
    if version.state != "ready":
        reason = version.error or "its files are being copied; try again in a moment"
        raise ConflictError(f"version {version.version} of {name} cannot be loaded: {reason}")
    return _registered_model(connection, version)


def parse_reference(reference: str) -> tuple[str, str, int]:
    """Split ``NAME@ALIAS`` or ``NAME/VERSION`` into name, alias and version.

    A missing alias is empty, a missing version 0.

    Raises:
        BadRequestError: the text has another form.
    """
    match = re.fullmatch(r"([^@/]+)(?:@([^@/]+)|/([1-9][0-9]{0,8}))", reference)
    if match is None:
        raise BadRequestError(
            f"{reference!r} is not a version of a registered model: expected NAME@ALIAS or NAME/VERSION, such as "
            "digits@champion or digits/3. `cerebro models` lists them"
        )
    name, alias, number = match.groups()
    check_name(name)
    if alias is not None:
        check_alias(alias)
    return name, alias or "", int(number or 0)


def find_version(model: RegisteredName, alias: str, number: int) -> ModelVersion:
    """Return the version with this alias or number.

    Raises:
        NotFoundError: it does not exist.
        UnreadableError: its record cannot be read.
    """
    if alias:
        if alias not in model.aliases:
            aliases = ", ".join(f"{name} ({version})" for name, version in sorted(model.aliases.items()))
            raise NotFoundError(
                f"{model.name} has no alias {alias!r}; it has {aliases or 'none'}. Set it with `cerebro "
                f"alias {model.name} {alias} VERSION`"
            )
        number = model.aliases[alias]
    for version in model.versions:
        if version.version == number:
            return version
    for unreadable in model.unreadable:
        if unreadable.version == number:
            raise UnreadableError(unreadable.reason)
    raise NotFoundError(
        f"{model.name} has no version {number}; it has {', '.join(str(version.version) for version in model.versions)}"
    )


def check_name(name: str) -> None:
    """Raise `BadRequestError` if `name` is not a valid name of a registered model."""
    try:
        _NAME.validate_python(name)
    except ValidationError as cause:
        raise BadRequestError(
            f"{name!r} is not a valid name of a registered model: use at most 50 lower-case letters, digits and "
            "dashes, such as digits"
        ) from cause


def check_alias(alias: str) -> None:
    """Raise `BadRequestError` if `alias` is invalid."""
    try:
        _ALIAS.validate_python(alias)
    except ValidationError as cause:
        raise BadRequestError(
            f"{alias!r} is not a valid alias: use a letter, then lower-case letters, digits and dashes, at most 50, "
            "such as champion"
        ) from cause


def _await_copy(connection: Connection, version: ModelVersion) -> ModelVersion:
    """Return the version after its files were copied."""
    deadline = time.monotonic() + _COPY_TIMEOUT_S
    while version.state == "copying":
        if time.monotonic() > deadline:
            raise ClusterError(
                f"version {version.version} of {version.name} was not copied within {_COPY_TIMEOUT_S:g} s. The "
                "controller copies it as soon as it runs and the checkpoint volume answers: see "
                "`cerebro models` and `cerebro logs controller`"
            )
        time.sleep(_POLL_S)
        version = find_version(connection.kvs.registered_model(version.name), "", version.version)
    if version.state == "failed":
        raise CheckpointCorruptError(
            f"version {version.version} of {version.name} could not be created: {version.error}"
        )
    return version


def _registered_model(connection: Connection, version: ModelVersion) -> RegisteredModel:
    source, fitted, kvs, files = version.source, version.fitted, connection.kvs, connection.files
    assert version.checkpoint is not None, "the version is ready"

    def read() -> bytes:
        assert fitted is not None
        return read_fitted(files.checkpoints(fitted) / fitted.name, fitted)

    def encoded() -> str:
        return kvs.code(source.code).encoded

    return RegisteredModel(
        id=source.model,
        hyperparams=source.hyperparams,
        epoch=source.epoch,
        metric=source.metric,
        value=source.value,
        checkpoint=version.checkpoint,
        files=files,
        code=UserCode(
            record=version.experiment,
            archive=kvs.archive,
            folder=lambda: cache_folder(os.environ),
            fitted=read if fitted is not None else None,
        ),
        encoded=encoded,
        name=version.name,
        version=version.version,
        experiment=source.experiment,
        run=source.run,
        dataset=source.dataset,
        metrics=source.metrics,
        author=source.author,
        created=version.created,
    )
