"""Where a result comes from, for its report: data, code, settings, schedule, and who asked for what."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from cerebro import figures
from cerebro.client.reporting.drawings import Drawings
from cerebro.client.reporting.html import Html, Value, element, facts, joined, moment, paragraph, table, text
from cerebro.contract import SCHEMA_VERSION
from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.contract.runs import EtlPlan, FitPlan
from cerebro.errors import NotFoundError
from cerebro.state import ExperimentState, schedule_lines

_MOST_ACTIONS = 200
"""The newest."""


def data(drawings: Drawings) -> Iterator[Html]:
    """What ETL made of each split, and how the training rows are spread."""
    state, plan = drawings.state, drawings.run.plan
    dataset = state.datasets.get(plan.dataset) if isinstance(plan, FitPlan) else None
    runs = (run for run in state.runs.values() if isinstance(run.plan, EtlPlan))
    made = [run for run in runs if dataset and run.plan and run.plan.dataset == dataset.id]
    if dataset is None or not made:
        return
    columns = ("split", "in", "preprocessed", "failed", "in = preprocessed + failed")
    splits = figures.etl_progress(dataset, made[-1])
    rows = ((s.split, s.rows, s.kept, s.failed, f"{s.rows:,} = {s.kept:,} + {s.failed:,}") for s in splits)
    yield table("Rows of each split", columns, rows)
    if isinstance(plan, FitPlan):
        sizes = sorted(plan.partitions.values())
        yield paragraph(f"Training partitions: {len(sizes)}, of {sizes[0]:,} to {sizes[-1]:,} rows.")


def provenance(
    drawings: Drawings, record: ExperimentRecord | None, code: Callable[[str], CodeRecord] | None
) -> Iterator[Html]:
    """Settings and hashes, locators, schedule, audit list."""
    state, run, request = drawings.state, drawings.run, drawings.request
    plan = run.plan if isinstance(run.plan, FitPlan) else None
    yield facts(
        {
            "experiment": state.name,
            "created": moment(record.created) if record else "",
            "run": run.id,
            "requested by": run.author,
            "requested": moment(run.requested),
            "started": moment(run.started),
            "ended": moment(run.ended),
            "epochs": request.epochs,
            "metric": f"{request.metric} ({request.mode})",
            "seed": str(request.seed),
            "scheduler": run.scheduler + (", with planner" if run.planner else ""),
            "training code": _class_name(request.code, code),
            "training code, SHA-256": request.code,
            "code archive, SHA-256": (record.archive or "") if record else "",
            "data set": plan.dataset if plan else "",
            **_etl(state, plan.dataset if plan else "", code),
            "event log": f"{state.seq:,} events, schema {SCHEMA_VERSION}",
            "report written": f"{moment(drawings.now)}, by Python {sys.version.split()[0]}",
        }
    )
    if record is not None:
        splits = record.locators.splits().items()
        located = ((split, found.metadata, found.objects) for split, found in splits)
        yield table("Dataset locators", ("split", "metadata", "objects"), located)
        yield (
            paragraph(f"Other files: {', '.join(record.locators.misc)}") if record.locators.misc else Html("")
        )
    lines = schedule_lines(state, run, run.ended or drawings.now)
    if lines:
        yield element("h3", text("Schedule"))
        yield joined(paragraph(line) for line in lines)
    actions = state.actions[-_MOST_ACTIONS:]
    done = (
        (moment(a.time), a.by or "somebody", f"{a.what}{' (too late)' if a.is_late else ''}") for a in actions
    )
    note = (
        f"the newest {_MOST_ACTIONS:,} of {len(state.actions):,}" if len(actions) < len(state.actions) else ""
    )
    yield table("Who asked for what", ("time", "who", "what"), done, note=note)


def _etl(state: ExperimentState, dataset: str, code: Callable[[str], CodeRecord] | None) -> dict[str, Value]:
    request = state.etl_request(dataset)
    if request is None:
        return {}
    return {
        "ETL code": _class_name(request.code, code),
        "ETL code, SHA-256": request.code,
        "ETL seed": str(request.seed),
        "share of the rows": f"{request.fraction:g}",
    }


def _class_name(sha256: str, code: Callable[[str], CodeRecord] | None) -> str:
    try:
        return code(sha256).class_name if code else ""
    except NotFoundError:
        return ""
