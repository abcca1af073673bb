"""Rungs of a search: models, metrics and decisions. Pure.

A rung is a resource in epochs. The log is the only source.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal, NamedTuple

from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.search import OwnProcedure, OwnSampler
from cerebro.search.procedure import SEARCH, Measured, Reached, Report, Stopped
from cerebro.state.models.model import Model
from cerebro.state.reports import state_words
from cerebro.state.runs.run import Run
from cerebro.state.runs.search_reports import own_procedure

Fate = Literal["goes on", "waits", "stopped", "trained", "stays", "on the way", "failed"]
"""Outcome of a model at a rung.

`goes on`: got more epochs. `waits`: undecided. `stopped`: ended early. `trained`: has all epochs. `stays`: the search
ended first. `on the way`: has not reached the rung. `failed`: failed."""


class AtRung(NamedTuple):
    """A model at a rung or on the way to it. A tuple, since pages make thousands at a time.

    Attributes:
        value: the run's metric at the rung or after the newest epoch; `None` before.
        to: epochs of the next rung, if in its resource; else 0.
        why: reason or author of a stop, or the failure; else empty.
    """

    model: str
    value: float | None
    fate: Fate
    to: int = 0
    why: str = ""

    @property
    def words(self) -> str:
        """Describe the outcome."""
        words = {
            "goes on": f"promoted to epoch {self.to}",
            "waits": "waits for a decision",
            "stays": "went no further",
        }
        words |= {"trained": "trained to the end"}
        return f"{words.get(self.fate, self.fate)}{': ' if self.why else ''}{self.why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """Models with this resource: first the ones at the rung, best first."""

    epochs: int
    models: tuple[AtRung, ...]

    @property
    def name(self) -> str:
        """Heading for the rung."""
        return f"Rung of {self.epochs:,} epoch{'' if self.epochs == 1 else 's'}"

    def count(self, *fates: Fate) -> int:
        """Count the models with one of these outcomes."""
        return sum(each.fate in fates for each in self.models)

    @property
    def last_on(self) -> float | None:
        """Worst value that went on from here, if any."""
        return next((each.value for each in reversed(self.models) if each.fate == "goes on"), None)


class SearchReports:
    """Model data from a search's reports, updated incrementally: it reads only new reports.

    Attributes:
        values: model -> epochs -> metric; `None` if not finite.
        resources: model -> epochs of the reported rungs.
        stoppers: model -> user who stopped it.
    """

    def __init__(self) -> None:
        self.values: defaultdict[str, dict[int, float | None]] = defaultdict(dict)
        self.resources: defaultdict[str, set[int]] = defaultdict(set)
        self.stoppers: dict[str, str] = {}
        self._reports = 0

    def observe(self, reports: Sequence[Report]) -> SearchReports:
        """Read the new reports; return self."""
        for report in islice(reports, self._reports, None):
            match report:
                case Measured():
                    self.values[report.model][report.epoch] = report.value
                case Reached():
                    value = report.value if math.isfinite(report.value) else None
                    self.values[report.model][report.epochs] = value
                    self.resources[report.model].add(report.epochs)
                case Stopped() if report.by != SEARCH:
                    self.stoppers[report.model] = report.by
        self._reports = len(reports)
        return self


def rungs(run: Run, reports: SearchReports | None = None) -> list[Rung]:
    """Return the rungs of a fit with a search, highest first; else an empty list.

    Args:
        reports: data kept by the caller for this run.
    """
    if run.search is None:
        return []
    reports = (reports or SearchReports()).observe(run.search.reports)
    found: defaultdict[int, list[AtRung]] = defaultdict(list)
    for model in run.models.values():
        known = reports.values.get(model.id, {})
        resources_of_model = sorted({*reports.resources.get(model.id, ()), model.epochs})
        for epochs, to in pairwise(resources_of_model):
            if epochs in known and epochs < model.epochs:
                found[epochs].append(AtRung(model=model.id, value=known[epochs], fate="goes on", to=to))
        found[model.epochs].append(_newest(run, model, known, reports.stoppers))
    sign = 1 if run.fit_request.mode == "min" else -1

    def rank(each: AtRung) -> tuple[bool, bool, float]:
        return each.fate == "on the way", each.value is None, sign * (each.value or 0.0)

    return [
        Rung(epochs=epochs, models=tuple(sorted(found[epochs], key=rank))) for epochs in sorted(found)[::-1]
    ]


def _newest(run: Run, model: Model, values: dict[int, float | None], stoppers: dict[str, str]) -> AtRung:
    """A model's state at its present resource."""
    value = values[model.epochs] if model.epochs in values else values.get(max(values, default=0))
    verdict = run.search.verdicts.get(model.id, "") if run.search is not None else ""
    match state_words.model(model, run):
        case "failed":
            return AtRung(
                model=model.id,
                value=value,
                fate="failed",
                why=model.failures.final.line if model.failures.final else "",
            )
        case "stopped" | "stopping":
            by = f"by {stoppers[model.id]}" if model.id in stoppers else ""
            return AtRung(model=model.id, value=value, fate="stopped", why=verdict or by)
        case "finished":
            is_all = model.epochs >= run.fit_request.epochs
            return AtRung(model=model.id, value=value, fate="trained" if is_all else "stays")
        case "paused" if model.is_trained:
            return AtRung(model=model.id, value=value, fate="waits")
    return AtRung(model=model.id, value=value, fate="on the way")


# --- texts ---------------------------------------------------------------------------------------

_PROCEDURES = {
    "fixed": "models as listed",
    "random": "random search",
    "hyperband": "Hyperband",
    "asha": "ASHA",
    "pbt": "population-based training",
}


def procedure(run: Run) -> str:
    """Return the name of a search's procedure; empty without a search."""
    request = run.request.search if isinstance(run.request, FitRequest) else None
    if request is None:
        return ""
    kind = request.procedure.kind
    if isinstance(request.procedure, OwnProcedure):
        return (own_procedure(run) or request.procedure).name
    rule = f" ({request.procedure.rule})" if request.procedure.kind == "asha" else ""
    return f"{_PROCEDURES.get(kind, kind)}{rule}"


def method(run: Run) -> str:
    """Return the names of procedure and sampler; empty without a search."""
    request = run.request.search if isinstance(run.request, FitRequest) else None
    if request is None or not request.space:
        return procedure(run)
    sampler = request.sampler
    words = f"by {sampler.name}" if isinstance(sampler, OwnSampler) else sampler.words
    return f"{procedure(run)}, models sampled {words}"


def progress(run: Run, epochs: int | None = None) -> str:
    """Describe the number of suggestions and the state of the search; empty without a search.

    Args:
        epochs: see `wording.trained`.
    """
    log = run.search
    if log is None:
        return ""
    samples = run.fit_request.search.samples if run.fit_request.search else None
    of = f" of at most {samples:,}" if samples else ""
    suggested = f"{log.num_suggested:,}{of} suggested, " if log.num_requested or samples else ""
    if log.finish is not None:
        end = f"search over: {log.finish}"
    elif not run.is_open:
        end = "search not over"
    else:
        end = "a user ended the search: models use up their resource" if log.is_closed else "search goes on"
    return f"{suggested}{state_words.trained(run, epochs)}; {end}"


def earlier_lines(run: Run) -> list[str]:
    """Describe how many models of each earlier fit the sampler learns from, and why not from the others."""
    found = []
    for each in run.plan.earlier if isinstance(run.plan, FitPlan) else ():
        used, num_unused = len(each.models), sum(each.unused.values())
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in each.unused.items())
        unused = f", not from {num_unused:,}: {reasons}" if num_unused else ""
        found.append(f"learns from {used:,} model{'' if used == 1 else 's'} of {each.run}{unused}")
    return found


def lines(run: Run) -> list[str]:
    """Return lines on the search, its earlier fits and its rungs; no lines without a search."""
    if run.search is None:
        return []
    rung_lines = [f"epoch {rung.epochs}: {counts(rung)}" for rung in rungs(run)]
    return [
        f"search: {method(run)}; {progress(run)}",
        *(f"search: {line}" for line in earlier_lines(run)),
        *([f"rungs: {'; '.join(rung_lines)}"] if rung_lines else []),
    ]


def counts(rung: Rung) -> str:
    """Count the models by outcome, in a fixed order."""
    fates: tuple[Fate, ...] = ("on the way", "waits", "goes on", "stopped", "stays", "trained", "failed")
    words = {"goes on": "promoted", "waits": "waiting", "stays": "stayed"}
    return ", ".join(f"{count} {words.get(fate, fate)}" for fate in fates if (count := rung.count(fate)))
