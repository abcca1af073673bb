"""Registered models: immutable versions, and aliases that move between them.

A version is a copy of what an experiment made, with all that is needed to load it, so it outlives its experiment. A
client asks for it; the store gives it its number; the controller copies its files and tells what became of it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from cerebro.contract import SCHEMA_VERSION
from cerebro.contract.base import Contract, Name, Sha256
from cerebro.contract.records import ExperimentRecord, Hyperparameters
from cerebro.contract.tasks import CheckpointRef, FittedRef

Alias = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,48}[a-z0-9])?$")]
"""Begins with a letter, so that it is never taken for a version."""


class Registration(Contract):
    """What a client asks to be registered: a model of a fit, as it was after an epoch.

    Attributes:
        epoch: 0: it never ended one.
        checkpoint: of the experiment, to be copied.
        code: the spec that the model was trained by.
        fitted: what `ETLSpec.fit` returned for the data set, to be copied.
        dataset: fingerprint of the preprocessed data.
        metric, value: what models are ranked by; `None` if it is not known at this epoch.
        metrics: of training (``train/NAME``) and validation (``valid/NAME``) at this epoch.
        author: who asked.
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
    """A version of a registered model. What it is never changes; only its copying comes to an end, once."""

    schema_version: Literal[1] = SCHEMA_VERSION
    name: Name
    version: int = Field(ge=1)
    state: Literal["copying", "ready", "failed"] = "copying"
    error: str = ""
    """Why it cannot be had, if it failed."""
    created: float
    """Seconds since the epoch, by the store's clock."""
    source: Registration
    experiment: ExperimentRecord
    """As it was: its code archive and miscellaneous files are needed to restore the spec."""
    checkpoint: CheckpointRef | None = None
    """The copy, on the checkpoint volume; of a ready one."""
    fitted: CheckpointRef | None = None
    """Copy of `source.fitted`, beside it."""


class VersionOutcome(Contract):
    """What became of a version's copying."""

    version: int = Field(ge=1)
    error: str = Field("", max_length=2000)
    """Empty: all of it is there."""
    checkpoint: CheckpointRef | None = None
    fitted: CheckpointRef | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> VersionOutcome:
        if bool(self.error) == (self.checkpoint is not None):
            raise ValueError("give the copy of the checkpoint, or the error for which there is none")
        return self


class AliasRequest(Contract):
    """Have an alias mean this version from now on; without one, nothing."""

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
    """Those that can be read."""
    unreadable: tuple[UnreadableVersion, ...] = Field((), exclude_if=lambda versions: not versions)
    """Versions whose record is damaged."""
    aliases: dict[str, int] = Field(default_factory=dict)
    """Alias -> version."""

    def aliases_of(self, version: int) -> tuple[str, ...]:
        """Those that mean it."""
        return tuple(sorted(alias for alias, number in self.aliases.items() if number == version))


class RegistryAnswer(Contract):
    """All registered models, by name."""

    models: tuple[RegisteredModel, ...]
