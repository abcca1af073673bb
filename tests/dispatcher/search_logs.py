"""Logs of simulated searches."""

from __future__ import annotations

from functools import cache
from typing import Any

from cerebro.contract.events import Event
from cerebro.contract.search import ASHA, PBT, TPE, Earlier, ProcedureChoice, SearchRequest
from tests.controller.searches import EARLIER, search_of, simulation
from tests.dispatcher.stories import NOW

SEARCHES: dict[str, tuple[ProcedureChoice, int | None, int]] = {
    "asha": (ASHA(), 12, 4),
    "waiting": (ASHA(rule="promotion", eta=2), 10, 4),
    "pbt": (PBT(population=4), None, 3),
}


@cache
def log_of(name: str) -> tuple[Event, ...]:
    """A finished search, or a prefix of its log."""
    procedure, samples, epochs = SEARCHES[name]
    return _log(search_of(procedure, samples=samples), epochs=epochs)


def earlier_log() -> tuple[Event, ...]:
    """A finished search that started from an earlier fit."""
    search = search_of(ASHA(sampler=TPE(startup=7)), samples=3, start_from=(Earlier(EARLIER.run),))
    return _log(search, epochs=4, earlier=(EARLIER,))


def _log(search: SearchRequest, **settings: Any) -> tuple[Event, ...]:
    sim = simulation(search, **settings)
    sim.run(limit=20_000)
    late = NOW - sim.log[-1].time - 60
    return tuple(event.model_copy(update={"time": event.time + late}) for event in sim.log)
