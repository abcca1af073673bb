"""Records of completed sub-epochs."""

from __future__ import annotations

import sys
from array import array
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeVar

from cerebro.contract.metrics import Part, Terms
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.gangs import Member
from cerebro.contract.tasks.results import CurvePoint, TaskResult
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.tasks.task import Attempt

_Tuple = TypeVar("_Tuple", tuple[str, ...], tuple[int, ...])


class CompletedSubEpoch(NamedTuple):
    """A completed sub-epoch. Times are the store's clock in seconds; `load_s` to `start_s` are the worker's.

    Long runs have very many, so they are flat and share equal parts.
    """

    epoch: int
    partition: int
    attempt: int
    worker: str
    rows: int
    names: tuple[str, ...]
    """Metric names, in the order of `values`."""
    values: tuple[float, ...]
    file: str
    """Name of its checkpoint."""
    checksum: str
    size: int
    started: float
    ended: float
    load_s: float
    compute_s: float
    save_s: float
    start_s: float = 0.0
    """Seconds of process start before its own work."""
    cores: int = 0
    """Threads in use; 0 if unknown."""
    resumed_rows: int = 0
    """Rows of earlier attempts, which `compute_s` excludes."""
    devices: tuple[int, ...] = (0,)
    """Devices of the worker."""
    peak_bytes: int = 0
    peak_gpu_bytes: int = 0
    """Peak memory of the process, and of torch on its GPUs; 0 if unknown."""
    parallel_plan: ParallelPlan | None = None
    """Use of the devices; `None`: one device, user code as written."""
    other_members: tuple[Member, ...] = ()
    """The other workers of a gang, with their partitions and devices."""
    reported: str = ""
    """Name of its live metric, if the log has the curve."""
    course: bytes = b""
    """The curve's points as doubles, to save memory."""
    has_diverged: bool = False
    """True if the curve ended in a value that is not finite."""
    ratios: tuple[str, ...] = ()
    """Names of the metrics that are ratios."""
    terms: tuple[float, ...] = ()
    """Numerator and denominator of each ratio, flat."""
    validated: int = 0
    """Epoch of the validation metrics `train` had; 0 without."""

    @classmethod
    def of(
        cls, *, epoch: int, partition: int, attempt: Attempt, result: TaskResult, checkpoint: CheckpointRef
    ) -> CompletedSubEpoch:
        """Make the record of a committed attempt."""
        timings = result.timings
        return cls(
            epoch,
            partition,
            attempt.number,
            sys.intern(attempt.worker),
            result.rows,
            _shared(tuple(result.metrics)),
            tuple(result.metrics.values()),
            checkpoint.name,
            checkpoint.checksum,
            checkpoint.size,
            attempt.started,
            attempt.ended,
            timings.load_s,
            timings.compute_s,
            timings.save_s,
            attempt.start_s,
            result.cores,
            result.resumed_rows,
            _shared(attempt.devices),
            result.peak_bytes,
            result.peak_gpu_bytes,
            attempt.parallel_plan,
            attempt.other_members,
            sys.intern(result.curve.name) if result.curve else "",
            array("d", chain(*result.curve.points)).tobytes() if result.curve else b"",
            result.curve is not None and result.curve.has_diverged,
            _shared(tuple(result.ratios)),
            tuple(chain.from_iterable(result.ratios.values())),
            result.validated,
        )

    def key(self, run: str, model: str) -> TaskKey:
        """Return the key of the sub-epoch."""
        return TaskKey(
            run=run,
            kind="train",
            model=model,
            epoch=self.epoch,
            partition=self.partition,
            other_partitions=self.partitions[1:],
        )

    def as_attempt(self) -> Attempt:
        """Return the attempt; its assignment time is unknown."""
        return Attempt(
            number=self.attempt,
            worker=self.worker,
            assigned=self.started,
            started=self.started,
            ended=self.ended,
            outcome="committed",
            has_run=True,
            start_s=self.start_s,
            devices=self.devices,
            parallel_plan=self.parallel_plan,
            other_members=self.other_members,
        )

    @property
    def partitions(self) -> tuple[int, ...]:
        """Its partitions, ascending; several for a gang."""
        first = (self.partition,)
        return (*first, *(member.partition for member in self.other_members)) if self.other_members else first

    @property
    def places(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(worker, its devices) of the sub-epoch."""
        first = ((self.worker, self.devices),)
        return (
            (*first, *((each.worker, each.devices) for each in self.other_members))
            if self.other_members
            else first
        )

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics from the user's train function, as a new dict."""
        return dict(zip(self.names, self.values, strict=True))

    @property
    def part(self) -> Part:
        """Metrics in mergeable form."""
        terms = map(Terms, self.terms[::2], self.terms[1::2])
        return Part(self.metrics, dict(zip(self.ratios, terms, strict=True)), self.rows)

    @property
    def checkpoint(self) -> CheckpointRef:
        """Checkpoint at its end, as a new object."""
        return CheckpointRef(name=self.file, checksum=self.checksum, size=self.size)

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """Points of its curve, as new objects; empty without a curve."""
        flat = array("d")
        flat.frombytes(self.course)
        return tuple(
            CurvePoint(s, mean, int(n)) for s, mean, n in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        )

    @property
    def begun(self) -> float:
        """Time its own work began, after process start."""
        return self.started + self.start_s

    @property
    def seconds(self) -> float:
        """Seconds from `begun` to the commit."""
        return self.ended - self.begun


@lru_cache(maxsize=256)
def _shared(names: _Tuple) -> _Tuple:
    """Intern equal tuples."""
    return names
