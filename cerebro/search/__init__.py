"""Searches over hyper-parameters: procedures, stop rules and samplers. Pure: no clock, no files, no store.

A *procedure* decides which models are trained how far; a *sampler* says which values the next model has. They are
chosen apart. What happened is told to them as *reports*, derived from an experiment's log in its order; they answer
with *orders*. Whoever tells the same reports again gets the same orders.

What users need who write a procedure of their own is here.
"""

from __future__ import annotations

from cerebro.search.procedure import (
    SEARCH,
    Add,
    Added,
    Changed,
    Closed,
    Crew,
    Draw,
    Drawn,
    Extend,
    Extended,
    Facts,
    Failed,
    Finish,
    Measured,
    Order,
    Procedure,
    Reached,
    Refused,
    Report,
    Resumed,
    Stop,
    Stopped,
)

__all__ = [
    "SEARCH",
    "Add",
    "Added",
    "Changed",
    "Closed",
    "Crew",
    "Draw",
    "Drawn",
    "Extend",
    "Extended",
    "Facts",
    "Failed",
    "Finish",
    "Measured",
    "Order",
    "Procedure",
    "Reached",
    "Refused",
    "Report",
    "Resumed",
    "Stop",
    "Stopped",
]
