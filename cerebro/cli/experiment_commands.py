"""``cerebro stop``, ``resume``, ``retry``, ``scheduler``, ``archive``, ...: steer an experiment.

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
    from cerebro.contract.events import ClientEvent
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
        parser.set_defaults(run=run, action=name)
        return parser

    stop = command("stop", "end a run, or single models of it; committed work stays", _steer_models)
    resume = command("resume", "let a paused or stopped run go on, or stopped models of it", _steer_models)
    retry = command("retry", "let models that failed go on from their last checkpoints", _steer_models)
    for parser, is_needed in ((stop, False), (resume, False), (retry, True)):
        add_run(parser)
        parser.add_argument(
            "--model",
            action="append",
            default=[],
            required=is_needed,
            metavar="M",
            help="may be given several times",
        )
    scheduler = command("scheduler", "dispatch the sub-epochs that are left by another policy", _reschedule)
    scheduler.add_argument(
        "name", metavar="NAME", help="lrptw, random, fifo, cyclic, monte-carlo, promising, hermes, slaq or rr"
    )
    scheduler.add_argument(
        "--no-planner",
        dest="planner",
        action="store_false",
        help="do without the planner, which looks for better orders",
    )
    add_run(scheduler)
    command("archive", "take an experiment out of the list that is shown at first", _steer)
    command("unarchive", "put it back", _steer)
    command("restore", "let an experiment go on whose log could not be read, after an upgrade", _restore)
    delete = command("delete", "delete an experiment with all its data, for good", _delete)
    delete.add_argument("--yes", metavar="NAME", help="its name once more, instead of typing it when asked")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a run."""
    parser.add_argument(
        "--run",
        metavar="R",
        dest="of_run",
        help="such as fit-1 (default: the open or newest one; to resume, the one that was paused or stopped)",
    )


def _steer_models(options: argparse.Namespace) -> int:
    options.action += "_model" if options.model else "_run"
    return _steer(options, models=tuple(dict.fromkeys(options.model)), run=options.of_run)


def _reschedule(options: argparse.Namespace) -> int:
    options.action = "set_scheduler"
    return _steer(options, run=options.of_run, scheduler=options.name, planner=options.planner)


def _restore(options: argparse.Namespace) -> int:
    cluster_client(options.home).restore(options.experiment)
    print(f"{options.experiment}: its log is read anew; `cerebro status {options.experiment}` shows how far.")
    return 0


def _steer(options: argparse.Namespace, **fields: Any) -> int:
    """Append the command, or one for each model that is named: all of them, or none."""
    from cerebro.commands.rules import DOES, CommandKind

    kvs, kind = cluster_client(options.home), CommandKind(options.action)
    known = read(kvs, options.experiment)
    for event in append(kvs, options.experiment, known, kind=kind, **fields):
        named = (getattr(event, "model", ""), getattr(event, "run", ""), options.experiment)
        print(f"{' of '.join(name for name in named if name)}: asked to {DOES[kind]}.")
    return 0


def _delete(options: argparse.Namespace) -> int:
    from cerebro.commands.rules import CommandKind, allowed

    kvs, name = cluster_client(options.home), options.experiment
    known = state, problem = read(kvs, name)
    if options.yes is None and (problem is not None or CommandKind.DELETE in allowed(state)):
        models = sum(len(run.models) for run in state.runs.values())
        lost = "what its log says, all models" if problem else f"{len(state.runs)} runs, {models} models"
        options.yes = _asked(name, f"{lost} with their checkpoints, metrics,")
    append(kvs, name, known, kind=CommandKind.DELETE, confirm=options.yes or "")
    _await_end(kvs, name)
    print(f"{name} is deleted.")
    return 0


def read(kvs: KvsClient, name: str) -> tuple[ExperimentState, UnreadableError | None]:
    """What is known of an experiment, and why no more."""
    from cerebro.cli.experiment_status import load_readable
    from cerebro.state import ExperimentState

    try:
        return load_readable(kvs, name)
    except UnreadableError as problem:  # not even its record
        return ExperimentState(name=name), problem
    except NotFoundError as error:
        newest = ", ".join(summary.experiment.name for summary in kvs.experiments()[:5]) or "none yet"
        raise NotFoundError(f"no experiment {name!r}; the newest are: {newest}") from error


def append(
    kvs: KvsClient, name: str, known: tuple[ExperimentState, UnreadableError | None], **fields: Any
) -> tuple[ClientEvent, ...]:
    """Append the command of these fields; its events, with their numbers. What cannot be read can still be archived and
    deleted as a whole."""
    from cerebro.client.session import author
    from cerebro.commands.command import Command, event_of_experiment, events_of
    from cerebro.commands.rules import OF_EXPERIMENT

    command, (state, problem) = Command(**fields), known
    if problem is not None and command.kind not in OF_EXPERIMENT:
        raise problem
    by = author()
    events = (event_of_experiment(command, name, by=by),) if problem else events_of(command, state, by=by)
    flags: dict[str, Any] = {"is_unread": True} if problem else {}
    return tuple(event.model_copy(update={"seq": kvs.append(name, event, **flags)}) for event in events)


def _asked(name: str, lost: str) -> str:
    """The name as somebody at the terminal types it; nothing else is taken for a confirmation.

    Args:
        lost: what is deleted, as the end of a line.
    """
    if not sys.stdin.isatty():
        raise ConflictError(
            f"nothing was deleted: nobody is there to confirm it. In scripts: cerebro delete {name} --yes {name}"
        )
    print(f"This deletes {name} for good: {lost}")
    print("logs and predictions, and its preprocessed data. Its metadata and objects stay where they")
    print("are, and so does its code, which other experiments may run.")
    return input("Type its name to go on: ").strip()


def _await_end(kvs: KvsClient, name: str) -> None:
    deadline = time.monotonic() + _GONE_S
    while any(summary.experiment.name == name and summary.is_deleting for summary in kvs.experiments()):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{name} has not been deleted after {_GONE_S:g} s: the controller deletes it as soon as it runs and "
                "can write to the volumes. See `cerebro status` and `cerebro logs controller`"
            )
        time.sleep(_LOOK_AGAIN_S)
