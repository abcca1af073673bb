"""The sub-epochs of a model. Old ones are compacted: only the log has them, and the state keeps each epoch's sums.

Otherwise a run of millions of sub-epochs would have a state too large for a process. The log determines the compacted
sub-epochs (`cerebro.state.models.compaction`), so all readers agree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter, mul
from typing import Any, NamedTuple, overload

from cerebro.contract.metrics import merged
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.errors import CerebroError
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.packed_tuples import Compact, Layout, first_vector


class CompactedError(CerebroError):
    """The requested sub-epoch is only in the log."""


class ParallelPlanUsed(NamedTuple):
    """Use of one parallel plan in an epoch (`None`: one device): number of sub-epochs and their seconds.

    In a stack, a model's share of the seconds.
    """

    parallel_plan: ParallelPlan | None
    sub_epochs: int
    seconds: float

    @property
    def label(self) -> str:
        """Label of the parallel plan; empty for one device."""
        return self.parallel_plan.label if self.parallel_plan else ""


class EpochTotals(NamedTuple):
    """Sums over an epoch's sub-epochs: seconds from start to commit, seconds in user code, rows."""

    seconds: float
    compute_s: float
    rows: int


class EpochSummary(NamedTuple):
    """Sums of an epoch with compacted sub-epochs.

    Attributes:
        returned: (name, True if a ratio) of each metric, as in `Model.returned_in`.
        names, values: mean metrics, as in `cerebro.state.models.sub_epochs.mean`.
        seconds, compute_s, rows: see `totals`.
        trained_rows: rows without the share of earlier attempts.
        rows_until: rows of all epochs up to this one.
        took_s: device time of sub-epochs in seconds, summed.
        steps: optimizer steps.
        used, used_sub_epochs, used_s: see `parallel_plans`.
        peak_bytes, peak_gpu_bytes: peak memory of a sub-epoch without stacks; 0 if unknown.
        reported: name of the first live metric; empty without any.
        reports: that metric as one point: seconds, mean, count; or an empty tuple.
        has_diverged: True if the last report was not finite.
        shown_at: end of the first sub-epoch.
    """

    values: tuple[float, ...]
    used_sub_epochs: tuple[float, ...]
    used_s: tuple[float, ...]
    reports: tuple[float, ...]
    seconds: float
    compute_s: float
    took_s: float
    shown_at: float
    rows: int
    trained_rows: int
    rows_until: int
    steps: int
    peak_bytes: int
    peak_gpu_bytes: int
    returned: tuple[tuple[str, bool], ...]
    names: tuple[str, ...]
    used: tuple[ParallelPlan | None, ...]
    reported: str
    has_diverged: bool

    @property
    def totals(self) -> EpochTotals:
        """Sums over the sub-epochs."""
        return EpochTotals(self.seconds, self.compute_s, self.rows)

    @property
    def parallel_plans(self) -> Iterator[ParallelPlanUsed]:
        """Parallel plans of the sub-epochs."""
        for parallel_plan, sub_epochs, seconds in zip(
            self.used, self.used_sub_epochs, self.used_s, strict=True
        ):
            yield ParallelPlanUsed(parallel_plan, int(sub_epochs), seconds)

    @property
    def means(self) -> dict[str, float]:
        """Mean metrics by name, as a new dict."""
        return dict(zip(self.names, self.values, strict=True))


_SUMMARIES = Layout(
    EpochSummary,
    vectors=("values", "used_sub_epochs", "used_s", "reports"),
    floats=("seconds", "compute_s", "took_s", "shown_at"),
    integers=("rows", "trained_rows", "rows_until", "steps", "peak_bytes", "peak_gpu_bytes"),
)
_SUB_EPOCHS = Layout(
    CompletedSubEpoch,
    vectors=("returned.values", "returned.terms"),
    floats=(
        "started",
        "ended",
        "timings.load_s",
        "timings.compute_s",
        "timings.save_s",
        "timings.start_s",
    ),
    integers=(
        "epoch",
        "partition",
        "attempt",
        "rows",
        "checkpoint.size",
        "cores",
        "resumed_rows",
        "peak_bytes",
        "peak_gpu_bytes",
        "validated",
        "group.size",
    ),
    texts=("checkpoint.name", "checkpoint.checksum", "group.id"),
    blobs=("curve.packed_points",),
)
_NAMES_AT = _SUMMARIES.shared.index("names")


@dataclass(slots=True)
class Summaries:
    """Summaries of a model's compacted epochs, and their sums.

    Attributes:
        parallel_plans: each plan with its number of sub-epochs and seconds.
        steps: optimizer steps.
        peaks: peak memory of a sub-epoch without stacks, in bytes: process and GPUs.
    """

    parallel_plans: tuple[ParallelPlanUsed, ...] = ()
    steps: int = 0
    peaks: tuple[int, int] = (0, 0)
    _found: list[Compact] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, epoch: int) -> bool:
        return 0 < epoch <= len(self._found)

    def __getitem__(self, epoch: int) -> EpochSummary:
        """Return the summary of an epoch, from 1, as a new object."""
        if epoch not in self:
            raise KeyError(epoch)
        return _SUMMARIES.unpack(self._found[epoch - 1])

    def __iter__(self) -> Iterator[EpochSummary]:
        """Iterate over the summaries in order."""
        return map(_SUMMARIES.unpack, self._found)

    def mean(self, epoch: int, name: str) -> float | None:
        """Return one metric of `EpochSummary.means`, if present."""
        found = self._found[epoch - 1]
        names: tuple[str, ...] = found[0][_NAMES_AT]
        return first_vector(found, names.index(name)) if name in names else None

    def rows_until(self, epoch: int) -> int:
        """Return the rows of all sub-epochs up to the end of an epoch."""
        return self[epoch].rows_until if epoch else 0

    def append(self, summary: EpochSummary) -> None:
        """Add the summary of the next epoch."""
        self._found.append(_SUMMARIES.pack(summary))
        self.steps += summary.steps
        host, gpu = self.peaks
        self.peaks = max(host, summary.peak_bytes), max(gpu, summary.peak_gpu_bytes)
        together: dict[str, ParallelPlanUsed] = {}
        for used in (*self.parallel_plans, *summary.parallel_plans):
            known = together.get(used.label, ParallelPlanUsed(used.parallel_plan, 0, 0.0))
            together[used.label] = ParallelPlanUsed(
                used.parallel_plan, known.sub_epochs + used.sub_epochs, known.seconds + used.seconds
            )
        self.parallel_plans = tuple(together.values())

    def until(self, epochs: int) -> Summaries:
        """Return a copy with the first `epochs` summaries."""
        summaries = Summaries()
        for found in self._found[:epochs]:
            summaries.append(_SUMMARIES.unpack(found))
        return summaries


_Pinned = tuple[int, tuple[Any, ...], bytes]
"""A sub-epoch's number, and the sub-epoch as `Compact`."""
_number = itemgetter(0)


@dataclass(slots=True)
class CompletedSubEpochs(Sequence[CompletedSubEpoch]):
    """Committed sub-epochs, by number.

    Attributes:
        compacted: number of compacted ones, the oldest.
        recent: all later ones.
    """

    compacted: int = 0
    recent: list[CompletedSubEpoch] = field(default_factory=list)
    _pinned: list[_Pinned] = field(default_factory=list)
    """Compacted sub-epochs that stay available, in order. A dict would need twice the memory."""

    def __len__(self) -> int:
        return self.compacted + len(self.recent)

    @overload
    def __getitem__(self, index: int) -> CompletedSubEpoch: ...

    @overload
    def __getitem__(self, index: slice) -> list[CompletedSubEpoch]: ...

    def __getitem__(self, index: int | slice) -> CompletedSubEpoch | list[CompletedSubEpoch]:
        """Return a sub-epoch or a slice of sub-epochs.

        Raises:
            CompactedError: one is compacted.
        """
        if isinstance(index, slice):
            sub_epochs = range(*index.indices(len(self)))
            if not self.compacted:
                return self.recent[index]
            return [self._at(sub_epoch) for sub_epoch in sub_epochs]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._at(index if index >= 0 else len(self) + index)

    def __iter__(self) -> Iterator[CompletedSubEpoch]:
        """Iterate over all sub-epochs.

        Raises:
            CompactedError: some are compacted.
        """
        return iter(self[:])

    def knows(self, sub_epoch: int) -> bool:
        """True if the sub-epoch with this number is available."""
        return self.compacted <= sub_epoch < len(self) or self._place(sub_epoch) is not None

    def pinned(self, since: int) -> Iterator[CompletedSubEpoch]:
        """Yield the pinned sub-epochs from number `since` on."""
        first = bisect_left(self._pinned, since, key=_number)
        return (_SUB_EPOCHS.unpack(found) for _, *found in self._pinned[first:])

    def append(self, sub_epoch: CompletedSubEpoch) -> None:
        """Add a committed sub-epoch."""
        self.recent.append(sub_epoch)

    def pop(self) -> CompletedSubEpoch:
        """Remove and return the newest sub-epoch, which must not be compacted."""
        return self.recent.pop()

    def until(self, sub_epochs: int) -> CompletedSubEpochs:
        """Return a copy with the first `sub_epochs` sub-epochs."""
        compacted = min(self.compacted, sub_epochs)
        number = bisect_left(self._pinned, compacted, key=_number)
        return CompletedSubEpochs(
            compacted=compacted,
            recent=self.recent[: sub_epochs - compacted],
            _pinned=self._pinned[:number],
        )

    def compact(self, sub_epochs: int, pins: Collection[int]) -> list[CompletedSubEpoch]:
        """Compact the first `sub_epochs` sub-epochs, except those listed in `pins`; return the removed ones."""
        removed = self.recent[: sub_epochs - self.compacted]
        for sub_epoch, completed in enumerate(removed, start=self.compacted):
            if sub_epoch in pins:
                self._pinned.append((sub_epoch, *_SUB_EPOCHS.pack(completed)))
        del self.recent[: len(removed)]
        self.compacted += len(removed)
        return removed

    def _at(self, sub_epoch: int) -> CompletedSubEpoch:
        if sub_epoch >= self.compacted:
            return self.recent[sub_epoch - self.compacted]
        place = self._place(sub_epoch)
        if place is None:
            raise CompactedError(
                f"sub-epoch {sub_epoch} is compacted: of the first {self.compacted} sub-epochs only the ends of epochs "
                f"are at hand. The log has all: read them by `FitResult.sub_epochs` or the page's schedule"
            )
        _, *found = self._pinned[place]
        return _SUB_EPOCHS.unpack(found)

    def _place(self, sub_epoch: int) -> int | None:
        place = bisect_left(self._pinned, sub_epoch, key=_number)
        return place if place < len(self._pinned) and self._pinned[place][0] == sub_epoch else None


def totals_of(sub_epochs: Sequence[CompletedSubEpoch]) -> EpochTotals:
    """Return the sums over these sub-epochs."""
    return EpochTotals(
        sum(sub_epoch.ended - sub_epoch.started for sub_epoch in sub_epochs),
        sum(sub_epoch.timings.compute_s for sub_epoch in sub_epochs),
        sum(sub_epoch.rows for sub_epoch in sub_epochs),
    )


def mean(sub_epochs: Sequence[CompletedSubEpoch]) -> dict[str, float]:
    """Return means weighted by rows, and exact ratios, of the metrics that all sub-epochs have."""
    if not sub_epochs:
        return {}
    returned = [sub_epoch.returned for sub_epoch in sub_epochs]
    weights = [sub_epoch.rows for sub_epoch in sub_epochs]
    if any(each.ratios for each in returned):
        return merged([each.part(rows) for each, rows in zip(returned, weights, strict=True)], of_no_rows=0.0)
    names = returned[0].names
    rows = sum(weights) or 1
    if len({id(each.names) for each in returned}) == 1:
        columns = list(zip(*[each.values for each in returned], strict=True))
    else:
        metrics = [each.metrics for each in returned]
        names = tuple(set(names).intersection(*metrics))
        columns = [tuple(found[name] for found in metrics) for name in names]
    means = [sum(map(mul, column, weights)) / rows for column in columns]
    return dict(sorted(zip(names, means, strict=True)))
