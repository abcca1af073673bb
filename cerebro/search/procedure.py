"""What a procedure is told (reports), what it may ask for (orders), and what it is (`Procedure`).

An epoch here is a pass over all partitions. A model has a *grant*: the epochs that it may be trained for in all. A
model is at a *rung* when its grant is used up and the procedure has to decide.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import Space

SEARCH = "search"
"""The author of what the search itself has ordered; anything else in `by` is a user."""

# --- reports ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Added:
    """The run has another model. Of the search's own ones (`by` is `SEARCH`) in the order of its `Add` orders.

    Attributes:
        is_warm: it began with another model's weights.
        epochs: its grant.
        trained: epochs of it that were inherited with these weights.
    """

    model: str
    hyperparams: Hyperparameters
    by: str = SEARCH
    is_warm: bool = False
    epochs: int
    trained: int = 0


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The search's oldest `Add` that is not answered yet cannot be: no checkpoint of its origin is left, perhaps."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A model's metrics after an epoch are known. Told before the `Reached` of the same epoch.

    Attributes:
        value: of the run's metric.
        metrics: all of them, by name.
        time: seconds since the run began, by the times of events.
    """

    model: str
    epoch: int
    value: float
    metrics: Mapping[str, float]
    time: float


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A model has used up its grant of `epochs`; told after the `Measured` of that epoch, all else as there."""

    model: str
    epochs: int
    value: float
    metrics: Mapping[str, float]
    time: float


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A model is not trained any more: a sub-epoch of it failed for good. `time` as in `Measured`."""

    model: str
    time: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A model is not trained any more: a user, or the search, has stopped it."""

    model: str
    by: str


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A user has a stopped or failed model trained on. `epochs`: its grant now; `None`: the one that it had."""

    model: str
    by: str
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Extended:
    """A user has changed a model's grant to `epochs`, not below what it is trained for, and has it trained on.

    What the search extends itself is not told.
    """

    model: str
    epochs: int
    by: str


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A user has a model trained on with other values; `hyperparams`: all that it has now."""

    model: str
    hyperparams: Hyperparameters


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The sampler's answer to a `Draw`; numbers ascend from 0, one for each value that was asked for.

    `time` as in `Measured`.
    """

    number: int
    hyperparams: Hyperparameters
    time: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Crew:
    """So many workers are there now."""

    workers: int


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A user has ended the search: no new models and no larger grants; what has a grant goes on."""

    by: str


Report = (
    Added
    | Refused
    | Measured
    | Reached
    | Failed
    | Stopped
    | Resumed
    | Extended
    | Changed
    | Drawn
    | Crew
    | Closed
)

# --- orders -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Ask the sampler for `count` training configurations; each comes as a `Drawn`."""

    count: int


@dataclass(frozen=True, kw_only=True)
class Add:
    """A new model with a grant of `epochs`.

    Attributes:
        origin: the model from whose newest checkpoint it starts, at that model's epoch; `None`: new weights.
        priority: models of a higher one go first wherever they can.
    """

    hyperparams: Hyperparameters
    epochs: int
    origin: str | None = None
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class Extend:
    """Raise a model's grant to `epochs`."""

    model: str
    epochs: int
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Train a model no further. Told of by a `Stopped`, unless the model's grant is used up: nothing of it runs."""

    model: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Nothing more will be ordered; the run ends when no grant is left to be used up."""

    why: str


Order = Draw | Add | Extend | Stop | Finish

# --- procedures ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a procedure knows from the start.

    Attributes:
        epochs: the largest grant.
        samples: so many draws at most; `None`: no limit.
        workers: at the beginning; `Crew` tells of changes.
    """

    epochs: int
    metric: str
    mode: Literal["min", "max"]
    samples: int | None
    workers: int
    seed: int
    space: Space = field(default_factory=dict)

    def rng(self, number: int) -> random.Random:
        """A generator of its own for each number: the same one whenever it is asked for."""
        return random.Random(f"{self.seed}/search/{number}")

    def score(self, value: float) -> float:
        """`value` such that more is better."""
        return value if self.mode == "max" else -value


class Procedure(Protocol):
    """Decides which models a search trains, and how far.

    Pure: its answers depend on what it was told and on nothing else; random numbers come from `Facts.rng`.
    """

    def begin(self, facts: Facts) -> list[Order]:
        """The first orders; called once, before anything is told."""
        ...

    def told(self, report: Report) -> list[Order]:
        """The orders that follow from a report."""
        ...
