"""Service-log lines for events and steps: their subject, and text of bounded length.

The event log has everything. These lines omit parts that grow with the work, such as a plan of thousands of
models, and tracebacks, which may quote data of user code.
"""

from __future__ import annotations

from typing import Any

from cerebro.contract.events import Event
from cerebro.state import ExperimentState, TaskKey
from controller.decisions.decide import Step

_LEFT_OUT: dict[str, Any] = dict.fromkeys(("body", "replicas", "order", "plan", "request"), True)
_LEFT_OUT["failure"] = {"traceback": True}
_LONGEST = 2000
"""Maximum characters of a line: a message of user code has any length."""


def fields(state: ExperimentState, event: Event) -> dict[str, str | int]:
    """Return the subject of an event as fields of a log line (`cerebro.runtime.logs.FIELDS`)."""
    task = getattr(event, "task", "")
    key = TaskKey.parse(task) if task else None
    found = {
        "experiment": state.name,
        "run": key.run if key else getattr(event, "run", None),
        "model": key.model if key else getattr(event, "model", None),
        "sub_epoch": task or None,
        "worker": getattr(event, "worker", None),
        "attempt": getattr(event, "attempt", None),
    }
    return {name: value for name, value in found.items() if value is not None}


def line(what: Event | Step) -> str:
    """Return an event or a step as JSON without long or secret parts, truncated if needed."""
    text = what.model_dump_json(exclude={**_LEFT_OUT, "event": _LEFT_OUT})
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
