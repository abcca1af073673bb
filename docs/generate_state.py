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

`python -m docs.generate_state` writes this page from the tables in `cerebro/state/`. Edit the tables; a test compares
the page with them.

No state is stored. `ExperimentState.apply` computes it from the experiment's event log. It raises `IllegalEventError`
for an event that the tables do not allow, and changes nothing. Such an event means a bug or a foreign writer, because
the store refuses illegal steps (`kvs_api/store/steps.lua`).
"""

_TASKS = """
## A task

A task is a sub-epoch (`train`), or one `etl`, `valid`, `test` or `predict` task. A worker executes it in numbered
attempts. The store refuses events of earlier attempts.

`TaskFailed` leads back to *pending* if a new attempt may succeed:

- The cause may pass (a killed process, lack of memory, an unreachable object store), and attempts remain.
- The task is not to blame: the worker had to end, the disk was full, or the task's checkpoint or frozen-weights file
  is corrupt.
- The parallel plan does not suit the model, or needs more memory than the device has, and the model has other plans.

In all other cases `TaskFailed` leads to *failed*. `TaskGivenUp` ends a task that needs more memory than any worker
has ([decision 64](decisions/0064-sub-epochs-out-of-memory.md)).

The fold derives two events that the log does not contain. After `CheckpointLost`, the sub-epoch that wrote a corrupt
checkpoint runs again. After `PartitionWanted`, a training partition is prepared again for models of the same run.
"""

_RUNS = """
## A run

A run is one call of `run_etl`, `run_fit`, `run_test` or `run_predict`. `RunFinished` ends an open run with the
outcome in the event, after its last task has ended.

Late commands have no effect and cause no error, such as resuming a run that is neither paused nor stopped. A user may
resume a stopped run. A user may also resume or retry a model of an ended run. Then the run opens again for this
model, and models that were active at the run's end become *stopped*.

A failed run stays closed if its failure affects every task. An ended run also stays closed while another open run
would conflict with it: an experiment preprocesses or trains in one run at a time, and models under test must not
change ([decision 32](decisions/0032-tests-in-parallel-with-fits.md)).
"""

_MODELS = """
## A model of a fit run

Each model ends by itself. The other models of the run continue; the run fails only if all models fail. A stopped
model can still finish or fail, if its sub-epoch ends before the controller revokes it. Until then pages show
*stopping*.

The fold derives three events that the log does not contain. `LastTaskEnded`: all sub-epochs are committed, and every
epoch is validated or its validation has failed. `GivenUp`: a task of the model has failed, without further attempts.
`LeftOut`: the ended run opens again for another model only.
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
