"""Rules for commands: which ones a user may give to an experiment, run or model now, and why not. Pure.

Notebook, command line and page offer the commands that `allowed` returns. Their state may be a moment old, so the
log's state decides finally: a late command has no effect (`cerebro.state.runs.commands`). Users' rights are not
checked here (`cerebro.contract.accounts.identity`).
"""

from __future__ import annotations

from enum import StrEnum

from cerebro.contract.runs import FitRequest
from cerebro.errors import ConflictError
from cerebro.state import ExperimentState, Model, ModelState, Run, RunState
from cerebro.state.reports import state_words
from cerebro.state.runs.concurrent_runs import finished_models, obstacle
from cerebro.state.runs.pruning import is_removed, lost_text, removal_text

_NAMED = 5
"""Maximum number of models in a message."""


class CommandKind(StrEnum):
    """Kind of a user's command."""

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
"""Commands that need an open run. `PRIORITIZE` is one of them unless it names models."""
OF_FIT = frozenset({CommandKind.SET_SCHEDULER, CommandKind.ADD_MODELS, CommandKind.STOP_SEARCH})
"""Commands that need a fit run."""
OF_TRAINING = frozenset({CommandKind.CHANGE_MODEL, CommandKind.PRIORITIZE})
"""Commands that need a model in training."""
CONFIG_COMMANDS = OF_TRAINING | {
    CommandKind.ADD_MODELS,
    CommandKind.CLONE_MODEL,
    CommandKind.EXTEND_MODEL,
    CommandKind.STOP_SEARCH,
}
"""Commands that add models or change their training config (`cerebro.commands.training_config`)."""
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

_FOLDS_TEXT = "the models of a cross-validation stay as requested: call run_fit for other configurations"
_NOT_WITH_FOLDS = frozenset({CommandKind.CLONE_MODEL, CommandKind.CHANGE_MODEL})
"""Commands that would make the models of a configuration differ, or let a model train on its validation rows."""

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
    CommandKind.UNARCHIVE: "restore the experiment from the archive",
    CommandKind.DELETE: "delete the experiment",
}
"""Descriptions for messages, as infinitives."""


def allowed(
    state: ExperimentState, run: Run | None = None, model: Model | None = None
) -> frozenset[CommandKind]:
    """Return the commands allowed now for an experiment, one of its runs, or one of the run's models."""
    if state.deletion is not None:
        return frozenset()
    if run is None:
        return _experiment_commands(state)
    return _run_commands(state, run) if model is None else _model_commands(state, run, model)


def resumable(state: ExperimentState) -> Run | None:
    """Return the run that a resume without a name applies to: a paused one, else the newest stopped one."""
    runs = reversed(state.runs.values())
    return next((run for run in runs if CommandKind.RESUME_RUN in allowed(state, run)), None)


def resumable_later(state: ExperimentState) -> Run | None:
    """Return the newest stopped run with remaining work that another run blocks."""
    runs = (run for run in reversed(state.runs.values()) if run.state is RunState.STOPPED)
    return next((run for run in runs if _has_work(state, run) and not is_free(state, run)), None)


def may_relocate(state: ExperimentState) -> bool:
    """Return True if the dataset locators may change: no data set exists and no run is open."""
    return state.newest_dataset() is None and not state.open_runs() and state.deletion is None


def check_free(state: ExperimentState, run: Run) -> None:
    """Raise `ConflictError` if another run blocks a new run; name it and the alternatives."""
    found = obstacle(state.runs, run)
    if found is None:
        return
    choices = [f"wait for it with watch({found.run.id!r})", f"end it with stop({found.run.id!r})"]
    if run.is_evaluation:
        finished = ", ".join(_testable(found.run, finished_models(found.run))[:_NAMED])
        ended_fits = [
            each.id for each in state.runs.values() if not each.is_open and _testable(each, [*each.models])
        ]
        choices = [
            *([f"name finished models ({finished})"] if finished else []),
            *([f"name a fit run that has ended (fit={ended_fits[-1]!r})"] if ended_fits else []),
            *choices,
        ]
    advice = f"{', '.join(choices[:-1])}, or {choices[-1]}"
    raise ConflictError(f"run_{run.kind} of experiment {state.name!r} cannot begin: {found.reason}; {advice}")


# --- reasons for refusals ------------------------------------------------------------------------


def experiment_now(state: ExperimentState, kind: CommandKind = CommandKind.DELETE) -> str:
    """Describe the state of an experiment, as the reason of a refusal."""
    if state.deletion is not None:
        return f"experiment {state.name!r} is being deleted"
    found = state.open_runs()
    if found and kind is CommandKind.DELETE:
        reasons = ", ".join(f"{run.id} is {state_words.run(run)}" for run in found)
        them = "it" if len(found) == 1 else "them"
        return f"{reasons}: wait for {them}, or stop {them} first"
    return f"experiment {state.name!r} is {'archived' if state.is_archived else 'not archived'}"


def run_now(state: ExperimentState, run: Run) -> str:
    """Describe the state of a run, as the reason of a refusal."""
    if state.deletion is not None:
        return experiment_now(state)
    if found := obstacle(state.runs, run):
        return (
            f"{run.id} is {state_words.run(run)}; {found.reason}: wait for {found.run.id}, or stop it first"
        )
    if lost := lost_text(state.runs, run):
        return f"{run.id} is {state_words.run(run)}, and {lost}: call run_{run.kind} for models that have checkpoints"
    if run.failures.fatal is not None:
        why = f"a reason that affects all its models ({run.failures.fatal.message})"
        return f"{run.id} failed for {why}: fix it and request a new run"
    if run.state is RunState.STOPPED and run.models and not _has_active(run):
        return f"{run.id} is stopped and has no models to train: resume or retry single models"
    now = f"{run.id} is {state_words.run(run)}"
    if is_cross_validation(run):
        return f"{now}, and {_FOLDS_TEXT}"
    verbs = ((ModelState.FAILED, "retry"), (ModelState.STOPPED, "resume"))
    models = [
        f"{verb} {', '.join(names[:_NAMED])}"
        for state_of, verb in verbs
        if (names := [each.id for each in run.models.values() if each.state is state_of])
    ]
    is_over = run.state is RunState.FINISHED and state_words.run(run) != "finished"
    return f"{now}, so name models: {' or '.join(models)}" if is_over and models else now


def model_now(state: ExperimentState, run: Run, model: Model) -> str:
    """Describe the state of a model, as the reason of a refusal."""
    if state.deletion is not None:
        return experiment_now(state)
    reason = run.search.verdicts.get(model.id) if run.search is not None else None
    now = f"model {model.id} of {run.id} is {state_words.model(model, run)}"
    if reason is not None and model.state is not ModelState.ACTIVE:
        progress = f"after {model.completed_epochs} epochs"
        now = f"model {model.id} of {run.id} was stopped by the search {progress} ({reason})"
    if run.state is RunState.STOPPING or run.failures.fatal is not None or not is_free(state, run):
        return f"{now}, and {run_now(state, run)}"
    if model.is_pruned and model.state is not ModelState.ACTIVE:
        return f"{now}, and {removal_text(run, model)}: clone it cold"
    return f"{now}, and {_FOLDS_TEXT}" if is_cross_validation(run) else now


def stopped_text(state: ExperimentState, run: Run) -> str:
    """Describe who stopped a run, its progress, and how to resume it."""
    stops = [
        command
        for command in state.commands
        if command.run == run.id and not command.is_late and command.what.startswith("stopped")
    ]
    by = f" by {stops[-1].by}" if stops and stops[-1].by else ""
    done, total = run.progress()
    is_known = run.search is None or run.search.finish is not None
    progress = f"{done} of {total} tasks" if is_known else f"{done} tasks"
    attached, name = f"Experiment.attach({state.name!r})", f"cerebro resume {state.name} --run {run.id}"
    how = f"resume it with {attached}.resume({run.id!r}) or `{name}`"
    if run.models and not _has_work(state, run):
        one = f"{attached}.resume_model(MODEL) or `{name} --model MODEL`"
        how = f"it has no models to train. Resume a stopped model with {one}"
    return f"{run.id} of experiment {state.name!r} was stopped{by} after {progress}: {how}"


# --- allowed commands ----------------------------------------------------------------------------


def _experiment_commands(state: ExperimentState) -> frozenset[CommandKind]:
    found = {CommandKind.UNARCHIVE if state.is_archived else CommandKind.ARCHIVE}
    if not state.open_runs():
        found.add(CommandKind.DELETE)
    return frozenset(found)


def _run_commands(state: ExperimentState, run: Run) -> frozenset[CommandKind]:
    found = set()
    if run.is_open and run.state is not RunState.STOPPING:
        found |= {CommandKind.STOP_RUN, CommandKind.PRIORITIZE}
    if run.kind == "fit" and (run.state is RunState.STOPPED or CommandKind.STOP_RUN in found):
        found.add(CommandKind.SET_SCHEDULER)
    if trains_on(state, run) and not is_cross_validation(run):
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


def _model_commands(state: ExperimentState, run: Run, model: Model) -> frozenset[CommandKind]:
    found = _commands_by_state(state, run, model)
    return found - _NOT_WITH_FOLDS if is_cross_validation(run) else found


def _commands_by_state(state: ExperimentState, run: Run, model: Model) -> frozenset[CommandKind]:
    # A fatal failure ends a run for good, and a stop must complete first.
    if run.failures.fatal is not None or run.state is RunState.STOPPING or not is_free(state, run):
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


def is_cross_validation(run: Run) -> bool:
    """Return True if the run's models are folds of its configurations."""
    return isinstance(run.request, FitRequest) and run.request.folds is not None


def trains_on(state: ExperimentState, run: Run) -> bool:
    """Return True if a started fit may train more models."""
    is_over = run.failures.fatal is not None or run.state is RunState.STOPPING
    return run.kind == "fit" and run.plan is not None and not is_over and is_free(state, run)


def is_free(state: ExperimentState, run: Run) -> bool:
    """Return True if no other run blocks this one."""
    return obstacle(state.runs, run) is None


def _has_work(state: ExperimentState, run: Run) -> bool:
    """Return True if a stopped run has remaining work and the checkpoints for it."""
    if lost_text(state.runs, run):
        return False
    is_searching = run.search is not None and run.search.finish is None
    return run.plan is None or not run.models or is_searching or _has_active(run)


def _testable(run: Run, models: list[str]) -> list[str]:
    """Select the models whose best epoch has a checkpoint."""
    best = ((name, run.best_epoch(run.models[name])) for name in models)
    return [name for name, epoch in best if epoch is not None and not is_removed(run.models[name], epoch)]


def _has_active(run: Run) -> bool:
    # Backwards, because models train in order.
    return any(model.state is ModelState.ACTIVE for model in reversed(run.models.values()))
