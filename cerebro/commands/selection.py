"""Find the run and the model that a command means, by name or by default. Pure.

Used by `cerebro.commands.command_events`, the client and the dispatcher. `cerebro.commands.rules` decides whether the
command is allowed there.
"""

from __future__ import annotations

from cerebro.commands.rules import OF_EXPERIMENT, OF_FIT, OF_MODEL, CommandKind, resumable, resumable_later
from cerebro.contract.texts import did_you_mean
from cerebro.errors import NotFoundError
from cerebro.state import ExperimentState, Model, Run

_NAMED = 5
"""Maximum number of models in an error message without a similar name."""


def find_model(run: Run, name: str) -> Model:
    """Return a model of a run.

    Raises:
        NotFoundError: the run has no model `name`. The message lists similar names.
    """
    if name in run.models:
        return run.models[name]
    known = list(run.models)
    if not known:
        raise NotFoundError(
            f"{run.id} has no model {name!r}: its models are not created yet, or it is not a fit run"
        )
    shown = f"; there is {', '.join(known[:_NAMED])}" + (", ..." if len(known) > _NAMED else "")
    raise NotFoundError(f"{run.id} has no model {name!r}{did_you_mean(name, known) or shown}")


def chosen_run(state: ExperimentState, run: str | None) -> Run:
    """Return the run named `run`; by default the open one, else the newest.

    Raises:
        NotFoundError: the experiment does not have the run.
    """
    if run is not None:
        if run not in state.runs:
            shown = f"; there is {', '.join(state.runs) or 'none'}"
            hint = did_you_mean(run, state.runs) or shown
            raise NotFoundError(f"no run {run!r} in experiment {state.name!r}{hint}")
        return state.runs[run]
    found = state.active_run() or next(reversed(state.runs.values()), None)
    if found is None:
        raise NotFoundError(f"experiment {state.name!r} has no run yet: call run_etl first")
    return found


def chosen_fit(state: ExperimentState, run: str | None) -> Run:
    """Return the fit run named `run`; by default the newest one.

    Raises:
        NotFoundError: the experiment does not have the run, or it is not a fit run.
    """
    fits = [known.id for known in state.runs.values() if known.kind == "fit"]
    if run is None and not fits:
        raise NotFoundError(f"experiment {state.name!r} has no fit run yet: call run_fit")
    found = chosen_run(state, fits[-1] if run is None else run)
    if found.kind != "fit":
        raise NotFoundError(
            f"{found.id} of experiment {state.name!r} is a run of run_{found.kind}, expected a fit run: name one of "
            f"{', '.join(fits) or 'none (call run_fit first)'}"
        )
    return found


def target_run(
    kind: CommandKind, state: ExperimentState, run: str | None, *, is_of_models: bool = False
) -> Run | None:
    """Return the run that a command applies to; `None` for commands to the experiment.

    Without a name: for models, the scheduler and searches the newest fit run; to resume, the run that can be resumed;
    otherwise the open run, else the newest one.

    Raises:
        NotFoundError: the experiment does not have the run.
    """
    if kind in OF_EXPERIMENT:
        return None
    if kind is CommandKind.RESUME_RUN and run is None:
        found = resumable(state) or resumable_later(state)
        if found is not None:
            return found
    is_of_fit = is_of_models or kind in OF_MODEL or kind in OF_FIT
    return chosen_fit(state, run) if is_of_fit else chosen_run(state, run)
