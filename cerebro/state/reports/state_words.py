"""One word per state, shared by page, notebooks and command line.

Words: new, queued, starting, running, paused, stopping, stopped, finished, ended, failed, lost, idle, silent,
    unreadable. Templates give each an icon and a colour; the word is always there too. A fit with failed
    or stopped models *ended* instead of *finished*; models that its search stopped early do not count.
"""

from __future__ import annotations

from typing import NamedTuple

from cerebro.state.experiment import ExperimentState
from cerebro.state.models.model import Model, ModelState
from cerebro.state.runs.run import Run, RunState
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.tasks.task import Task, TaskState

IN_PROGRESS = frozenset({"queued", "starting", "running", "paused", "stopping"})


class ModelEnds(NamedTuple):
    """Counts of a fit's models by the way they ended."""

    trained: int = 0
    early: int = 0
    """The search stopped them."""
    stopped: int = 0
    """A user stopped them."""
    failed: int = 0


def experiment(state: ExperimentState) -> str:
    """The state of `shown_run`."""
    shown = shown_run(state)
    return run(shown) if shown else "new"


def shown_run(state: ExperimentState) -> Run | None:
    """Return the run in progress, else the newest fit, else the newest run."""
    runs = list(state.runs.values())
    fits = [each for each in runs if each.kind == "fit"]
    return state.active_run() or next(reversed(fits or runs), None)


def failed_since(state: ExperimentState) -> str:
    """The newest failed run after `shown_run`, with its error, or an empty text."""
    shown = shown_run(state)
    for each in reversed(state.runs.values()):
        if each is shown:
            break
        if each.state is RunState.FAILED:
            return f"{each.id} failed: {each.failures.error}"
    return ""


def run(value: Run) -> str:
    """The word for a run: `starting` before its first task, `ended` instead of `finished` with lost models."""
    if value.state is RunState.RUNNING and value.tasks.is_fresh:
        return "starting"
    if value.state is RunState.FINISHED and value.models:
        ends = model_ends(value)
        return "ended" if ends.failed or ends.stopped else "finished"
    return value.state.value


def model_ends(value: Run) -> ModelEnds:
    """Count the models of a fit that are trained no further."""
    verdicts = value.search.verdicts if value.search is not None else {}
    early = stopped = failed = trained = 0
    for each in value.models.values():
        if each.state is ModelState.FAILED:
            failed += 1
        elif each.id in verdicts and each.state is not ModelState.ACTIVE:
            early += 1
        elif each.state is ModelState.STOPPED:
            stopped += 1
        elif each.state is ModelState.FINISHED and not value.waits_at_rung(each):
            trained += 1
    return ModelEnds(trained, early, stopped, failed)


def shortfall(value: Run) -> str:
    """Count the incomplete models of an ended fit. Return an empty text for zero."""
    if value.is_open or not value.models:
        return ""
    ends = model_ends(value)
    outcomes = ((ends.failed, "failed"), (ends.stopped, "stopped"), (ends.early, "stopped by the search"))
    counts = [(count, word) for count, word in outcomes if count]
    if not counts:
        return ""
    (first, outcome), *more_counts = counts
    rest = (f", {count:,} {word}" for count, word in more_counts)
    return f"{first:,} of {_counted(len(value.models), 'model')} {outcome}{''.join(rest)}"


def incomplete(value: Run) -> str:
    """Describe the missing partitions of an ended ETL run. Return an empty text for zero."""
    tasks = value.tasks.by_key
    missing_partitions = sum(task.state is not TaskState.COMMITTED for task in tasks.values())
    if value.is_open or value.kind != "etl" or not missing_partitions:
        return ""
    rest = "more of their rows may fail"
    return (
        f"{value.id} ended before {missing_partitions} of its {len(tasks)} partitions were complete: {rest}."
    )


def model(value: Model, owner: Run) -> str:
    """The word for a model within its run."""
    if value.state is ModelState.STOPPED and value.busy:
        return "stopping"
    if value.state is ModelState.FINISHED and owner.search is not None:
        return _at_rung(value, owner)
    if value.state is not ModelState.ACTIVE:
        return value.state.value
    if not owner.is_open:
        return "stopped"
    if owner.state in (RunState.PAUSED, RunState.STOPPING):
        return owner.state.value
    return "running" if is_at_work(value, owner) else "queued"


def _at_rung(value: Model, owner: Run) -> str:
    """The word for a model that has used its resource."""
    if owner.search is not None and value.id in owner.search.verdicts:
        return "stopped"
    may_go_on = not owner.has_known_end and value.epochs < owner.fit_request.epochs
    return "paused" if may_go_on else "finished"


def trained(value: Run, epochs: int | None = None) -> str:
    """Describe the progress of a fit that may get more models.

    Numbers, because a share of an unknown total means nothing.

    Args:
        epochs: sum of `Model.own_epochs`, if the caller has it.
    """
    if epochs is None:
        epochs = sum(model.own_epochs for model in value.models.values())
    return f"{_counted(len(value.models), 'model')}, {_counted(epochs, 'epoch')} trained"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def is_at_work(value: Model, owner: Run) -> bool:
    """Return True if the model's sub-epoch runs on a worker now."""
    task = owner.tasks.by_key.get(value.busy) if value.busy else None
    return task is not None and task.state is TaskState.RUNNING


def attempt(value: Task, there: int = 1) -> str:
    """Describe an open attempt with its parallel plan and devices.

    Devices are shown if the worker has several (`there`)."""
    where = on_devices(value.attempts[-1].devices, there)
    return f"{by_parallel_plan(value)} ({where})" if where else by_parallel_plan(value)


def by_parallel_plan(value: Task) -> str:
    """Describe an open attempt with its parallel plan, if any."""
    parallel_plan = value.attempts[-1].parallel_plan
    return f"{task(value.key)} by {parallel_plan.label}" if parallel_plan else task(value.key)


def on_devices(taken: tuple[int, ...], there: int) -> str:
    """Return ``device 1`` or ``devices 0, 1``; empty for one-device workers and for tasks without devices."""
    if not taken or max(there, len(taken)) < 2:
        return ""
    return f"device{'' if len(taken) == 1 else 's'} {', '.join(map(str, taken))}"


def task(key: TaskKey) -> str:
    """Describe a task."""
    numbers = " and ".join(map(str, key.partitions))
    where = f"{'partitions' if key.other_partitions else 'partition'} {numbers}" if numbers else ""
    if key.kind == "etl":
        return f"preprocesses {key.split}, {where}"
    if key.kind == "fitting":
        return "fits statistics of the training rows"
    if key.kind == "train":
        return f"trains {key.model}, epoch {key.epoch}, {where}"
    if key.kind == "verify":
        return f"verifies {key.model}, epoch {key.epoch}, {where}"
    if key.kind == "valid":
        return f"validates {key.model}, epoch {key.epoch}{', ' + where if where else ''}"
    if key.kind == "test":
        return f"tests {key.model}, {where}" if where else f"tests {key.model}"
    if key.kind == "inspect":
        return "inspects the models"
    if key.kind == "trial":
        return f"tries {key.parallel_plan} with the models of {key.group}"
    if key.kind == "search":
        is_for_sampler = (key.request or "").startswith("suggestions")
        return "suggests values for the search" if is_for_sampler else "runs the search procedure"
    return f"predicts with {key.model}, {where}"
