"""``cerebro register``, ``models``, ``alias``: register a model, list registered models, move an alias.

``register`` waits until the controller has copied the model's files. The registry itself is in the store
(`kvs_api.store.registry`); `cerebro.client.models.registry` registers and loads models in notebooks.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from cerebro.cli.administration.scale import cluster_client
from cerebro.cli.text import moment, table

if TYPE_CHECKING:
    from cerebro.contract.stored.registry import ModelVersion, RegisteredModel


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``register``, ``models`` and ``alias`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """
    new = commands.add_parser(
        "register",
        parents=[common],
        help="register a model under a name, as a version that outlives its experiment",
    )
    new.add_argument("experiment", metavar="EXPERIMENT")
    new.add_argument("name", metavar="NAME", help="name of the registered model, such as digits")
    new.add_argument(
        "--model",
        metavar="M",
        help="such as m03 (default: the best model of all fits with the same metric and data set)",
    )
    new.add_argument(
        "--run", metavar="R", dest="of_run", help="such as fit-1 (default with --model: the newest fit)"
    )
    new.add_argument("--epoch", metavar="N", type=int, help="a completed epoch (default: the best one)")
    new.add_argument("--alias", metavar="A", help="alias for this version, such as champion")
    new.set_defaults(run=_register)
    models = commands.add_parser(
        "models", parents=[common], help="list registered models, or the versions of one"
    )
    models.add_argument("name", metavar="NAME", nargs="?")
    models.add_argument("--json", action="store_true", help="JSON, for programs")
    models.set_defaults(run=_models)
    alias = commands.add_parser("alias", parents=[common], help="move an alias to another version of a model")
    alias.add_argument("name", metavar="NAME")
    alias.add_argument("alias", metavar="ALIAS", help="such as champion")
    alias.add_argument("version", metavar="VERSION", help="such as 3, or none to remove the alias")
    alias.set_defaults(run=_alias)


def _register(options: argparse.Namespace) -> int:
    from cerebro.client.connection import connect
    from cerebro.client.experiment import Experiment
    from cerebro.client.models.registry import check_alias, check_name
    from cerebro.client.session import Session

    connection = connect(home=options.home, start=False)
    experiment = Experiment.__new__(Experiment)
    experiment._session = Session(connection, connection.kvs.experiment(options.experiment))
    check_name(options.name)
    if options.alias is not None:
        check_alias(options.alias)
    source = experiment._registration(options.model, fit=options.of_run, epoch=options.epoch)
    value = f", {source.metric} {source.value:.6g}" if source.value is not None else ""
    _say(f"Registers {source.model} of {source.run} of {source.experiment}, epoch {source.epoch}{value}.")
    version = experiment._register(options.name, source, alias=options.alias)
    alias = f" and {version.name}@{options.alias}" if options.alias else ""
    _say(
        f"{version.id} of {version.run} of {version.experiment}, epoch {version.epoch}, "
        f"is {version.name}/{version.version}{alias}."
    )
    return 0


def _models(options: argparse.Namespace) -> int:
    from cerebro.client.models.registry import check_name

    kvs = cluster_client(options.home)
    if options.name:
        check_name(options.name)
        models: tuple[RegisteredModel, ...] = (kvs.registered_model(options.name),)
    else:
        models = kvs.registry()
    if options.json:
        _say(json.dumps([model.model_dump(mode="json") for model in models], indent=2))
        return 0
    if not models:
        _say("No model is registered: register the best one with `cerebro register EXPERIMENT NAME`.")
        return 0
    for line in lines(models, with_all=bool(options.name)):
        _say(line)
    return 0


def lines(models: tuple[RegisteredModel, ...], *, with_all: bool) -> list[str]:
    """Format a table of each model's newest version and versions with an alias; `with_all` shows all versions."""
    rows = []
    for model in models:
        shown = [
            version
            for version in reversed(model.versions)
            if with_all or version is model.versions[-1] or model.aliases_of(version.version)
        ]
        rows += [_row(version, model) for version in shown]
    columns = ("VERSION", "ALIASES", "METRIC", "FROM", "EPOCH", "REGISTERED", "BY", "STATE")
    reasons = [each.reason for model in models for each in model.unreadable]
    return [*table(columns, rows), *reasons]


def _row(version: ModelVersion, model: RegisteredModel) -> tuple[str, ...]:
    source = version.source
    value = "" if source.value is None else f"{source.metric} {source.value:.6g}"
    return (
        f"{version.name}/{version.version}",
        ", ".join(model.aliases_of(version.version)),
        value,
        f"{source.experiment}/{source.run}/{source.model}",
        str(source.epoch),
        moment(version.created),
        source.author,
        f"failed: {version.error}" if version.error else version.state,
    )


def _alias(options: argparse.Namespace) -> int:
    from cerebro.client.models.registry import check_alias, check_name
    from cerebro.contract.stored.registry import AliasRequest
    from cerebro.errors import BadRequestError

    check_name(options.name)
    check_alias(options.alias)
    if options.version != "none" and not (options.version.isdecimal() and int(options.version)):
        raise BadRequestError(
            f"{options.version!r} is not a version: expected a number such as 3, or none to remove the alias"
        )
    number = None if options.version == "none" else int(options.version)
    cluster_client(options.home).move_alias(options.name, AliasRequest(alias=options.alias, version=number))
    _say(f"{options.name}@{options.alias} is {f'{options.name}/{number}' if number else 'removed'}.")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
