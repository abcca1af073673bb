"""The visits of a model, of which the oldest may be archived: they are in the log alone, and an epoch's sums stand for
them.

A run of millions of units would else have a fold that no process can hold. What is archived follows from the log
(`cerebro.state.archive`), so all who fold it keep the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

from cerebro.contract.tasks import CurvePoint
from cerebro.contract.ways import Way
from cerebro.errors import CerebroError
from cerebro.state.visits import Visit


class ArchivedError(CerebroError):
    """A visit that is asked for is in the log alone."""


class WayUsed(NamedTuple):
    """By which way units of an epoch ran (`None`: one device), how many, and seconds that they took together."""

    way: Way | None
    units: int
    seconds: float


class EpochTotals(NamedTuple):
    """Of the units of an epoch: seconds from start to commit, seconds in user code, and rows, each added up."""

    seconds: float
    compute_s: float
    rows: int


class EpochSummary(NamedTuple):
    """What is remembered of the visits of an epoch once they are archived.

    Attributes:
        returned: names of what they returned, and whether each is a ratio, as `Model.returned_in` has it.
        names, values: of that, as `cerebro.state.visits.mean` has it.
        trained_rows: without those that earlier attempts trained on.
        took_s: seconds that units had a device, added up.
        steps: optimizer steps that they took.
        peak_bytes, peak_gpu_bytes: the most memory that a unit had.
        reported: name of what the first that reported anything did; empty if none did.
        point: all that units reported under that name as one point, if any did.
        has_diverged: whether the last of these ended in what is no finite number.
        shown_at: when the first unit ended.
    """

    returned: tuple[tuple[str, bool], ...]
    names: tuple[str, ...]
    values: tuple[float, ...]
    totals: EpochTotals
    trained_rows: int
    took_s: float
    steps: int
    ways: tuple[WayUsed, ...]
    peak_bytes: int
    peak_gpu_bytes: int
    reported: str
    point: CurvePoint | None
    has_diverged: bool
    shown_at: float

    @property
    def means(self) -> dict[str, float]:
        """What they returned together, by name, made anew at each call."""
        return dict(zip(self.names, self.values, strict=True))

    def mean(self, name: str) -> float | None:
        """One of `means`; `None` if it is not among them."""
        return self.values[self.names.index(name)] if name in self.names else None


@dataclass(slots=True)
class Visits(Sequence[Visit]):
    """Committed units in order, by their number.

    Attributes:
        archived: so many of the oldest are archived.
        kept: all others.
        pinned: number -> visit, of those archived ones that are kept all the same.
    """

    archived: int = 0
    kept: list[Visit] = field(default_factory=list)
    pinned: dict[int, Visit] = field(default_factory=dict)

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
            units = range(*index.indices(len(self)))
            if not self.archived:
                return self.kept[index]
            return [self._at(unit) for unit in units]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._at(index if index >= 0 else len(self) + index)

    def __iter__(self) -> Iterator[Visit]:
        """All of them.

        Raises:
            ArchivedError: some are archived.
        """
        return iter(self[:])

    def knows(self, unit: int) -> bool:
        """Whether the visit of that number is at hand."""
        return self.archived <= unit < len(self) or unit in self.pinned

    def append(self, visit: Visit) -> None:
        """Another unit was committed."""
        self.kept.append(visit)

    def pop(self) -> Visit:
        """Take the newest one out; it is not archived."""
        return self.kept.pop()

    def until(self, units: int) -> Visits:
        """The first ones, so many, as a list of its own."""
        archived = min(self.archived, units)
        pinned = {unit: visit for unit, visit in self.pinned.items() if unit < archived}
        return Visits(archived=archived, kept=self.kept[: units - archived], pinned=pinned)

    def archive(self, units: int, pins: Collection[int]) -> list[Visit]:
        """Keep the first ones, so many, no longer, but for those of these numbers; those that were kept until now."""
        gone = self.kept[: units - self.archived]
        self.pinned |= {unit: visit for unit, visit in enumerate(gone, start=self.archived) if unit in pins}
        del self.kept[: len(gone)]
        self.archived += len(gone)
        return gone

    def _at(self, unit: int) -> Visit:
        if unit >= self.archived:
            return self.kept[unit - self.archived]
        found = self.pinned.get(unit)
        if found is None:
            raise ArchivedError(
                f"unit {unit} is archived: of the first {self.archived} units only the ends of epochs are at hand. "
                "The log has all of them: `FitResult.visits` reads it, and the page's schedule, by the time that is "
                "looked at"
            )
        return found


def totals_of(visits: Sequence[Visit]) -> EpochTotals:
    """Of these units."""
    return EpochTotals(
        sum(visit.ended - visit.started for visit in visits),
        sum(visit.compute_s for visit in visits),
        sum(visit.rows for visit in visits),
    )
