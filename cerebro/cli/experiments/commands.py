"""``cerebro stop``, ``resume``, ``retry``, ``scheduler``, ``archive``, ``unarchive``, ``restore``, ``delete``.

Each but ``restore`` appends a command to the experiment's log, with the same rules as notebooks and the page
(`cerebro.commands`), and returns at once; only ``delete`` waits, up to 30 s. The controller acts on it: ``cerebro
status EXPERIMENT`` shows the effect. Commands that add or change models are in `model_commands`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from cerebro.cli.administration.scale import cluster_client
from cerebro.errors import ClusterError, ConflictError, UnreadableError

if TYPE_CHECKING:
    from cerebro.contract.events import ClientEvent
    from cerebro.runtime.kvs.client import KvsClient
    from cerebro.state import ExperimentState

_DELETION_TIMEOUT_S = 30.0
"""Seconds to wait for a deletion; a new controller needs five to become leader."""
_POLL_S = 0.2


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """

    def command(name: str, about: str, run: Any) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(name, parents=[common], help=about)
        parser.add_argument("experiment", metavar="EXPERIMENT")
        parser.set_defaults(run=run, action=name)
        return parser

    stop = command("stop", "end a run, or some of its models, and keep committed work", _steer_models)
    resume = command(
        "resume", "continue a paused or stopped run, or some of its stopped models", _steer_models
    )
    retry = command("retry", "continue failed models from their last checkpoints", _steer_models)
    for parser, is_needed in ((stop, False), (resume, False), (retry, True)):
        add_run(parser)
        parser.add_argument(
            "--model",
            action="append",
            default=[],
            required=is_needed,
            metavar="M",
            help="can be repeated",
        )
    scheduler = command("scheduler", "change the scheduling policy for the remaining sub-epochs", _reschedule)
    scheduler.add_argument(
        "name", metavar="NAME", help="lrptw, random, fifo, cyclic, monte-carlo, promising, hermes, slaq or rr"
    )
    scheduler.add_argument(
        "--no-planner",
        dest="planner",
        action="store_false",
        help="turn off the planner, which searches for better orders",
    )
    add_run(scheduler)
    command("archive", "hide an experiment from the default list", _steer)
    command("unarchive", "show an archived experiment in the list again", _steer)
    command("restore", "continue an experiment whose log was unreadable, after an upgrade", _restore)
    delete = command("delete", "delete an experiment with all its data, for good", _delete)
    delete.add_argument("--yes", metavar="NAME", help="its name, instead of typing it when asked")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a run."""
    parser.add_argument(
        "--run",
        metavar="R",
        dest="of_run",
        help="such as fit-1 (default: the open or newest one; to resume, a paused or stopped one)",
    )


def _steer_models(options: argparse.Namespace) -> int:
    options.action += "_model" if options.model else "_run"
    return _steer(options, models=tuple(dict.fromkeys(options.model)), run=options.of_run)


def _reschedule(options: argparse.Namespace) -> int:
    options.action = "set_scheduler"
    return _steer(options, run=options.of_run, scheduler=options.name, planner=options.planner)


def _restore(options: argparse.Namespace) -> int:
    cluster_client(options.home).restore(options.experiment)
    print(
        f"{options.experiment}: its log is read again. `cerebro status {options.experiment}` shows the progress."
    )
    return 0


def _steer(options: argparse.Namespace, **fields: Any) -> int:
    """Append the command, once or for each named model; all or none are appended."""
    from cerebro.commands.rules import DOES, CommandKind

    kvs, kind = cluster_client(options.home), CommandKind(options.action)
    known = read(kvs, options.experiment)
    for event in append(kvs, options.experiment, known, kind=kind, **fields):
        named = (getattr(event, "model", ""), getattr(event, "run", ""), options.experiment)
        print(f"{' of '.join(name for name in named if name)}: requested to {DOES[kind]}.")
    return 0


def _delete(options: argparse.Namespace) -> int:
    from cerebro.commands.rules import CommandKind, allowed

    kvs, name = cluster_client(options.home), options.experiment
    known = state, problem = read(kvs, name)
    if options.yes is None and (problem is not None or CommandKind.DELETE in allowed(state)):
        models = sum(len(run.models) for run in state.runs.values())
        lost = "what its log says, all models" if problem else f"{len(state.runs)} runs, {models} models"
        options.yes = _confirmed_name(name, f"{lost} with their checkpoints, metrics,")
    append(kvs, name, known, kind=CommandKind.DELETE, confirm=options.yes or "")
    _await_end(kvs, name)
    print(f"{name} is deleted.")
    return 0


def read(kvs: KvsClient, name: str) -> tuple[ExperimentState, UnreadableError | None]:
    """Return the readable state of an experiment, and the error that limits it."""
    from cerebro.cli.experiments.status import load_readable
    from cerebro.state import ExperimentState

    try:
        return load_readable(kvs, name)
    except UnreadableError as problem:  # Its record is unreadable.
        return ExperimentState(name=name), problem


def append(
    kvs: KvsClient, name: str, known: tuple[ExperimentState, UnreadableError | None], **fields: Any
) -> tuple[ClientEvent, ...]:
    """Append the command and return its events with their numbers.

    An unreadable experiment can still be archived and deleted.
    """
    from cerebro.client.connection import author
    from cerebro.commands.command import Command
    from cerebro.commands.command_events import event_of_experiment, events_of
    from cerebro.commands.rules import OF_EXPERIMENT

    command, (state, problem) = Command(**fields), known
    if problem is not None and command.kind not in OF_EXPERIMENT:
        raise problem
    by = author()
    events = (event_of_experiment(command, name, by=by),) if problem else events_of(command, state, by=by)
    flags: dict[str, Any] = {"is_unread": True} if problem else {}
    return tuple(event.model_copy(update={"seq": kvs.append(name, event, **flags)}) for event in events)


def _confirmed_name(name: str, lost: str) -> str:
    """Ask for the experiment's name, as confirmation of its deletion.

    Args:
        lost: description of the deleted data.
    """
    if not sys.stdin.isatty():
        raise ConflictError(
            f"nothing was deleted, because no terminal can confirm it. In scripts: cerebro delete {name} --yes {name}"
        )
    print(f"This deletes {name} for good: {lost}")
    print("logs and predictions, and its preprocessed data. It keeps the metadata and objects, and the code,")
    print("which other experiments may use.")
    return input("Type its name to continue: ").strip()


def _await_end(kvs: KvsClient, name: str) -> None:
    deadline = time.monotonic() + _DELETION_TIMEOUT_S
    while any(summary.experiment.name == name and summary.is_deleting for summary in kvs.experiments()):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{name} was not deleted within {_DELETION_TIMEOUT_S:g} s: the controller deletes it "
                "as soon as it runs and can write to the volumes. See `cerebro status` and `cerebro logs controller`"
            )
        time.sleep(_POLL_S)
