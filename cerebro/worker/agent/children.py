"""The child processes of a worker: at most one for each handler, kept while somebody may still need it.

A run often follows another within minutes, with the same code or nearly so, and what a process has imported took
seconds or minutes. So a child outlives its task. It is ended when it had none for long, when a task needs another
setting, or when memory is short: what runs goes before what may come. One that waits was told to hold no model and no
memory of a GPU.

Used by the agent's main thread, but for `is_crowded`.
"""

from __future__ import annotations

import logging
import time

from cerebro.runtime.usage.memory import MemoryGroup
from cerebro.worker.agent.process import ChildProcess, ChildSpec
from cerebro.worker.agent.settings import Settings

log = logging.getLogger(__name__)

IDLE_S = 600.0
"""A child without a task is ended after this: it holds a few hundred MB, or as much as user code has imported."""
REST_S = 2.0
"""A child without a task for so long lets go of what it can make again. Before, its next task is probably near."""
_LOOK_S = 5.0
"""Pause between two looks at memory while nothing runs."""


class ChildPool:
    """A worker's child processes: started for tasks, reused, and ended as the module says."""

    def __init__(self, settings: Settings, memory: MemoryGroup) -> None:
        self._settings, self._memory = settings, memory
        self._children: dict[str, ChildProcess] = {}
        self._busy: ChildProcess | None = None

    def take(self, setting: ChildSpec) -> ChildProcess:
        """The child for a task, started if there is none that fits. It is busy until `done`; the others rest."""
        child = self._children.get(setting.handler)
        if child is None or child.setting != setting or not child.is_alive():
            self._end(setting.handler)
            child = self._children[setting.handler] = ChildProcess(setting, self._settings, self._memory)
        self._busy = child
        self.end_idle_if_memory_is_short()
        for other in self._idle():
            other.rest()
        return child

    def take_again(self, handler: str) -> ChildProcess | None:
        """The child that has just done a task of this handler, if it is there; busy until `done`."""
        child = self._children.get(handler)
        if child is not None and child.is_alive():
            self._busy = child
            return child
        return None

    def done(self, *, is_spent: bool) -> None:
        """The busy child's task has ended.

        Args:
            is_spent: no other task is to meet what this one may have left behind.
        """
        child, self._busy = self._busy, None
        if child is not None:
            child.used = time.monotonic()
            if is_spent:
                self._end(child.setting.handler)

    def tidy(self) -> None:
        """To be called again and again while nothing runs."""
        now = time.monotonic()
        for child in self._idle():
            if now - child.used >= IDLE_S:
                self._end(child.setting.handler)
            elif now - child.used >= REST_S:
                child.rest()
        self.end_idle_if_memory_is_short()

    def tidy_in_s(self) -> float:
        """When `tidy` will have something to do."""
        idle = self._idle()
        return (_LOOK_S if all(child.is_resting for child in idle) else REST_S) if idle else IDLE_S

    def is_crowded(self) -> bool:
        """Whether `end_idle_if_memory_is_short` has something to do. Safe in any thread."""
        return bool(self._idle()) and self._memory.is_short()

    def end_idle_if_memory_is_short(self) -> None:
        """End the children without a task if memory is short."""
        if self.is_crowded():
            self.end_idle("memory is short")

    def end_idle(self, why: str) -> None:
        """End the children without a task."""
        for child in self._idle():
            log.info("the process of %s, which had no task, is ended: %s", child.setting.handler, why)
            self._end(child.setting.handler)

    def end_all(self) -> None:
        """End them, at once."""
        for handler in list(self._children):
            self._end(handler)

    def _idle(self) -> list[ChildProcess]:
        return [child for child in list(self._children.values()) if child is not self._busy]

    def _end(self, handler: str) -> None:
        child = self._children.pop(handler, None)
        if child is not None:
            child.kill()
