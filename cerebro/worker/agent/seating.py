"""Who may sit at a device with several seats: as many as its memory has room for, as far as that is known.

What a unit takes is known from those of the same code that ended here: the most that one of them took. Until one has,
a unit sits alone. If memory runs out all the same, one unit fewer may sit there from then on. Who waits for room sits
before all who come later, so nobody waits for ever.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cerebro.contract.tasks import InboxItem
from cerebro.worker.agent.lease import Name, Named, name_of
from cerebro.worker.agent.turns import Turns

log = logging.getLogger(__name__)

SHARE = 0.9
"""Of a device's memory: what units take varies a little, and a GPU's allocator leaves holes."""
CONTEXT_BYTES = 640 << 20
"""Of a GPU, for each process that uses it, beside what torch counts."""

_What = tuple[str, str]
"""Hash of the code, and kind, of a task."""


@dataclass(kw_only=True)
class _Device:
    turns: Turns
    most: int
    """Units that may sit there."""
    seated: dict[Name, _What] = field(default_factory=dict)
    crowded: set[Name] = field(default_factory=set)
    """Those of them beside which another one sat at any time."""
    waiting: list[Name] = field(default_factory=list)
    """Who asked for room, and found none, in this order."""


class Seating:
    """Of a worker. Safe for several threads.

    Args:
        number: of devices. Seat ``n`` is at device ``n % number``.
        seats: of each.
        limit_bytes: memory of one device; `None`: not known, so that seats alone count.
        context_bytes: that a process takes of a device beside what its tasks are charged with.
    """

    def __init__(
        self,
        number: int,
        seats: int,
        turns: Callable[[], Turns],
        *,
        limit_bytes: int | None = None,
        context_bytes: int = 0,
    ) -> None:
        self.seats = seats
        self._room = None if limit_bytes is None else limit_bytes * SHARE
        self._context = context_bytes
        self._lock = threading.Lock()
        self._devices = [_Device(turns=turns(), most=seats) for _ in range(number)]
        self._taken: dict[_What, int] = {}
        """The most bytes that a task took."""

    def turns(self, item: InboxItem) -> Turns | None:
        """Of the device at which an attempt sits; `None`: it has its devices for itself."""
        device = self._of(item)
        return None if device is None else device.turns

    def sit_down(self, item: InboxItem, behind: Named | None = None) -> bool:
        """Whether an attempt may begin; then it sits until `rise`. `behind`: one that ends in the step before."""
        device = self._of(item)
        if device is None or item.body is None:
            return True
        what, name = (item.body.code, item.body.kind), name_of(item)
        with self._lock:
            left = None if behind is None else name_of(behind)
            others = [other for each, other in device.seated.items() if each != left]
            is_next = not device.waiting or device.waiting[0] == name
            if not is_next or (others and not self._fits(device, [*others, what])):
                if name not in device.waiting:
                    device.waiting.append(name)
                return False
            device.waiting = [each for each in device.waiting if each != name]
            device.seated[name] = what
            if others:
                device.crowded.update(each for each in device.seated if each != left)
        return True

    def _fits(self, device: _Device, seated: list[_What]) -> bool:
        if len(seated) > device.most:
            return False
        if self._room is None:
            return True
        taken = [self._expected(what) for what in seated]
        return all(taken) and sum(taken) + len(taken) * self._context <= self._room

    def _expected(self, what: _What) -> int:
        """Bytes; of a kind of which none has ended yet those of other tasks of its code. 0: not known."""
        code, _ = what
        alike = (taken for (other, _), taken in self._taken.items() if other == code)
        return self._taken.get(what) or max(alike, default=0)

    def rise(self, named: Named) -> None:
        """The attempt has ended, or does not begin. Calling twice is safe."""
        with self._lock:
            for device in self._devices:
                device.seated.pop(name_of(named), None)
                device.crowded.discard(name_of(named))
                device.waiting = [each for each in device.waiting if each != name_of(named)]

    def ended(self, item: InboxItem, taken_bytes: int) -> None:
        """An attempt was done, with so many bytes of its device; 0: not known."""
        if item.body is not None and taken_bytes:
            what = (item.body.code, item.body.kind)
            with self._lock:
                self._taken[what] = max(taken_bytes, self._taken.get(what, 0))

    def ran_out(self, item: InboxItem) -> bool:
        """An attempt ran out of memory: whether it was not alone at its device. Then fewer may sit there."""
        device = self._of(item)
        if device is None:
            return False
        with self._lock:
            if name_of(item) not in device.crowded:
                return False
            device.most = max(1, min(device.most, len(device.seated)) - 1)
        log.warning(
            "memory ran out with several units at a device: from now on at most %d sit there", device.most
        )
        return True

    def _of(self, item: InboxItem) -> _Device | None:
        if self.seats == 1 or len(item.devices) != 1:
            return None
        return self._devices[item.devices[0] % len(self._devices)]
