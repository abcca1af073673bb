"""A search as its tab shows it: what it is, how far it is, and a table for each rung. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.state import Run, rungs
from cerebro.state.rungs import AtRung, Fate, Rung
from dispatcher.reading.model_table import ModelTable
from dispatcher.reading.read_model import ReadModel

MOST = 100
"""Models of a rung that are listed, the best of them: the table of models has all."""

_WORDS: dict[Fate, str] = {
    "waits": "paused",
    "stopped": "stopped",
    "failed": "failed",
    "trained": "finished",
    "stays": "finished",
}
"""The word of `cerebro.state.wording` for what became of a model; those on the way are called what they do."""


@dataclass(frozen=True, kw_only=True)
class RungRow:
    """A model at a rung. `index`: its place in the run; `state`: a word for it, empty if it went on from here; `told`:
    what became of it."""

    model: str
    index: int
    value: float | None
    state: str
    told: str


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
    """A search; `standing` says how far it is."""

    run: str
    method: str
    standing: str
    metric: str
    mode: str
    epochs: int
    stop: tuple[str, ...]
    rungs: tuple[RungTable, ...]


def search(read_model: ReadModel, *, fit: str = "") -> SearchView | None:
    """The search of a fit run (default: the newest); `None` if that searches nothing."""
    run = read_model.fit(fit)
    if run is None or run.search is None:
        return None
    request, table = run.fit_request, read_model.table(run)
    return SearchView(
        run=run.id,
        method=rungs.method(run),
        standing=rungs.standing(run),
        metric=request.metric,
        mode=request.mode,
        epochs=request.epochs,
        stop=_stop_rules(run),
        rungs=tuple(_table(table, rung) for rung in rungs.rungs(run)),
    )


def _stop_rules(run: Run) -> tuple[str, ...]:
    asked = run.fit_request.search
    if asked is None:
        return ()
    hours = (f"{asked.hours:g} h",) if asked.hours else ()
    return (*(rule.kind for rule in asked.stop), *hours)


def _table(table: ModelTable, rung: Rung) -> RungTable:
    return RungTable(
        epochs=rung.epochs,
        name=rung.name,
        counts=rungs.counts(rung),
        last_on=rung.last_on,
        total=len(rung.models),
        rows=tuple(_row(table, each) for each in rung.models[:MOST]),
    )


def _row(table: ModelTable, each: AtRung) -> RungRow:
    known = table.row(each.model)
    state = _WORDS.get(each.fate, known.state if known and each.fate == "on the way" else "")
    is_said = each.fate in ("on the way", "trained") or (each.fate == "stopped" and not each.why)
    on = f"to epoch {each.to}" if each.fate == "goes on" else ""
    told = "" if is_said else on or each.why or each.words
    index = known.index if known else 0
    return RungRow(model=each.model, index=index, value=each.value, state=state, told=told)
