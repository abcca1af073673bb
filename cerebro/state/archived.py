"""The visits of a model, of which the oldest may be archived: they are in the log alone, and an epoch's sums stand for
them.

A run of millions of sub-epochs would else have a fold that no process can hold. What is archived follows from the log
(`cerebro.state.archive`), so all who fold it keep the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple, overload

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.errors import CerebroError
from cerebro.state.compact import Compact, Layout, first_vector
from cerebro.state.visits import Visit


class ArchivedError(CerebroError):
    """A visit that is asked for is in the log alone."""


class ParallelPlanUsed(NamedTuple):
    """By which way sub-epochs of an epoch ran (`None`: one device), how many, and seconds that they took together."""

    parallel_plan: ParallelPlan | None
    sub_epochs: int
    seconds: float

    @property
    def label(self) -> str:
        """Of its way; empty for one device."""
        return self.parallel_plan.label if self.parallel_plan else ""


class EpochTotals(NamedTuple):
    """Of the sub-epochs of an epoch: seconds from start to commit, seconds in user code, and rows, each added up."""

    seconds: float
    compute_s: float
    rows: int


class EpochSummary(NamedTuple):
    """What is remembered of the visits of an epoch once they are archived.

    Attributes:
        returned: names of what they returned, and whether each is a ratio, as `Model.returned_in` has it.
        names, values: of that, as `cerebro.state.visits.mean` has it.
        seconds, compute_s, rows: see `totals`.
        trained_rows: without those that earlier attempts trained on.
        rows_until: of all epochs up to this one.
        took_s: seconds that sub-epochs had a device, added up.
        steps: optimizer steps that they took.
        used, used_sub_epochs, used_s: see `parallel_plans`.
        peak_bytes, peak_gpu_bytes: the most memory that a sub-epoch had.
        reported: name of what the first that reported anything did; empty if none did.
        reports: all that sub-epochs reported under that name as one point, seconds, mean and number; empty if none did.
        has_diverged: whether the last of these ended in what is no finite number.
        shown_at: when the first sub-epoch ended.
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
        """Of its sub-epochs."""
        return EpochTotals(self.seconds, self.compute_s, self.rows)

    @property
    def parallel_plans(self) -> Iterator[ParallelPlanUsed]:
        """By which they ran."""
        for parallel_plan, sub_epochs, seconds in zip(
            self.used, self.used_sub_epochs, self.used_s, strict=True
        ):
            yield ParallelPlanUsed(parallel_plan, int(sub_epochs), seconds)

    @property
    def means(self) -> dict[str, float]:
        """What they returned together, by name, made anew at each call."""
        return dict(zip(self.names, self.values, strict=True))


_SUMMARIES = Layout(
    EpochSummary,
    vectors=("values", "used_sub_epochs", "used_s", "reports"),
    floats=("seconds", "compute_s", "took_s", "shown_at"),
    whole=("rows", "trained_rows", "rows_until", "steps", "peak_bytes", "peak_gpu_bytes"),
)
_VISITS = Layout(
    Visit,
    vectors=("values", "terms"),
    floats=("started", "ended", "load_s", "compute_s", "save_s", "start_s"),
    whole=(
        "epoch",
        "partition",
        "attempt",
        "rows",
        "size",
        "cores",
        "resumed_rows",
        "peak_bytes",
        "peak_gpu_bytes",
        "validated",
    ),
    texts=("file", "checksum"),
    blobs=("course",),
)
_NAMES_AT = _SUMMARIES.shared.index("names")


@dataclass(slots=True)
class Summaries:
    """Of a model's epochs that are archived, which are the first ones; and what they come to together.

    Attributes:
        ways: each way by which sub-epochs ran, how many, and their seconds.
        steps: optimizer steps of all of them.
        peaks: the most memory that a sub-epoch had, of its process and on GPUs, bytes.
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
        """Of an epoch, from 1, made anew at each call."""
        if epoch not in self:
            raise KeyError(epoch)
        return _SUMMARIES.unpack(self._found[epoch - 1])

    def __iter__(self) -> Iterator[EpochSummary]:
        """In order."""
        return map(_SUMMARIES.unpack, self._found)

    def mean(self, epoch: int, name: str) -> float | None:
        """One of `EpochSummary.means`; `None` if it is not among them."""
        found = self._found[epoch - 1]
        names: tuple[str, ...] = found[0][_NAMES_AT]
        return first_vector(found, names.index(name)) if name in names else None

    def rows_until(self, epoch: int) -> int:
        """Of all sub-epochs up to the end of an epoch."""
        return self[epoch].rows_until if epoch else 0

    def append(self, summary: EpochSummary) -> None:
        """The next epoch is archived."""
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
        """Of the first ones, so many, as a list of its own."""
        made = Summaries()
        for found in self._found[:epochs]:
            made.append(_SUMMARIES.unpack(found))
        return made


_Pinned = tuple[int, tuple[Any, ...], bytes]
"""A visit's number, and what it is as `Compact`."""
_number = itemgetter(0)


@dataclass(slots=True)
class Visits(Sequence[Visit]):
    """Committed sub-epochs in order, by their number.

    Attributes:
        archived: so many of the oldest are archived.
        kept: all others.
    """

    archived: int = 0
    kept: list[Visit] = field(default_factory=list)
    _pinned: list[_Pinned] = field(default_factory=list)
    """Those archived ones that are kept all the same, in order. No dictionary: it takes twice the memory, and there are
    very many."""

    def __len__(self) -> int:
        return self.archived + len(self.kept)

    @overload
    def __getitem__(self, index: int) -> Visit: ...

    @overload
    def __getitem__(self, index: slice) -> list[Visit]: ...

    def __getitem__(self, index: int | slice) -> Visit | list[Visit]:
        """A visit, or some in a row.

        Raises:
            ArchivedError: one of them is archived.
        """
        if isinstance(index, slice):
            sub_epochs = range(*index.indices(len(self)))
            if not self.archived:
                return self.kept[index]
            return [self._at(sub_epoch) for sub_epoch in sub_epochs]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._at(index if index >= 0 else len(self) + index)

    def __iter__(self) -> Iterator[Visit]:
        """All of them.

        Raises:
            ArchivedError: some are archived.
        """
        return iter(self[:])

    def knows(self, sub_epoch: int) -> bool:
        """Whether the visit of that number is at hand."""
        return self.archived <= sub_epoch < len(self) or self._place(sub_epoch) is not None

    def pinned(self, since: int) -> Iterator[Visit]:
        """Archived ones that are kept all the same, from a number on, in order."""
        first = bisect_left(self._pinned, since, key=_number)
        return (_VISITS.unpack(found) for _, *found in self._pinned[first:])

    def append(self, visit: Visit) -> None:
        """Another sub-epoch was committed."""
        self.kept.append(visit)

    def pop(self) -> Visit:
        """Take the newest one out; it is not archived."""
        return self.kept.pop()

    def until(self, sub_epochs: int) -> Visits:
        """The first ones, so many, as a list of its own."""
        archived = min(self.archived, sub_epochs)
        number = bisect_left(self._pinned, archived, key=_number)
        return Visits(
            archived=archived, kept=self.kept[: sub_epochs - archived], _pinned=self._pinned[:number]
        )

    def archive(self, sub_epochs: int, pins: Collection[int]) -> list[Visit]:
        """Keep the first ones, so many, no longer, but for those of these numbers; those that were kept until now."""
        gone = self.kept[: sub_epochs - self.archived]
        for sub_epoch, visit in enumerate(gone, start=self.archived):
            if sub_epoch in pins:
                self._pinned.append((sub_epoch, *_VISITS.pack(visit)))
        del self.kept[: len(gone)]
        self.archived += len(gone)
        return gone

    def _at(self, sub_epoch: int) -> Visit:
        if sub_epoch >= self.archived:
            return self.kept[sub_epoch - self.archived]
        place = self._place(sub_epoch)
        if place is None:
            raise ArchivedError(
                f"sub-epoch {sub_epoch} is archived: of the first {self.archived} sub-epochs only the ends of epochs "
                f"are at hand. "
                "The log has all of them: `FitResult.visits` reads it, and the page's schedule, by the time that is "
                "looked at"
            )
        _, *found = self._pinned[place]
        return _VISITS.unpack(found)

    def _place(self, sub_epoch: int) -> int | None:
        place = bisect_left(self._pinned, sub_epoch, key=_number)
        return place if place < len(self._pinned) and self._pinned[place][0] == sub_epoch else None


def totals_of(visits: Sequence[Visit]) -> EpochTotals:
    """Of these sub-epochs."""
    return EpochTotals(
        sum(visit.ended - visit.started for visit in visits),
        sum(visit.compute_s for visit in visits),
        sum(visit.rows for visit in visits),
    )
