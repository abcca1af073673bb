"""Writes docs/state.md from the tables in the code: ``python -m docs.generate_state``.

The tables of `cerebro.state.tasks` and `cerebro.state.runs` are what the platform runs on; this only draws them.
`tests/examples/test_docs.py` fails when the file and the tables differ.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from cerebro.state import models, runs, tasks

TARGET = Path(__file__).resolve().parent / "state.md"

_Edge = tuple[StrEnum, str, StrEnum]
"""From, event, to."""

_HEAD = """\
# States

Written by `python -m docs.generate_state` from the tables in `cerebro/state/`; a test compares them. Edit those.

State is never stored: it is the fold of an experiment's event log (`ExperimentState.apply`). An event that the tables
do not allow raises `IllegalEventError` and changes nothing; it would mean a bug or a foreign writer, because the store
lets only those steps through that fit (`kvs_api/steps.lua`).
"""

_TASKS = """
## A task

What a worker executes: a unit of training (`train`), or an `etl`, `valid`, `test` or `predict` task. Each attempt has a
number; an event of another attempt than the newest is refused.

`TaskFailed` leads back to *pending* while the failure is worth another attempt (the child process died, memory ran
out, an object store did not answer) and attempts remain, or when it was not the task's own (the worker was asked to
end, the disk was full, the checkpoint it should start from is broken); to *failed* otherwise. `CheckpointLost` is no
event of the log: it is what a `TaskFailed` with a broken checkpoint means to the unit that had written it, which is
done again. `PartitionWanted` is none either: a training partition that was made within a run for models may be wanted
once more.
"""

_RUNS = """
## A run

One call of `run_etl`, `run_fit`, `run_test` or `run_predict`. `RunFinished` ends a run from any open state with the
outcome that the event names, and never while one of its tasks is open.

What users ask for is a wish. One that comes too late (to resume a run that is not paused or stopped, say) is no error
and has no effect. A run that has ended is open again when a user resumes it, if it had been stopped, or resumes or
retries one of its models: then this model goes on, and those that were active when the run ended are stopped. A run
that failed because no task could have succeeded stays as it is.
"""

_MODELS = """
## A model of a fit run

It ends alone; the run goes on with the others and fails only if all of its models do. Three of the arrows are no
events of the log: `LastTaskEnded` (all units are committed, all epochs validated or given up), `GivenUp` (one of its
tasks has failed for good) and `LeftOut` (its run had ended, and is open again for another model alone). A stopped model
can finish or fail, if its unit ends before it could be taken back; until then it is *stopping*, in words.
"""


def render() -> str:
    """The text of docs/state.md."""
    task_edges: list[_Edge] = [
        (source, event, target)
        for (source, event), targets in tasks.TRANSITIONS.items()
        for target in sorted(targets)
    ]
    run_edges: list[_Edge] = [
        (source, event, target)
        for (source, event), targets in runs.TRANSITIONS.items()
        for target in _ordered(runs.RunState, targets)
    ]
    run_ends = _ordered(runs.RunState, runs.ENDED_RUN)
    model_edges: list[_Edge] = [
        (source, event, target)
        for (source, event), target in models.TRANSITIONS.items()
        if source is not target
    ]
    model_ends = [models.ModelState.FINISHED]
    parts = [
        _HEAD,
        _TASKS,
        _diagram(tasks.TaskState.PENDING, task_edges, _ordered(tasks.TaskState, tasks.ENDED)),
        _table(tasks.TaskState),
        _RUNS,
        _diagram(runs.RunState.QUEUED, run_edges, run_ends, from_any_other="RunFinished"),
        _table(runs.RunState),
        _MODELS,
        _diagram(models.ModelState.ACTIVE, model_edges, model_ends),
        _table(models.ModelState),
    ]
    return "".join(parts)


def _ordered(kind: type[StrEnum], chosen: Iterable[StrEnum]) -> list[StrEnum]:
    wanted = set(chosen)
    return [state for state in kind if state in wanted]


def _diagram(
    start: StrEnum, edges: Iterable[_Edge], ends: Sequence[StrEnum], *, from_any_other: str = ""
) -> str:
    """A mermaid diagram; events that lead from one state to the same other one share an arrow.

    Args:
        from_any_other: event that leads from any state to any of `ends`.
    """
    arrows: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for source, event, target in edges:
        arrows.setdefault((source, target), []).append(event)
    lines = [f"    [*] --> {start}"]
    lines += [
        f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in arrows.items()
    ]
    if from_any_other:
        reopening = [line for line in lines if line.split()[0] in {*ends}]
        inside = [line for line in lines if line not in reopening]
        lines = ["    state open {", *(f"    {line}" for line in inside), "    }", *reopening]
        lines += [f"    open --> {end}: {from_any_other}" for end in ends]
    lines += [f"    {end} --> [*]" for end in ends]
    return "\n".join(["", "```mermaid", "stateDiagram-v2", *lines, "```", ""])


def _table(kind: type[StrEnum]) -> str:
    meanings = _comments(kind)
    rows = [f"| {state} | {meanings[state.name]} |" for state in kind]
    return "\n".join(["", "| state | meaning |", "|---|---|", *rows, ""])


def _comments(kind: type[StrEnum]) -> Mapping[str, str]:
    """Member -> the comment beside it in the source."""
    return dict(re.findall(r"^    ([A-Z_]+) = .*?  # (.*)$", inspect.getsource(kind), flags=re.MULTILINE))


if __name__ == "__main__":
    TARGET.write_text(render())
