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
from cerebro.contract.tasks.fused import FusedGroup
from cerebro.contract.tasks.gangs import Member
from cerebro.contract.tasks.results import Curve, CurvePoint, TaskResult
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.tasks.task import Attempt

_Tuple = TypeVar("_Tuple", tuple[str, ...], tuple[int, ...])


class ReturnedMetrics(NamedTuple):
    """Metrics from the user's train function."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    """Values in the order of `names`."""
    ratios: tuple[str, ...] = ()
    """Names of the metrics that are ratios."""
    terms: tuple[float, ...] = ()
    """Numerator and denominator of each ratio, flat."""

    @property
    def metrics(self) -> dict[str, float]:
        """Values by name, as a new dict."""
        return dict(zip(self.names, self.values, strict=True))

    def part(self, rows: int) -> Part:
        """Return the metrics of `rows` rows in mergeable form."""
        terms = map(Terms, self.terms[::2], self.terms[1::2])
        return Part(self.metrics, dict(zip(self.ratios, terms, strict=True)), rows)


class CheckpointFile(NamedTuple):
    """The checkpoint at the end of a sub-epoch; see `CheckpointRef`."""

    name: str
    checksum: str
    size: int

    def ref(self) -> CheckpointRef:
        """Return a new reference."""
        return CheckpointRef(name=self.name, checksum=self.checksum, size=self.size)


class SubEpochTimings(NamedTuple):
    """Durations in seconds, by the worker's clock."""

    load_s: float
    compute_s: float
    save_s: float
    start_s: float = 0.0
    """Start of the process, before the sub-epoch's own work."""


class MetricCurve(NamedTuple):
    """Values of a live metric over time."""

    name: str = ""
    """Name of the metric, or an empty text without a curve."""
    packed_points: bytes = b""
    """The points as doubles, to save memory."""
    has_diverged: bool = False
    """True if the curve ended in a value that is not finite."""

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """Points as new objects; empty without a curve."""
        flat = array("d")
        flat.frombytes(self.packed_points)
        return tuple(
            CurvePoint(s, mean, int(n)) for s, mean, n in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        )


_NO_CURVE = MetricCurve()


class DeviceSharing(NamedTuple):
    """The fused group of a sub-epoch; see `FusedGroup`. The default is a sub-epoch alone on its devices."""

    id: str = ""
    size: int = 1


_ALONE = DeviceSharing()


class CompletedSubEpoch(NamedTuple):
    """A completed sub-epoch. `started` and `ended` are seconds of the store's clock.

    Long runs have very many, so they share equal parts.
    """

    epoch: int
    partition: int
    attempt: int
    worker: str
    rows: int
    returned: ReturnedMetrics
    checkpoint: CheckpointFile
    started: float
    ended: float
    timings: SubEpochTimings
    cores: int = 0
    """Threads in use; 0 if unknown."""
    resumed_rows: int = 0
    """Rows of earlier attempts, which `timings.compute_s` excludes."""
    devices: tuple[int, ...] = (0,)
    """Devices of the worker."""
    peak_bytes: int = 0
    peak_gpu_bytes: int = 0
    """Peak memory of the process, and of torch on its GPUs; 0 if unknown."""
    parallel_plan: ParallelPlan | None = None
    """Use of the devices; `None`: one device, user code as written."""
    other_members: tuple[Member, ...] = ()
    """The other workers of a gang, with their partitions and devices."""
    curve: MetricCurve = _NO_CURVE
    validated: int = 0
    """Epoch of the validation metrics `train` had; 0 without."""
    group: DeviceSharing = _ALONE
    """The attempts that shared its devices."""

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
            ReturnedMetrics(
                _shared(tuple(result.metrics)),
                tuple(result.metrics.values()),
                _shared(tuple(result.ratios)),
                tuple(chain.from_iterable(result.ratios.values())),
            ),
            CheckpointFile(checkpoint.name, checkpoint.checksum, checkpoint.size),
            attempt.started,
            attempt.ended,
            SubEpochTimings(timings.load_s, timings.compute_s, timings.save_s, attempt.start_s),
            result.cores,
            result.resumed_rows,
            _shared(attempt.devices),
            result.peak_bytes,
            result.peak_gpu_bytes,
            attempt.parallel_plan,
            attempt.other_members,
            _packed_curve(result.curve) if result.curve else _NO_CURVE,
            result.validated,
            _ALONE
            if attempt.group is None
            else DeviceSharing(sys.intern(attempt.group.id), attempt.group.size),
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
            start_s=self.timings.start_s,
            devices=self.devices,
            parallel_plan=self.parallel_plan,
            other_members=self.other_members,
            group=FusedGroup(id=self.group.id, size=self.group.size) if self.group.id else None,
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
    def is_fused(self) -> bool:
        """True if it was trained in a fused group."""
        return bool(self.group.id)

    @property
    def own_peaks(self) -> tuple[int, int]:
        """Peak memory of the model: process and GPU, in bytes; 0 in a stack, whose process has several models."""
        return (0, 0) if self.is_fused else (self.peak_bytes, self.peak_gpu_bytes)

    @property
    def begun(self) -> float:
        """Time its own work began, after process start."""
        return self.started + self.timings.start_s

    @property
    def seconds(self) -> float:
        """Seconds from `begun` to the commit."""
        return self.ended - self.begun

    @property
    def device_s(self) -> float:
        """Its share of `seconds` on each of its devices."""
        return self.seconds / self.group.size


def _packed_curve(curve: Curve) -> MetricCurve:
    points = array("d", chain(*curve.points)).tobytes()
    return MetricCurve(sys.intern(curve.name), points, curve.has_diverged)


@lru_cache(maxsize=256)
def _shared(names: _Tuple) -> _Tuple:
    """Intern equal tuples."""
    return names
