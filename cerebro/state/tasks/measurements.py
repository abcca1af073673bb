"""Results of `inspect` and `trial` tasks: facts about a run's models and parallel plans.

A failed trial is a result too: its parallel plan is ruled out.
"""

from __future__ import annotations

from cerebro.contract.events import TrialsRecalled
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.contract.trials import Cause, Inspection, TrialOutcome
from cerebro.errors import IllegalEventError
from cerebro.state.models import parallel_plans
from cerebro.state.runs.run import Run
from cerebro.state.tasks.task import Task, TaskState


def commit(result: TaskResult, run: Run, task: Task) -> None:
    """Record a committed inspection or trial."""
    if task.key.kind == "inspect":
        run.trials.inspect(result.inspection or Inspection(problem="the worker told nothing"), run.models)
        if run.chooses_stacks:
            run.trials.stacks.since = task.attempts[-1].ended
    elif task.key.group is not None and task.key.parallel_plan is not None:
        outcome = result.trial or TrialOutcome(reason="the worker told nothing", cause="failure")
        run.trials.outcomes[task.key.group, task.key.parallel_plan] = outcome
        parallel_plans.observe_trial(run, task.key.group, task.key.parallel_plan)


def fail(failure: Failure, run: Run, task: Task) -> None:
    """Record a failed inspection or trial, after the task's own update; the run continues."""
    if task.state is not TaskState.FAILED:
        return
    reason = f"its trial came to nothing: {failure.line}"
    if task.key.kind == "inspect":
        run.trials.inspection = Inspection(problem=failure.line)
    elif task.key.group is not None and task.key.parallel_plan is not None:
        run.trials.outcomes[task.key.group, task.key.parallel_plan] = TrialOutcome(
            reason=reason, cause=_cause(failure)
        )
        parallel_plans.observe_trial(run, task.key.group, task.key.parallel_plan)


def _cause(failure: Failure) -> Cause:
    if failure.kind is FailureKind.OUT_OF_MEMORY:
        return "device_memory" if failure.memory_kind == "device" else "host_memory"
    return "not_applicable" if failure.kind is FailureKind.NOT_APPLICABLE else "failure"


def recall(event: TrialsRecalled, run: Run) -> None:
    """Record the outcomes of earlier runs' trials.

    Raises:
        IllegalEventError: the models were not inspected, or a parallel plan is unknown.
    """
    if run.trials.inspection is None:
        raise IllegalEventError(f"TrialsRecalled of {run.id}, whose models nobody has inspected")
    found: dict[tuple[str, str], TrialOutcome] = {}
    for name, outcome in event.outcomes.items():
        group, _, parallel_plan = name.partition("/")
        known = run.trials.inspection.group(group)
        if known is None or known.parallel_plan(parallel_plan) is None:
            raise IllegalEventError(
                f"TrialsRecalled of {run.id} names the parallel plan {name!r}, which is not known"
            )
        found[group, parallel_plan] = outcome.model_copy(update={"is_recalled": True})
    run.trials.outcomes = {**found, **run.trials.outcomes}
    for group, parallel_plan in found:
        parallel_plans.observe_trial(run, group, parallel_plan)
    run.trials.has_recalled = True
