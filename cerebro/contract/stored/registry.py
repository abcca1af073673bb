"""Registered models: immutable versions, and aliases that move between them.

A version is a copy of a model with everything needed to load it, so it outlives its experiment. A client
requests it, the store numbers it, and the controller copies its files and reports the outcome.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from cerebro.contract import SCHEMA_VERSION
from cerebro.contract.base import Contract, Name, Sha256
from cerebro.contract.records import ExperimentRecord, Hyperparameters
from cerebro.contract.tasks.checkpoints import CheckpointRef, FittedRef

Alias = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,48}[a-z0-9])?$")]
"""Name of an alias. It starts with a letter, so it cannot be mistaken for a version."""


class Registration(Contract):
    """A client's request to register a model of a fit, after an epoch.

    Attributes:
        epoch: 0 if the model completed no epoch.
        checkpoint: the experiment's checkpoint to copy.
        code: spec of the model.
        fitted: return value of `ETLSpec.fit` to copy.
        dataset: fingerprint of the preprocessed data.
        metric, value: ranking metric and its value; `None` if unknown at this epoch.
        metrics: training (``train/NAME``) and validation (``valid/NAME``) metrics at this epoch.
        author: author of the request.
    """

    experiment: Name
    run: Name
    model: str = Field(min_length=1, max_length=100)
    epoch: int = Field(ge=0)
    checkpoint: CheckpointRef
    code: Sha256
    fitted: FittedRef | None = None
    dataset: str = Field("", max_length=200)
    hyperparams: Hyperparameters
    metric: str
    value: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    author: str = ""


class ModelVersion(Contract):
    """A version of a registered model. Immutable, except for the outcome of its copying."""

    schema_version: Literal[2] = SCHEMA_VERSION
    name: Name
    version: int = Field(ge=1)
    state: Literal["copying", "ready", "failed"] = "copying"
    error: str = ""
    """Reason of a failed copy; empty otherwise."""
    created: float
    """Seconds since the epoch, by the store's clock."""
    source: Registration
    experiment: ExperimentRecord
    """Record of the experiment at registration: its code archive and miscellaneous files restore the spec."""
    checkpoint: CheckpointRef | None = None
    """The copy on the checkpoint volume; set once the version is ready."""
    fitted: CheckpointRef | None = None
    """Copy of `source.fitted`, next to the checkpoint."""


class VersionOutcome(Contract):
    """Outcome of copying a version's files."""

    version: int = Field(ge=1)
    error: str = Field("", max_length=2000)
    """Reason for a failed copy. A complete version has no error."""
    checkpoint: CheckpointRef | None = None
    fitted: CheckpointRef | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> VersionOutcome:
        if bool(self.error) == (self.checkpoint is not None):
            raise ValueError("give the copy of the checkpoint, or the error that prevented it")
        return self


class AliasRequest(Contract):
    """Move an alias to a version; without a version, remove it."""

    alias: Alias
    version: int | None = Field(ge=1)


class UnreadableVersion(Contract):
    """A version whose record is damaged, or was written by a newer version of Cerebro."""

    version: int = Field(ge=1)
    reason: str


class RegisteredModel(Contract):
    """A name with its versions, oldest first."""

    name: Name
    versions: tuple[ModelVersion, ...]
    """Readable versions."""
    unreadable: tuple[UnreadableVersion, ...] = Field((), exclude_if=lambda versions: not versions)
    """Versions whose record is damaged."""
    aliases: dict[str, int] = Field(default_factory=dict)
    """Alias -> version."""

    def aliases_of(self, version: int) -> tuple[str, ...]:
        """Return the aliases of a version."""
        return tuple(sorted(alias for alias, number in self.aliases.items() if number == version))


class RegistryAnswer(Contract):
    """All registered models, by name."""

    models: tuple[RegisteredModel, ...]
