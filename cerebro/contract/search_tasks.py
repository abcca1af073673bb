"""Requests of a search to another process, and their answers.

A process of the controller (`controller.sources.suggestions`) computes suggestions, or a worker
(`cerebro.worker.searches`) if the controller lacks the libraries. A worker runs a user's own procedure, because the
controller opens no user code.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cerebro.contract.base import Contract, LateContract
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import Constraint, Mode
from cerebro.contract.search import Sampler, SearchRequest, Space

# --- serialized actions; see `cerebro.search.procedure` for their meaning ---------------------------


class SuggestAction(Contract):
    """As `cerebro.search.procedure.Suggest`."""

    kind: Literal["suggest"] = "suggest"
    count: int = Field(ge=1, strict=True)


class AddAction(Contract):
    """As `cerebro.search.procedure.Add`."""

    kind: Literal["add"] = "add"
    hyperparams: Hyperparameters
    epochs: int = Field(ge=1, strict=True)
    parent: str | None = Field(None, exclude_if=lambda value: value is None)
    priority: int = Field(0, strict=True, exclude_if=lambda value: not value)


class ExtendAction(Contract):
    """As `cerebro.search.procedure.Extend`."""

    kind: Literal["extend"] = "extend"
    model: str
    epochs: int = Field(ge=1, strict=True)
    priority: int = Field(0, strict=True, exclude_if=lambda value: not value)


class StopAction(Contract):
    """As `cerebro.search.procedure.Stop`."""

    kind: Literal["stop"] = "stop"
    model: str
    why: str


class FinishAction(Contract):
    """As `cerebro.search.procedure.Finish`."""

    kind: Literal["finish"] = "finish"
    why: str


ActionData = Annotated[
    SuggestAction | AddAction | ExtendAction | StopAction | FinishAction, Field(discriminator="kind")
]

Actions = tuple[ActionData, ...]
"""Actions of a procedure after one report."""

# --- requests and answers -------------------------------------------------------------------------


class KnownModel(Contract):
    """A model in a sampler's history; see `cerebro.search.history.Past`."""

    hyperparams: Hyperparameters
    scores: dict[int, float]
    points: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = Field(
        default_factory=dict, exclude_if=lambda points: not points
    )
    """Epoch -> losses and violations; see `cerebro.search.pareto.Point`."""
    is_failed: bool
    is_running: bool
    is_earlier: bool = Field(False, exclude_if=lambda value: not value)


class SuggestionsRequest(LateContract):
    """Request for the values of the next models: the arguments of `cerebro.search.samplers.suggest`."""

    kind: Literal["suggestions"] = "suggestions"
    sampler: Sampler
    space: Space
    history: tuple[KnownModel, ...]
    numbers: tuple[int, ...]
    seed: int


class ActionsRequest(LateContract):
    """Request for the actions of a user's own procedure, from the first unanswered report.

    Attributes:
        search: the run's search; its procedure is an `OwnProcedure`.
        epochs, metric, mode, objectives, constraints, seed, workers: as in `cerebro.search.transducer.Search`.
        largest_batch: maximum batch size: the rows of the smallest partition.
        log: all reports to the search, with the procedure's known actions (`cerebro.search.wire_format`).
            Compressed, because a long search has some MB.
    """

    kind: Literal["actions"] = "actions"
    search: SearchRequest
    epochs: int
    metric: str
    mode: Mode
    objectives: dict[str, Mode] = Field(default_factory=dict, exclude_if=lambda objectives: not objectives)
    constraints: tuple[Constraint, ...] = Field((), exclude_if=lambda constraints: not constraints)
    seed: int
    workers: int
    largest_batch: int
    log: str


SearchTaskRequest = Annotated[SuggestionsRequest | ActionsRequest, Field(discriminator="kind")]


class SearchAnswer(Contract):
    """Answer to either request.

    Attributes:
        values: one suggestion per requested number.
        actions: actions for each unanswered report, in order.
    """

    values: tuple[Hyperparameters, ...] = Field((), exclude_if=lambda value: not value)
    actions: tuple[Actions, ...] = Field((), exclude_if=lambda value: not value)
