"""Which way a unit of a model gets on a worker. Pure: what is known of each way in, a way out.

Ways are chosen between units, where a model's state goes through its checkpoint anyway; a unit that runs keeps its own
(docs/decisions/0036-ways-between-units.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cerebro.contract.ways import SINGLE, Way
from cerebro.state import Model, Run
from cerebro.state.ways import left


@dataclass(frozen=True, kw_only=True)
class Option:
    """A way that a model has, and what is known of it."""

    way: Way


def options(run: Run, model: Model) -> tuple[Option, ...]:
    """The ways that are left of a model, those first that are to be tried first."""
    return tuple(Option(way=way) for way in left(run, model))


def choose(ways: Iterable[Option], devices: int) -> Way | None:
    """The way for the next unit on a worker with so many devices; `None`: there is none for it.

    The first one that finds enough devices: while nothing is measured, the order in which ways are to be tried is all
    there is to go by.
    """
    return next((option.way for option in ways if option.way.size <= devices), None)


def as_sent(way: Way) -> Way | None:
    """A way as assignments tell of it: one device, as user code is written, is told by naming none."""
    return None if way == SINGLE else way
