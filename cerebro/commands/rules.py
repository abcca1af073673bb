"""What users may do to an experiment that goes on or has ended. Pure.

The one owner of these rules: notebook, command line and page offer what `allowed` says. They decide on a state that may
be a moment old, so the fold has the last word: a command that comes too late is without effect there
(`cerebro.state.commands`).
"""

from __future__ import annotations

from enum import StrEnum

from cerebro.errors import ConflictError
from cerebro.state import ExperimentState, Model, ModelState, Run, RunState, wording
from cerebro.state.beside import finished_models, obstacle
from cerebro.state.pruning import gone_text, is_gone, lost_text

_NAMED = 5
"""Models that a message names."""


class CommandKind(StrEnum):
    """Something a user may ask for."""

    STOP_RUN = "stop_run"
    RESUME_RUN = "resume_run"
    SET_SCHEDULER = "set_scheduler"
    STOP_MODEL = "stop_model"
    RESUME_MODEL = "resume_model"
    RETRY_MODEL = "retry_model"
    ADD_MODELS = "add_models"
    CLONE_MODEL = "clone_model"
    CHANGE_MODEL = "change_model"
    EXTEND_MODEL = "extend_model"
    PRIORITIZE = "prioritize"
    STOP_SEARCH = "stop_search"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"
    DELETE = "delete"


OF_EXPERIMENT = frozenset({CommandKind.ARCHIVE, CommandKind.UNARCHIVE, CommandKind.DELETE})
OF_OPEN = frozenset({CommandKind.STOP_RUN, CommandKind.PRIORITIZE})
"""What only a run can be asked for that has not ended. Where models are named, `PRIORITIZE` is of these."""
OF_FIT = frozenset({CommandKind.SET_SCHEDULER, CommandKind.ADD_MODELS, CommandKind.STOP_SEARCH})
"""What only a fit run can be asked for."""
OF_TRAINING = frozenset({CommandKind.CHANGE_MODEL, CommandKind.PRIORITIZE})
"""What only a model can be asked for that is being trained."""
NEW_TERMS = OF_TRAINING | {
    CommandKind.ADD_MODELS,
    CommandKind.CLONE_MODEL,
    CommandKind.EXTEND_MODEL,
    CommandKind.STOP_SEARCH,
}
"""What changes which models a fit trains, and with what (`cerebro.commands.terms`)."""
OF_MODEL = frozenset(
    {
        CommandKind.STOP_MODEL,
        CommandKind.RESUME_MODEL,
        CommandKind.RETRY_MODEL,
        CommandKind.CLONE_MODEL,
        CommandKind.CHANGE_MODEL,
        CommandKind.EXTEND_MODEL,
    }
)

DOES = {
    CommandKind.STOP_RUN: "stop the run",
    CommandKind.RESUME_RUN: "resume the run",
    CommandKind.SET_SCHEDULER: "change the scheduler",
    CommandKind.STOP_MODEL: "stop the model",
    CommandKind.RESUME_MODEL: "resume the model",
    CommandKind.RETRY_MODEL: "retry the model",
    CommandKind.ADD_MODELS: "add models",
    CommandKind.CLONE_MODEL: "clone the model",
    CommandKind.CHANGE_MODEL: "change the model",
    CommandKind.EXTEND_MODEL: "change the model's number of epochs",
    CommandKind.PRIORITIZE: "change the priority",
    CommandKind.STOP_SEARCH: "stop the search",
    CommandKind.ARCHIVE: "archive the experiment",
    CommandKind.UNARCHIVE: "take the experiment out of the archive",
    CommandKind.DELETE: "delete the experiment",
}
"""What each does, as a part of a sentence."""


def allowed(
    state: ExperimentState, run: Run | None = None, model: Model | None = None
) -> frozenset[CommandKind]:
    """What may be asked for now: of the experiment alone, of one of its runs, or of one of that run's models."""
    if state.deletion is not None:
        return frozenset()
    if run is None:
        return _of_experiment(state)
    return _of_run(state, run) if model is None else _of_model(state, run, model)


def resumable(state: ExperimentState) -> Run | None:
    """The run that goes on if somebody resumes and names none: the one that is paused, else the newest stopped one."""
    runs = reversed(state.runs.values())
    return next((run for run in runs if CommandKind.RESUME_RUN in allowed(state, run)), None)


def resumable_later(state: ExperimentState) -> Run | None:
    """The newest stopped run that has work left and waits for another one, so that it cannot be resumed now."""
    runs = (run for run in reversed(state.runs.values()) if run.state is RunState.STOPPED)
    return next((run for run in runs if _has_work(state, run) and not is_free(state, run)), None)


def may_relocate(state: ExperimentState) -> bool:
    """Whether the experiment may be given other dataset locators: nothing was ever made with those it has."""
    return state.newest_dataset() is None and not state.open_runs() and state.deletion is None


def check_free(state: ExperimentState, run: Run) -> None:
    """Raise `ConflictError` unless a run that is not requested yet can begin: it says what it would wait for, and what
    to do instead."""
    found = obstacle(state.runs, run)
    if found is None:
        return
    choices = [f"wait for it with watch({found.run.id!r})", f"end it with stop({found.run.id!r})"]
    if run.is_evaluation:
        finished = ", ".join(_testable(found.run, finished_models(found.run))[:_NAMED])
        others = [
            each.id for each in state.runs.values() if not each.is_open and _testable(each, [*each.models])
        ]
        choices = [
            *([f"name models of it that are finished ({finished})"] if finished else []),
            *([f"name a fit run that has ended (fit={others[-1]!r})"] if others else []),
            *choices,
        ]
    told = f"{', '.join(choices[:-1])}, or {choices[-1]}"
    raise ConflictError(f"run_{run.kind} of experiment {state.name!r} cannot begin: {found.reason}; {told}")


# --- what is so now, in words --------------------------------------------------------------------


def experiment_now(state: ExperimentState, kind: CommandKind = CommandKind.DELETE) -> str:
    """What an experiment is doing, as the reason why a command is refused."""
    if state.deletion is not None:
        return f"experiment {state.name!r} is being deleted"
    found = state.open_runs()
    if found and kind is CommandKind.DELETE:
        told = ", ".join(f"{run.id} is {wording.run(run)}" for run in found)
        them = "it" if len(found) == 1 else "them"
        return f"{told}: wait for {them}, or stop {them} first"
    return f"experiment {state.name!r} is {'archived' if state.is_archived else 'not archived'}"


def run_now(state: ExperimentState, run: Run) -> str:
    """What a run is doing, as the reason why a command is refused."""
    if state.deletion is not None:
        return experiment_now(state)
    if found := obstacle(state.runs, run):
        return f"{run.id} is {wording.run(run)}; {found.reason}: wait for {found.run.id}, or stop it first"
    if lost := lost_text(state.runs, run):
        return f"{run.id} is {wording.run(run)}, and {lost}: call run_{run.kind} for models that have theirs"
    if run.fatal is not None:
        why = f"a reason that concerns all its models ({run.fatal.message})"
        return f"{run.id} failed for {why}: mend it and request a new run"
    if run.state is RunState.STOPPED and run.models and not _has_active(run):
        return f"{run.id} is stopped and none of its models was left to train: resume or retry single models"
    now = f"{run.id} is {wording.run(run)}"
    parallel_plans = ((ModelState.FAILED, "retry"), (ModelState.STOPPED, "resume"))
    models = [
        f"{verb} {', '.join(names[:_NAMED])}"
        for state_of, verb in parallel_plans
        if (names := [each.id for each in run.models.values() if each.state is state_of])
    ]
    is_over = run.state is RunState.FINISHED and wording.run(run) != "finished"
    return f"{now}, so name models: {' or '.join(models)}" if is_over and models else now


def model_now(state: ExperimentState, run: Run, model: Model) -> str:
    """What a model is doing, as the reason why a command is refused."""
    if state.deletion is not None:
        return experiment_now(state)
    verdict = run.search.verdicts.get(model.id) if run.search is not None else None
    now = f"model {model.id} of {run.id} is {wording.model(model, run)}"
    if verdict is not None and model.state is not ModelState.ACTIVE:
        far = f"after {model.completed_epochs} epochs"
        now = f"model {model.id} of {run.id} was stopped by the search {far} ({verdict})"
    if run.state is RunState.STOPPING or run.fatal is not None or not is_free(state, run):
        return f"{now}, and {run_now(state, run)}"
    if model.is_pruned and model.state is not ModelState.ACTIVE:
        return f"{now}, and {gone_text(run, model)}: clone it cold"
    return now


def stopped_text(state: ExperimentState, run: Run) -> str:
    """Who stopped a run, how far it was then, and how it goes on."""
    stops = [
        command
        for command in state.commands
        if command.run == run.id and not command.is_late and command.what.startswith("stopped")
    ]
    by = f" by {stops[-1].by}" if stops and stops[-1].by else ""
    done, total = run.progress()
    is_known = run.search is None or run.search.finish is not None
    far = f"{done} of {total} tasks" if is_known else f"{done} tasks"
    attached, name = f"Experiment.attach({state.name!r})", f"cerebro resume {state.name} --run {run.id}"
    how = f"{attached}.resume({run.id!r}) or `{name}` lets it go on"
    if run.models and not _has_work(state, run):
        one = f"{attached}.resume_model(MODEL) or `{name} --model MODEL` lets one go on"
        how = f"none of its models is left to train; {one}"
    return f"{run.id} of experiment {state.name!r} was stopped{by} after {far}: {how}"


# --- what is allowed -----------------------------------------------------------------------------


def _of_experiment(state: ExperimentState) -> frozenset[CommandKind]:
    found = {CommandKind.UNARCHIVE if state.is_archived else CommandKind.ARCHIVE}
    if not state.open_runs():
        found.add(CommandKind.DELETE)
    return frozenset(found)


def _of_run(state: ExperimentState, run: Run) -> frozenset[CommandKind]:
    found = set()
    if run.is_open and run.state is not RunState.STOPPING:
        found |= {CommandKind.STOP_RUN, CommandKind.PRIORITIZE}
    if run.kind == "fit" and (run.state is RunState.STOPPED or CommandKind.STOP_RUN in found):
        found.add(CommandKind.SET_SCHEDULER)
    if trains_on(state, run):
        found.add(CommandKind.ADD_MODELS)
    if (
        run.search is not None
        and not (run.search.is_closed or run.search.finish)
        and CommandKind.STOP_RUN in found
    ):
        found.add(CommandKind.STOP_SEARCH)
    may_resume = run.state is RunState.STOPPED and _has_work(state, run) and is_free(state, run)
    if run.state is RunState.PAUSED or may_resume:
        found.add(CommandKind.RESUME_RUN)
    return frozenset(found)


def _of_model(state: ExperimentState, run: Run, model: Model) -> frozenset[CommandKind]:
    # A failure that no model could escape ends a run for good; a stop that is under way is not crossed.
    if run.fatal is not None or run.state is RunState.STOPPING or not is_free(state, run):
        return frozenset()
    clone = {CommandKind.CLONE_MODEL}
    if model.is_pruned and model.state is not ModelState.ACTIVE:
        return frozenset(clone)
    match model.state:
        case ModelState.FAILED:
            return frozenset({CommandKind.RETRY_MODEL}) | clone
        case ModelState.STOPPED:
            return frozenset({CommandKind.RESUME_MODEL}) | clone
        case ModelState.ACTIVE if run.is_open:
            return frozenset({CommandKind.STOP_MODEL, CommandKind.EXTEND_MODEL}) | OF_TRAINING | clone
        case ModelState.ACTIVE:
            return frozenset({CommandKind.RESUME_MODEL}) | clone
        case ModelState.FINISHED:
            stop = frozenset({CommandKind.STOP_MODEL} if run.is_open and run.waits_at_rung(model) else ())
            return frozenset({CommandKind.EXTEND_MODEL}) | clone | stop


def trains_on(state: ExperimentState, run: Run) -> bool:
    """Whether a fit that has begun may train more models: nothing has ended it for good, and none stands in its way."""
    is_over = run.fatal is not None or run.state is RunState.STOPPING
    return run.kind == "fit" and run.plan is not None and not is_over and is_free(state, run)


def is_free(state: ExperimentState, run: Run) -> bool:
    """Whether the run goes on or may: no other one stands in its way."""
    return obstacle(state.runs, run) is None


def _has_work(state: ExperimentState, run: Run) -> bool:
    """Whether a stopped run has something left to do, and what it takes for that."""
    if lost_text(state.runs, run):
        return False
    is_searching = run.search is not None and run.search.finish is None
    return run.plan is None or not run.models or is_searching or _has_active(run)


def _testable(run: Run, models: list[str]) -> list[str]:
    """Select the models whose checkpoint of the best epoch exists."""
    best = ((name, run.best_epoch(run.models[name])) for name in models)
    return [name for name, epoch in best if epoch is not None and not is_gone(run.models[name], epoch)]


def _has_active(run: Run) -> bool:
    # From the end: models begin in their order, so the last ones tell at once.
    return any(model.state is ModelState.ACTIVE for model in reversed(run.models.values()))
