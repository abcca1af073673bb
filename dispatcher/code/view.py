"""An experiment's code: what its runs sent, as it ran, and the archive beside it. Pure."""

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
"""Configurations of a fit request that are written out; the rest is counted."""


@dataclass(frozen=True, kw_only=True)
class SpecView:
    """One piece of user code. `runs` used it. `source` is the class as its author wrote it."""

    sha256: str
    class_name: str
    runs: tuple[str, ...]
    fingerprint: str = ""
    author: str = ""
    source: str = ""
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
    """The code page. `specs`: hash of each piece of code -> the runs that used it; `chosen` is the one whose source is
    shown."""

    specs: Mapping[str, tuple[str, ...]]
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


def chosen(used: Mapping[str, tuple[str, ...]], spec: str) -> str:
    """The hash of the code to show: the one that begins with `spec`, else the newest; empty without any."""
    return next((sha256 for sha256 in used if spec and sha256.startswith(spec)), next(iter(used), ""))


def spec(sha256: str, runs: tuple[str, ...], record: CodeRecord | None) -> SpecView:
    """One piece of code; `record` is what the store has of it."""
    if record is None:
        return SpecView(
            sha256=sha256,
            class_name="?",
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


def as_json(value: Any) -> str:
    """To be read by people."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _request(run: Run) -> RequestView:
    request = run.request
    differs: tuple[tuple[str, str, str], ...] = ()
    # Not the models of a fit request: ten thousand take a second to write, and twenty are shown.
    asked = request.model_dump(mode="json", exclude={"models"} if isinstance(request, FitRequest) else None)
    if isinstance(request, FitRequest):
        shown = [json.dumps(model, ensure_ascii=False) for model in request.models[:MODELS_SHOWN]]
        more = len(request.models) - len(shown)
        asked["models"] = [*shown, f"... and {more:,} more"] if more else shown
        settings = (
            ("scheduler", request.scheduler, run.scheduler),
            ("planner", request.planner, run.planner),
        )
        differs = tuple((name, as_json(then), as_json(now)) for name, then, now in settings if then != now)
    return RequestView(
        run=run.id, kind=run.kind, author=run.author, configuration=_lines(asked), differs=differs
    )


def _lines(asked: Mapping[str, Any]) -> str:
    """``field: value`` a line, and below ``models`` a line for each."""
    found: list[str] = []
    for name, value in asked.items():
        if name == "models" and isinstance(value, list):
            found += [f"{name}:", *(f"  {model}" for model in value)]
        else:
            found.append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(found)
