"""What came of a run, for its report: the best model, all models, and why some failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from cerebro import figures
from cerebro.client.reporting.drawings import Drawings
from cerebro.client.reporting.html import Html, Value, code, element, facts, joined, paragraph, table, text
from cerebro.contract.runs import EvaluateRequest
from cerebro.figures import ModelSummary
from cerebro.state import RunState

_MOST_MODELS = 1000
"""Rows of the table of models: the best."""

_MOST_CAUSES = 50

_LOAD = """from cerebro import Experiment

best = Experiment.attach({experiment!r}).result({run!r}).best
state = best.load()  # {{"models": [state_dict, ...], "checkpoint": {{...}}}}"""


def answer(drawings: Drawings) -> Html:
    """The best model with its hyper-parameters, its checkpoint and how to load it; or why there is none."""
    best = drawings.rows[0] if drawings.rows else None
    if best is None or best.best is None or best.best_epoch is None:
        return _no_answer(drawings)
    run, request = drawings.run, drawings.request
    direction = "more" if request.mode == "max" else "less"
    measured = "validation" if run.is_validated else "training"
    told = f" ({measured}, {direction} is better), at epoch {best.best_epoch} of {best.epochs}"
    checkpoint = run.models[best.id].epoch_checkpoint(best.best_epoch)
    file: dict[str, Value] = {}
    if checkpoint is not None:
        file = {"file": checkpoint.name, "bytes": checkpoint.size, "checksum": checkpoint.checksum}
    return element(
        "section",
        element("h2", text(f"Best model: {best.id}")),
        element("p", element("span", text(f"{request.metric} {best.best:.6g}"), class_="value"), text(told)),
        facts({name: figures.word(given) for name, given in best.hyperparams.items()}),
        element("h3", text("Checkpoint")),
        facts(file),
        code(_LOAD.format(experiment=drawings.state.name, run=run.id)),
        class_="answer",
    )


def _no_answer(drawings: Drawings) -> Html:
    said = f"No model has a value of {drawings.request.metric}, so there is no best model."
    causes = [f"{len(models)} models failed: {message}" for (_, message), models in _causes(drawings.rows)]
    more = [paragraph(cause) for cause in causes[:3]]
    return element("section", element("h2", text("Result")), paragraph(said), *more, class_="answer")


def models(drawings: Drawings) -> Html:
    """A row per model, best first, and what is the same for all."""
    rows, metric = drawings.rows, drawings.request.metric
    names = figures.varying(rows)
    columns = ("model", "state", f"best {metric}", "at epoch", "units", *names, "begun again", "compute, s")
    shown = (
        (
            row.id,
            row.state,
            row.best,
            row.best_epoch,
            f"{row.units_done} of {row.units}",
            *(figures.word(row.hyperparams.get(name)) for name in names),
            row.redone,
            round(row.compute_s, 1),
        )
        for row in rows[:_MOST_MODELS]
    )
    note = f"the best {_MOST_MODELS:,} of {len(rows):,}" if len(rows) > _MOST_MODELS else ""
    fixed = {k: figures.word(v) for k, v in (rows[0].hyperparams if rows else {}).items() if k not in names}
    same = joined([paragraph("The same for all models:"), facts(fixed)]) if fixed else Html("")
    return joined([table("Models, best first", columns, shown, note=note), same])


def tests(drawings: Drawings) -> Iterator[Html]:
    """A table for each test run of models of this fit: what they reached on rows that chose none of them."""
    for run in figures.tests_of(drawings.state, drawings.run):
        found = figures.tested(run)
        averaged = figures.averaged(found)
        metrics = sorted({name for one in found for name in one.metrics})
        columns = ("model", "of epoch", "rows", *metrics)
        shown = ((m.model, m.epoch, m.rows, *(m.metrics.get(name) for name in metrics)) for m in found)
        assert isinstance(run.request, EvaluateRequest)
        told = (averaged, "" if run.state is RunState.FINISHED else str(run.state))
        note = "; ".join(part for part in told if part)
        yield table(f"{run.id}, on the split {run.request.split}", columns, shown, note=note)


def failures(rows: Sequence[ModelSummary]) -> Iterator[Html]:
    """Failed models by cause, each with the first traceback."""
    causes = _causes(rows)
    for (kind, message), failed in causes[:_MOST_CAUSES]:
        yield element("h3", text(f"{len(failed)} of {len(rows)} models: {message or kind}"))
        yield paragraph(f"{kind}: {', '.join(row.id for row in failed)}", class_="quiet")
        failure = failed[0].failure
        if failure is not None and failure.traceback:
            yield paragraph(f"Traceback of {failed[0].id}:")
            yield code(failure.traceback)
    if len(causes) > _MOST_CAUSES:
        yield paragraph(f"{len(causes) - _MOST_CAUSES} more causes are left out here.")


def _causes(rows: Sequence[ModelSummary]) -> list[tuple[tuple[str, str], list[ModelSummary]]]:
    """(kind, message) and its models, most frequent first."""
    groups: defaultdict[tuple[str, str], list[ModelSummary]] = defaultdict(list)
    for row in rows:
        if row.failure is not None:
            groups[row.failure.kind, row.failure.message].append(row)
    return sorted(groups.items(), key=lambda item: -len(item[1]))
