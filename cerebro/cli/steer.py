"""``cerebro stop``, ``resume``, ``retry``, ``scheduler``, ``archive``, ``unarchive``, ``delete``: steer an experiment.

Each appends a command to the experiment's log, through the same store and by the same rules as notebooks and the page
(`cerebro.commands`), and returns at once; ``cerebro status EXPERIMENT`` shows what becomes of it.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from cerebro.cli.scale import cluster_client
from cerebro.errors import ClusterError, ConflictError, NotFoundError, UnreadableError

if TYPE_CHECKING:
    from cerebro.runtime.kvs import KvsClient
    from cerebro.state import ExperimentState

_GONE_S = 30.0
"""A controller hears of a deletion at once; one that takes over waits five seconds for the leadership."""
_LOOK_AGAIN_S = 0.2


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add all of them to the subcommands of ``cerebro``.

    Args:
        common: parser of the options that all commands on a local cluster have.
    """

    def command(name: str, about: str, run: Any) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(name, parents=[common], help=about)
        parser.add_argument("experiment", metavar="EXPERIMENT")
        parser.set_defaults(run=run)
        return parser

    stop = command("stop", "end a run, or single models of it; committed work stays", _stop)
    resume = command("resume", "let a paused or stopped run go on, or stopped models of it", _resume)
    retry = command("retry", "let models that failed go on from their last checkpoints", _retry)
    for parser, is_needed in ((stop, False), (resume, False), (retry, True)):
        _add_run(parser)
        parser.add_argument(
            "--model",
            action="append",
            default=[],
            required=is_needed,
            metavar="M",
            help="may be given several times",
        )
    scheduler = command("scheduler", "dispatch the units that are left by another policy", _scheduler)
    scheduler.add_argument("name", metavar="NAME", help="lrptw, random, fifo, cyclic or monte-carlo")
    scheduler.add_argument(
        "--no-planner",
        dest="planner",
        action="store_false",
        help="do without the planner, which looks for better orders",
    )
    _add_run(scheduler)
    command("archive", "take an experiment out of the list that is shown at first", _archive)
    command("unarchive", "put it back", _unarchive)
    command("restore", "let an experiment go on whose log could not be read, after an upgrade", _restore)
    delete = command("delete", "delete an experiment with all its data, for good", _delete)
    delete.add_argument("--yes", metavar="NAME", help="its name once more, instead of typing it when asked")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run",
        metavar="R",
        dest="of_run",
        help="such as fit-1 (default: the open or newest one; to resume, the one that was paused or stopped)",
    )


def _stop(options: argparse.Namespace) -> int:
    return _steer(options, "stop_model" if options.model else "stop_run")


def _resume(options: argparse.Namespace) -> int:
    return _steer(options, "resume_model" if options.model else "resume_run")


def _retry(options: argparse.Namespace) -> int:
    return _steer(options, "retry_model")


def _scheduler(options: argparse.Namespace) -> int:
    return _steer(options, "set_scheduler", scheduler=options.name, planner=options.planner)


def _archive(options: argparse.Namespace) -> int:
    return _steer(options, "archive")


def _unarchive(options: argparse.Namespace) -> int:
    return _steer(options, "unarchive")


def _restore(options: argparse.Namespace) -> int:
    cluster_client(options.home).restore(options.experiment)
    _say(f"{options.experiment}: its log is read anew; `cerebro status {options.experiment}` shows how far.")
    return 0


def _steer(options: argparse.Namespace, name: str, **fields: Any) -> int:
    """Append the command, or one for each model that is named: all of them, or none."""
    from cerebro.client.session import author
    from cerebro.commands.command import Command, event_of_experiment, events_of
    from cerebro.commands.rules import DOES, OF_EXPERIMENT, Action

    kvs, action = cluster_client(options.home), Action(name)
    models = tuple(dict.fromkeys(getattr(options, "model", [])))
    command = Command(action=action, run=getattr(options, "of_run", None), models=models, **fields)
    if action in OF_EXPERIMENT and _is_unreadable(kvs, options.experiment):
        kvs.append(options.experiment, event_of_experiment(command, options.experiment, by=author()))
        _say(f"{options.experiment}: asked to {DOES[action]}.")
        return 0
    state = _state(kvs, options.experiment)
    for event in events_of(command, state, by=author()):
        kvs.append(state.name, event)
        named = (getattr(event, "model", ""), getattr(event, "run", ""), state.name)
        _say(f"{' of '.join(name for name in named if name)}: asked to {DOES[action]}.")
    return 0


def _delete(options: argparse.Namespace) -> int:
    from cerebro.client.session import author
    from cerebro.commands.command import Command, event_of_experiment, events_of
    from cerebro.commands.rules import Action, allowed

    kvs, name = cluster_client(options.home), options.experiment
    if _is_unreadable(kvs, name):
        options.yes = options.yes or _asked(
            name, "what its log says, all models with their checkpoints, metrics,"
        )
        command = Command(action=Action.DELETE, confirm=options.yes)
        kvs.append(name, event_of_experiment(command, name, by=author()), is_unread=True)
    else:
        state = _state(kvs, name)
        if Action.DELETE in allowed(state) and options.yes is None:
            models = sum(len(run.models) for run in state.runs.values())
            options.yes = _asked(
                name, f"{len(state.runs)} runs, {models} models with their checkpoints, metrics,"
            )
        command = Command(action=Action.DELETE, confirm=options.yes or "")
        for event in events_of(command, state, by=author()):
            kvs.append(name, event)
    _await_end(kvs, name)
    _say(f"{name} is deleted.")
    return 0


def _is_unreadable(kvs: KvsClient, name: str) -> bool:
    """Whether the record or the log cannot be read. Then there is no state to decide by what may be asked for."""
    from cerebro.cli.status import load_readable

    try:
        return load_readable(kvs, name)[1] is not None
    except UnreadableError:
        return True
    except NotFoundError:
        return False


def _asked(name: str, lost: str) -> str:
    """The name as somebody at the terminal types it; nothing else is taken for a confirmation.

    Args:
        lost: what is deleted, as the end of a line.
    """
    if not sys.stdin.isatty():
        raise ConflictError(
            f"nothing was deleted: nobody is there to confirm it. In scripts: cerebro delete {name} --yes {name}"
        )
    _say(f"This deletes {name} for good: {lost}")
    _say("logs and predictions, and its preprocessed data. Its metadata and objects stay where they")
    _say("are, and so does its code, which other experiments may run.")
    return input("Type its name to go on: ").strip()


def _await_end(kvs: KvsClient, name: str) -> None:
    deadline = time.monotonic() + _GONE_S
    while any(summary.experiment.name == name and summary.is_deleting for summary in kvs.experiments()):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{name} has not been deleted after {_GONE_S:g} s: the controller deletes it as soon as it runs and "
                "can "
                "write to the volumes. See `cerebro status` and `cerebro logs controller`"
            )
        time.sleep(_LOOK_AGAIN_S)


def _state(kvs: KvsClient, name: str) -> ExperimentState:
    from cerebro.cli.status import load

    try:
        return load(kvs, name)
    except NotFoundError as error:
        known = ", ".join(summary.experiment.name for summary in kvs.experiments()[:5]) or "none yet"
        raise NotFoundError(f"no experiment {name!r}; the newest are: {known}") from error


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
