"""A search as its tab shows it: what it is, how far it is, and a table for each rung. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.errors import NotFoundError
from cerebro.state import ExperimentState, Run, rungs
from cerebro.state.rungs import AtRung, Fate, Rung
from dispatcher.access.rights import offered
from dispatcher.reading.model_table import ModelTable
from dispatcher.reading.read_model import ReadModel

MOST = 25
"""Models of a rung that are listed if nobody says how many, the best of them."""
LONGEST = 10_000

_WORDS: dict[Fate, str] = {
    "waits": "paused",
    "stopped": "stopped",
    "failed": "failed",
    "trained": "finished",
    "stays": "finished",
}
"""The word of `cerebro.state.wording` for what became of a model; those on the way are called what they do."""


class RungsQuery(Contract):
    """`fit`: id of the fit run; the newest one if empty. `size`: models of each rung, the best of them."""

    fit: str = Field("", max_length=60)
    size: int = Field(MOST, ge=1, le=LONGEST)


@dataclass(frozen=True, kw_only=True)
class RungRow:
    """A model at a rung. `index`: its place in the run; `fate`: what became of it there; `to`: epochs of the next rung
    that it was granted, 0 without one; `state`: a word for it, empty if it went on from here; `told`: the same in a
    sentence, with the reason; `may`: what may be asked of it."""

    model: str
    index: int
    value: float | None
    fate: Fate
    to: int
    state: str
    told: str
    may: tuple[str, ...]

    @property
    def id(self) -> str:
        """The model, as rows of other tables call it."""
        return self.model


@dataclass(frozen=True, kw_only=True)
class RungTable:
    """A rung: `total` models, of which `rows` are the best; `last_on`: the worst value that went on from here."""

    epochs: int
    name: str
    counts: str
    last_on: float | None
    total: int
    rows: tuple[RungRow, ...]


@dataclass(frozen=True, kw_only=True)
class SearchView:
    """A search; `progress` says how far it is, and `may` what may be asked of its run; `size`: models of
    each rung at most."""

    run: str
    method: str
    progress: str
    metric: str
    mode: str
    epochs: int
    stop: tuple[str, ...]
    rungs: tuple[RungTable, ...]
    size: int
    may: tuple[str, ...]


def search(read_model: ReadModel, *, fit: str = "", size: int = MOST) -> SearchView | None:
    """The search of a fit run (default: the newest); `None` if that searches nothing. `size`: models of each rung."""
    run = read_model.fit(fit)
    if run is None or run.search is None:
        return None
    request, table = run.fit_request, read_model.table(run)
    return SearchView(
        run=run.id,
        method=rungs.method(run),
        progress=rungs.progress(run, table.trained_epochs()),
        metric=request.metric,
        mode=request.mode,
        epochs=request.epochs,
        stop=_stop_rules(run),
        rungs=tuple(_table(read_model.state, run, table, rung, size) for rung in read_model.rungs(run)),
        size=size,
        may=tuple(sorted(offered(read_model.state, run))),
    )


def asked_search(read_model: ReadModel, asked: RungsQuery) -> SearchView | None:
    """The search that is asked for; `None` while there is no planned fit run.

    Raises:
        NotFoundError: the fit run searches nothing.
    """
    run = read_model.fit(asked.fit)
    found = search(read_model, fit=asked.fit, size=asked.size)
    if run is not None and found is None:
        raise NotFoundError(
            f"{run.id} of {read_model.record.name!r} searches nothing: it trains the models that it was given"
        )
    return found


def _stop_rules(run: Run) -> tuple[str, ...]:
    asked = run.fit_request.search
    if asked is None:
        return ()
    hours = (f"{asked.hours:g} h",) if asked.hours else ()
    return (*(rule.kind for rule in asked.stop), *hours)


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
    known = table.row(each.model)
    word = _WORDS.get(each.fate, known.state if known and each.fate == "on the way" else "")
    is_said = each.fate in ("on the way", "trained") or (each.fate == "stopped" and not each.why)
    on = f"to epoch {each.to}" if each.fate == "goes on" else ""
    told = "" if is_said else on or each.why or each.words
    index = known.index if known else 0
    # Who went on from here is a row of a higher rung, too: there is what may be done.
    may = offered(state, run, run.models[each.model]) if each.fate != "goes on" else frozenset[str]()
    return RungRow(
        model=each.model,
        index=index,
        value=each.value,
        fate=each.fate,
        to=each.to,
        state=word,
        told=told,
        may=tuple(sorted(may)),
    )
