"""The folded logs of experiments that nobody works on just now, so that their next run does not read them again.

A log only grows, so what was folded stays right: the next run reads on from there. What is kept is bounded by the
number of events, some 300 bytes each; an experiment whose fold was given up is read again from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cerebro.contract.records import ExperimentRecord
from cerebro.state import ExperimentState
from controller.decisions.core import Core
from controller.sources.search import EVERYWHERE

MOST_EVENTS = 600_000
"""Of all experiments together that nobody works on: less than 200 MB."""


class FoldCache:
    """Cores by experiment, the one used longest ago first. Belongs to the loop; not thread-safe.

    Args:
        most_events: of all logs together.
        drawable: as `Core` has it.
    """

    def __init__(self, most_events: int = MOST_EVENTS, *, drawable: Collection[str] = EVERYWHERE) -> None:
        self._most, self._drawable = most_events, drawable
        self._cores: dict[str, Core] = {}

    def take(
        self, record: ExperimentRecord, restored: Callable[[str], ExperimentState] | None = None
    ) -> Core:
        """The core of an experiment, as far as its log was folded before, or a new one; to be worked on, and given back
        by `keep`. One that a fault may have torn is not to be given back.

        Args:
            restored: the newest fold of a log that is kept elsewhere, for one that is not here.
        """
        core = self._cores.pop(record.name, None)
        if core is None or core.record.created != record.created:
            # An experiment that was deleted may have left its name to another one. (Its locators may change: the log
            # tells.)
            state = restored(record.name) if restored is not None else None
            core = Core(record, drawable=self._drawable, state=state)
        return core

    def keep(self, core: Core) -> None:
        """Nobody works on it for now."""
        self._cores[core.record.name] = core
        while sum(kept.state.seq for kept in self._cores.values()) > self._most:
            del self._cores[next(iter(self._cores))]
