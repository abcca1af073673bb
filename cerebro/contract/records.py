"""Records that are not events: experiments, workers, code. Written once, or by one owner."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, model_validator

from cerebro.contract import SCHEMA_VERSION
from cerebro.contract.base import Contract, Name, Sha256, Split

Hyperparameters = dict[str, JsonValue]
"""One training configuration: anything JSON can say."""


class Locator(Contract):
    """Where one split lies.

    Attributes:
        metadata: CSV or Parquet table with one row per example and a unique column ``id``: a path, ``file://`` or ``s3://``.
        objects: root of the objects that rows name (images, audio...): a folder, ``file://`` or ``s3://``;
        may be absent.
    """

    metadata: str = Field(min_length=1)
    objects: str | None = None


class Locators(Contract):
    """Dataset locators: a `Locator` per split and miscellaneous files that every worker gets."""

    train: Locator | None = None
    valid: Locator | None = None
    test: Locator | None = None
    predict: Locator | None = None
    misc: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_a_split(self) -> Locators:
        if not self.splits():
            raise ValueError("locators name no split: give at least one of train, valid, test, predict")
        return self

    def splits(self) -> dict[Split, Locator]:
        """The splits that are present, in the fixed order train, valid, test, predict."""
        pairs = (("train", self.train), ("valid", self.valid), ("test", self.test), ("predict", self.predict))
        return {name: locator for name, locator in pairs if locator is not None}


class ExperimentRecord(Contract):
    """What an experiment is; immutable once created."""

    schema_version: Literal[1] = SCHEMA_VERSION
    name: Name
    locators: Locators
    archive: Sha256 | None = None
    """Code archive with auxiliary files that user code may import, stored as a blob."""
    author: str = ""
    created: float = 0.0
    """Seconds since the epoch, by the store's clock."""


class ExperimentSummary(Contract):
    """An experiment with the newest facts of its log, for lists."""

    experiment: ExperimentRecord
    last_seq: int
    last_event: float
    """Seconds since the epoch of the newest event."""
    open_runs: tuple[str, ...]
    """Run ids requested and not ended, oldest first."""


class Holding(Contract):
    """A complete training partition found on a worker's own volume."""

    dataset: str
    partition: int


class WorkerRecord(Contract):
    """A worker as it registered, and how long ago it last reported.

    `incarnation` is new at each start of the worker's process: it fences the previous one.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    worker: Name
    incarnation: str = Field(min_length=1)
    weight: float = Field(gt=0)
    """Share of the data it gets: its number of GPUs, or 1."""
    cores: int = Field(ge=1)
    gpus: tuple[str, ...] = ()
    kinds: tuple[str, ...]
    """Task kinds it has handlers for."""
    holdings: tuple[Holding, ...] = ()
    host: str = ""
    pid: int = 0


class WorkerStatus(Contract):
    """A registered worker and its latest report."""

    record: WorkerRecord
    silent_s: float
    """Seconds since its last report, by the store's clock."""
    checkpoint_free_bytes: int | None = None
    running: str | None = None
    """`experiment/task` it says it runs."""


class CodeRecord(Contract):
    """User code as an encoded string (cloudpickle, base64). Decoded only inside a worker's child process."""

    schema_version: Literal[1] = SCHEMA_VERSION
    sha256: Sha256
    """Of the encoded string."""
    fingerprint: Sha256
    """Of what the code does: equal for the same code sent from another kernel."""
    class_name: str
    source: str
    encoded: str
    author: str = ""
