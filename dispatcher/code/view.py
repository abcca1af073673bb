"""Code of an experiment's runs, their requests, and the code archive. Pure.

`code.page` gets hashes and requests from the log under the read model's lock, then loads the code of the chosen hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cerebro.contract.records import CodeRecord
from cerebro.contract.runs import EtlRequest, FitRequest
from cerebro.state import ExperimentState, Run
from cerebro.usercode.archive import ArchiveListing

MODELS_SHOWN = 20
"""Maximum number of configurations to list per fit request. The rest is counted."""


@dataclass(frozen=True, kw_only=True)
class SpecView:
    """One version of user code: `source` is the class as its author wrote it, `runs` are the runs that used it."""

    sha256: str
    class_name: str
    runs: tuple[str, ...]
    fingerprint: str = ""
    author: str = ""
    source: str = ""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class RequestView:
    """Request of a run, one model per line. `differs`: settings that changed since, as (field, requested, current)."""

    run: str
    kind: str
    author: str
    configuration: str
    differs: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, kw_only=True)
class CodeView:
    """The tab Code. `specs`: code hash -> runs that used it. `chosen`: code to show."""

    specs: Mapping[str, tuple[str, ...]]
    chosen: SpecView | None
    requests: tuple[RequestView, ...]
    archive: str
    listing: ArchiveListing | None
    locators: str


def hashes(state: ExperimentState) -> dict[str, tuple[str, ...]]:
    """Return code hash -> runs that used it, newest code first."""
    found: dict[str, list[str]] = {}
    for run in state.runs.values():
        if isinstance(run.request, EtlRequest | FitRequest):
            found.setdefault(run.request.code, []).append(run.id)
    return {sha256: tuple(runs) for sha256, runs in reversed(found.items())}


def requests(state: ExperimentState) -> tuple[RequestView, ...]:
    """Return the requests of all runs, newest first."""
    return tuple(_request(run) for run in reversed(state.runs.values()))


def chosen(used: Mapping[str, tuple[str, ...]], spec: str) -> str:
    """Return the hash that starts with `spec`, else the newest hash, else an empty text."""
    return next((sha256 for sha256 in used if spec and sha256.startswith(spec)), next(iter(used), ""))


def spec(sha256: str, runs: tuple[str, ...], record: CodeRecord | None) -> SpecView:
    """Describe one version of code. `record` is the store's record, or None when it was deleted."""
    if record is None:
        return SpecView(
            sha256=sha256,
            class_name="?",
            runs=runs,
            problem="The store has deleted this code. Use a copy from your notebook or repository.",
        )
    return SpecView(
        sha256=sha256,
        fingerprint=record.fingerprint,
        class_name=record.class_name,
        author=record.author,
        source=record.source,
        runs=runs,
    )


def as_json(value: Any) -> str:
    """Format a value for people."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _request(run: Run) -> RequestView:
    request = run.request
    differs: tuple[tuple[str, str, str], ...] = ()
    # Exclude the models of a fit request: writing ten thousand takes a second, and only twenty are shown.
    fields = request.model_dump(mode="json", exclude={"models"} if isinstance(request, FitRequest) else None)
    if isinstance(request, FitRequest):
        shown = [json.dumps(model, ensure_ascii=False) for model in request.models[:MODELS_SHOWN]]
        more = len(request.models) - len(shown)
        fields["models"] = [*shown, f"... and {more:,} more"] if more else shown
        settings = (
            ("scheduler", request.scheduler, run.scheduling.scheduler),
            ("planner", request.planner, run.scheduling.has_planner),
        )
        differs = tuple((name, as_json(then), as_json(now)) for name, then, now in settings if then != now)
    return RequestView(
        run=run.id, kind=run.kind, author=run.author, configuration=_lines(fields), differs=differs
    )


def _lines(fields: Mapping[str, Any]) -> str:
    found: list[str] = []
    for name, value in fields.items():
        if name == "models" and isinstance(value, list):
            found += [f"{name}:", *(f"  {model}" for model in value)]
        else:
            found.append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(found)
