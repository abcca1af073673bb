"""``cerebro forget history``: what sub-epochs have shown over all runs is removed."""

from __future__ import annotations

import argparse
from typing import Any

from cerebro.cli.scale import cluster_client
from cerebro.cli.text import counted


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add it to the subcommands of ``cerebro``.

    Args:
        common: parser of the options that all commands on a local cluster have.
    """
    parser = commands.add_parser(
        "forget", parents=[common], help="remove what earlier runs have shown of how long sub-epochs take"
    )
    parser.add_argument("what", choices=["history"], help="all that is known of sub-epochs over all runs")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    forgotten = cluster_client(options.home).forget_history()
    print(
        f"{counted(forgotten, 'row')} of the history forgotten: what runs show from now on is kept again, and of runs "
        "of before nothing"
    )
    return 0
