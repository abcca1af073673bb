"""``cerebro ranking EXPERIMENT [RUN]``: print the models of a test run with intervals and shared ranks."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cerebro.cli import text


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``ranking`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """
    ranking = commands.add_parser(
        "ranking",
        parents=[common],
        help="rank tested models, with shared ranks for models that the rows cannot separate",
    )
    ranking.add_argument("experiment", metavar="EXPERIMENT")
    ranking.add_argument(
        "of_run",
        metavar="RUN",
        nargs="?",
        default="",
        help="such as test-1 (default: the newest test run with values per row)",
    )
    ranking.add_argument(
        "--metric", default="", help="metric with values per row (default: that of the fit run)"
    )
    ranking.add_argument("--mode", choices=("max", "min"), default="", help="max if higher is better, or min")
    ranking.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        help="probability that no model is wrongly called better (default: 0.95)",
    )
    ranking.add_argument("--json", action="store_true", help="print JSON")
    ranking.set_defaults(run=_ranking)


def _ranking(options: argparse.Namespace) -> int:
    from cerebro.client.connection import connect
    from cerebro.client.session import Session
    from cerebro.figures.ranking.models import rank_models
    from cerebro.figures.ranking.results import chosen_test, ranking_request

    connection = connect(home=options.home, start=False)
    state = Session(connection, connection.kvs.experiment(options.experiment)).state()
    run = chosen_test(state, options.of_run)
    request = ranking_request(
        state, run, metric=options.metric, mode=options.mode, confidence=options.confidence
    )
    found = rank_models(request, lambda name: connection.files.shared(name).open("rb"))
    if options.json:
        sys.stdout.write(found.model_dump_json(indent=2) + "\n")
        return 0
    heads, *cells = found.cells()
    for line in (
        *text.table([head.upper() for head in heads], cells),
        *(f"{sentence}." for sentence in found.sentences()),
    ):
        sys.stdout.write(f"{line}\n")
    return 0
