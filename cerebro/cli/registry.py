"""``cerebro register``, ``models``, ``alias``: registered models."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cerebro.cli.scale import cluster_client
from cerebro.cli.text import table

if TYPE_CHECKING:
    from cerebro.contract.registry import ModelVersion, RegisteredModel


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add them to the subcommands of ``cerebro``.

    Args:
        common: parser of the options that all commands on a local cluster have.
    """
    new = commands.add_parser(
        "register",
        parents=[common],
        help="keep a model under a name, as a new version that outlives its experiment",
    )
    new.add_argument("experiment", metavar="EXPERIMENT")
    new.add_argument("name", metavar="NAME", help="to register it as, such as digits")
    new.add_argument(
        "--model",
        metavar="M",
        help="such as m03 (default: the best of all fits with one metric and data set)",
    )
    new.add_argument(
        "--run", metavar="R", dest="of_run", help="such as fit-1 (default: of --model the newest fit)"
    )
    new.add_argument("--epoch", metavar="N", type=int, help="a completed epoch (default: the best)")
    new.add_argument("--alias", metavar="A", help="to mean this version from now on, such as champion")
    new.set_defaults(run=_register)
    models = commands.add_parser(
        "models", parents=[common], help="list registered models, or versions of one"
    )
    models.add_argument("name", metavar="NAME", nargs="?")
    models.add_argument("--json", action="store_true", help="all that is known, for programs")
    models.set_defaults(run=_models)
    alias = commands.add_parser(
        "alias", parents=[common], help="have an alias mean another version of a model"
    )
    alias.add_argument("name", metavar="NAME")
    alias.add_argument("alias", metavar="ALIAS", help="such as champion")
    alias.add_argument("version", metavar="VERSION", help="such as 3; or none, to take the alias away")
    alias.set_defaults(run=_alias)


def _register(options: argparse.Namespace) -> int:
    from cerebro.client.connection import connect
    from cerebro.client.experiment import Experiment
    from cerebro.client.registry import check_alias, check_name
    from cerebro.client.session import Session

    connection = connect(home=options.home, start=False)
    experiment = Experiment.__new__(Experiment)
    experiment._session = Session(connection, connection.kvs.experiment(options.experiment))
    check_name(options.name)
    if options.alias is not None:
        check_alias(options.alias)
    asked = experiment._registration(options.model, fit=options.of_run, epoch=options.epoch)
    value = f", {asked.metric} {asked.value:.6g}" if asked.value is not None else ""
    _say(f"Registers {asked.model} of {asked.run} of {asked.experiment}, epoch {asked.epoch}{value}.")
    made = experiment._register(options.name, asked, alias=options.alias)
    also = f" and {made.name}@{options.alias}" if options.alias else ""
    _say(
        f"{made.id} of {made.run} of {made.experiment}, epoch {made.epoch}, is {made.name}/{made.version}{also}."
    )
    return 0


def _models(options: argparse.Namespace) -> int:
    from cerebro.client.registry import check_name

    kvs = cluster_client(options.home)
    if options.name:
        check_name(options.name)
        models: tuple[RegisteredModel, ...] = (kvs.registered_model(options.name),)
    else:
        models = kvs.registry()
    if options.json:
        _say(json.dumps([model.model_dump(mode="json") for model in models], indent=1))
        return 0
    if not models:
        _say(
            "No model is registered: `cerebro register EXPERIMENT NAME` registers the best one of an experiment."
        )
        return 0
    for line in lines(models, with_all=bool(options.name)):
        _say(line)
    return 0


def lines(models: tuple[RegisteredModel, ...], *, with_all: bool) -> list[str]:
    """A table: of each model its newest version and those that have an alias, or all."""
    rows = []
    for model in models:
        shown = [
            version
            for version in reversed(model.versions)
            if with_all or version is model.versions[-1] or model.aliases_of(version.version)
        ]
        rows += [_row(version, model) for version in shown]
    columns = ("version", "aliases", "metric", "from", "epoch", "registered", "by", "state")
    reasons = [each.reason for model in models for each in model.unreadable]
    return [*(table(columns, rows, indent="") if rows else ()), *reasons]


def _row(version: ModelVersion, model: RegisteredModel) -> tuple[str, ...]:
    source = version.source
    value = "" if source.value is None else f"{source.metric} {source.value:.6g}"
    return (
        f"{version.name}/{version.version}",
        ", ".join(model.aliases_of(version.version)),
        value,
        f"{source.experiment}/{source.run}/{source.model}",
        str(source.epoch),
        datetime.fromtimestamp(version.created, UTC).strftime("%Y-%m-%d %H:%M"),
        source.author,
        f"failed: {version.error}" if version.error else version.state,
    )


def _alias(options: argparse.Namespace) -> int:
    from cerebro.client.registry import check_alias, check_name
    from cerebro.contract.registry import AliasRequest
    from cerebro.errors import BadRequestError

    check_name(options.name)
    check_alias(options.alias)
    if options.version != "none" and not (options.version.isdecimal() and int(options.version)):
        raise BadRequestError(
            f"{options.version!r} is no version: expected a number such as 3, or none to take the alias away"
        )
    number = None if options.version == "none" else int(options.version)
    cluster_client(options.home).move_alias(options.name, AliasRequest(alias=options.alias, version=number))
    _say(f"{options.name}@{options.alias} is {f'{options.name}/{number}' if number else 'nothing now'}.")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
