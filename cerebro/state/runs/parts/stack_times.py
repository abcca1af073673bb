"""Measured times of models that train as stacks and separately, and the faster size of a stack. A fold of the log.

A run measures both if its user names ``single`` and ``fused``. Its sub-epochs are the measurements: models train
separately first, then one stack of four. If it is faster, the size doubles until a larger stack isn't faster.
One disturbed measurement decides nothing: a size is slower only after two equal times, or three.
`controller.sources` asks here before it forms a stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from cerebro.contract.trials import DeviceKind
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch

_FIRST_SIZE = 4
"""First stack to try: two models hardly gain, and a slower stack of many costs more."""

_GAIN = 0.05
"""Share of the time that another size must save. Smaller differences may be noise."""

_ENOUGH = 3
"""Measurements that show a size to be slower, unless two differ by less than `_GAIN`: one may be disturbed."""

_NEWEST = 7
"""Measurements of a size that count; their median is its time."""


class StackKey(NamedTuple):
    """Models and devices with equal times.

    Attributes:
        models: id of the inspection's group of similar models.
        device: kind of the worker's devices; `None` if unknown.
    """

    models: str
    device: DeviceKind | None


class _Measurement(NamedTuple):
    """Seconds of a device per row and model. A stack is one measurement: its last commit counts."""

    group: str
    seconds: float


def size_class(models: int) -> int:
    """Return the power of two that stands for a number of models: 3 and 4 count as 4.

    Example:
        >>> [size_class(models) for models in (1, 2, 3, 8, 9)]
        [1, 2, 4, 8, 16]
    """
    return 1 << (models - 1).bit_length()


@dataclass(kw_only=True, slots=True)
class _Times:
    """Times of one kind of models on one kind of devices, and the chosen size."""

    sizes: dict[int, list[_Measurement]] = field(default_factory=dict)
    chosen: int = 1

    def seconds(self, size: int) -> float:
        return median(each.seconds for each in self.sizes[size])

    def observe(self, size: int, measurement: _Measurement) -> None:
        found = self.sizes.setdefault(size, [])
        known = next((n for n, each in enumerate(found) if each.group == measurement.group != ""), None)
        if known is None:
            found.append(measurement)
            del found[:-_NEWEST]
        elif found[known].seconds < measurement.seconds:
            found[known] = measurement
        if self.is_known(1):
            best = min(self.sizes, key=self.seconds)
            if self.seconds(best) < (1 - _GAIN) * self.seconds(self.chosen):
                self.chosen = best

    def is_known(self, size: int) -> bool:
        """True if a size has enough measurements to be slower than another one."""
        found = [each.seconds for each in self.sizes.get(size, ())]
        return len(found) >= _ENOUGH or (len(found) == 2 and (1 - _GAIN) * max(found) < min(found))

    def next_size(self, most: int) -> int:
        """Return the next size to measure; 0 without any."""
        following = min(_FIRST_SIZE if self.chosen == 1 else 2 * self.chosen, size_class(most))
        is_open = 1 in self.sizes and following > self.chosen and not self.is_known(following)
        return following if is_open else 0

    def decision(self) -> tuple[int, tuple[tuple[int, bool], ...]]:
        """Return everything that decides about stacks, except their times."""
        return self.chosen, tuple((size, self.is_known(size)) for size in self.sizes)


@dataclass(kw_only=True, slots=True)
class StackTimes:
    """Times of all kinds of models of a run.

    Attributes:
        since: start of the measurements: the end of the inspection, which delays sub-epochs on the same machine.
            `None` if the run doesn't choose.
        choices: counts the changes of `is_worthwhile`.
    """

    since: float | None = None
    choices: int = 0
    _times: dict[StackKey, _Times] = field(default_factory=dict)

    def observe(self, key: StackKey, sub_epoch: CompletedSubEpoch) -> None:
        """Add a committed sub-epoch, if it was trained in full on one device, separately or in a stack."""
        plan, rows = sub_epoch.parallel_plan, sub_epoch.rows
        # A stack that shrank to one model, and other plans, take longer than separate training.
        is_separate, is_stack = plan is None or plan.is_single, sub_epoch.group.size > 1
        is_late = self.since is not None and sub_epoch.started >= self.since
        is_whole = bool(rows) and not sub_epoch.resumed_rows and not sub_epoch.other_members
        if not (is_late and is_whole and (is_separate or is_stack)):
            return
        times = self._times.setdefault(key, _Times())
        previous, size = times.decision(), size_class(sub_epoch.group.size)
        times.observe(size, _Measurement(sub_epoch.group.id, sub_epoch.device_s / rows))
        self.choices += previous != times.decision()

    def is_worthwhile(self, key: StackKey, most: int) -> bool:
        """True if stacks of at most `most` models are faster, or one is to be measured."""
        times = self._times.get(key)
        return times is not None and (times.chosen > 1 or times.next_size(most) > 0)

    def next_size(self, key: StackKey, most: int) -> int:
        """Return the size to measure next, at most `most`; 0 without any."""
        times = self._times.get(key)
        return times.next_size(most) if times is not None else 0

    def chosen(self, key: StackKey) -> int:
        """Return the fastest measured size; 1 if models train separately."""
        times = self._times.get(key)
        return 1 if times is None else times.chosen

    def is_slower(self, key: StackKey, models: int) -> bool:
        """True if measurements of this size show that separate training is faster."""
        times, size = self._times.get(key), size_class(models)
        if times is None or not (times.is_known(1) and times.is_known(size)):
            return False
        return times.seconds(size) >= times.seconds(1)

    def measured(self, key: StackKey) -> dict[int, float]:
        """Return the seconds of a device per row and model, by size of the stack; 1: separately."""
        times = self._times.get(key)
        return {size: times.seconds(size) for size in sorted(times.sizes)} if times is not None else {}

    def __iter__(self) -> Iterator[StackKey]:
        """Iterate over the kinds with measurements."""
        return iter(self._times)
