"""Requests of runs, which clients send in `RunRequested`, and their plans, which the controller writes in `RunStarted`.

Types only. `cerebro.commands.planning` computes fit and evaluation plans, `controller.preparation` ETL plans.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, FiniteFloat, model_validator

from cerebro.contract.base import Contract, Name, Sha256, Split
from cerebro.contract.failure_rules import RulesOfRun
from cerebro.contract.parallel_plans import FUSED, MAX_GANG_SIZE, ParallelPlan, TechniqueChoice
from cerebro.contract.priority import NORMAL, Priority
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import Repeat, SearchRequest, Space

Project = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?)?$")]
"""Name of a project, or empty."""

# --- requests ---------------------------------------------------------------------------------------


class _RunRequest(Contract):
    """Options of every kind of run."""

    wait_limit_s: float | None = Field(
        None, gt=0, allow_inf_nan=False, exclude_if=lambda value: value is None
    )
    """Seconds that the run may wait for workers before it pauses. Absent: no limit."""


class _SpecRequest(_RunRequest):
    """A run of a user's spec."""

    code: Sha256
    failure_rules: RulesOfRun = Field((), exclude_if=lambda rules: not rules)
    """Failure rules of the run, for all tasks that use this request's code. Absent: no rules."""


class EtlRequest(_SpecRequest):
    """`run_etl`: preprocess every located split."""

    kind: Literal["etl"] = "etl"
    code_fingerprint: Sha256
    seed: int = 0
    fraction: float = Field(default=1.0, gt=0, le=1)
    max_failed: float = Field(default=0.0, ge=0, le=1)
    """Share of rows that may fail before the run stops."""
    stratify: str = Field("", exclude_if=lambda column: not column)
    """Column of the training rows whose values each partition has in the same shares. Absent: any rows."""
    group: str = Field("", exclude_if=lambda column: not column)
    """Column of the training rows; rows with the same value are in one partition. Absent: any rows."""
    fits: bool = Field(default=False, exclude_if=lambda value: not value)
    """True if the spec has, or may have, the method `fit`, called once per data set before preprocessing."""


class Goal(Contract):
    """Optional goals of a fit. Goals that are not set are not serialized."""

    finish_by: float | None = Field(None, gt=0, allow_inf_nan=False, exclude_if=lambda value: value is None)
    """Deadline, in seconds since the epoch."""
    worker_hours: float | None = Field(
        None, gt=0, allow_inf_nan=False, exclude_if=lambda value: value is None
    )
    """Budget in worker-hours of training workers. The run pauses at the limit."""
    workers: tuple[int, int] | None = Field(None, exclude_if=lambda value: value is None)
    """Minimum and maximum number of workers."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Goal:
        if self.workers is not None and not 1 <= self.workers[0] <= self.workers[1]:
            raise ValueError("workers are (fewest, most), from 1")
        return self


Mode = Literal["min", "max"]
"""Whether smaller or larger values are better."""

MEASURES: dict[str, str] = {
    "train_s": "seconds of training in user code, over all epochs until the best one",
    "model_bytes": "size of the checkpoint at the best epoch, without frozen weights",
    "peak_bytes": "peak memory of the processes that trained the model",
    "peak_gpu_bytes": "peak memory of torch on their GPUs",
    "test_row_s": "seconds per row in `SubEpochSpec.test` on the validation split",
}
"""Measures that the platform has for each model, as objectives and in constraints: name -> meaning."""


class Constraint(Contract):
    """A constraint on a metric or measure of a model."""

    name: str = Field(min_length=1)
    operator: Literal["<=", "<", ">=", ">"]
    limit: FiniteFloat

    @property
    def is_upper(self) -> bool:
        """True if smaller values meet it."""
        return self.operator.startswith("<")

    def is_met(self, value: float) -> bool:
        """Return True if a value meets the constraint. NaN does not."""
        if value == self.limit:
            return len(self.operator) == 2
        return value < self.limit if self.is_upper else value > self.limit

    def __str__(self) -> str:
        return f"{self.name} {self.operator} {self.limit:g}"


class _ComparingRequest(_SpecRequest):
    """How the models of a fit are compared."""

    metric: str = Field(min_length=1)
    mode: Mode
    objectives: dict[str, Mode] = Field(default_factory=dict, exclude_if=lambda objectives: not objectives)
    """Several objectives; the first one is `metric` with `mode`. Absent: `metric` alone."""
    constraints: tuple[Constraint, ...] = Field((), exclude_if=lambda constraints: not constraints)
    """Constraints on metrics and measures. Models that meet all rank before the others."""
    repeats: Repeat | None = Field(None, exclude_if=lambda value: value is None)
    """Best models to train again with new seeds. Absent: none."""
    folds: int | None = Field(None, ge=2, exclude_if=lambda value: value is None)
    """Number of folds of a cross-validation. Absent: one model of each configuration, with all partitions."""

    @model_validator(mode="after")
    def _ranks_by_the_first_objective(self) -> _ComparingRequest:
        if self.objectives and next(iter(self.objectives.items())) != (self.metric, self.mode):
            raise ValueError("metric and mode are the first objective")
        return self

    @property
    def compared_names(self) -> tuple[str, ...]:
        """Names of the objectives, then of other metrics and measures in constraints."""
        names = (self.metric, *self.objectives, *(each.name for each in self.constraints))
        return tuple(dict.fromkeys(names))

    @property
    def is_multi_objective(self) -> bool:
        """True if the models have no order by one number: several objectives, or constraints."""
        return len(self.objectives) > 1 or bool(self.constraints)


class FitRequest(_ComparingRequest):
    """`run_fit`: train each model for `epochs` epochs over all partitions by hopping.

    With a `search`, train the models that it suggests, each for at most `epochs`.
    """

    kind: Literal["fit"] = "fit"
    models: tuple[Hyperparameters, ...]
    """Configurations. A search may start without any."""
    space: Space = Field(default_factory=dict, exclude_if=lambda space: not space)
    """Search space of `models`, if it has conditions, so clones follow them. A search has its own space."""
    epochs: int = Field(ge=1)
    seed: int = 0
    scheduler: str = "lrptw"
    planner: bool = True
    """True if a planner may replace the dispatch of ``lrptw`` by a better order."""
    hang_timeout_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    max_attempts: int = Field(default=3, ge=1)
    """Maximum attempts of a sub-epoch whose process crashes; an error in user code is not retried."""
    techniques: tuple[TechniqueChoice, ...] | None = Field(None, exclude_if=lambda value: value is None)
    """Techniques that sub-epochs may use, tried in order until measured. Absent: chosen by the platform."""
    gpus: tuple[int, ...] = Field((), exclude_if=lambda value: not value)
    """Numbers of devices that a sub-epoch may take. Absent: chosen by the platform."""
    gang: int = Field(1, ge=1, le=MAX_GANG_SIZE, exclude_if=lambda workers: workers == 1)
    """Workers that train a sub-epoch together, each on its own partition, while each model has that many
    workers.
    """
    trials: Literal["auto", "never"] = Field("auto", exclude_if=lambda value: value == "auto")
    """Whether parallel plans may be measured in trials before they are chosen."""
    search: SearchRequest | None = Field(None, exclude_if=lambda value: value is None)
    """Search that adds models and grants their epochs. Absent: train `models` for all epochs."""
    goal: Goal = Field(Goal(), exclude_if=lambda goal: goal == Goal())
    """Deadline, budget and number of workers. Absent: no goal."""
    verify: float = Field(0.0, ge=0, le=1, exclude_if=lambda share: share == 0.0)
    """Fraction of sub-epochs that a second worker computes again, to detect faulty hardware."""
    has_shared_order: bool = Field(False, exclude_if=lambda value: not value)
    """True if all models read a partition's batches in the same order. Absent in runs of version 0.3.0: each model has
    its own order."""

    @model_validator(mode="after")
    def _has_models(self) -> FitRequest:
        if not self.models and self.search is None:
            raise ValueError("a fit without a search needs models")
        return self

    @model_validator(mode="after")
    def _has_order_of_groups(self) -> FitRequest:
        if not self.has_shared_order and any(
            each.name == FUSED and each.code is None for each in self.techniques or ()
        ):
            raise ValueError(
                f"the technique {FUSED!r} trains models together, so all must read the batches in one order: set "
                "has_shared_order to true"
            )
        return self


class ParentCheckpoint(Contract):
    """Checkpoint of another model that a new model starts from."""

    model: str
    at: Literal["last", "best"] | Annotated[int, Field(ge=1)] = "last"
    """``"last"``: its newest sub-epoch; ``"best"``: its best epoch by the run's metric; or the number of an epoch."""


class NewModel(Contract):
    """A model that is added to a run. The fold assigns its id, in the order of the log."""

    hyperparams: Hyperparameters
    epochs: int = Field(ge=1)
    """Number of epochs in all."""
    checkpoint: ParentCheckpoint | None = None
    """Parent checkpoint and sub-epochs that it starts from. Absent: new weights."""
    parent: str = ""
    """Model that its hyperparameters were derived from, if any."""
    priority: Priority = NORMAL


class EvaluateRequest(_RunRequest):
    """`run_test` or `run_predict` of models of a fit run, each at its best epoch."""

    kind: Literal["test", "predict"]
    fit: str
    """Run id of the fit."""
    models: tuple[str, ...] = ()
    """Model ids; empty means the best model."""
    split: Split


Request = Annotated[EtlRequest | FitRequest | EvaluateRequest, Field(discriminator="kind")]

# --- plans ------------------------------------------------------------------------------------------


class PartitionPlan(Contract):
    """One worker's share of one split."""

    partition: int
    worker: Name
    rows: int


class EtlPlan(Contract):
    """Partitions of each split. `dataset` is a fingerprint of code, locators, metadata, seed and fraction.

    So the same call finds the same data set again.
    """

    kind: Literal["etl"] = "etl"
    dataset: str
    splits: dict[Split, tuple[PartitionPlan, ...]]
    misc: str | None = Field(None, exclude_if=lambda digest: digest is None)
    """Digest of the versions of the locators' `misc` files; empty without any, `None` in logs of version 0.3.0."""


class EarlierModel(Contract):
    """A model of an earlier fit.

    Attributes:
        values: epoch -> metrics and measures that the new fit compares.
    """

    hyperparams: Hyperparameters
    values: dict[int, dict[str, float]]
    is_failed: bool = Field(False, exclude_if=lambda value: not value)


class EarlierRun(Contract):
    """An earlier fit that a search starts from.

    Attributes:
        run: experiment and run.
        models: models that the sampler learns from.
        unused: reason -> number of models that it does not learn from.
    """

    run: str
    models: tuple[EarlierModel, ...]
    unused: dict[str, int] = Field(default_factory=dict, exclude_if=lambda value: not value)


class FitPlan(Contract):
    """Models by id, and the rows of each training partition."""

    kind: Literal["fit"] = "fit"
    dataset: str
    models: dict[str, Hyperparameters]
    partitions: dict[int, int]
    """Partition -> rows."""
    valid_partitions: tuple[int, ...] = ()
    folds: tuple[tuple[int, ...], ...] = Field((), exclude_if=lambda folds: not folds)
    """Partitions of each fold. `models` then has one model for each configuration and fold, in this order. A model
    trains on the other folds and validates on its own. Absent: no cross-validation."""
    parallel_plans: tuple[ParallelPlan, ...] = Field((), exclude_if=lambda parallel_plans: not parallel_plans)
    """Parallel plans of sub-epochs, in the order of trial. Without any: one device, as user code is written.
    """
    earlier: tuple[EarlierRun, ...] = Field((), exclude_if=lambda earlier: not earlier)
    """Models of earlier fits, for the sampler. Copied, so the search can be repeated after they are deleted."""


class EvaluatePlan(Contract):
    """Models with their epochs, and the partitions to evaluate them on."""

    kind: Literal["test", "predict"]
    dataset: str
    fit: str
    models: dict[str, int]
    """Model id -> epoch whose checkpoint is used."""
    partitions: dict[int, int]
    is_whole: bool = False
    """True if each model reads all partitions in one task, so that `SubEpochSpec.test` sees the whole split.

    False for one task per partition: for predictions, and for training data, which is on the workers' own volumes.
    """


Plan = Annotated[EtlPlan | FitPlan | EvaluatePlan, Field(discriminator="kind")]


class PlannedSubEpoch(NamedTuple):
    """A sub-epoch in a schedule, with its worker."""

    worker: str
    model: str
    epoch: int
    partition: int
    start_s: float
    """Planned start, in seconds after the event with the plan."""


class ForecastEnd(NamedTuple):
    """Forecast end of a run with this number of workers."""

    workers: int
    p50_s: float
    """Seconds from the event to the end of half of the simulations."""
    p90_s: float
    """Seconds from the event to the end of nine of ten simulations."""


class TakenSpan(NamedTuple):
    """Time range while a device had tasks of other runs, in seconds since the epoch."""

    worker: str
    device: int
    since: float
    until: float
