"""Writes docs/state.md from the tables in the code: ``python -m docs.generate_state``.

The platform runs on the tables of `cerebro.state.tasks.task` and `cerebro.state.runs.run`; this script only lists them.
`tests/examples/test_docs.py` fails when the file and the tables differ.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from cerebro.state.models import model
from cerebro.state.runs import run
from cerebro.state.tasks import task

TARGET = Path(__file__).resolve().parent / "state.md"

_Edge = tuple[StrEnum, str, StrEnum]
"""From, event, to."""

_HEAD = """\
# States

Written by `python -m docs.generate_state` from the tables in `cerebro/state/`; a test compares them. Edit those.

State is never stored. It is the fold of an experiment's event log (`ExperimentState.apply`). An event that the tables
do not allow raises `IllegalEventError` and changes nothing. Such an event would mean a bug or a foreign writer,
because the store accepts only steps that fit (`kvs_api/store/steps.lua`).
"""

_TASKS = """
## A task

What a worker executes: a sub-epoch of training (`train`), or an `etl`, `valid`, `test` or `predict` task. Each attempt
has a number; an event of another attempt than the newest is refused.

`TaskFailed` leads back to *pending* in three cases. The failure is worth another attempt (the child process died,
memory ran out, an object store did not answer) and attempts remain. Or the failure was not the task's own: the worker
was asked to end, the disk was full, or the checkpoint that the task should start from is broken, or its base. Or it
rules out the way by which the sub-epoch ran (the technique does not apply to the model, or memory ran out), and another
way is left. Otherwise it leads to *failed*.

`TaskGivenUp` says that no worker has the memory that the task needs ([decision
64](decisions/0064-sub-epochs-out-of-memory.md)).

Two rows are not events of the log. `CheckpointLost`: a task failed because its checkpoint is broken, so the sub-epoch
that wrote the checkpoint is repeated. `PartitionWanted`: a training partition that was made within a run for models
is needed once more.
"""

_RUNS = """
## A run

One call of `run_etl`, `run_fit`, `run_test` or `run_predict`. `RunFinished` ends a run from any open state with the
outcome that the event names, and never while one of its tasks is open.

A user's command that comes too late, such as to resume a run that is neither paused nor stopped, is no error and has
no effect. A stopped run is open again when a user resumes it. Any run that has ended is open again when a user
resumes or retries one of its models: this model goes on, and the models that were active when the run ended are
stopped. A run that failed because no task could have succeeded stays as it is. So does one that cannot go on beside a
run that is open: an experiment preprocesses or trains in one run at a time, and what is tested must not change
([decision 32](decisions/0032-tests-in-parallel-with-fits.md)).
"""

_MODELS = """
## A model of a fit run

A model ends alone. The run goes on with the others, and fails only if all of its models do. A stopped model can still
finish or fail, if its sub-epoch ends before it is revoked; until then, pages call it *stopping*.

Three rows are not events of the log. `LastTaskEnded`: all sub-epochs are committed, and all epochs are validated or
given up. `GivenUp`: one of the model's tasks has failed for good. `LeftOut`: its run had ended, and is open again for
another model alone.
"""


def render() -> str:
    """The text of docs/state.md."""
    task_edges: list[_Edge] = [
        (source, event, target)
        for (source, event), targets in task.TRANSITIONS.items()
        for target in sorted(targets)
    ]
    run_edges: list[_Edge] = [
        (source, event, target)
        for (source, event), targets in run.TRANSITIONS.items()
        for target in _ordered(run.RunState, targets)
    ]
    run_ends = _ordered(run.RunState, run.ENDED_RUN)
    model_edges: list[_Edge] = [
        (source, event, target)
        for (source, event), target in model.TRANSITIONS.items()
        if source is not target
    ]
    model_ends = [model.ModelState.FINISHED]
    parts = [
        _HEAD,
        _TASKS,
        _transitions(task.TaskState.PENDING, task_edges, _ordered(task.TaskState, task.ENDED)),
        _table(task.TaskState),
        _RUNS,
        _transitions(run.RunState.QUEUED, run_edges, run_ends, from_any_other="RunFinished"),
        _table(run.RunState),
        _MODELS,
        _transitions(model.ModelState.ACTIVE, model_edges, model_ends),
        _table(model.ModelState),
    ]
    return "".join(parts)


def _ordered(kind: type[StrEnum], chosen: Iterable[StrEnum]) -> list[StrEnum]:
    wanted = set(chosen)
    return [state for state in kind if state in wanted]


def _transitions(
    start: StrEnum, edges: Iterable[_Edge], ends: Sequence[StrEnum], *, from_any_other: str = ""
) -> str:
    """A table of transitions; events that lead from one state to the same other one share a row.

    Args:
        from_any_other: event that leads from any state to any of `ends`.
    """
    merged: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for source, event, target in edges:
        merged.setdefault((source, target), []).append(event)
    rows = [f"| {source} | {', '.join(events)} | {target} |" for (source, target), events in merged.items()]
    if from_any_other:
        rows.append(f"| any open state | {from_any_other} | {', '.join(ends)} |")
    first = f"The first state is *{start}*; final states are {', '.join(f'*{end}*' for end in ends)}."
    return "\n".join(["", first, "", "| from | event | to |", "|---|---|---|", *rows, ""])


def _table(kind: type[StrEnum]) -> str:
    meanings = _comments(kind)
    rows = [f"| {state} | {meanings[state.name]} |" for state in kind]
    return "\n".join(["", "| state | meaning |", "|---|---|", *rows, ""])


def _comments(kind: type[StrEnum]) -> Mapping[str, str]:
    """Return the source comment of each member."""
    return dict(re.findall(r"^    ([A-Z_]+) = .*?  # (.*)$", inspect.getsource(kind), flags=re.MULTILINE))


if __name__ == "__main__":
    TARGET.write_text(render())
