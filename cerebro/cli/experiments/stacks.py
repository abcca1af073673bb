"""``cerebro stacks EXPERIMENT MODEL``: print the Python stack of the processes that train a model.

Finds the model's running tasks in the log and requests their stacks through the store (`kvs_api.store.stack_requests`).
The processes continue.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cerebro.cli.administration.scale import cluster_client
from cerebro.cli.experiments.commands import read
from cerebro.contract.texts import did_you_mean
from cerebro.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from cerebro.state import ExperimentState


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``stacks`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """
    parser = commands.add_parser(
        "stacks", parents=[common], help="show the stack of the process that trains a model"
    )
    parser.add_argument("experiment", metavar="EXPERIMENT")
    parser.add_argument("model", metavar="MODEL", help="such as m03")
    parser.add_argument("--run", metavar="R", dest="of_run", help="such as fit-1 (default: all open runs)")
    parser.set_defaults(run=_stacks)


def _stacks(options: argparse.Namespace) -> int:
    from cerebro.runtime.kvs.stack_requests import stacks_of

    kvs, name = cluster_client(options.home), options.experiment
    state, problem = read(kvs, name)
    if problem is not None:
        raise problem
    ended: ConflictError | None = None
    has_printed = False
    for task in running(state, options.model, options.of_run or ""):
        try:
            request, text = stacks_of(kvs, name, task)
        except ConflictError as error:  # it has ended since the log was read
            ended = error
            continue
        print(f"{task}, attempt {request.attempt} on {request.worker}:\n{text}")
        has_printed = True
    if ended is not None and not has_printed:
        raise ConflictError(f"{ended}: try again while {options.model} trains")
    return 0


def running(state: ExperimentState, model: str, run: str = "") -> list[str]:
    """Return the keys of a model's running tasks, in all runs or in one.

    Raises:
        NotFoundError: the run or the model does not exist.
        ConflictError: the model has no running task.
    """
    from cerebro.state import TaskState
    from cerebro.state.reports import state_words

    if run and run not in state.runs:
        raise NotFoundError(f"{state.name} has no run {run!r}; it has {', '.join(state.runs) or 'none'}")
    runs = [each for each in state.runs.values() if run in ("", each.id)]
    with_model = [each for each in runs if model in each.models]
    if not with_model:
        known = [name for each in reversed(runs) for name in each.models]
        shown = f"; there are {', '.join(known[:5]) or 'none yet'}"
        raise NotFoundError(f"no model {model!r} in {run or state.name}{did_you_mean(model, known) or shown}")
    open_tasks = [task for each in runs for task in each.tasks.open.values() if task.key.model == model]
    found = [str(task.key) for task in open_tasks if task.state is TaskState.RUNNING]
    if not found:
        newest = with_model[-1]
        state_word = state_words.model(newest.models[model], newest)
        raise ConflictError(
            f"{model} of {newest.id} is not running, it is {state_word}: try again while it trains"
        )
    return found
