"""``cerebro tag``: list, set or delete tags of an experiment or a model. The tag ``note`` is free text."""

from __future__ import annotations

import argparse
import json
from typing import Any

from cerebro.cli.administration.scale import cluster_client
from cerebro.cli.experiments.commands import add_run, read
from cerebro.errors import BadRequestError


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``tag`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """
    tag = commands.add_parser(
        "tag", parents=[common], help="list, set or delete tags of an experiment or a model"
    )
    tag.add_argument("experiment", metavar="EXPERIMENT")
    tag.add_argument(
        "tags",
        metavar="KEY=VALUE",
        nargs="*",
        help="tags to set (default: list them); note=TEXT sets the note",
    )
    tag.add_argument("--delete", metavar="KEY", action="append", default=[], help="can be repeated")
    tag.add_argument("--model", metavar="M", default="", help="such as m03 (default: the experiment)")
    tag.add_argument("--json", action="store_true", help="JSON, for programs")
    add_run(tag)
    tag.set_defaults(run=_tag)


def _tag(options: argparse.Namespace) -> int:
    from cerebro.client.connection import author
    from cerebro.commands.selection import chosen_fit, find_model
    from cerebro.commands.tags import tags_event
    from cerebro.contract.tags import changed_tags

    kvs = cluster_client(options.home)
    state, problem = read(kvs, options.experiment)
    if problem is not None:
        raise problem
    changes: dict[str, str | None] = dict.fromkeys(options.delete)
    for word in options.tags:
        key, sign, value = word.partition("=")
        if not sign:
            raise BadRequestError(f"{word!r} is not a tag: expected KEY=VALUE, such as stage=baseline")
        changes[key] = value
    model, run = options.model, options.of_run
    tags = find_model(chosen_fit(state, run), model).tags if model else state.tags
    if changes:
        event = tags_event(state, changes, model=model, run=run, by=author())
        kvs.append(options.experiment, event)
        tags = changed_tags(tags, event.tags) or {}
    if options.json:
        print(json.dumps(tags, indent=1, ensure_ascii=False))
    elif not tags:
        print(f"{model or options.experiment} has no tags: set one with KEY=VALUE.")
    else:
        for key, value in tags.items():
            print(f"{key}={value}")
    return 0
