"""What a search asks a process beside the controller, and the answers: one format, whoever is asked.

A draw is asked of a process of the controller's, or of a worker where the controller lacks the libraries. Orders of a
user's own procedure are asked of a worker, because the controller opens no user code.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cerebro.contract.base import Contract, LateContract
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import Sampler, SearchRequest, Space

# --- orders, as they travel; see `cerebro.search.procedure` for what they mean ---------------------


class DrawOrder(Contract):
    """As `cerebro.search.procedure.Draw`."""

    kind: Literal["draw"] = "draw"
    count: int = Field(ge=1, strict=True)


class AddOrder(Contract):
    """As `cerebro.search.procedure.Add`."""

    kind: Literal["add"] = "add"
    hyperparams: Hyperparameters
    epochs: int = Field(ge=1, strict=True)
    origin: str | None = Field(None, exclude_if=lambda value: value is None)
    priority: int = Field(0, strict=True, exclude_if=lambda value: not value)


class ExtendOrder(Contract):
    """As `cerebro.search.procedure.Extend`."""

    kind: Literal["extend"] = "extend"
    model: str
    epochs: int = Field(ge=1, strict=True)
    priority: int = Field(0, strict=True, exclude_if=lambda value: not value)


class StopOrder(Contract):
    """As `cerebro.search.procedure.Stop`."""

    kind: Literal["stop"] = "stop"
    model: str
    why: str


class FinishOrder(Contract):
    """As `cerebro.search.procedure.Finish`."""

    kind: Literal["finish"] = "finish"
    why: str


OrderData = Annotated[
    DrawOrder | AddOrder | ExtendOrder | StopOrder | FinishOrder, Field(discriminator="kind")
]

Orders = tuple[OrderData, ...]
"""What a procedure ordered when it was told one thing."""

# --- questions and answers ------------------------------------------------------------------------


class KnownModel(Contract):
    """A model as samplers are told of it; see `cerebro.search.history.Past`."""

    hyperparams: Hyperparameters
    scores: dict[int, float]
    is_failed: bool
    is_running: bool


class DrawQuestion(LateContract):
    """Which values the next models have: the arguments of `cerebro.search.samplers.draw`."""

    ask: Literal["draw"] = "draw"
    sampler: Sampler
    space: Space
    history: tuple[KnownModel, ...]
    numbers: tuple[int, ...]
    seed: int


class OrdersQuestion(LateContract):
    """What a user's own procedure orders, from the first thing that is not answered on.

    Attributes:
        request: of the run; its procedure is an `OwnProcedure`.
        epochs, metric, mode, seed, workers: as `cerebro.search.transducer.Search` has them.
        largest_batch: that a model can have: the rows of the smallest partition.
        told: all that the search was told, and what the procedure ordered at that as far as it is known
            (`cerebro.search.told`). It is compressed: of a long search it is some MB.
    """

    ask: Literal["orders"] = "orders"
    request: SearchRequest
    epochs: int
    metric: str
    mode: Literal["min", "max"]
    seed: int
    workers: int
    largest_batch: int
    told: str


SearchQuestion = Annotated[DrawQuestion | OrdersQuestion, Field(discriminator="ask")]


class SearchAnswer(Contract):
    """The answer to either question.

    Attributes:
        values: of a draw, one for each number that was asked for.
        orders: for each thing that was not answered before, in the order in which the search was told.
    """

    values: tuple[Hyperparameters, ...] = Field((), exclude_if=lambda value: not value)
    orders: tuple[Orders, ...] = Field((), exclude_if=lambda value: not value)
