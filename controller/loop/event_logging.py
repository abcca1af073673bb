"""What the log says of events and steps: what they are about, and a line of bounded length.

All of it is in the event log anyway. Left out are parts that grow with the work, as a plan of thousands of models, and
tracebacks, which may quote what user code holds.
"""

from __future__ import annotations

from typing import Any

from cerebro.contract.events import Event
from cerebro.state import ExperimentState, TaskKey
from controller.decisions.decide import Step

_LEFT_OUT: dict[str, Any] = dict.fromkeys(("body", "replicas", "order", "plan", "request"), True)
_LEFT_OUT["failure"] = {"traceback": True}
_LONGEST = 2000
"""Characters of a line: a message of user code may be of any length."""


def fields(state: ExperimentState, event: Event) -> dict[str, str | int]:
    """What an event is about, as fields of a log line (`cerebro.runtime.logs.FIELDS`)."""
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
    """An event or a step as JSON, without what is long or secret; cut off where it is long all the same."""
    text = what.model_dump_json(exclude={**_LEFT_OUT, "event": _LEFT_OUT})
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
