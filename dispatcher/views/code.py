"""An experiment's code: what its runs sent, as it ran, and the archive beside it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cerebro.archive import ArchiveListing
from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.contract.runs import EtlRequest, EvaluateRequest, FitRequest
from cerebro.state import ExperimentState, Run

MODELS_SHOWN = 20
"""Configurations of a fit request that are written out; the rest is counted."""


@dataclass(frozen=True, kw_only=True)
class SpecView:
    """One piece of user code. `runs` used it. `source` is the class as its author wrote it."""

    sha256: str
    fingerprint: str
    class_name: str
    author: str
    source: str
    runs: tuple[str, ...]
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class RequestView:
    """What a run was asked for, each model as a line; `differs` names what changed since (field, asked, now)."""

    run: str
    kind: str
    author: str
    configuration: str
    differs: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, kw_only=True)
class CodeView:
    """The code page. `chosen` is the spec whose source is shown."""

    specs: tuple[SpecView, ...]
    chosen: SpecView | None
    requests: tuple[RequestView, ...]
    archive: str
    listing: ArchiveListing | None
    locators: str


def hashes(state: ExperimentState) -> dict[str, tuple[str, ...]]:
    """Hash of user code -> the runs that used it, newest code first."""
    found: dict[str, list[str]] = {}
    for run in state.runs.values():
        if isinstance(run.request, EtlRequest | FitRequest):
            found.setdefault(run.request.code, []).append(run.id)
    return {sha256: tuple(runs) for sha256, runs in reversed(found.items())}


def requests(state: ExperimentState) -> tuple[RequestView, ...]:
    """What each run was asked for, newest first."""
    return tuple(_request(run) for run in reversed(state.runs.values()))


def code(
    record: ExperimentRecord,
    *,
    used: Mapping[str, tuple[str, ...]],
    records: Mapping[str, CodeRecord],
    asked: tuple[RequestView, ...],
    listing: ArchiveListing | None,
    spec: str = "",
) -> CodeView:
    """The view.

    Args:
        record: the experiment.
        used: of `hashes`. asked: of `requests`.
        records: what the store has of that code.
        listing: of the archive, if there is one.
        spec: hash, or a beginning of it, of the code to show.
    """
    specs = tuple(_spec(sha256, runs, records.get(sha256)) for sha256, runs in used.items())
    chosen = next(
        (each for each in specs if spec and each.sha256.startswith(spec)), specs[0] if specs else None
    )
    return CodeView(
        specs=specs,
        chosen=chosen,
        requests=asked,
        archive=record.archive or "",
        listing=listing,
        locators=_json(record.locators.model_dump(mode="json", exclude_none=True)),
    )


def _spec(sha256: str, runs: tuple[str, ...], record: CodeRecord | None) -> SpecView:
    if record is None:
        return SpecView(
            sha256=sha256,
            fingerprint="",
            class_name="?",
            author="",
            source="",
            runs=runs,
            problem="The store does not have this code any more.",
        )
    return SpecView(
        sha256=sha256,
        fingerprint=record.fingerprint,
        class_name=record.class_name,
        author=record.author,
        source=record.source,
        runs=runs,
    )


def _request(run: Run) -> RequestView:
    asked = run.request.model_dump(mode="json")
    models = asked.get("models") or []
    if isinstance(run.request, FitRequest):
        asked["models"] = [json.dumps(model, ensure_ascii=False) for model in models[:MODELS_SHOWN]]
        if len(models) > MODELS_SHOWN:
            asked["models"].append(f"... and {len(models) - MODELS_SHOWN:,} more")
    return RequestView(
        run=run.id,
        kind=run.kind,
        author=run.author,
        configuration=_lines(asked),
        differs=_changes(run),
    )


def _changes(run: Run) -> tuple[tuple[str, str, str], ...]:
    if isinstance(run.request, EvaluateRequest) or not isinstance(run.request, FitRequest):
        return ()
    pairs = (
        ("scheduler", run.request.scheduler, run.scheduler),
        ("planner", run.request.planner, run.planner),
    )
    return tuple((name, _json(asked), _json(now)) for name, asked, now in pairs if asked != now)


def _lines(asked: Mapping[str, Any]) -> str:
    """``field: value`` a line, and below ``models`` a line for each."""
    found: list[str] = []
    for name, value in asked.items():
        if name == "models" and isinstance(value, list):
            found += [f"{name}:", *(f"  {model}" for model in value)]
        else:
            found.append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(found)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
