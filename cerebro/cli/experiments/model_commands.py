"""``cerebro add``, ``clone``, ``change``, ``extend``, ``prioritize``, ``stop-search``: change a fit and its models.

Hyperparameters are words such as ``lr=0.001`` (`cerebro.commands.values`). Each command waits for its outcome and
prints the ids of new models, or why it came too late.
"""

from __future__ import annotations

import argparse
from typing import Any

from cerebro.cli.administration.scale import cluster_client
from cerebro.cli.experiments.commands import add_run, append, read
from cerebro.commands.values import values_of

_DIGITS = 20
"""Digits of an epoch number: int() refuses more than some thousands."""


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """

    def command(name: str, about: str, run: Any, *, has_model: bool = True) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(name, parents=[common], help=about)
        parser.add_argument("experiment", metavar="EXPERIMENT")
        if has_model:
            parser.add_argument("model", metavar="MODEL", help="such as m03")
        parser.set_defaults(run=run, action=name)
        add_run(parser)
        return parser

    add = command("add", "train one more model in a fit", _add, has_model=False)
    _add_values(add, "hyperparameters of the model, such as lr=0.01 batch_size=32", count="+")
    _add_epochs(add)
    clone = command("clone", "add a copy of a model with some values changed", _clone)
    _add_values(clone, "changed values, such as lr=0.001", count="*")
    clone.add_argument("--warm", action="store_true", help="start from its parent's checkpoint")
    clone.add_argument(
        "--at",
        default="last",
        metavar="WHERE",
        help="checkpoint of a warm clone: last (default), best, or an epoch",
    )
    _add_epochs(clone)
    change = command("change", "change values of a model from its next sub-epoch", _change)
    _add_values(change, "new values, such as lr=0.001", count="+")
    extend = command("extend", "train a model for more epochs, or fewer", _extend)
    extend.add_argument("epochs", metavar="EPOCHS", type=int, help="in all")
    prioritize = command(
        "prioritize", "give a run more of the cluster, or let models go first", _prioritize, has_model=False
    )
    prioritize.add_argument(
        "priority", metavar="PRIORITY", help="low, normal, high, or a number from -9 to 9"
    )
    prioritize.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="M",
        help="a model of the run; can be repeated",
    )
    command("stop-search", "stop a search from adding models", _stop_search, has_model=False)


def _add_values(parser: argparse.ArgumentParser, about: str, *, count: str) -> None:
    parser.add_argument("values", metavar="NAME=VALUE", nargs=count, help=about)


def _add_epochs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, metavar="N", help="epochs in all")


def _add(options: argparse.Namespace) -> int:
    return _steer(
        options, "add_models", configurations=(values_of(options.values),), epochs=options.epochs, models=()
    )


def _clone(options: argparse.Namespace) -> int:
    at = int(options.at) if options.at.isdecimal() and len(options.at) < _DIGITS else options.at
    return _steer(
        options,
        "clone_model",
        hyperparams=values_of(options.values),
        at=at,
        warm=options.warm,
        epochs=options.epochs,
    )


def _change(options: argparse.Namespace) -> int:
    return _steer(options, "change_model", hyperparams=values_of(options.values))


def _extend(options: argparse.Namespace) -> int:
    return _steer(options, "extend_model", epochs=options.epochs)


def _prioritize(options: argparse.Namespace) -> int:
    models = tuple(dict.fromkeys(options.model))
    return _steer(options, "prioritize", models=models, priority=options.priority)


def _stop_search(options: argparse.Namespace) -> int:
    return _steer(options, "stop_search", models=())


def _steer(options: argparse.Namespace, action: str, **fields: Any) -> int:
    """Append the command and print its outcome."""
    from cerebro.client.connection import author
    from cerebro.commands.command import Command
    from cerebro.commands.command_events import outcomes
    from cerebro.commands.rules import CommandKind

    kvs, name = cluster_client(options.home), options.experiment
    models = (options.model,) if hasattr(options, "model") else ()
    command_fields: dict[str, Any] = {
        "kind": CommandKind(action),
        "run": options.of_run,
        "models": models,
        **fields,
    }
    events = append(kvs, name, read(kvs, name), **command_fields)
    state, problem = read(kvs, name)
    if problem is not None:
        raise problem
    for record in outcomes(Command(**command_fields), state, {event.seq for event in events}, by=author()):
        new_models = f": {', '.join(record.added)}" if record.added else ""
        print(f"{record.run} of {name}: {record.what}{new_models}.")
    return 0
