"""What users ask of an experiment that goes on or has ended, and the list of who asked for what.

A user decides on what a page or a notebook showed a moment ago. So these events are commands: one that comes too late
(the model has finished, the run was resumed by somebody else) is no error and changes nothing; the list says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cerebro.contract.events import (
    ClientEvent,
    DeletionRequested,
    ExperimentArchived,
    LocatorsChanged,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    PriorityChanged,
    RunPaused,
    RunRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
    SchedulerChanged,
)
from cerebro.state import breaks, models, ways
from cerebro.state.models import ModelState
from cerebro.state.runs import TRANSITIONS, Run, RunState

RunCommand = (
    RunStopRequested
    | RunResumed
    | ModelStopRequested
    | ModelResumed
    | ModelRetried
    | SchedulerChanged
    | PriorityChanged
)
"""Events by which users steer a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandRecord:
    """Somebody asked for something; the outcome is in the state, and in the events that followed.

    Attributes:
        seq, time: of its event; seconds by the store's clock.
        by: who; empty if the client did not say.
        what: what it was, to be put behind the name: ``stopped model m03``.
        run, model: what it is about; empty if that is the experiment, or a run as a whole.
        is_late: it had no effect.
    """

    seq: int
    time: float
    by: str
    what: str
    run: str = ""
    model: str = ""
    is_late: bool = False


def command_record(event: ClientEvent, seq: int, *, is_late: bool) -> CommandRecord:
    """The entry of the list for an event that is number `seq` of its log."""
    return CommandRecord(
        seq=seq,
        time=event.time,
        by=event.author if isinstance(event, RunRequested) else event.by,
        what=_what(event),
        run=getattr(event, "run", ""),
        model=getattr(event, "model", ""),
        is_late=is_late,
    )


def _what(event: ClientEvent) -> str:
    match event:
        case RunRequested():
            return f"requested {event.run}"
        case RunStopRequested():
            return f"stopped {event.run}"
        case RunResumed():
            return f"resumed {event.run}"
        case ModelStopRequested():
            return f"stopped model {event.model}"
        case ModelResumed():
            return f"resumed model {event.model}"
        case ModelRetried():
            return f"retried model {event.model}"
        case SchedulerChanged():
            planner = "" if event.planner else ", without a planner"
            return f"changed the scheduler of {event.run} to {event.scheduler}{planner}"
        case PriorityChanged():
            return f"changed the priority of {event.run} to {event.priority}"
        case ExperimentArchived():
            return (
                "archived the experiment" if event.is_archived else "took the experiment out of the archive"
            )
        case LocatorsChanged():
            return "gave the experiment other dataset locators"
        case DeletionRequested():
            return "asked for the experiment to be deleted"


# --- runs and models ---------------------------------------------------------------------------------


def steer(run: Run, event: RunCommand) -> bool:
    """Do what a user asked of a run; whether that had any effect."""
    match event:
        case RunStopRequested() | RunResumed():
            return move(run, event)
        case ModelStopRequested():
            model = run.models.get(event.model)
            has_moved = model is not None and run.is_open and model.move(event.type)
            if model is not None:
                run.see_model(model)
            return has_moved
        case ModelResumed() | ModelRetried():
            return _resume(run, event)
        case SchedulerChanged():
            return _reschedule(run, event)
        case PriorityChanged():
            has_changed = run.is_open and run.priority != event.priority
            run.priority = event.priority if run.is_open else run.priority
            return has_changed


def move(run: Run, event: RunCommand | RunStarted | RunPaused) -> bool:
    """Change a run's state by the table; whether it allows that. What belonged to the state before is forgotten."""
    targets = TRANSITIONS.get((run.state, event.type))
    if targets is None:
        return False
    if run.is_open:
        (run.state,) = targets
    else:
        run.state = RunState.QUEUED if run.plan is None else RunState.RUNNING
        breaks.add(run, run.ended, event.time)
        run.ended, run.error = 0.0, ""
        # It was made for the workers there were then.
        run.planned = None
    if run.state is RunState.PAUSED:
        run.pauses.append((event.time, math.inf))
    elif run.pauses and run.pauses[-1][1] == math.inf:
        run.pauses[-1] = run.pauses[-1][0], event.time
    run.reason, run.needs_bytes, run.storage_full = "", 0, None
    return True


def _resume(run: Run, event: ModelResumed | ModelRetried) -> bool:
    """A model goes on: in a run that has ended only this one does, though others may not have been at their end."""
    model = run.models.get(event.model)
    is_hopeless = run.state is RunState.FAILED and run.fatal is not None
    if model is None or is_hopeless:
        return False
    state = model.state
    if not run.is_open and state is ModelState.ACTIVE:
        state = models.TRANSITIONS[state, "LeftOut"]
    if (state, event.type) not in models.TRANSITIONS:
        return False
    if not run.is_open:
        move(run, event)
        for each in run.models.values():
            each.move("LeftOut")
    model.move(event.type)
    if isinstance(event, ModelRetried):
        model.failure = None
        model.reopened.clear()
        model.unvalidated.clear()
        if next(ways.left(run, model), None) is None:
            # Workers, or what they have, may have changed since.
            model.struck.clear()
        for task in run.tasks.values():
            if task.key.model == model.id:
                task.retry()
    for each in run.models.values():
        run.see_model(each)
    return True


def _reschedule(run: Run, event: SchedulerChanged) -> bool:
    if run.kind != "fit":
        return False
    run.scheduler, run.planner = event.scheduler, event.planner
    if run.is_open:
        run.planned = None
    return True
