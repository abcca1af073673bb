"""Folds of inactive experiments, kept so that their next run need not read the log again.

A log only grows, so the next run continues from the fold. The cache is limited by the number of events, about
300 bytes each. An evicted experiment is read from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cerebro.contract.records import ExperimentRecord
from cerebro.state import ExperimentState
from controller.decisions.core import Core
from controller.sources.search import ALL_SAMPLERS

MAX_EVENTS = 600_000
"""Maximum events of all inactive experiments together: less than 200 MB."""


class FoldCache:
    """Cores by experiment, the least recently used first. Owned by the loop; not thread-safe.

    Args:
        max_events: maximum events of all logs together.
        installed_samplers: as for `Core`.
    """

    def __init__(
        self, max_events: int = MAX_EVENTS, *, installed_samplers: Collection[str] = ALL_SAMPLERS
    ) -> None:
        self._most, self._installed_samplers = max_events, installed_samplers
        self._cores: dict[str, Core] = {}

    def take(
        self, record: ExperimentRecord, restored: Callable[[str], ExperimentState] | None = None
    ) -> Core:
        """Return an experiment's core, cached or new. Return it with `keep`, except after a fault.

        Args:
            restored: returns the newest stored fold of a log that is not cached.
        """
        core = self._cores.pop(record.name, None)
        if core is None or core.record.created != record.created:
            # A deleted experiment's name may be in use again. (Changed locators are in the log.)
            state = restored(record.name) if restored is not None else None
            core = Core(record, installed_samplers=self._installed_samplers, state=state)
        return core

    def keep(self, core: Core) -> None:
        """Store the core of an inactive experiment; drop the least recently used above the limit."""
        self._cores[core.record.name] = core
        while sum(cached_core.state.seq for cached_core in self._cores.values()) > self._most:
            del self._cores[next(iter(self._cores))]
