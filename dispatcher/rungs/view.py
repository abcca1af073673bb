"""A search: its method, progress, and one table per rung. The tab and the read API call it.

`ReadModel.rungs` computes the rungs from the log; the controller decides about models. A function of the read model,
except that commands depend on the current user (`access.rights`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.errors import NotFoundError
from cerebro.state import ExperimentState, Run
from cerebro.state.runs import rungs
from cerebro.state.runs.rungs import AtRung, Fate, Rung
from dispatcher.access.rights import allowed_commands
from dispatcher.read_models.model_table import ModelTable
from dispatcher.read_models.read_model import ReadModel

DEFAULT_SIZE = 25
"""Default number of models to list per rung; the best are listed."""
MAX_SIZE = 10_000

_WORDS: dict[Fate, str] = {
    "waits": "paused",
    "stopped": "stopped",
    "failed": "failed",
    "trained": "finished",
    "stays": "finished",
}
"""Fate -> word of `cerebro.state.reports.state_words`. Running models have the word of their own state."""


class RungsQuery(Contract):
    """`fit`: id of the fit run, by default the newest. `size`: maximum number of models per rung, best first."""

    fit: str = Field("", max_length=60)
    size: int = Field(DEFAULT_SIZE, ge=1, le=MAX_SIZE)


@dataclass(frozen=True, kw_only=True)
class RungRow:
    """A model at a rung.

    Attributes:
        index: position of the model in the run.
        fate: result at this rung.
        to: resource (epochs) of the next rung; 0 if it was not promoted.
        state: word for the fate, or an empty text for a promoted model.
        reason: the fate as a sentence with the reason.
        may: commands that the user may give.
    """

    model: str
    index: int
    value: float | None
    fate: Fate
    to: int
    state: str
    reason: str
    may: tuple[str, ...]

    @property
    def id(self) -> str:
        """Id of the model, as in other tables."""
        return self.model


@dataclass(frozen=True, kw_only=True)
class RungTable:
    """A rung. `rows`: the best of `total` models. `last_on`: worst promoted value."""

    epochs: int
    name: str
    counts: str
    last_on: float | None
    total: int
    rows: tuple[RungRow, ...]


@dataclass(frozen=True, kw_only=True)
class SearchView:
    """A search.

    Attributes:
        progress: progress in words.
        earlier: a line for each earlier fit that the sampler learns from.
        has_objectives: True for several objectives.
        size: maximum number of models per rung.
        may: commands that the user may give to the run.
    """

    run: str
    method: str
    progress: str
    earlier: tuple[str, ...]
    metric: str
    mode: str
    has_objectives: bool
    epochs: int
    stop: tuple[str, ...]
    rungs: tuple[RungTable, ...]
    size: int
    may: tuple[str, ...]


def search(read_model: ReadModel, *, fit: str = "", size: int = DEFAULT_SIZE) -> SearchView | None:
    """Return the search of a fit run, by default of the newest; `None` without a search."""
    run = read_model.fit(fit)
    if run is None or run.search is None:
        return None
    request, table = run.fit_request, read_model.table(run)
    return SearchView(
        run=run.id,
        method=rungs.method(run),
        progress=rungs.progress(run, table.trained_epochs()),
        earlier=tuple(rungs.earlier_lines(run)),
        metric=request.metric,
        mode=request.mode,
        has_objectives=len(request.objectives) > 1,
        epochs=request.epochs,
        stop=_stop_rules(run),
        rungs=tuple(_table(read_model.state, run, table, rung, size) for rung in read_model.rungs(run)),
        size=size,
        may=tuple(sorted(allowed_commands(read_model.state, run))),
    )


def search_or_error(read_model: ReadModel, query: RungsQuery) -> SearchView | None:
    """Return the requested search; `None` if no fit run is planned.

    Raises:
        NotFoundError: the fit run has no search.
    """
    run = read_model.fit(query.fit)
    found = search(read_model, fit=query.fit, size=query.size)
    if run is not None and found is None:
        raise NotFoundError(
            f"{run.id} of {read_model.record.name!r} searches nothing: it trains a fixed list of models"
        )
    return found


def _stop_rules(run: Run) -> tuple[str, ...]:
    request = run.fit_request.search
    if request is None:
        return ()
    hours = (f"{request.hours:g} h",) if request.hours else ()
    return (*(rule.kind for rule in request.stop), *hours)


def _table(state: ExperimentState, run: Run, table: ModelTable, rung: Rung, size: int) -> RungTable:
    return RungTable(
        epochs=rung.epochs,
        name=rung.name,
        counts=rungs.counts(rung),
        last_on=rung.last_on,
        total=len(rung.models),
        rows=tuple(_row(state, run, table, each) for each in rung.models[:size]),
    )


def _row(state: ExperimentState, run: Run, table: ModelTable, each: AtRung) -> RungRow:
    row = table.row(each.model)
    word = _WORDS.get(each.fate, row.state if row and each.fate == "on the way" else "")
    is_obvious = each.fate in ("on the way", "trained") or (each.fate == "stopped" and not each.why)
    promotion = f"to epoch {each.to}" if each.fate == "goes on" else ""
    text = "" if is_obvious else promotion or each.why or each.words
    index = row.index if row else 0
    # A promoted model is also on a higher rung, whose row has the commands.
    may = allowed_commands(state, run, run.models[each.model]) if each.fate != "goes on" else frozenset[str]()
    return RungRow(
        model=each.model,
        index=index,
        value=each.value,
        fate=each.fate,
        to=each.to,
        state=word,
        reason=text,
        may=tuple(sorted(may)),
    )
