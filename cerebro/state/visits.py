"""A visit: what is remembered of a committed sub-epoch."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from operator import mul
from typing import NamedTuple, TypeVar

from cerebro.contract.metrics import Part, Terms, merged
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks import CheckpointRef, CurvePoint, Member, TaskResult
from cerebro.state.keys import TaskKey
from cerebro.state.tasks import Attempt

_Tuple = TypeVar("_Tuple", tuple[str, ...], tuple[int, ...])


class Visit(NamedTuple):
    """A committed sub-epoch. Times are the store's clock in seconds; `load_s` to `start_s` are as the worker took them.

    There is one for each sub-epoch of a long run, so it is flat, and what many have in common they share.
    """

    epoch: int
    partition: int
    attempt: int
    worker: str
    rows: int
    names: tuple[str, ...]
    """Of its metrics, beside their `values`."""
    values: tuple[float, ...]
    file: str
    """Name of the checkpoint that it wrote."""
    checksum: str
    size: int
    started: float
    ended: float
    load_s: float
    compute_s: float
    save_s: float
    start_s: float = 0.0
    """Seconds between its start and its own work: the process start."""
    cores: int = 0
    """Threads that it computed with; 0 if that is not known."""
    resumed_rows: int = 0
    """Of its rows, those that an earlier attempt trained on: `compute_s` is of the others."""
    devices: tuple[int, ...] = (0,)
    """Of the worker, that it took."""
    peak_bytes: int = 0
    peak_gpu_bytes: int = 0
    """Most memory that its process, and torch on its GPUs, had at once; 0 if that is not known."""
    parallel_plan: ParallelPlan | None = None
    """How it used its devices; `None`: one, as user code is written."""
    others: tuple[Member, ...] = ()
    """Of a sub-epoch on a set of partitions: the workers beside `worker`, with the partition and the devices of
    each."""
    reported: str = ""
    """Name of what it reported while it ran, if the log has its curve."""
    course: bytes = b""
    """The points of that: doubles, one after another, as they take least memory."""
    has_diverged: bool = False
    """Of that, whether it ended in what is no finite number."""
    ratios: tuple[str, ...] = ()
    """Names of those of its metrics that are ratios."""
    terms: tuple[float, ...] = ()
    """Of each of them its numerator and denominator, one after another."""
    validated: int = 0
    """Epoch of the validation metrics that `train` had; 0: none."""

    @classmethod
    def of(
        cls, *, epoch: int, partition: int, attempt: Attempt, result: TaskResult, checkpoint: CheckpointRef
    ) -> Visit:
        """What a committed attempt at a sub-epoch is remembered as."""
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
            attempt.others,
            sys.intern(result.curve.name) if result.curve else "",
            array("d", chain(*result.curve.points)).tobytes() if result.curve else b"",
            result.curve is not None and result.curve.has_diverged,
            _shared(tuple(result.ratios)),
            tuple(chain.from_iterable(result.ratios.values())),
            result.validated,
        )

    def key(self, run: str, model: str) -> TaskKey:
        """Of the sub-epoch, in a run."""
        return TaskKey(
            run=run,
            kind="train",
            model=model,
            epoch=self.epoch,
            partition=self.partition,
            others=self.partitions[1:],
        )

    def as_attempt(self) -> Attempt:
        """The attempt that it was; when it was assigned is not remembered."""
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
            others=self.others,
        )

    @property
    def partitions(self) -> tuple[int, ...]:
        """All that it visited, ascending: one, or those of a gang's workers."""
        first = (self.partition,)
        return (*first, *(member.partition for member in self.others)) if self.others else first

    @property
    def places(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(worker, devices of it) that it took."""
        first = ((self.worker, self.devices),)
        return (*first, *((each.worker, each.devices) for each in self.others)) if self.others else first

    @property
    def metrics(self) -> dict[str, float]:
        """What the user's train function returned, made anew at each call."""
        return dict(zip(self.names, self.values, strict=True))

    @property
    def part(self) -> Part:
        """The same, to be put together with those of other sub-epochs."""
        terms = map(Terms, self.terms[::2], self.terms[1::2])
        return Part(self.metrics, dict(zip(self.ratios, terms, strict=True)), self.rows)

    @property
    def checkpoint(self) -> CheckpointRef:
        """The model's state after it, made anew at each call."""
        return CheckpointRef(name=self.file, checksum=self.checksum, size=self.size)

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """Of its curve, made anew at each call; none if the log has none."""
        flat = array("d")
        flat.frombytes(self.course)
        return tuple(
            CurvePoint(s, mean, int(n)) for s, mean, n in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        )

    @property
    def begun(self) -> float:
        """When its own work began: by then its process had started."""
        return self.started + self.start_s

    @property
    def seconds(self) -> float:
        """What the sub-epoch itself took: from then to its commit."""
        return self.ended - self.begun


def mean(visits: Sequence[Visit]) -> dict[str, float]:
    """Their metrics by name: means weighted by rows, and of ratios those of all rows. A metric that some visit lacks is
    left out."""
    if not visits:
        return {}
    if any(visit.ratios for visit in visits):
        return merged([visit.part for visit in visits], of_no_rows=0.0)
    names = visits[0].names
    weights = [visit.rows for visit in visits]
    rows = sum(weights) or 1
    if len({id(visit.names) for visit in visits}) == 1:
        columns = list(zip(*[visit.values for visit in visits], strict=True))
    else:
        metrics = [visit.metrics for visit in visits]
        names = tuple(set(names).intersection(*metrics))
        columns = [tuple(found[name] for found in metrics) for name in names]
    means = [sum(map(mul, column, weights)) / rows for column in columns]
    return dict(sorted(zip(names, means, strict=True)))


@lru_cache(maxsize=256)
def _shared(names: _Tuple) -> _Tuple:
    """Equal ones as one object."""
    return names
