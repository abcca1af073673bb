"""User commands to an experiment, and the list of commands with their authors.

A user acts on what a page or notebook showed a moment ago. A command that comes too late (the model has finished,
another user resumed the run) is no error and changes nothing; the list says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cerebro.contract.events import (
    ClientEvent,
    DeletionRequested,
    ExperimentArchived,
    LocatorsChanged,
    ModelChanged,
    ModelExtended,
    ModelResumed,
    ModelRetried,
    ModelsAdded,
    ModelStopRequested,
    PriorityChanged,
    RunCommand,
    RunPaused,
    RunRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
    SchedulerChanged,
    SearchStopRequested,
    TagsChanged,
)
from cerebro.contract.priority import shown
from cerebro.contract.tags import NOTE, tags_text
from cerebro.state.models import added_models, parallel_plans
from cerebro.state.models.model import TRANSITIONS as MODEL_TRANSITIONS
from cerebro.state.models.model import Model, ModelState
from cerebro.state.runs.run import TRANSITIONS, Run, RunState

_MAX_TAG_TEXT = 100
"""Maximum characters of a tag's value in the list of commands."""

Reopening = RunResumed | ModelResumed | ModelRetried | ModelsAdded | ModelExtended
"""Commands that may reopen an ended run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandRecord:
    """One user command; state and later events show its outcome.

    Attributes:
        seq, time: of its event; seconds of the store's clock.
        by: author, or an empty text.
        what: text after the author's name: ``stopped model m03``.
        run, model: target; empty for the experiment or a whole run.
        is_late: True if it had no effect.
    """

    seq: int
    time: float
    by: str
    what: str
    run: str = ""
    model: str = ""
    is_late: bool = False
    added: tuple[str, ...] = ()
    """Models that it added."""


def command_record(
    event: ClientEvent, seq: int, *, is_late: bool, added: tuple[str, ...] = (), previous_value: str = ""
) -> CommandRecord:
    """Build the list entry for event number `seq`; see `previous_value`."""
    return CommandRecord(
        seq=seq,
        time=event.time,
        by=event.author if isinstance(event, RunRequested) else event.by,
        what=_DESCRIPTIONS[type(event)](event) + (f" (before: {previous_value})" if previous_value else ""),
        run=getattr(event, "run", ""),
        model=getattr(event, "model", ""),
        is_late=is_late,
        added=added,
    )


def previous_value(event: ClientEvent, model: Model) -> str:
    """Describe the values in a model that a command is about to replace."""
    match event:
        case ModelChanged():
            previous = {name: model.hyperparams.get(name) for name in event.hyperparams}
            return ", ".join(f"{name}={value!r}" for name, value in previous.items())
        case ModelExtended():
            return str(model.epochs)
        case PriorityChanged():
            return shown(model.priority)
    return ""


def _added(event: ModelsAdded) -> str:
    parents = {new.checkpoint.model if new.checkpoint else new.parent for new in event.models} - {""}
    of = f", from {', '.join(sorted(parents))}" if parents else ""
    many = "a model" if len(event.models) == 1 else f"{len(event.models)} models"
    return f"added {many} to {event.run}{of}"


def _changed(event: ModelChanged) -> str:
    changes = ", ".join(f"{name}={value!r}" for name, value in event.hyperparams.items())
    return f"changed model {event.model}: {changes}"


def _rescheduled(event: SchedulerChanged) -> str:
    planner = "" if event.planner else ", without a planner"
    return f"changed the scheduler of {event.run} to {event.scheduler}{planner}"


def _tagged(event: TagsChanged) -> str:
    of = f" of model {event.model}" if event.model else ""
    note = (
        [f"{'deleted' if event.tags[NOTE] is None else 'changed'} the note{of}"] if NOTE in event.tags else []
    )
    words = {key: value for key, value in event.tags.items() if key != NOTE}
    gone = [key for key, value in words.items() if value is None]
    added = tags_text({key: value[:_MAX_TAG_TEXT] for key, value in words.items() if value is not None})
    set_ = [f"set tags{of}: {added}"] if added else []
    deleted = [f"deleted tags{of}: {', '.join(gone)}"] if gone else []
    return "; ".join([*set_, *deleted, *note])


_DESCRIPTIONS: dict[type, Callable[[Any], str]] = {
    RunRequested: lambda event: f"requested {event.run}",
    RunStopRequested: lambda event: f"stopped {event.run}",
    RunResumed: lambda event: (
        f"resumed {event.run}{', with another search procedure' * bool(event.procedure)}"
    ),
    ModelStopRequested: lambda event: f"stopped model {event.model}",
    ModelResumed: lambda event: f"resumed model {event.model}",
    ModelRetried: lambda event: f"retried model {event.model}",
    SchedulerChanged: _rescheduled,
    PriorityChanged: lambda event: (
        f"changed the priority of {f'model {event.model}' if event.model else event.run} to {shown(event.priority)}"
    ),
    ModelsAdded: _added,
    ModelExtended: lambda event: f"had model {event.model} trained for {event.epochs} epochs",
    ModelChanged: _changed,
    SearchStopRequested: lambda event: f"ended the search of {event.run}",
    ExperimentArchived: lambda event: (
        "archived the experiment" if event.is_archived else "took the experiment out of the archive"
    ),
    TagsChanged: _tagged,
    LocatorsChanged: lambda event: "gave the experiment other dataset locators",
    DeletionRequested: lambda event: "asked for the experiment to be deleted",
}
"""Texts of the commands, to follow the author's name."""


# --- runs and models ---------------------------------------------------------------------------------


def steer(run: Run, event: RunCommand) -> bool:
    """Apply a user's command to a run; return True if it has an effect."""
    match event:
        case RunStopRequested():
            return move(run, event)
        case RunResumed():
            has_moved = move(run, event)
            if has_moved and event.procedure is not None and run.search is not None:
                run.search.replaced_by = event.procedure
            return has_moved
        case ModelStopRequested():
            model = run.models.get(event.model)
            return model is not None and run.is_open and _stop(run, model)
        case ModelResumed() | ModelRetried():
            return _resume(run, event)
        case ModelsAdded():
            return _add(run, event)
        case ModelExtended():
            return _extend(run, event)
        case ModelChanged():
            return _change(run, event)
        case SearchStopRequested():
            return run.is_open and run.search is not None and not run.search.is_closed
        case SchedulerChanged():
            return _reschedule(run, event)
        case PriorityChanged():
            return _prioritize(run, event)


def move(run: Run, event: RunCommand | RunStarted | RunPaused) -> bool:
    """Apply a transition of the table and clear the old state's details; return True if allowed."""
    targets = TRANSITIONS.get((run.state, event.type))
    if targets is None:
        return False
    was_open = run.is_open
    if was_open and len(targets) == 1:
        (run.state,) = targets
    else:
        run.state = RunState.QUEUED if run.plan is None else RunState.RUNNING
    if not was_open:
        run.clock.add_break(run.clock.ended, event.time)
        run.clock.ended, run.failures.error = 0.0, ""
        # The plan was for the workers of that time.
        run.scheduling.planned = None
    if run.state is RunState.PAUSED:
        run.clock.begin_pause(event.time)
    else:
        run.clock.end_pause(event.time)
    run.pause.clear()
    for task in run.tasks.replicas.values():
        if task.failure is not None and task.failure.is_of_volume:
            task.retry()
    _retry_search_tasks(run)
    return True


def _retry_search_tasks(run: Run) -> None:
    """Retry search tasks that no worker could complete."""
    for key in run.search.failures if run.search is not None else ():
        run.tasks.by_key[key].retry()
    if run.search is not None:
        run.search.failures.clear()


def _stop(run: Run, model: Model) -> bool:
    has_moved = model.move("StoppedAtRung" if run.waits_at_rung(model) else "ModelStopRequested")
    run.observe_model(model)
    return has_moved


def _resume(run: Run, event: ModelResumed | ModelRetried) -> bool:
    """Resume or retry a model. In an ended run the other models stay stopped."""
    model = run.models.get(event.model)
    is_hopeless = run.state is RunState.FAILED and run.failures.fatal is not None
    if model is None or is_hopeless or model.is_pruned:
        return False
    state = model.state
    if not run.is_open and state is ModelState.ACTIVE:
        state = MODEL_TRANSITIONS[state, "LeftOut"]
    if (state, event.type) not in MODEL_TRANSITIONS:
        return False
    _reopen(run, event)
    model.move(event.type)
    if isinstance(event, ModelRetried):
        model.failures.final = None
        model.checkpoints.losses.clear()
        model.validation.retry()
        if next(parallel_plans.allowed_plans(run, model), None) is None:
            # Workers or their devices may have changed.
            model.failures.ruled_out.clear()
        for task in run.tasks.by_key.values():
            if task.key.model == model.id:
                task.retry()
    run.settle(model)  # a user may have stopped it at a rung
    for each in run.models.values():
        run.observe_model(each)
    return True


def _reopen(run: Run, event: ModelResumed | ModelRetried | ModelsAdded | ModelExtended) -> None:
    """Reopen an ended run, only for the command's models."""
    if run.is_open:
        return
    move(run, event)
    if run.search is not None and run.search.finish is None:
        run.search.close(event.by)  # the unfinished search does not continue
    for each in run.models.values():
        each.move("LeftOut")
        run.observe_model(each)


def _trains_on(run: Run) -> bool:
    """True if a started fit may have more to train."""
    is_hopeless = run.state is RunState.FAILED and run.failures.fatal is not None
    return (
        run.kind == "fit" and run.plan is not None and run.state is not RunState.STOPPING and not is_hopeless
    )


def _add(run: Run, event: ModelsAdded) -> bool:
    if not _trains_on(run) or run.fit_request.folds is not None:
        return False
    if any(added_models.refusal(run, new) for new in event.models):
        return False
    _reopen(run, event)
    for new in event.models:
        added_models.add(run, new)
    return True


def _change(run: Run, event: ModelChanged) -> bool:
    model = run.models.get(event.model)
    if model is None or not run.is_open or model.state is not ModelState.ACTIVE or model.is_trained:
        return False
    if model.lineage.fold is not None:
        return False
    if "batch_size" in event.hyperparams and added_models.size_refusal(run, event.hyperparams):
        return False
    return model.change(event.hyperparams)


def _extend(run: Run, event: ModelExtended) -> bool:
    model = run.models.get(event.model)
    if model is None or model.is_cut_short or model.is_pruned or not _trains_on(run):
        return False
    if not run.is_open and (event.epochs <= model.epochs or model.state is not ModelState.FINISHED):
        return False
    _reopen(run, event)
    if not model.extend(event.epochs):
        return False
    run.scheduling.observe_added()
    run.settle(model)
    run.observe_model(model)
    return True


def _prioritize(run: Run, event: PriorityChanged) -> bool:
    of = run.models.get(event.model) if event.model else run
    if of is None or not run.is_open or of.priority == event.priority:
        return False
    of.priority = event.priority
    if event.model:
        run.scheduling.planned = None  # the plan was for models of one priority
    return True


def _reschedule(run: Run, event: SchedulerChanged) -> bool:
    if run.kind != "fit":
        return False
    run.scheduling.scheduler, run.scheduling.has_planner = event.scheduler, event.planner
    if run.is_open:
        run.scheduling.planned = None
    return True
