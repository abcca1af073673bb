"""The child processes of a worker: at most one for each handler and set of devices, kept while somebody may still need
it. A task of several devices may take several of them, one for each device, which did tasks alone before.

A run often follows another within minutes, with the same code or nearly so, and what a process has imported took
seconds or minutes. So a child outlives its task. It is ended when it had none for long, when a task needs another
setting, when two more than the worker has devices are without a task, or when memory is short: what runs goes before
what may come. Where models are expected on a device that has no process, one is made ready: the first sub-epoch then
finds its imports done. One that waits was told to hold no model and no memory of a GPU.

A child that is busy belongs to the devices for whose task it was taken, until `done` or until a task of other devices
takes it: by then the one before has left the devices that both have. All others belong to the pool.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from cerebro.runtime.usage.memory import MemoryGroup
from cerebro.worker.agent.mailbox import overlap
from cerebro.worker.agent.process import ChildProcess, ChildSpec, KernelKills
from cerebro.worker.agent.settings import Settings

log = logging.getLogger(__name__)

IDLE_S = 600.0
"""A child without a task is ended after this: it holds a few hundred MB, or as much as user code has imported."""
REST_S = 2.0
"""A child without a task for so long lets go of what it can make again. Before, its next task is probably near."""
_LOOK_S = 5.0
"""Pause between two looks at memory while nothing runs."""

Place = tuple[tuple[int, ...], str]
"""Devices and handler of a child."""


class ChildPool:
    """A worker's child processes: started for tasks, reused, and ended as the module says. Safe for several threads,
    each of which has devices of its own.

    Args:
        devices: of the worker. So many children and one more may be without a task, those that had one last: after a
            fit the one that preprocesses is there as well.
    """

    def __init__(self, settings: Settings, memory: MemoryGroup, devices: int = 1) -> None:
        self._settings, self._memory, self._most_idle = settings, memory, devices + 1
        self._kills = KernelKills(memory)
        self._lock = threading.Lock()
        """Not held while a process is started or ended: that takes long, and another device's task must not wait."""
        self._children: dict[Place, ChildProcess] = {}
        self._busy: dict[Place, tuple[int, ...]] = {}
        """The devices for whose task each was taken."""

    def take(self, devices: tuple[int, ...], settings: Sequence[ChildSpec]) -> tuple[ChildProcess, ...]:
        """The children for a task of these devices, of which each has a part or all; started where there are none that
        fit. They are busy until `done`; others that were on these devices rest."""
        places = [(setting.share.devices, setting.handler) for setting in settings]
        with self._lock:
            self._release(devices)
            self._busy |= dict.fromkeys(places, devices)
        children = tuple(
            self._fitting(place, setting) for place, setting in zip(places, settings, strict=True)
        )
        self.end_idle_if_memory_is_short()
        with self._lock:
            for (others, _), other in self._idle():
                if overlap(others, devices):
                    other.rest()
        return children

    def _fitting(self, place: Place, setting: ChildSpec) -> ChildProcess:
        with self._lock:
            child = self._children.get(place)
        if child is None or child.setting != setting or not child.is_alive():
            self._end(place)
            child = ChildProcess(setting, self._settings, self._memory, self._kills)
            with self._lock:
                self._children[place] = child
        return child

    def make_ready(self, settings: Iterable[ChildSpec]) -> None:
        """Start the children that expected tasks need, where there is none: a first sub-epoch then waits for no
        imports. Nothing is started while memory is short."""
        for setting in settings:
            place = (setting.share.devices, setting.handler)
            with self._lock:
                is_needed = place not in self._children and place not in self._busy
            if not is_needed or self._memory.is_short():
                continue
            try:
                child = ChildProcess(setting, self._settings, self._memory, self._kills)
            except OSError as error:  # who needs it will say so
                log.info("no process is made ready for %s: %s", setting.handler, error)
                continue
            with self._lock:
                is_needed = place not in self._children and place not in self._busy
                if is_needed:
                    self._children[place] = child
            if not is_needed:  # a task came meanwhile, and has a child of its own
                child.kill()

    def take_again(self, devices: tuple[int, ...], children: Sequence[ChildProcess]) -> bool:
        """Whether those that have just done a task of these devices are all there still; then they are busy until
        `done`."""
        places = [(child.setting.share.devices, child.setting.handler) for child in children]
        with self._lock:
            for place, child in zip(places, children, strict=True):
                if self._children.get(place) is not child or not child.is_alive():
                    return False
            self._busy |= dict.fromkeys(places, devices)
            return True

    def done(self, devices: tuple[int, ...], *, is_spent: bool = False) -> None:
        """Nothing is to be done on these devices for now. Not between two tasks: what is without a task may be ended
        for another device's sake.

        Args:
            is_spent: no other task is to meet what the last one may have left behind.
        """
        for place in self._busy_on(devices) if is_spent else ():
            self._end(place)
        with self._lock:
            self._release(devices)

    def tidy(self) -> None:
        """To be called again and again."""
        now = time.monotonic()
        self._end_where(lambda child: now - child.used >= IDLE_S, f"it had none for {IDLE_S:g} s")
        with self._lock:
            rested = [child for _, child in self._idle() if now - child.used >= REST_S]
        oldest = sorted(rested, key=lambda child: child.used)[: max(0, len(rested) - self._most_idle)]
        self._end_where(lambda child: child in oldest, "others had one since")
        with self._lock:
            for _, child in self._idle():
                if now - child.used >= REST_S:
                    child.rest()
        self.end_idle_if_memory_is_short()

    def tidy_in_s(self) -> float:
        """When `tidy` will have something to do."""
        with self._lock:
            idle = [child for _, child in self._idle()]
        return (_LOOK_S if all(child.is_resting for child in idle) else REST_S) if idle else IDLE_S

    def is_crowded(self) -> bool:
        """Whether memory is short, and there are children without a task."""
        with self._lock:
            is_any_idle = bool(self._idle())
        return is_any_idle and self._memory.is_short()

    def end_idle_if_memory_is_short(self) -> None:
        """End the children without a task if memory is short."""
        if self.is_crowded():
            self.end_idle("memory is short")

    def end_idle(self, why: str) -> None:
        """End the children without a task."""
        self._end_where(lambda _: True, why)

    def end_all(self) -> None:
        """End them, at once."""
        for place in list(self._children):
            self._end(place)

    def _busy_on(self, devices: tuple[int, ...]) -> list[Place]:
        return [place for place, taken_for in list(self._busy.items()) if taken_for == devices]

    def _release(self, devices: tuple[int, ...]) -> None:
        for place in self._busy_on(devices):
            del self._busy[place]
            if place in self._children:
                self._children[place].used = time.monotonic()

    def _idle(self) -> list[tuple[Place, ChildProcess]]:
        return [(place, child) for place, child in self._children.items() if place not in self._busy]

    def _end_where(self, holds: Callable[[ChildProcess], bool], why: str) -> None:
        with self._lock:
            ended = [(place, child) for place, child in self._idle() if holds(child)]
            for place, _ in ended:
                del self._children[place]
        for (_, handler), child in ended:
            log.info("the process of %s, which has no task, is ended: %s", handler, why)
            child.kill()

    def _end(self, place: Place) -> None:
        with self._lock:
            child = self._children.pop(place, None)
        if child is not None:
            child.kill()
