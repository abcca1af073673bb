"""A worker's pool of child processes, at most one for each handler and set of devices.

`Execution` takes children for a task and returns them with `done`; the agent's main thread calls `tidy`. The pool
decides which processes exist, not which task runs.

A task on several devices may use several single-device children. Children outlive their tasks, because runs often
follow each other with similar code and imports take seconds or minutes. A child ends if it has been idle for 10
minutes, if a task needs other settings, if there are more idle children than devices plus one, or if memory is short:
running tasks have priority. The pool starts a child in advance on a device that expects models, so imports finish
before the first sub-epoch. Idle children are asked to free models and GPU memory.

A busy child is assigned to its task's devices until `done`, or until a task on other devices takes it. By then the
earlier task has left the shared devices. All other children are idle.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from cerebro.runtime.usage.memory import MemoryGroup
from cerebro.worker.agent.mailbox import overlap
from cerebro.worker.agent.processes.process import ChildProcess, ChildSpec, KernelKills
from cerebro.worker.agent.settings import Settings

log = logging.getLogger(__name__)

IDLE_S = 600.0
"""Seconds after which an idle child ends. It holds a few hundred MB or more."""
FREE_MEMORY_S = 2.0
"""Idle seconds after which a child frees rebuildable objects. Before that, its next task is probably near."""
_POLL_S = 5.0
"""Seconds between two memory checks while no task runs."""

Place = tuple[tuple[int, ...], str]
"""Devices and handler of a child."""


class ChildPool:
    """A worker's child processes. Thread-safe if each thread uses its own devices.

    Args:
        devices: number of the worker's devices. At most this number plus one children stay idle, the latest
            used ones; after a fit, one is the ETL child.
    """

    def __init__(self, settings: Settings, memory: MemoryGroup, devices: int = 1) -> None:
        self._settings, self._memory, self._most_idle = settings, memory, devices + 1
        self._kills = KernelKills(memory)
        self._lock = threading.Lock()
        """Not held while a process starts or ends, which is slow, so tasks of other devices do not wait."""
        self._children: dict[Place, ChildProcess] = {}
        self._busy: dict[Place, tuple[int, ...]] = {}
        """Devices of the task that each busy child was taken for."""

    def take(self, devices: tuple[int, ...], settings: Sequence[ChildSpec]) -> tuple[ChildProcess, ...]:
        """Return children for a task on these devices and mark them busy until `done`.

        Each has some or all of the devices. Missing ones are started; other children on these devices free
        their memory.
        """
        places = [(setting.share.devices, setting.handler) for setting in settings]
        with self._lock:
            self._release(devices)
            self._busy |= dict.fromkeys(places, devices)
        children = tuple(
            self._fitting(place, setting) for place, setting in zip(places, settings, strict=True)
        )
        self.end_idle_if_memory_is_short()
        with self._lock:
            for (other_devices, _), other in self._idle():
                if overlap(other_devices, devices):
                    other.free_memory()
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
        """Start missing children for expected tasks, so imports finish early. Skip them while memory is short."""
        for setting in settings:
            place = (setting.share.devices, setting.handler)
            with self._lock:
                is_needed = place not in self._children and place not in self._busy
            if not is_needed or self._memory.is_short():
                continue
            try:
                child = ChildProcess(setting, self._settings, self._memory, self._kills)
            except OSError as error:  # a task that needs it will report the error
                log.info("no process is made ready for %s: %s", setting.handler, error)
                continue
            with self._lock:
                is_needed = place not in self._children and place not in self._busy
                if is_needed:
                    self._children[place] = child
            if not is_needed:  # a task has started its own child in the meantime
                child.kill()

    def take_again(self, devices: tuple[int, ...], children: Sequence[ChildProcess]) -> bool:
        """Mark the children of a finished task busy again. Return False if one is gone."""
        places = [(child.setting.share.devices, child.setting.handler) for child in children]
        with self._lock:
            for place, child in zip(places, children, strict=True):
                if self._children.get(place) is not child or not child.is_alive():
                    return False
            self._busy |= dict.fromkeys(places, devices)
            return True

    def done(self, devices: tuple[int, ...], *, is_spent: bool = False) -> None:
        """Mark the children of these devices idle.

        Not called between two tasks, because an idle child may be ended for another device.

        Args:
            is_spent: True if no other task may reuse these children.
        """
        for place in self._busy_on(devices) if is_spent else ():
            self._end(place)
        with self._lock:
            self._release(devices)

    def tidy(self) -> None:
        """End or rest idle children. Call regularly."""
        now = time.monotonic()
        self._end_where(lambda child: now - child.used >= IDLE_S, f"it had none for {IDLE_S:g} s")
        with self._lock:
            rested = [child for _, child in self._idle() if now - child.used >= FREE_MEMORY_S]
        oldest = sorted(rested, key=lambda child: child.used)[: max(0, len(rested) - self._most_idle)]
        self._end_where(lambda child: child in oldest, "others had one since")
        with self._lock:
            for _, child in self._idle():
                if now - child.used >= FREE_MEMORY_S:
                    child.free_memory()
        self.end_idle_if_memory_is_short()

    def tidy_in_s(self) -> float:
        """Return the seconds until `tidy` is needed."""
        with self._lock:
            idle = [child for _, child in self._idle()]
        return (
            (_POLL_S if all(child.has_freed_memory for child in idle) else FREE_MEMORY_S) if idle else IDLE_S
        )

    def is_crowded(self) -> bool:
        """True if memory is short and there are idle children."""
        with self._lock:
            is_any_idle = bool(self._idle())
        return is_any_idle and self._memory.is_short()

    def end_idle_if_memory_is_short(self) -> None:
        """End idle children if memory is short."""
        if self.is_crowded():
            self.end_idle("memory is short")

    def end_idle(self, why: str) -> None:
        """End idle children."""
        self._end_where(lambda _: True, why)

    def end_all(self) -> None:
        """End all children at once."""
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
