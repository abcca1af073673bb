"""The interface of procedures: reports, actions and `Procedure`. Types only.

`Search` calls a procedure; `cerebro.search.procedures` and users implement it. A procedure starts and stops nothing
itself: the controller carries out its actions.

An epoch is a pass over all partitions. A model's *resource* is the number of epochs it may train for
in all. At a *rung* the model has used up its resource and the procedure decides about it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import Space
from cerebro.search.pareto import NO_CRITERIA, Criteria

SEARCH = "search"
"""Value of `by` for the search itself. Any other value is a user."""

# --- reports ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Added:
    """A model was added to the run.

    The search's models (`by` is `SEARCH`) arrive in the order of its `Add` actions.

    Attributes:
        is_warm: True if it started with another model's weights.
        epochs: its resource.
        trained: epochs inherited with these weights.
    """

    model: str
    hyperparams: Hyperparameters
    by: str = SEARCH
    is_warm: bool = False
    epochs: int
    trained: int = 0


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The oldest unanswered `Add` was refused, for example because its parent has no checkpoint."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A model's metrics after an epoch. Arrives before the `Reached` report of the same epoch.

    Attributes:
        value: value of the run's metric.
        metrics: values of all metrics, by name; with several objectives or constraints, also the measures in them.
        time: seconds since the run began, by event times.
    """

    model: str
    epoch: int
    value: float
    metrics: Mapping[str, float]
    time: float


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A model used up its resource of `epochs`. Follows `Measured` of that epoch; other fields as there."""

    model: str
    epochs: int
    value: float
    metrics: Mapping[str, float]
    time: float


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Training of a model ended because a sub-epoch failed for good. `time` as in `Measured`."""

    model: str
    time: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A user or the search stopped a model."""

    model: str
    by: str


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A user resumed a stopped or failed model. `epochs` is the new resource; `None` keeps the previous one."""

    model: str
    by: str
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Extended:
    """A user changed a model's resource to `epochs` and resumed the model.

    `epochs` is at least the number of epochs trained. The search's own extensions cause no report.
    """

    model: str
    epochs: int
    by: str


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A user changed a model's hyperparameters. `hyperparams` is the complete new set."""

    model: str
    hyperparams: Hyperparameters


@dataclass(frozen=True, kw_only=True)
class Suggested:
    """A suggestion, in answer to `Suggest`. Numbers ascend from 0.

    `time` as in `Measured`.
    """

    number: int
    hyperparams: Hyperparameters
    time: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Crew:
    """The number of workers changed."""

    workers: int


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A user ended the search. No models are added or extended; models use up their present resource."""

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
    | Suggested
    | Crew
    | Closed
)

# --- actions ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Suggest:
    """Request `count` suggestions from the sampler. Each arrives as `Suggested`."""

    count: int


@dataclass(frozen=True, kw_only=True)
class Add:
    """Add a model with a resource of `epochs`.

    Attributes:
        parent: parent model; training starts from its newest checkpoint, at that epoch. `None`: new weights.
        priority: models with a higher priority train first.
    """

    hyperparams: Hyperparameters
    epochs: int
    parent: str | None = None
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class Extend:
    """Raise a model's resource to `epochs`."""

    model: str
    epochs: int
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Stop a model. A `Stopped` report follows, unless the model has used up its resource."""

    model: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Take no further action. The run ends when every resource is used up."""

    why: str


Action = Suggest | Add | Extend | Stop | Finish

# --- procedures ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The constants of a search.

    Attributes:
        epochs: largest resource of a model.
        metric, mode: the first objective.
        samples: maximum number of suggestions; `None`: no limit.
        workers: number of workers at the start. `Crew` reports changes.
        criteria: objectives and constraints; empty for one objective without constraints.
    """

    epochs: int
    metric: str
    mode: Literal["min", "max"]
    samples: int | None
    workers: int
    seed: int
    space: Space = field(default_factory=dict)
    criteria: Criteria = NO_CRITERIA

    def rng(self, number: int) -> random.Random:
        """Return the random generator with this number. Equal numbers give equal generators."""
        return random.Random(f"{self.seed}/search/{number}")

    def score(self, value: float) -> float:
        """Return `value` with its sign chosen so that larger is better."""
        return value if self.mode == "max" else -value

    def text(self, value: float, metrics: Mapping[str, float]) -> str:
        """Describe a model's objectives, such as ``accuracy 0.93, train_s 12.5``."""
        values = {self.metric: value} | {
            name: metrics[name] for name in self.criteria.objectives if name in metrics
        }
        return ", ".join(f"{name} {each:.6g}" for name, each in values.items())


class Procedure(Protocol):
    """Decides which models a search trains, and for how many epochs.

    Must be deterministic: answers may depend only on reports. Take random numbers from `Facts.rng`.
    """

    def begin(self, facts: Facts) -> list[Action]:
        """Return the first actions. Called once, before any report."""
        ...

    def on_report(self, report: Report) -> list[Action]:
        """Return the actions that follow from a report."""
        ...
