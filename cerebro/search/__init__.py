"""Hyperparameter searches: procedures, stop rules and samplers. Pure: no clock, no files, no store.

The controller drives a search (`controller.sources.search`); it trains nothing here. `Search` in `transducer` combines
the parts, and the types that users write are in `cerebro.contract.search`.

A *procedure* decides how many epochs each model trains; a *sampler* suggests the hyperparameters of the next
model. Users choose them independently. Both receive *reports*, derived from an experiment's log in its order,
and answer with *actions*. The same reports always give the same actions.

This module exports the names that a user's own procedure or sampler needs.
"""

from __future__ import annotations

from cerebro.search.history import Past
from cerebro.search.procedure import (
    SEARCH,
    Action,
    Add,
    Added,
    Changed,
    Closed,
    Crew,
    Extend,
    Extended,
    Facts,
    Failed,
    Finish,
    Measured,
    Procedure,
    Reached,
    Refused,
    Report,
    Resumed,
    Stop,
    Stopped,
    Suggest,
    Suggested,
)
from cerebro.search.samplers.own import Sampler

__all__ = [
    "SEARCH",
    "Action",
    "Add",
    "Added",
    "Changed",
    "Closed",
    "Crew",
    "Extend",
    "Extended",
    "Facts",
    "Failed",
    "Finish",
    "Measured",
    "Past",
    "Procedure",
    "Reached",
    "Refused",
    "Report",
    "Resumed",
    "Sampler",
    "Stop",
    "Stopped",
    "Suggest",
    "Suggested",
]
