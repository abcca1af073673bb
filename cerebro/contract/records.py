"""Records in the store that are not events: experiments, workers, code, sizes and their reports. Types only.

Each has one writer: the client creates experiments and code, a worker registers itself, the controller writes
`WorkerSetStatus`. The keys in Redis are in `kvs_api.store.keys`; more stored records are in `cerebro.contract.stored`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from cerebro.contract import SCHEMA_VERSION
from cerebro.contract.base import Contract, Name, Sha256, Split
from cerebro.contract.values import require_finite

Hyperparameters = dict[str, Annotated[JsonValue, AfterValidator(require_finite)]]
"""One training configuration: any JSON values, without NaN and infinity."""


def drops_last(hyperparams: Hyperparameters) -> bool:
    """Return whether training leaves out the last batch of a partition if it is smaller than the others."""
    return hyperparams.get("drop_last") is True


def batches_of(rows: int, batch_size: int, *, drop_last: bool) -> int:
    """Return the number of batches of a pass over some rows."""
    return rows // batch_size if drop_last else -(-rows // batch_size)


ColumnType = Literal["string", "int64", "float64", "bool"]
"""Types of columns of text files."""


class Locator(Contract):
    """Addresses of one split's data.

    Attributes:
        metadata: CSV, TSV or Parquet table with one row per example and a unique column ``id``: a path,
            ``file://`` or ``s3://``. Also a folder of such files, or a pattern for several names:
            ``s3://bucket/part-*.csv``.
        objects: optional root of the objects that rows name (images, audio): a folder, ``file://`` or
            ``s3://``.
        types: types of columns of CSV and TSV files; other types are inferred from the first rows.
    """

    metadata: str = Field(min_length=1)
    objects: str | None = None
    # Not written while empty, because it is a part of a data set's fingerprint.
    types: dict[str, ColumnType] = Field(default_factory=dict, exclude_if=lambda types: not types)


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
        """Return the present splits, in the fixed order train, valid, test, predict."""
        pairs = (("train", self.train), ("valid", self.valid), ("test", self.test), ("predict", self.predict))
        return {name: locator for name, locator in pairs if locator is not None}


class ExperimentRecord(Contract):
    """Record of an experiment. Written once; the locators may change until a data set exists."""

    schema_version: Literal[2] = SCHEMA_VERSION
    name: Name
    locators: Locators
    archive: Sha256 | None = None
    """Code archive with auxiliary files that user code may import, stored as a blob."""
    author: str = ""
    created: float = 0.0
    """Seconds since the epoch, by the store's clock."""
    project: Name | Literal[""] = Field("", exclude_if=lambda project: not project)
    """Project with the members who steer it and the fair share of its runs; only with users."""
    owner: str = Field("", exclude_if=lambda owner: not owner)
    """`Principal.identity` of its author; only with users."""


class Unreadable(Contract):
    """Reason for quarantining an experiment. Its runs stop and its log stays unchanged."""

    seq: int
    """Number of the first unreadable event; 0 for the experiment's record."""
    reason: str
    by: str = ""
    """Name and version of the reader that failed."""
    time: float = 0.0
    """Time of detection, in seconds since the epoch."""


class ExperimentSummary(Contract):
    """An experiment with the newest facts of its log, for lists."""

    experiment: ExperimentRecord
    last_seq: int
    last_event: float
    """Seconds since the epoch of the newest event."""
    open_runs: tuple[str, ...]
    """Run ids requested and not ended, oldest first."""
    is_archived: bool = False
    is_deleting: bool = False
    unreadable: Unreadable | None = None
    """Set while it is quarantined. If its record is unreadable, `experiment` has only its name and creation time."""


class Replica(Contract):
    """A complete training partition found on a worker's own volume."""

    dataset: str
    partition: int


class PodRef(Contract):
    """Container and pod of a worker's process. `uid` distinguishes pods with the same name."""

    name: str = Field(min_length=1)
    uid: str = Field(min_length=1)
    container: str = Field(min_length=1)


class Device(Contract):
    """A device slot for one training sub-epoch: a GPU, or a share of the cores of a worker without GPUs.

    Devices are numbered from 0 in the order of the worker's registration.
    """

    kind: Literal["gpu", "cpu"]
    name: str
    """For people, such as the GPU's model."""
    memory_bytes: int | None = Field(default=None, ge=0)
    """Memory of the device; `None` if it has no memory or it is unknown."""
    threads: int = Field(ge=1)
    """Threads of a sub-epoch on this device."""


MAX_DEVICES = 256
"""Maximum number of devices of a worker."""

QUEUE_DEPTH = 2
"""Open attempts per device: one runs while the next loads its model. The same limit holds without a device.
"""


COMPUTES = "computes:"
"""Prefix of an entry in `WorkerRecord.kinds` that names the processor's kind.

Processors of one kind compute the same bits with the same number of threads.
"""


class WorkerRecord(Contract):
    """A worker as it registered.

    `incarnation` is new at each start of the worker's process: it fences the previous one.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    worker: Name
    incarnation: str = Field(min_length=1)
    weight: float = Field(gt=0)
    """Relative share of the data: its number of GPUs, or 1."""
    cores: int = Field(ge=1)
    """Threads it computes with."""
    machine_cores: int = Field(default=0, ge=0)
    """Cores of its machine, shared with the other workers of its `host`; 0 if unknown."""
    gpus: tuple[str, ...] = ()
    devices: tuple[Device, ...] = Field(default=(), max_length=MAX_DEVICES)
    """Device slots for training sub-epochs. A worker without any runs one sub-epoch at a time."""
    memory_bytes: int | None = Field(None, ge=0, exclude_if=lambda value: value is None)
    """Limit of its container, or the memory of its machine, in bytes; `None` if unknown."""
    kinds: tuple[str, ...]
    """Task kinds it has handlers for, and its processor's kind after `COMPUTES`."""
    replicas: tuple[Replica, ...] = ()
    volume: Name | None = None
    """Shared shard volume, whose workers hold the same training partitions; `None`: its own volume."""
    pod: PodRef | None = None
    """Pod of the worker, if a cluster manager runs it."""
    host: str = ""
    """Name of the machine, or of the pod's node."""
    pid: int = 0
    address: str = Field("", exclude_if=lambda address: not address)
    """``HOST:PORT`` where other workers of a gang reach it. Empty: it joins no gang."""


class GpuUsage(Contract):
    """One GPU of a worker, as its driver reports it."""

    name: str
    used_share: float | None = None
    """Busy share of the driver's last measuring period, 0 to 1; `None` if the driver does not report it."""
    memory_bytes: int = Field(ge=0)
    memory_total_bytes: int = Field(ge=0)


class WorkerUsage(Contract):
    """Resource usage of a worker. `None` means not measured, not 0."""

    cores_used: float | None = None
    """Processor seconds per second of its process and all descendants."""
    cores: int = Field(ge=1)
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    gpus: tuple[GpuUsage, ...] = ()
    shards_used_bytes: int | None = None
    """Used bytes of the shard volume's file system, by all users."""
    shards_total_bytes: int | None = None


class UsageSample(Contract):
    """A worker's usage at a time (seconds since the epoch, the store's clock)."""

    time: float
    usage: WorkerUsage


TASKS_BETWEEN = ", "
"""Separator of tasks in `WorkerStatus.running`."""

SILENT_S = 20.0
"""Seconds without a report before pages show a worker as lost."""


class WorkerStatus(Contract):
    """A registered worker and its latest report."""

    record: WorkerRecord
    silent_s: float
    """Seconds since its last report, by the store's clock."""
    checkpoint_free_bytes: int | None = None
    running: str | None = None
    """Tasks that it reported as running; see `tasks`."""
    leaving: str = ""
    """Reason why its process is ending; empty otherwise."""
    usage: WorkerUsage | None = None
    """Its last reported usage; `None` before the first report."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks that it reported as running, each as `experiment/task`, one per set of devices."""
        return tuple(self.running.split(TASKS_BETWEEN)) if self.running else ()

    @property
    def is_lost(self) -> bool:
        """True if it has been silent for longer than `SILENT_S`, so its last report is outdated."""
        return self.silent_s > SILENT_S


class AuditEntry(Contract):
    """An action on the cluster that no experiment's log records."""

    time: float
    """Seconds since the epoch, the store's clock."""
    by: str
    what: str
    """Such as ``deleted experiment digits``."""


class Reclaim(Contract):
    """Data sets that no experiment needs. Workers remove their files.

    `seq` grows whenever the list changes.
    """

    seq: int = 0
    datasets: tuple[str, ...] = ()


class SizeRequest(Contract):
    """Requested number of workers, until the cluster manager accepts or refuses it."""

    schema_version: Literal[2] = SCHEMA_VERSION
    workers: int = Field(ge=0, le=1000)
    """Number of workers. 0 removes all workers, and no run continues."""
    pause: bool = Field(False, exclude_if=lambda value: not value)
    """With 0 workers: pause open runs first. Without it, open runs refuse the request."""
    by: str = ""
    """Author, for people; ``autoscaler``: the controller itself."""
    reason: str = Field("", exclude_if=lambda text: not text)
    """Reason, for people; may be empty."""
    problem: str = ""
    """Reason for a refusal."""


AUTOSCALER = "autoscaler"
"""Author of the controller's own size requests."""


def no_workers_for(runs: Sequence[str]) -> str:
    """Return the message that open runs prevent scaling to zero. Runs are ``EXPERIMENT/RUN``."""
    names = ", ".join(runs[:5]) + (f" and {len(runs) - 5} more" if len(runs) > 5 else "")
    return (
        f"{'a run is' if len(runs) == 1 else f'{len(runs)} runs are'} open: {names}. Without workers they cannot "
        "continue: wait for their end, stop them, or pause them with `cerebro scale --workers 0 --pause`"
    )


class WorkerSetStatus(Contract):
    """Why requested workers do not start, as reported by the cluster manager; for people.

    Not part of a worker's record, because a worker that never started never registered.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    pods: dict[str, str] = Field(default_factory=dict)
    """Pod -> reason why it does not run."""
    note: str = Field("", exclude_if=lambda text: not text)
    """Message about the number of workers: missing workers, or that the cluster is scaled to zero."""
    size_before_zero: int = Field(0, ge=0, exclude_if=lambda number: number == 0)
    """Workers before scale to zero, for a controller that takes over. Absent otherwise."""
    scaled_to_zero_at: float | None = Field(None, exclude_if=lambda time: time is None)
    """When a person scaled the cluster to zero, in seconds since the epoch. Absent otherwise."""
    size: int | None = Field(None, ge=0, exclude_if=lambda number: number is None)
    """The cluster manager's requested number of workers when a controller last read it. After a change of leader, the
    new controller compares it with the present number to detect a manual change. Absent until the first reading."""
    chosen_at: float | None = Field(None, exclude_if=lambda time: time is None)
    """When a person chose that size, seconds since the epoch. Absent if no person did."""
    installed: str = Field("", exclude_if=lambda text: not text)
    """``UID:NUMBER`` of the worker set that was last scaled to the chart's values, and the number in these values."""


class CodeRecord(Contract):
    """User code as an encoded string (cloudpickle, base64). Decoded only inside a worker's child process."""

    schema_version: Literal[2] = SCHEMA_VERSION
    sha256: Sha256
    """SHA-256 of the encoded string."""
    fingerprint: Sha256
    """Hash of the code's behaviour, equal for the same code sent from another kernel."""
    class_name: str
    source: str
    encoded: str
    author: str = ""
