"""Task bodies that the controller assigns, and the workers' results and failures.

A task's `key` identifies it within an experiment. A body is self-contained: besides it, a worker reads only
the user code that it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from cerebro.contract.base import Contract, Devices, LateContract, Name, RelativePath, Sha256, Split
from cerebro.contract.failure_rules import FailureRule, MatchedRule
from cerebro.contract.metrics import Part, Terms
from cerebro.contract.parallel_plans import MemoryPlace, ParallelPlan, TechniqueChoice
from cerebro.contract.records import Hyperparameters, Locators
from cerebro.contract.search_tasks import SearchAnswer, SearchTaskRequest
from cerebro.contract.texts import cleaned, first_line
from cerebro.contract.trials import DeviceKind, DevicePlace, GroupId, Inspection, ParallelPlanId, TrialOutcome

MAX_MESSAGE, MAX_TRACEBACK = 8_000, 20_000
"""Maximum characters of a failure's message and traceback."""


class CheckpointRef(Contract):
    """An immutable file on the checkpoint volume.

    Attributes:
        name: path relative to the checkpoint volume, which it cannot leave; carries the attempt that wrote it.
        checksum: xxh3-64 of the file, 16 hexadecimal digits.
        size: bytes.
    """

    name: RelativePath
    checksum: str
    size: int = Field(ge=0)


class FittedRef(Contract):
    """Return value of `ETLSpec.fit` for a data set: an immutable file on the shared volume."""

    name: str = Field(pattern=r"^datasets/[\w-][\w.-]*/fitted/[\w-][\w.-]*\.pickle$")
    checksum: str
    size: int


class Savepoint(Contract):
    """State of a sub-epoch between two batches. Another attempt continues from it.

    Attributes:
        checkpoint: the file; its name contains the batch and the attempt that wrote it.
        batch: number of the first batch after the savepoint.
        rows: rows of the batches before it.
    """

    checkpoint: CheckpointRef
    batch: int = Field(ge=1)
    rows: int = Field(ge=1)


class Member(Contract):
    """One worker of a gang.

    Attributes:
        worker: its name.
        partition: partition that it holds and reads.
        devices: its devices for the sub-epoch.
    """

    worker: Name
    partition: int = Field(ge=0)
    devices: Devices = (0,)


class Gang(Contract):
    """Workers that train a sub-epoch together, each on its own partition.

    Attributes:
        address: address of the leader.
        members: all workers, by ascending partition; the first is the leader.
        rows: rows of each member's partition.
    """

    address: str
    members: tuple[Member, ...] = Field(min_length=2)
    rows: tuple[int, ...]

    def ranks_of(self, number: int) -> range:
        """Return a member's ranks, one per device. Members are numbered in order."""
        begin = sum(len(member.devices) for member in self.members[:number])
        return range(begin, begin + len(self.members[number].devices))

    def member_of(self, rank: int) -> tuple[int, int]:
        """Number of the member that has a rank, and which of its ranks that is."""
        number = next(n for n in range(len(self.members)) if rank in self.ranks_of(n))
        return number, rank - self.ranks_of(number)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureTraits:
    """How Cerebro treats failures of one kind.

    Attributes:
        retry: the task's next attempt. `free`: the failure does not count. `counted`: until `max_attempts` are used up.
            `elsewhere`: on other workers, up to `MAX_DEVICE_FAILURES`. `no`: none. `Task.fail` has exceptions: an
            idle hang, lack of memory, an unusable volume or a lost worker.
        fails_run: True if it ends the whole run, because no other model could escape it.
        savepoint: effect on the sub-epoch's savepoint. `discard`: always. The others apply to an attempt that
            continued from it. `restart`: discard it, and repeat the sub-epoch from its beginning.
            `discard_if_repeated`: discard it after `MAX_DEATHS` attempts.
        plan: effect on the parallel plan. `rule_out`: the plan is the cause. `doubt`: the plan, user code or chance is.
        uses_failure_rules: True if the task's own work causes it, so failure rules apply.
        keeps_processes: True if the processes stay usable once all ranks have failed this way.
        is_unexplained: True if it says how the attempt ended, but not why; stray messages may explain it.
        may_be_worker: True if it is evidence about the worker.
        may_be_lost_peer: True if a lost connection to another rank may appear as this kind.
        may_be_kernel_kill: True if a process that the kernel killed for memory may appear as this kind.
    """

    retry: Literal["free", "counted", "elsewhere", "no"]
    fails_run: bool
    savepoint: Literal["keep", "discard", "restart", "discard_if_repeated"]
    plan: Literal["keep", "doubt", "rule_out"]
    uses_failure_rules: bool
    keeps_processes: bool
    is_unexplained: bool
    may_be_worker: bool
    may_be_lost_peer: bool
    may_be_kernel_kill: bool


class FailureKind(StrEnum):
    """Cause of an attempt without a result, with its traits."""

    traits: FailureTraits

    def __new__(cls, value: str, traits: FailureTraits) -> Self:
        """Create a member; its value is the text alone."""
        kind = str.__new__(cls, value)
        kind._value_, kind.traits = value, traits
        return kind

    # fmt: off
    # User code raised; with the same seed it raises again. Tried again elsewhere once if a device may be the cause.
    USER_ERROR = "user_error", FailureTraits(
        retry="no", fails_run=False, savepoint="restart", plan="doubt",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=True, may_be_kernel_kill=True,
    )

    # A metric is NaN or infinite.
    NON_FINITE = "non_finite", FailureTraits(
        retry="no", fails_run=False, savepoint="discard", plan="keep",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # No batch within the limit. Tried once more if the process was idle.
    HANG = "hang", FailureTraits(
        retry="no", fails_run=False, savepoint="discard_if_repeated", plan="doubt",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=True,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # The child process died: signal, exit, segmentation fault.
    CRASH = "crash", FailureTraits(
        retry="counted", fails_run=False, savepoint="discard_if_repeated", plan="doubt",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=True,
        may_be_worker=True, may_be_lost_peer=True, may_be_kernel_kill=True,
    )

    # The kernel killed the child for memory, or the GPU ran out.
    OUT_OF_MEMORY = "out_of_memory", FailureTraits(
        retry="counted", fails_run=False, savepoint="discard_if_repeated", plan="rule_out",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # The input checkpoint is missing or corrupt: the sub-epoch before is trained again.
    CHECKPOINT = "checkpoint", FailureTraits(
        retry="free", fails_run=False, savepoint="discard", plan="keep",
        uses_failure_rules=False, keeps_processes=True, is_unexplained=False,
        may_be_worker=False, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # A volume is full: the run pauses.
    STORAGE_FULL = "storage_full", FailureTraits(
        retry="free", fails_run=False, savepoint="keep", plan="keep",
        uses_failure_rules=False, keeps_processes=True, is_unexplained=False,
        may_be_worker=False, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # pip failed.
    REQUIREMENTS = "requirements", FailureTraits(
        retry="no", fails_run=True, savepoint="keep", plan="keep",
        uses_failure_rules=False, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # Rows are unusable.
    DATA = "data", FailureTraits(
        retry="no", fails_run=True, savepoint="keep", plan="keep",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # The worker drains, or the attempt was revoked.
    PREEMPTED = "preempted", FailureTraits(
        retry="free", fails_run=False, savepoint="keep", plan="keep",
        uses_failure_rules=False, keeps_processes=True, is_unexplained=False,
        may_be_worker=False, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # An object store or a volume did not answer. A failed volume costs no attempt; see `Failure.volume`.
    UNAVAILABLE = "unavailable", FailureTraits(
        retry="counted", fails_run=False, savepoint="keep", plan="keep",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # The parallel plan cannot train this model. Another plan costs no attempt.
    NOT_APPLICABLE = "not_applicable", FailureTraits(
        retry="no", fails_run=False, savepoint="keep", plan="rule_out",
        uses_failure_rules=False, keeps_processes=True, is_unexplained=False,
        may_be_worker=False, may_be_lost_peer=True, may_be_kernel_kill=False,
    )

    # Another worker of a gang did not come, or was lost. Counted as a lost worker.
    MEMBER_LOST = "member_lost", FailureTraits(
        retry="no", fails_run=False, savepoint="keep", plan="rule_out",
        uses_failure_rules=False, keeps_processes=False, is_unexplained=False,
        may_be_worker=False, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # The machine is faulty. Counted against its worker.
    DEVICE = "device", FailureTraits(
        retry="elsewhere", fails_run=False, savepoint="keep", plan="keep",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )
    # fmt: on


def text_of(limit: int) -> BeforeValidator:
    """Build a validator that cleans and shortens text of any length."""
    return BeforeValidator(lambda value: cleaned(value, limit) if isinstance(value, str) else value)


class Failure(Contract):
    """Why a task or a run ended without a result, for people. Cleans and shortens its text."""

    kind: FailureKind
    message: Annotated[str, text_of(MAX_MESSAGE)]
    traceback: Annotated[str, text_of(MAX_TRACEBACK)] = ""
    """Traceback of an exception in user code. For a hang: the stacks of all threads, newest calls first."""
    needs_bytes: int = 0
    """Bytes that the checkpoint volume lacked."""
    volume: Annotated[str, text_of(MAX_MESSAGE)] = Field("", exclude_if=lambda path: not path)
    """Path on a full or unusable volume; absent for other failures. It does not count as an attempt of the task, which
    is tried elsewhere. The run pauses if that also fails."""

    @property
    def is_of_volume(self) -> bool:
        """True if a volume was full or unusable, so the task is not the cause."""
        return self.kind is FailureKind.STORAGE_FULL or (
            self.kind is FailureKind.UNAVAILABLE and bool(self.volume)
        )

    rows_failed: int = Field(0, exclude_if=lambda number: number == 0)
    """Failed rows, if they ended ETL."""

    place: MemoryPlace | None = Field(None, exclude_if=lambda place: place is None)
    """Memory that ran out. Absent if unknown."""
    rank: int | None = Field(None, exclude_if=lambda rank: rank is None)
    """Rank that failed first, for a sub-epoch on several devices."""
    peak_bytes: int = Field(0, ge=0, exclude_if=lambda number: number == 0)
    """Peak memory of the process or rank that ran out of memory, in bytes. 0 (absent): unknown."""
    limit_bytes: int = Field(0, ge=0, exclude_if=lambda number: number == 0)
    """Memory of the worker's own processes, or of the device, in bytes. 0: unknown, or shared with other processes."""
    is_idle: bool = Field(False, exclude_if=lambda value: not value)
    """True for a hang whose processes did nothing, so another attempt may succeed."""
    may_be_device: bool = Field(False, exclude_if=lambda value: not value)
    """True for an error of user code that a broken device may have caused."""
    is_by_parallel_plan: bool = Field(False, exclude_if=lambda value: not value)
    """True if the sub-epoch ran by another parallel plan than user code is written for, a possible cause."""
    rule: MatchedRule | None = Field(None, exclude_if=lambda rule: rule is None)
    """The failure rule that matched."""
    late_rules: tuple[str, ...] = Field((), exclude_if=lambda names: not names)
    """Failure rules that were ended because they took too long."""

    @property
    def label(self) -> str:
        """Names of the failure rules that matched or took too long, or an empty text."""
        late = [f"failure rule {name!r} took too long" for name in self.late_rules]
        return ", ".join([*([self.rule.name] if self.rule else []), *late])

    @property
    def is_final(self) -> bool:
        """True if a failure rule forbids another attempt."""
        return self.rule is not None and self.rule.action == "no_retry"

    @property
    def text(self) -> str:
        """The message, then the traceback without its last line if that repeats the message."""
        traceback = self.traceback.rstrip().removesuffix(self.message.rstrip())
        return f"{self._labelled}{self.message.strip()}\n{traceback}".rstrip()

    @property
    def line(self) -> str:
        """The message in one line, after its label."""
        return first_line(f"{self._labelled}{self.message.strip()}")

    @property
    def _labelled(self) -> str:
        return f"[{self.label}] " if self.label else ""


class Timings(Contract):
    """Duration of each part of a task, in seconds, by the worker's monotonic clock."""

    start_s: float = 0.0
    """Seconds to start a process and to import and initialise user code. 0 if both were ready."""
    load_s: float = 0.0
    compute_s: float = 0.0
    save_s: float = 0.0


MAX_POINTS = 32
"""Maximum points of a curve."""


class CurvePoint(NamedTuple):
    """Mean of `number` consecutive values, and the seconds from the start of training to their middle."""

    seconds: float
    mean: float
    number: int


class Curve(Contract):
    """Values of a live metric of a sub-epoch, over time.

    Attributes:
        name: name of the metric.
        points: by ascending time, with finite means. Empty only if every value was NaN or infinite.
        has_diverged: True if every value, or the last one, was NaN or infinite.
    """

    name: str
    points: tuple[CurvePoint, ...] = Field(max_length=MAX_POINTS)
    has_diverged: bool = Field(False, exclude_if=lambda value: not value)

    @model_validator(mode="after")
    def _shows_something(self) -> Curve:
        if not self.points and not self.has_diverged:
            raise ValueError(
                f"the curve of {self.name!r} has no points, expected at least one unless it has diverged"
            )
        return self


MAX_WARNINGS, MAX_WARNING = 8, 400
"""Maximum warnings of a sub-epoch, and maximum characters of each."""

MAX_DIFFERENCES = 20
"""Maximum differences listed for a re-execution."""


class VerificationOutcome(Contract):
    """Comparison of a re-execution with the committed sub-epoch.

    Attributes:
        is_exact: True if states were compared bit by bit, False if metrics were compared to a tolerance.
        differences: names of values that differ. Without a difference the verification passed.
        digest: digest of the resulting state, to compare two re-executions; only if `is_exact`.
    """

    is_exact: bool
    differences: tuple[str, ...] = Field((), max_length=MAX_DIFFERENCES)
    digest: str = Field("", pattern=r"^([0-9a-f]{16})?$")


class ShardSet(Contract):
    """The files of a preprocessed partition: their number, and one checksum over all.

    The same rows in the same number of files have the same checksum.
    """

    number: int
    checksum: str


class TaskResult(Contract):
    """Result of a committed task. Fields of other task kinds keep their defaults."""

    rows: int = 0
    rows_failed: int = 0
    shards: ShardSet | None = Field(None, exclude_if=lambda value: value is None)
    """Only for `etl`."""
    cores: int = 0
    """Number of cores used. ETL: it determines the number of shards. Training: the number of threads, which affects the
    last bits of the weights. 0: unknown."""
    metrics: dict[str, float] = Field(default_factory=dict)
    ratios: dict[str, Terms] = Field(default_factory=dict, exclude_if=lambda ratios: not ratios)
    """Numerator and denominator of each ratio metric."""
    checkpoint: CheckpointRef | None = None
    resumed_rows: int = Field(0, exclude_if=lambda number: number == 0)
    """Rows before the savepoint, for a sub-epoch that continued from one; part of `rows`."""
    output: str = ""
    """Predictions: file on the shared volume. ETL: folder."""
    timings: Timings = Timings()
    peak_bytes: int = Field(0, exclude_if=lambda number: number == 0)
    """Peak memory of the user-code process in bytes, without processes that it started. 0: unknown, for example for ETL
    with several processes."""
    peak_gpu_bytes: int = Field(0, exclude_if=lambda number: number == 0)
    """Peak bytes that torch reserved on GPUs, with memory kept from the process's earlier tasks.

    With several ranks, both peaks are sums over the ranks. 0 (absent): no GPU, or unknown.
    """
    inspection: Inspection | None = Field(None, exclude_if=lambda value: value is None)
    """Only for `inspect`."""
    trial: TrialOutcome | None = Field(None, exclude_if=lambda value: value is None)
    """Only for `trial`."""
    curve: Curve | None = Field(None, exclude_if=lambda curve: curve is None)
    """Only for a sub-epoch with `TrainTask.with_curve` that reported values."""
    answer: SearchAnswer | None = Field(None, exclude_if=lambda value: value is None)
    """Only for `search`."""
    fitted: FittedRef | None = Field(None, exclude_if=lambda value: value is None)
    """Only for `fitting`."""
    verification: VerificationOutcome | None = Field(None, exclude_if=lambda value: value is None)
    """Only for `verify`."""
    warnings: tuple[Annotated[str, text_of(MAX_WARNING)], ...] = Field(
        (), max_length=MAX_WARNINGS, exclude_if=lambda texts: not texts
    )
    """Warnings of a sub-epoch for the user."""
    validated: int = Field(0, ge=0, exclude_if=lambda epoch: epoch == 0)
    """Epoch of the validation metrics that `train` received. 0: it received none."""

    @property
    def part(self) -> Part:
        """Its metrics, mergeable with other parts."""
        return Part(self.metrics, self.ratios, self.rows)


class EtlTask(LateContract):
    """Preprocess a partition of a split into shards, on the worker's volume or the shared one."""

    kind: Literal["etl"] = "etl"
    key: str
    experiment: str
    dataset: str
    split: Split
    partition: int
    code: Sha256
    archive: Sha256 | None = None
    locators: Locators
    max_failed: float
    """Maximum share of failed rows."""
    fitted: FittedRef | None = Field(None, exclude_if=lambda value: value is None)
    """The return value of `ETLSpec.fit`, if the spec has this method."""
    shortages: int = Field(0, ge=0, exclude_if=lambda number: number == 0)
    """Earlier attempts at this task that ran out of memory."""
    rules: tuple[FailureRule, ...] = Field((), exclude_if=lambda rules: not rules)
    """See `ModelTask`."""

    @property
    def misc(self) -> tuple[str, ...]:
        """See `ModelTask`."""
        return self.locators.misc


class FittingTask(LateContract):
    """Call `ETLSpec.fit` with all training rows before preprocessing. Takes no device."""

    kind: Literal["fitting"] = "fitting"
    key: str
    experiment: str
    dataset: str
    partitions: tuple[int, ...]
    """All partitions of the training split: their metadata are on the shared volume."""
    code: Sha256
    archive: Sha256 | None = None
    locators: Locators
    rules: tuple[FailureRule, ...] = Field((), exclude_if=lambda rules: not rules)
    """See `ModelTask`."""


class ModelTask(LateContract):
    """Common fields of tasks on a model."""

    key: str
    experiment: str
    run: str
    model: str
    hyperparams: Hyperparameters
    code: Sha256
    archive: Sha256 | None = None
    misc: tuple[str, ...] = ()
    dataset: str
    seed: int
    hang_timeout_s: float
    rules: tuple[FailureRule, ...] = Field((), exclude_if=lambda rules: not rules)
    """Failure rules of its run. The worker checks the rules of the cluster and the built-in rules, too."""
    fitted: FittedRef | None = Field(None, exclude_if=lambda value: value is None)
    """See `EtlTask`."""


class Position(Contract):
    """Position of a sub-epoch in its model's training. The defaults describe a single sub-epoch.

    Attributes:
        epochs: number of epochs of the model.
        sub_epochs: number of sub-epochs in all epochs.
        step: batches in the sub-epochs before this one.
        total_steps: batches in all sub-epochs; each sub-epoch passes over its partition once.
    """

    epochs: int = 1
    sub_epochs: int = 1
    step: int = 0
    total_steps: int = 0


class Validation(Contract):
    """Metrics of a model after one of its epochs.

    Attributes:
        epoch: from 1.
        metrics: values that `test` returned, by name.
    """

    epoch: int = Field(ge=1)
    metrics: dict[str, float]


class TrainTask(ModelTask):
    """Train one model on one partition in one epoch: a sub-epoch."""

    kind: Literal["train"] = "train"
    epoch: int
    """From 1."""
    partition: int
    sub_epoch: int
    """Sub-epochs this model has finished before; 0 creates the model."""
    position: Position
    checkpoint: CheckpointRef | None
    savepoint: Savepoint | None = Field(None, exclude_if=lambda savepoint: savepoint is None)
    """Savepoint to continue."""
    parallel_plan: ParallelPlan | None = Field(None, exclude_if=lambda parallel_plan: parallel_plan is None)
    """Use of its devices. `None`: user code runs unchanged on one device."""
    with_curve: bool = Field(False, exclude_if=lambda value: not value)
    """True if its result needs a `Curve`, because the run is dispatched by priority score."""
    merges: dict[str, bool] = Field(default_factory=dict, exclude_if=lambda merges: not merges)
    """Metrics that the epoch's earlier sub-epochs returned: name -> True if the metric is a ratio."""
    needs: tuple[str, ...] = Field((), exclude_if=lambda names: not names)
    """Metrics that it must return, because the ranking or a stop rule reads them."""
    validation: Validation | None = Field(None, exclude_if=lambda value: value is None)
    """The newest validation at assignment. `None`: the model has none."""
    gang: Gang | None = Field(None, exclude_if=lambda gang: gang is None)
    """The gang, for a sub-epoch on several partitions; `partition` is its first. Absent otherwise."""

    @property
    def other_partitions(self) -> tuple[int, ...]:
        """Partitions of the gang after the first."""
        return () if self.gang is None else tuple(member.partition for member in self.gang.members[1:])

    keep: tuple[str, ...] = ()
    """Checkpoints of this model to keep after the commit. The worker removes the model's other ones."""


class VerificationTask(ModelTask):
    """Re-execution of a committed sub-epoch, for comparison. Its trained state is discarded."""

    kind: Literal["verify"] = "verify"
    epoch: int
    partition: int
    sub_epoch: int
    """See `TrainTask`."""
    position: Position
    checkpoint: CheckpointRef | None
    """Checkpoint at the start of the sub-epoch; `None` for the model's first."""
    validation: Validation | None = Field(None, exclude_if=lambda value: value is None)
    """The validation that `train` received."""
    expected: CheckpointRef
    """Checkpoint that the committed sub-epoch wrote."""
    metrics: dict[str, float]
    """Metrics of the committed sub-epoch."""
    threads: int = Field(ge=1)
    """Number of threads of the committed sub-epoch."""
    is_exact: bool
    """True if both workers compute the same bits."""
    spare: tuple[str, ...] = ()
    """Checkpoints that only this verification needs. The worker removes them if it finds no difference."""


class EvaluateTask(ModelTask):
    """Validate or test a checkpoint on one or all partitions of a split (`EvaluatePlan.is_whole`)."""

    kind: Literal["valid", "test"]
    epoch: int
    split: Split
    partitions: tuple[int, ...]
    checkpoint: CheckpointRef


class PredictTask(ModelTask):
    """Predict the rows of some partitions with a checkpoint, and write one Arrow file."""

    kind: Literal["predict"] = "predict"
    epoch: int
    split: Split
    partitions: tuple[int, ...]
    checkpoint: CheckpointRef
    output: str
    """File to write, relative to the shared volume."""


class InspectTask(LateContract):
    """Build all models of a fit without weights, group similar models and list each group's parallel plans."""

    kind: Literal["inspect"] = "inspect"
    key: str
    experiment: str
    run: str
    code: Sha256
    archive: Sha256 | None = None
    misc: tuple[str, ...] = ()
    dataset: str
    seed: int
    models: dict[str, Hyperparameters]
    techniques: tuple[TechniqueChoice, ...] | None = None
    """Techniques to consider; `None`: all built-in techniques."""
    gpus: tuple[int, ...] = ()
    """Numbers of devices to consider; none: 1, 2, 4 and so on, up to all of a worker."""
    places: tuple[DevicePlace, ...]
    fitted: FittedRef | None = Field(None, exclude_if=lambda value: value is None)
    """See `EtlTask`."""


class TrialTask(ModelTask):
    """Some batches of a model by one parallel plan, to measure time, memory and the gradient.

    Starts as many new rank processes as `parallel_plan` needs, and discards their state. `hang_timeout_s`
    limits the whole trial, which reports no progress.
    """

    kind: Literal["trial"] = "trial"
    group: GroupId
    id: ParallelPlanId
    """Id of the parallel plan in its group."""
    parallel_plan: ParallelPlan
    device: DeviceKind
    partition: int
    """Partition of the training data, held by the worker."""


class SearchTask(LateContract):
    """Answer a request of a search: actions of its procedure or values of its sampler. Takes no device.

    `hang_timeout_s` limits the whole answer, which reports no progress.
    """

    kind: Literal["search"] = "search"
    key: str
    experiment: str
    run: str
    dataset: str
    code: Sha256 | Literal[""] = ""
    """Code of the procedure; absent for suggestions, which run no user code."""
    archive: Sha256 | None = None
    hang_timeout_s: float
    request: SearchTaskRequest


TaskBody = Annotated[
    EtlTask
    | FittingTask
    | TrainTask
    | VerificationTask
    | EvaluateTask
    | PredictTask
    | InspectTask
    | TrialTask
    | SearchTask,
    Field(discriminator="kind"),
]

KINDS = ("etl", "train", "valid", "test", "predict", "inspect", "trial", "search", "fitting", "verify")

MEASURING = frozenset({"inspect", "trial"})
"""Kinds of tasks that only measure; their failure ends neither a model nor a run."""


class InboxItem(LateContract):
    """One entry of a worker's inbox.

    It is a task to run, or it cancels an attempt (`cancel`), preempts it (`preempt`) or requests its stacks
    (`stacks`), or requests a machine check (`check`).
    """

    seq: int
    experiment: str
    task: str
    attempt: int
    cancel: bool = False
    preempt: str = ""
    """Reason for preempting the attempt at its next batch. Without a reason it isn't preempted."""
    stacks: str = Field("", exclude_if=lambda question: not question)
    """Number of a question about the stacks of the attempt's process."""
    check: str = Field("", exclude_if=lambda reason: not reason)
    """Why the worker must check its machine. The item names no task then."""
    devices: Devices = (0,)
    """Devices of the attempt. Meaningless in cancellations and requests."""
    member: int = Field(0, ge=0, exclude_if=lambda member: member == 0)
    """Number of this worker in the gang. 0: the leader, or no gang."""
    body: TaskBody | None = None
