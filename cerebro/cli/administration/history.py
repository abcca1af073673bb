"""``cerebro forget history``: remove the stored times and memory of earlier runs' sub-epochs.

They are the rows of `kvs_api.store.history`, the controller's basis for estimates of new runs. Logs of experiments keep
their measurements.
"""

from __future__ import annotations

import argparse
from typing import Any

from cerebro.cli.administration.scale import cluster_client
from cerebro.cli.text import counted


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``forget`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """
    parser = commands.add_parser(
        "forget", parents=[common], help="remove the measured times and memory of earlier runs' sub-epochs"
    )
    parser.add_argument("what", choices=["history"], help="measurements of sub-epochs of all runs")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    forgotten = cluster_client(options.home).forget_history()
    print(
        f"{counted(forgotten, 'row')} of the history were removed. New sub-epochs are measured again, older ones are "
        "not restored."
    )
    return 0
