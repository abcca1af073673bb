"""Task bodies, one class for each kind of task."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cerebro.contract.base import Contract, LateContract, Sha256, Split
from cerebro.contract.failure_rules import FailureRule
from cerebro.contract.parallel_plans import ParallelPlan, TechniqueChoice
from cerebro.contract.records import Hyperparameters, Locators
from cerebro.contract.search_tasks import SearchTaskRequest
from cerebro.contract.tasks.checkpoints import CheckpointRef, FittedRef, Savepoint
from cerebro.contract.tasks.gangs import Gang
from cerebro.contract.trials import AvailableDevices, DeviceKind, GroupId, ParallelPlanId


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

    has_shared_order: bool = Field(False, exclude_if=lambda value: not value)
    """As in `FitRequest`."""
    keep: tuple[str, ...] = ()
    """Checkpoints of this model to keep after the commit. The worker removes the model's other ones."""


class FusedMember(Contract):
    """One attempt of a fused group.

    Attributes:
        task, attempt: as in `TaskAssigned`.
        body: the sub-epoch, as it would be trained alone.
    """

    task: str
    attempt: int
    body: TrainTask


class FusedTask(LateContract):
    """Sub-epochs of several models that one process trains as one stack.

    No task of an experiment has this kind: it is how a worker receives the `TrainTask` of each member. They have
    the same run, code, epoch, partition, batch size, seed, parallel plan, and batch of the savepoint.
    """

    kind: Literal["fused"] = "fused"
    members: tuple[FusedMember, ...] = Field(min_length=1)
    """A member's number is its index. One member is left if the others were cancelled while it waited."""

    @property
    def first(self) -> TrainTask:
        """The first member's sub-epoch, for the fields that all members share."""
        return self.members[0].body

    @property
    def key(self) -> str:
        """Key of the first member's task."""
        return self.first.key

    @property
    def code(self) -> Sha256:
        """See `ModelTask`."""
        return self.first.code

    @property
    def archive(self) -> Sha256 | None:
        """See `ModelTask`."""
        return self.first.archive

    @property
    def misc(self) -> tuple[str, ...]:
        """See `ModelTask`."""
        return self.first.misc

    @property
    def experiment(self) -> str:
        """See `ModelTask`."""
        return self.first.experiment

    @property
    def dataset(self) -> str:
        """See `ModelTask`."""
        return self.first.dataset

    @property
    def fitted(self) -> FittedRef | None:
        """See `EtlTask`."""
        return self.first.fitted


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
    has_shared_order: bool = Field(False, exclude_if=lambda value: not value)
    """As in `FitRequest`."""
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
    device_kinds: tuple[AvailableDevices, ...]
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
    """Code of the own procedure or sampler; absent for a built-in sampler."""
    archive: Sha256 | None = None
    hang_timeout_s: float
    request: SearchTaskRequest


TaskBody = Annotated[
    EtlTask
    | FittingTask
    | TrainTask
    | FusedTask
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
