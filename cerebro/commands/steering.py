"""What users may do to an experiment that goes on or has ended, and the event that each of it is. Pure.

The one owner of these rules: notebook, command line and page offer what `allowed` says and send what `event_of` makes.
They decide on a state that may be a moment old, so the fold has the last word: a wish that comes too late is without
effect there (`cerebro.state.steering`).
"""

from __future__ import annotations

import difflib
from enum import StrEnum

from cerebro.contract.events import (
    ClientEvent,
    DeletionRequested,
    ExperimentArchived,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    RunResumed,
    RunStopRequested,
    SchedulerChanged,
)
from cerebro.errors import ConflictError, NotFoundError, SearchSpaceError
from cerebro.scheduling.policies import POLICIES
from cerebro.state import ExperimentState, Model, ModelState, Run, RunState, wording

_NAMED = 5
"""Models named in an error that knows no similar one."""


class Action(StrEnum):
    """Something a user may ask for."""

    STOP_RUN = "stop_run"
    RESUME_RUN = "resume_run"
    SET_SCHEDULER = "set_scheduler"
    STOP_MODEL = "stop_model"
    RESUME_MODEL = "resume_model"
    RETRY_MODEL = "retry_model"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"
    DELETE = "delete"


OF_EXPERIMENT = frozenset({Action.ARCHIVE, Action.UNARCHIVE, Action.DELETE})
OF_MODEL = frozenset({Action.STOP_MODEL, Action.RESUME_MODEL, Action.RETRY_MODEL})

DOES = {
    Action.STOP_RUN: "stop the run",
    Action.RESUME_RUN: "resume the run",
    Action.SET_SCHEDULER: "change the scheduler",
    Action.STOP_MODEL: "stop the model",
    Action.RESUME_MODEL: "resume the model",
    Action.RETRY_MODEL: "retry the model",
    Action.ARCHIVE: "archive the experiment",
    Action.UNARCHIVE: "take the experiment out of the archive",
    Action.DELETE: "delete the experiment",
}
"""What each does, as a part of a sentence."""


def allowed(state: ExperimentState, run: Run | None = None, model: Model | None = None) -> frozenset[Action]:
    """What may be asked for now: of the experiment alone, of one of its runs, or of one of that run's models."""
    if state.deletion is not None:
        return frozenset()
    if run is None:
        return _of_experiment(state)
    return _of_run(state, run) if model is None else _of_model(state, run, model)


def event_of(
    action: Action,
    state: ExperimentState,
    run: Run | None = None,
    model: str = "",
    *,
    by: str,
    scheduler: str = "",
    planner: bool = True,
    confirm: str = "",
) -> ClientEvent:
    """The event that an action is, if it may be asked for now.

    Args:
        run: what it is about, unless that is the experiment; `model`: of that run.
        by: who asks, for the log.
        scheduler, planner: of `SET_SCHEDULER`; `confirm`: the experiment's name once more, of `DELETE`.

    Raises:
        NotFoundError: the run has no such model.
        SearchSpaceError: there is no such scheduler.
        ConflictError: not now, or not confirmed. All say what is the case and what can be done.
    """
    if action in OF_EXPERIMENT or run is None:
        _check(action, allowed(state), _experiment_now(state, action))
        return event_of_experiment(action, state.name, by=by, confirm=confirm)
    if action in OF_MODEL:
        return _model_event(action, state, run, find_model(run, model), by=by)
    if action is Action.SET_SCHEDULER and scheduler not in POLICIES:
        raise SearchSpaceError(f"no scheduler {scheduler!r}: choose one of {', '.join(sorted(POLICIES))}")
    _check(action, allowed(state, run), _run_now(state, run))
    if action is Action.STOP_RUN:
        return RunStopRequested(run=run.id, by=by)
    if action is Action.RESUME_RUN:
        return RunResumed(run=run.id, by=by)
    return SchedulerChanged(run=run.id, scheduler=scheduler, planner=planner, by=by)


def find_model(run: Run, name: str) -> Model:
    """A model of a run.

    Raises:
        NotFoundError: there is none of that name; it names those that are similar.
    """
    if name in run.models:
        return run.models[name]
    known = list(run.models)
    if not known:
        raise NotFoundError(f"{run.id} has no model {name!r}: it has no models yet, or is no fit run")
    similar = difflib.get_close_matches(name, known, n=_NAMED, cutoff=0.5)
    there = ", ".join(similar or known[:_NAMED]) + (", ..." if not similar and len(known) > _NAMED else "")
    raise NotFoundError(f"{run.id} has no model {name!r}; there is {there}")


def chosen_run(state: ExperimentState, run: str | None) -> Run:
    """The run of that name; else the open one, else the newest.

    Raises:
        NotFoundError: there is none.
    """
    if run is not None:
        if run not in state.runs:
            known = ", ".join(state.runs) or "none"
            raise NotFoundError(f"no run {run!r} in experiment {state.name!r}; there is {known}")
        return state.runs[run]
    found = state.active_run() or next(reversed(state.runs.values()), None)
    if found is None:
        raise NotFoundError(f"experiment {state.name!r} has no run yet")
    return found


def chosen_fit(state: ExperimentState, run: str | None) -> Run:
    """The run of that name, else the newest fit run.

    Raises:
        NotFoundError: there is none, or the one named is no fit run.
    """
    fits = [known.id for known in state.runs.values() if known.kind == "fit"]
    if run is None and not fits:
        raise NotFoundError(f"experiment {state.name!r} has no fit run yet: call run_fit")
    found = chosen_run(state, run or fits[-1])
    if found.kind != "fit":
        raise NotFoundError(
            f"{found.id} of experiment {state.name!r} is of run_{found.kind}, expected was a fit run; there is "
            f"{', '.join(fits) or 'none'}"
        )
    return found


def resumable(state: ExperimentState) -> Run | None:
    """The run that goes on if somebody resumes and names none: the one that is paused, else the newest stopped one."""
    runs = reversed(state.runs.values())
    return next((run for run in runs if Action.RESUME_RUN in allowed(state, run)), None)


def about(action: Action, state: ExperimentState, run: str | None) -> Run | None:
    """The run that an action is about: the one named; else for models and the scheduler the newest fit run, to resume
    the one that can be, and otherwise the open one, or the newest. `None` for what concerns the experiment.

    Raises:
        NotFoundError: there is none.
    """
    if action in OF_EXPERIMENT:
        return None
    if action is Action.RESUME_RUN and run is None and (found := resumable(state)) is not None:
        return found
    is_of_fit = action in OF_MODEL or action is Action.SET_SCHEDULER
    return chosen_fit(state, run) if is_of_fit else chosen_run(state, run)


def may_relocate(state: ExperimentState) -> bool:
    """Whether the experiment may be given other dataset locators: nothing was ever made with those it has."""
    return state.newest_dataset() is None and state.active_run() is None and state.deletion is None


def stopped_text(state: ExperimentState, run: Run) -> str:
    """Who stopped a run, how far it was then, and how it goes on."""
    stops = [
        action
        for action in state.actions
        if action.run == run.id and not action.is_late and action.what.startswith("stopped")
    ]
    by = f" by {stops[-1].by}" if stops and stops[-1].by else ""
    done, total = run.progress()
    how = f"Experiment.attach({state.name!r}).resume({run.id!r}) or `cerebro resume {state.name} --run {run.id}`"
    return f"{run.id} of experiment {state.name!r} was stopped{by} after {done} of {total} tasks: {how} lets it go on"


def event_of_experiment(action: Action, name: str, *, by: str, confirm: str = "") -> ClientEvent:
    """The event that an action on a whole experiment is, whatever its log says: also if nobody can read it.

    Raises:
        ConflictError: a deletion is not confirmed.
    """
    if action is not Action.DELETE:
        return ExperimentArchived(is_archived=action is Action.ARCHIVE, by=by)
    if confirm != name:
        raise ConflictError(
            f"nothing was deleted: to delete {name!r} with all its data, give exactly its name"
        )
    return DeletionRequested(by=by)


# --- what is allowed -----------------------------------------------------------------------------


def _of_experiment(state: ExperimentState) -> frozenset[Action]:
    found = {Action.UNARCHIVE if state.is_archived else Action.ARCHIVE}
    if state.active_run() is None:
        found.add(Action.DELETE)
    return frozenset(found)


def _of_run(state: ExperimentState, run: Run) -> frozenset[Action]:
    found = set()
    if run.is_open and run.state is not RunState.STOPPING:
        found.add(Action.STOP_RUN)
    if run.kind == "fit" and (run.state is RunState.STOPPED or Action.STOP_RUN in found):
        found.add(Action.SET_SCHEDULER)
    has_work = run.plan is None or not run.models or _has_active(run)
    if run.state is RunState.PAUSED or (run.state is RunState.STOPPED and has_work and _is_free(state, run)):
        found.add(Action.RESUME_RUN)
    return frozenset(found)


def _of_model(state: ExperimentState, run: Run, model: Model) -> frozenset[Action]:
    # A failure that no model could escape ends a run for good; a stop that is under way is not crossed.
    if run.fatal is not None or run.state is RunState.STOPPING or not _is_free(state, run):
        return frozenset()
    match model.state:
        case ModelState.FAILED:
            return frozenset({Action.RETRY_MODEL})
        case ModelState.STOPPED:
            return frozenset({Action.RESUME_MODEL})
        case ModelState.ACTIVE:
            return frozenset({Action.STOP_MODEL if run.is_open else Action.RESUME_MODEL})
        case ModelState.FINISHED:
            return frozenset()


def _is_free(state: ExperimentState, run: Run) -> bool:
    """Whether the run is open or may be: an experiment has one open run at a time."""
    return state.active_run() in (None, run)


def _has_active(run: Run) -> bool:
    # From the end: models begin in their order, so the last ones tell at once.
    return any(model.state is ModelState.ACTIVE for model in reversed(run.models.values()))


# --- events and errors ---------------------------------------------------------------------------


def _model_event(action: Action, state: ExperimentState, run: Run, model: Model, *, by: str) -> ClientEvent:
    now = f"model {model.id} of {run.id} is {wording.model(model, run)}"
    if run.state is RunState.STOPPING or run.fatal is not None or not _is_free(state, run):
        now = f"{now}, and {_run_now(state, run)}"
    _check(action, allowed(state, run, model), now if state.deletion is None else _experiment_now(state))
    if action is Action.STOP_MODEL:
        return ModelStopRequested(run=run.id, model=model.id, by=by)
    if action is Action.RESUME_MODEL:
        return ModelResumed(run=run.id, model=model.id, by=by)
    return ModelRetried(run=run.id, model=model.id, by=by)


def _experiment_now(state: ExperimentState, action: Action = Action.DELETE) -> str:
    if state.deletion is not None:
        return f"experiment {state.name!r} is being deleted"
    run = state.active_run()
    if run is not None and action is Action.DELETE:
        return f"{run.id} is {wording.run(run)}: wait for it, or stop it first"
    return f"experiment {state.name!r} is {'archived' if state.is_archived else 'not archived'}"


def _run_now(state: ExperimentState, run: Run) -> str:
    if state.deletion is not None:
        return _experiment_now(state)
    other = state.active_run()
    if other is not None and other is not run:
        return f"{run.id} has ended and {other.id} is {wording.run(other)}: wait for that, or stop it first"
    if run.fatal is not None:
        why = f"a reason that concerns all its models ({run.fatal.message})"
        return f"{run.id} failed for {why}: mend it and request a new run"
    if run.state is RunState.STOPPED and run.models and not _has_active(run):
        return f"{run.id} is stopped and none of its models was left to train: resume or retry single models"
    return f"{run.id} is {wording.run(run)}"


def _check(action: Action, may: frozenset[Action], now: str) -> None:
    if action not in may:
        others = ", ".join(sorted(DOES[each] for each in may))
        hint = f"; possible now: {others}" if others else ""
        raise ConflictError(f"it is not possible to {DOES[action]}: {now}{hint}")
