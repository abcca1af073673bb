"""Registered models as a notebook sees them: register, find, load."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from cerebro.client.connection import Connection, connect
from cerebro.client.files import cache_folder
from cerebro.client.results.model import TrainedModel
from cerebro.client.session import Session, author
from cerebro.contract.base import Name
from cerebro.contract.registry import Alias, AliasRequest, ModelVersion, Registration
from cerebro.contract.registry import RegisteredModel as RegisteredName
from cerebro.errors import (
    BadRequestError,
    CheckpointCorruptError,
    ClusterError,
    ConflictError,
    NotFoundError,
    UnreadableError,
)
from cerebro.state.best import best_model
from cerebro.usercode.fitted import read_fitted
from cerebro.usercode.in_process import UserCode

if TYPE_CHECKING:
    from cerebro.client.results import FitResult

Found = TypeVar("Found")

_NAME: TypeAdapter[str] = TypeAdapter(Name)
_ALIAS: TypeAdapter[str] = TypeAdapter(Alias)
_COPIED_S = 600.0
"""A checkpoint of gigabytes on a slow volume takes minutes. What is not done then is done later all the same."""
_LOOK_AGAIN_S = 0.1


@dataclass(frozen=True, kw_only=True)
class RegisteredModel(TrainedModel):
    """A version of a registered model: a `TrainedModel` that needs its experiment no more.

    Attributes:
        name, version: what it is registered as.
        experiment, run: that `id` was a model of.
        dataset: fingerprint of the preprocessed data that it was trained on.
        metrics: of training (``train/NAME``) and validation (``valid/NAME``) at its epoch.
        author: who registered it.
        created: when, seconds since the epoch.
    """

    name: str
    version: int
    experiment: str
    run: str
    dataset: str
    metrics: dict[str, float]
    author: str
    created: float

    @property
    def path(self) -> Path:
        """The checkpoint as one file, its bytes checked where it is fetched.

        Raises:
            CheckpointCorruptError, NotFoundError, StoreUnavailableError: it cannot be had.
        """
        return self._told(lambda: super(RegisteredModel, self).path)

    def _state(self, device: str) -> dict[str, Any]:
        return self._told(lambda: super(RegisteredModel, self)._state(device))

    def _told(self, get: Callable[[], Found]) -> Found:
        try:
            return get()
        except (CheckpointCorruptError, NotFoundError) as error:
            raise CheckpointCorruptError(
                f"version {self.version} of the registered model {self.name!r} cannot be loaded: {error}. Bring "
                f"{self.checkpoint.name} back from a backup of the checkpoint volume, or register "
                f"{self.id} of {self.run} of {self.experiment!r} once more"
            ) from error


class RegistryMixin:
    """The part of `cerebro.Experiment` that registers models."""

    _session: Session

    def result(self, run: str | None = None) -> FitResult:
        """As `cerebro.Experiment` has it."""
        raise NotImplementedError

    def register(
        self,
        name: str,
        model: str | None = None,
        *,
        fit: str | None = None,
        epoch: int | None = None,
        alias: str | None = None,
    ) -> RegisteredModel:
        """Register a model as a new version of `name`; returns once its files are copied. It outlives the experiment.

        Args:
            name: lower-case letters, digits and dashes, at most 50.
            model: its id, such as ``m03``. Default: the best model of `fit`, or of all fits with the metric and data
                set of the newest one.
            fit: the fit run. Default with `model`: the newest.
            epoch: a completed epoch; the best one if left out.
            alias: to mean this version from now on, such as ``champion``.

        Raises:
            BadRequestError: `name` or `alias` cannot be one.
            NotFoundError, RunFailedError: there is no such model, or it has no checkpoint.
            CheckpointCorruptError: its checkpoint is gone or damaged; no version is ready then.
            ClusterError: it was not copied in ten minutes, because no controller runs or its volume is away.
        """
        check_name(name)
        if alias is not None:
            check_alias(alias)
        return self._register(name, self._registration(model, fit=fit, epoch=epoch), alias=alias)

    def _registration(
        self, model: str | None = None, *, fit: str | None = None, epoch: int | None = None
    ) -> Registration:
        """Choose a model to register, as `register` says."""
        session = self._session
        best = best_model(session.state()) if fit is None and model is None else None
        result = self.result(best.run.id if best else fit)
        run = session.state().runs[result.run]
        chosen = model or result.best.id
        trained = result.model(chosen, epoch)
        if trained.gone:
            raise NotFoundError(trained.gone)
        known, request = run.models[chosen], run.fit_request
        made = session.state().datasets.get(run.plan.dataset) if run.plan else None
        metrics = {
            f"{split}/{metric}": value
            for split, values in (
                ("train", known.training_metrics(trained.epoch) if trained.epoch else {}),
                ("valid", known.validations.get(trained.epoch, {})),
            )
            for metric, value in values.items()
        }
        return Registration(
            experiment=session.name,
            run=run.id,
            model=trained.id,
            epoch=trained.epoch,
            checkpoint=trained.checkpoint,
            code=request.code,
            fitted=made.fitted if made else None,
            dataset=made.id if made else "",
            hyperparams=trained.hyperparams,
            metric=trained.metric,
            value=trained.value,
            metrics=metrics,
            author=author(),
        )

    def _register(self, name: str, asked: Registration, *, alias: str | None) -> RegisteredModel:
        connection = self._session.connection
        version = _copied(connection, connection.kvs.register_model(name, asked))
        if alias is not None:
            connection.kvs.move_alias(name, AliasRequest(alias=alias, version=version.version))
        return _loadable(connection, version)


def load_model(which: str, *, server: str | None = None, token: str | None = None) -> RegisteredModel:
    """A version of a registered model, such as ``digits/3`` or ``digits@champion``, whatever became of its experiment.

    Its `modules()` are ready to be called; `load()` is its state.

    Args:
        server, token: of a cluster elsewhere, as `cerebro.Experiment` has them.

    Raises:
        BadRequestError: `which` is no such text.
        ClusterError: no cluster answers. This function does not start one.
        NotFoundError: there is no such model, version or alias; the message names those that there are.
        ConflictError: the version is still being copied, or could not be.
        UnreadableError: its record cannot be read.
    """
    name, alias, number = parsed(which)
    connection = connect(server, token, start=False)
    version = found(connection.kvs.registered_model(name), alias, number)
    if version.state != "ready":
        why = version.error or "its files are being copied; try again in a moment"
        raise ConflictError(f"version {version.version} of {name} cannot be loaded: {why}")
    return _loadable(connection, version)


def parsed(which: str) -> tuple[str, str, int]:
    """Name, alias and version of a text such as ``digits@champion`` or ``digits/3``; it has one of the two.

    Raises:
        BadRequestError: it says neither, or something else.
    """
    match = re.fullmatch(r"([^@/]+)(?:@([^@/]+)|/([1-9][0-9]{0,8}))", which)
    if match is None:
        raise BadRequestError(
            f"{which!r} names no version of a registered model: expected NAME@ALIAS or NAME/VERSION, such as "
            "digits@champion or digits/3; `cerebro models` lists them"
        )
    name, alias, number = match.groups()
    check_name(name)
    if alias is not None:
        check_alias(alias)
    return name, alias or "", int(number or 0)


def found(model: RegisteredName, alias: str, number: int) -> ModelVersion:
    """The version that is meant.

    Raises:
        NotFoundError: there is none.
    """
    if alias:
        if alias not in model.aliases:
            there = ", ".join(f"{name} ({version})" for name, version in sorted(model.aliases.items()))
            raise NotFoundError(
                f"{model.name} has no alias {alias!r}; it has {there or 'none'}. `cerebro alias {model.name} {alias} "
                "VERSION` gives it to a version"
            )
        number = model.aliases[alias]
    for version in model.versions:
        if version.version == number:
            return version
    for unreadable in model.unreadable:
        if unreadable.version == number:
            raise UnreadableError(unreadable.reason)
    raise NotFoundError(
        f"{model.name} has no version {number}; it has {', '.join(str(each.version) for each in model.versions)}"
    )


def check_name(name: str) -> None:
    """Raises: BadRequestError: it cannot be that of a registered model."""
    try:
        _NAME.validate_python(name)
    except ValidationError as cause:
        raise BadRequestError(
            f"{name!r} cannot be the name of a registered model: expected lower-case letters, digits and dashes, at "
            "most 50, such as digits"
        ) from cause


def check_alias(alias: str) -> None:
    """Raises: BadRequestError: it cannot be one."""
    try:
        _ALIAS.validate_python(alias)
    except ValidationError as cause:
        raise BadRequestError(
            f"{alias!r} cannot be an alias: expected a letter, then lower-case letters, digits and dashes, at most 50, "
            "such as champion"
        ) from cause


def _copied(connection: Connection, version: ModelVersion) -> ModelVersion:
    """The same, once its files are copied."""
    deadline = time.monotonic() + _COPIED_S
    while version.state == "copying":
        if time.monotonic() > deadline:
            raise ClusterError(
                f"version {version.version} of {version.name} has not been copied after {_COPIED_S:g} s: the "
                "controller does it as soon as it runs and the checkpoint volume answers. See `cerebro models` and "
                "`cerebro logs controller`"
            )
        time.sleep(_LOOK_AGAIN_S)
        version = found(connection.kvs.registered_model(version.name), "", version.version)
    if version.state == "failed":
        raise CheckpointCorruptError(
            f"version {version.version} of {version.name} could not be made: {version.error}"
        )
    return version


def _loadable(connection: Connection, version: ModelVersion) -> RegisteredModel:
    source, fitted, kvs, files = version.source, version.fitted, connection.kvs, connection.files
    assert version.checkpoint is not None, "it is ready"

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
            folder=cache_folder(os.environ),
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
