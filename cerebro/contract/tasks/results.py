"""Results of committed tasks."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from cerebro.contract.base import Contract
from cerebro.contract.metrics import Part, Terms
from cerebro.contract.search_tasks import SearchAnswer
from cerebro.contract.tasks.checkpoints import CheckpointRef, FittedRef
from cerebro.contract.tasks.failures import text_of
from cerebro.contract.trials import Inspection, TrialOutcome


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
    """Predictions, and metrics per row of a test: file on the shared volume. ETL: folder."""
    timings: Timings = Timings()
    peak_bytes: int = Field(0, exclude_if=lambda number: number == 0)
    """Peak memory of the user-code process in bytes, without processes that it started. For a fused group, of the
    process that trained all its models. 0: unknown, for example for ETL with several processes."""
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
