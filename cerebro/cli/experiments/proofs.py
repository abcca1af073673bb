"""``cerebro replay`` and ``cerebro selftest``: arguments only.

`cerebro.client.replay` trains models again in this process, in the logged order, and compares.
`cerebro.client.selftest` runs a tiny experiment on the cluster.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from cerebro.cli.parsing import amount


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``replay`` and ``selftest`` to the subcommands."""
    replay = commands.add_parser(
        "replay", parents=[common], help="repeat training in one process, in the logged order"
    )
    replay.add_argument("experiment", metavar="EXPERIMENT")
    replay.add_argument("--run", dest="fit", metavar="R", help="a fit run (default: the newest finished one)")
    replay.add_argument("--model", metavar="M", help="one model (default: all)")
    replay.add_argument(
        "--scratch",
        metavar="FOLDER",
        help="folder for training data that this machine lacks; removed afterwards "
        "(default: on the shard volume, or in the user's cache folder)",
    )
    replay.add_argument(
        "--tolerance",
        type=amount,
        default=0.0,
        metavar="T",
        help="train all sub-epochs on one device, and accept states that differ by this share, such as 1e-4 "
        "(default: each sub-epoch by its parallel plan, equal to the bit)",
    )
    replay.set_defaults(run=_replay)

    selftest = commands.add_parser("selftest", parents=[common], help="test the cluster on a tiny data set")
    selftest.add_argument(
        "--timeout", type=amount, default=600.0, metavar="S", help="seconds in all (default: 600)"
    )
    selftest.set_defaults(run=_selftest)


def _replay(options: argparse.Namespace) -> int:
    # By name, so that the command line does not import torch.
    replay = importlib.import_module("cerebro.client.replay")
    return int(
        replay.main(
            options.experiment,
            run=options.fit,
            model=options.model,
            home=options.home,
            scratch=options.scratch,
            tolerance=options.tolerance,
        )
        or 0
    )


def _selftest(options: argparse.Namespace) -> int:
    # By name, as above.
    trial = importlib.import_module("cerebro.client.selftest.trial")
    return int(trial.run(options.home, timeout_s=options.timeout))
